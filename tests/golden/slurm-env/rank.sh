#!/bin/bash
# One rank of digits-1, started by srun: finds out who it is, runs the program, and records how it ended.
run=/scratch/kim/ctrain/digits-1

export RANK=${SLURM_PROCID:?} WORLD_SIZE=${SLURM_NTASKS:?} LOCAL_RANK=${SLURM_LOCALID:?} NODE_RANK=${SLURM_NODEID:?}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export LOCAL_WORLD_SIZE=8
host=$(uname -n) # not HOSTNAME: srun hands down that of the first node
record="$run/ranks/$RANK"
exec >"$run/logs/rank$RANK.log" 2>&1
echo "start $(date +%s.%N) ${host%%.*}" >"$record"
end() {
  echo "end $(date +%s.%N) $1" >>"$record"
  exit "$1"
}
fail() {
  echo "ctrain: $1" >&2
  end 72
}

# Ranks that each believe to be alone train N wrong models without an error: stop instead.
[ "$WORLD_SIZE" = 8 ] || fail "srun started $WORLD_SIZE ranks, the plan has 8"

for name in "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" "${!MASTER_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM; do
  [ -z "${!name+set}" ] || export "APPTAINERENV_$name=${!name}"
done
export APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1
export APPTAINERENV_PYTHONNOUSERSITE=1
export APPTAINERENV_PYTHONUNBUFFERED=1
launch=(
  /usr/bin/apptainer
  --quiet
  exec
  --cleanenv
  --no-mount
  cwd
  --pwd
  '/home/kim/my job'
  --no-eval
  --nv
  --bind
  '/home/kim/my job:/home/kim/my job:rw'
  --bind
  /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw
  --overlay
  '/home/kim/my layer.sqsh:ro'
)
# An empty home of its own on the node's disk: caches land there, and nothing of ~ comes in.
home=$(mktemp -d "${TMPDIR:-/tmp}/ctrain-home.XXXXXX") || fail "no temporary folder on $host"
trap 'rm -rf "$home"' EXIT
launch+=(--home "$home:/home/ctrain" /apps/ctrain/pytorch_24.12-hd-py3-r3.sif /bin/sh -c '[ "$(cat /.singularity.d/ctrain-layer 2>/dev/null)" = "$0" ] || { echo '"'"'ctrain: this engine ignores the layers of the image (is overlay off in its configuration?)'"'"' >&2; exit 73; }; [ -e /.singularity.d/ctrain-user-layers/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.json ] || { echo '"'"'ctrain: layer /home/kim/my layer.sqsh is not the one of the plan: was it built again since?'"'"' >&2; exit 73; }; exec "$@"' k1 python train.py)

trap : TERM # the program gets the signal too; wait for it, so that its exit code is still recorded
"${launch[@]}"
end $?
