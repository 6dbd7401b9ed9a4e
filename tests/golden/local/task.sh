#!/bin/bash -p
# One task of digits-1, started by ctrain: mpirun starts its ranks.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
identify_task 1 1
export NODE_RANK LOCAL_WORLD_SIZE=2 OMP_NUM_THREADS=1
start_scan mpirun 1 2
pass_signals_to_program end_ranks warn_ranks
use_home 887be2b4ed78 34188dc9f49596e0
start_watch 2 0
pass_variables APPTAINERENV_ RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT \
  OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES \
  GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK
export APPTAINERENV_BASH_ENV='' APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1 APPTAINERENV_ENV=''
export APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE=0 APPTAINERENV_OMPI_ALLOW_RUN_AS_ROOT=1
export APPTAINERENV_OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 APPTAINERENV_OMPI_MCA_btl_vader_single_copy_mechanism=none
export APPTAINERENV_OMPI_MCA_mpi_yield_when_idle=1 APPTAINERENV_OMPI_MCA_rmaps_base_oversubscribe=1
export APPTAINERENV_OMPI_MCA_smsc='^cma' APPTAINERENV_PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export APPTAINERENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONUNBUFFERED=1
export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/home/ctrain/.cache/torchinductor
export APPTAINERENV_TORCH_EXTENSIONS_DIR=/home/ctrain/.cache/torch_extensions APPTAINERENV_UCX_POSIX_USE_PROC_LINK=n
export APPTAINERENV_UCX_TLS='^cma'
launch=(/usr/bin/apptainer --quiet exec --cleanenv --no-mount cwd --pwd /opt/ctrain/examples/digits --no-eval --userns)
launch+=(--bind /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw)
enter /home/ctrain /apps/ctrain/pytorch-cpu_24.12-hd-py3-r3.sif
run_step "${launch[@]}" mpirun -np 2 --bind-to none /bin/bash -p "$run/rank.sh"
[ -z "$ending" ] || [ "$code" != 0 ] || code=143
leave
exit "$code"
