#!/bin/bash -p
# One task of digits-1, started by srun: torchrun starts its ranks.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
identify_slurm_task 4448
export NODE_RANK LOCAL_WORLD_SIZE=8 OMP_NUM_THREADS=8
start_scan torchrun 2 8 slurm_hosts
pass_signals_to_program pass_term warn_ranks
use_home 887be2b4ed78 34188dc9f49596e0
start_watch 8 0
pass_variables APPTAINERENV_ "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE \
  NODE_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM \
  ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK
export APPTAINERENV_BASH_ENV='' APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1 APPTAINERENV_ENV=''
export APPTAINERENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONUNBUFFERED=1
export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/home/ctrain/.cache/torchinductor
export APPTAINERENV_TORCH_EXTENSIONS_DIR=/home/ctrain/.cache/torch_extensions
export APPTAINERENV_TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/scratch/kim/ctrain/digits-1/collectives/rank
export APPTAINERENV_TORCH_NCCL_DUMP_ON_TIMEOUT=1 APPTAINERENV_TORCH_NCCL_TRACE_BUFFER_SIZE=2000
launch=(/usr/bin/apptainer --quiet exec --cleanenv --no-mount cwd --pwd /opt/ctrain/examples/digits --no-eval --nv)
launch+=(--bind /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw)
enter /home/ctrain /apps/ctrain/pytorch_24.12-hd-py3-r3.sif
run_step "${launch[@]}" python -m torch.distributed.run --nnodes=2 --nproc_per_node=8 --rdzv_id=887be2b4ed78 "--node_rank=$NODE_RANK" "--master_addr=$MASTER_ADDR" "--master_port=$MASTER_PORT" --no_python /bin/bash -p "$run/rank.sh"
leave
exit "$code"
