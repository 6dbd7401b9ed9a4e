#!/bin/bash -p
# One node's command of digits-1, started by srun.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
identify_slurm_task 4448
export -n RANK WORLD_SIZE LOCAL_RANK
RANK=$task WORLD_SIZE=$tasks
export NODE_RANK LOCAL_WORLD_SIZE=8 OMP_NUM_THREADS=8
export_node 2 8 8 887be2b4ed78 slurm_hosts
record_rank
check_world 2 nodes srun
start_scan node 2 8 slurm_hosts
pass_signals_to_program
use_home 887be2b4ed78 34188dc9f49596e0
start_watch 1 0
pass_variables APPTAINERENV_ NODE_RANK MASTER_ADDR MASTER_PORT PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE \
  PET_MASTER_ADDR PET_MASTER_PORT PET_RDZV_ENDPOINT PET_RDZV_ID CTRAIN_NODES CTRAIN_HOSTS CTRAIN_RANKS_PER_NODE \
  CTRAIN_GPUS_PER_NODE OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM ROCR_VISIBLE_DEVICES \
  HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK SLURM_JOB_ID SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NODEID \
  SLURM_GPUS_ON_NODE
export APPTAINERENV_BASH_ENV='' APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1 APPTAINERENV_ENV=''
export APPTAINERENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONUNBUFFERED=1
export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/home/ctrain/.cache/torchinductor
export APPTAINERENV_TORCH_EXTENSIONS_DIR=/home/ctrain/.cache/torch_extensions
export APPTAINERENV_TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/scratch/kim/ctrain/digits-1/collectives/rank
export APPTAINERENV_TORCH_NCCL_DUMP_ON_TIMEOUT=1 APPTAINERENV_TORCH_NCCL_TRACE_BUFFER_SIZE=2000
launch=(/usr/bin/apptainer --quiet exec --cleanenv --no-mount cwd --pwd /opt/ctrain/examples/digits --no-eval --nv)
launch+=(--bind /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw)
enter /home/ctrain /apps/ctrain/pytorch_24.12-hd-py3-r3.sif
[ "$ct_stage" != preflight ] || prove_world /bin/sh "$run/inside.sh" "$RANK" "$NODE_RANK" driver 525 run /bin/sh /scratch/kim/ctrain/digits-1/preflight.sh \
  "$(header_of "$image")" yes nodes 2 nccl 0 8 ranks python -m torch.distributed.run --nnodes=2 --nproc_per_node=8 --rdzv_id=887be2b4ed78 "--node_rank=$NODE_RANK" "--master_addr=$MASTER_ADDR" "--master_port=$MASTER_PORT" --no_python python3 /scratch/kim/ctrain/digits-1/inside/world.py env 16 nccl 0 ''
run_rank "${launch[@]}" /bin/sh "$run/inside.sh" "$RANK" "$NODE_RANK" driver 525 marker k1 need bash run bash run.sh
