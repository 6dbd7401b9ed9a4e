#!/bin/bash -p
# One rank of digits-1, started by srun.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
identify_slurm_task 4448
export RANK=$task WORLD_SIZE=$tasks LOCAL_RANK=$local_task NODE_RANK LOCAL_WORLD_SIZE=4 OMP_NUM_THREADS=8
export_open_mpi
record_rank
check_world 8 ranks srun
need_pmix
start_scan mpi 2 4 slurm_hosts
pass_signals_to_program
use_home 887be2b4ed78 34188dc9f49596e0
start_watch 4 0
pass_variables APPTAINERENV_ "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE \
  NODE_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM \
  ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE \
  OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
export APPTAINERENV_BASH_ENV='' APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1 APPTAINERENV_ENV=''
export APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE=0 APPTAINERENV_OMPI_MCA_btl_vader_single_copy_mechanism=none
export APPTAINERENV_OMPI_MCA_smsc='^cma' APPTAINERENV_PMIX_MCA_gds=hash APPTAINERENV_PMIX_MCA_psec=native
export APPTAINERENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONUNBUFFERED=1
export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/home/ctrain/.cache/torchinductor
export APPTAINERENV_TORCH_EXTENSIONS_DIR=/home/ctrain/.cache/torch_extensions
export APPTAINERENV_TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/scratch/kim/ctrain/digits-1/collectives/rank
export APPTAINERENV_TORCH_NCCL_DUMP_ON_TIMEOUT=1 APPTAINERENV_TORCH_NCCL_TRACE_BUFFER_SIZE=2000
export APPTAINERENV_UCX_POSIX_USE_PROC_LINK=n APPTAINERENV_UCX_TLS='^cma'
launch=(/usr/bin/apptainer --quiet exec --cleanenv --no-mount cwd --pwd /opt/ctrain/examples/digits --no-eval --nv)
launch+=(--bind /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw)
enter /home/ctrain /apps/ctrain/pytorch_24.12-hd-py3-r3.sif
run_rank "${launch[@]}" /bin/sh "$run/inside.sh" "$RANK" "$NODE_RANK" driver 525 marker k1 need python run python train.py
