#!/bin/bash
# Run digits-1 on this machine: 1 x 2 ranks in one container.
run=/scratch/kim/ctrain/digits-1
exec >"$run/logs/job.log" 2>&1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((61000 + $$ % 4536)) OMP_NUM_THREADS=1
for name in "${!MASTER_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM; do
  [ -z "${!name+set}" ] || export "APPTAINERENV_$name=${!name}"
done
export APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1
export APPTAINERENV_OMPI_ALLOW_RUN_AS_ROOT=1
export APPTAINERENV_OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export APPTAINERENV_OMPI_MCA_btl_vader_single_copy_mechanism=none
export APPTAINERENV_OMPI_MCA_mpi_yield_when_idle=1
export APPTAINERENV_OMPI_MCA_rmaps_base_oversubscribe=1
export APPTAINERENV_PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export APPTAINERENV_PYTHONNOUSERSITE=1
export APPTAINERENV_PYTHONUNBUFFERED=1
home=$(mktemp -d "${TMPDIR:-/tmp}/ctrain-home.XXXXXX") || exit 75
trap 'rm -rf "$home"' EXIT
trap : TERM INT # mpirun gets the signal too and ends its ranks; wait for it

/usr/bin/apptainer --quiet exec --cleanenv --no-mount cwd --pwd /opt/ctrain/examples/digits --no-eval --userns --bind /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw --home "$home:/home/ctrain" /apps/ctrain/pytorch-cpu_24.12-hd-py3-r3.sif /bin/sh -c '[ "$(cat /.singularity.d/ctrain-layer 2>/dev/null)" = "$0" ] || { echo '"'"'ctrain: this engine ignores the layers of the image (is overlay off in its configuration?)'"'"' >&2; exit 73; }; exec "$@"' k1 mpirun -np 2 --bind-to none /bin/bash /scratch/kim/ctrain/digits-1/rank.sh
code=$?
echo "$code" >"$run/exit_code"
exit "$code"
