#!/bin/bash -p
#SBATCH --job-name=digits-1
#SBATCH --partition=amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks=16
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:8
#SBATCH --time=01:00:00
#SBATCH --chdir=/scratch/kim/ctrain/digits-1
#SBATCH --output=/scratch/kim/ctrain/digits-1/logs/job.log
#SBATCH --no-requeue
#SBATCH --comment=pytorch
#SBATCH '--account=ai lab'
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
export CTRAIN_RUN_DIR=$run # marks every process of the run
node=$(uname -n)
event() { # STAGE WHAT [MORE]
  local now=${EPOCHREALTIME/[^0-9]/.} # some locales write a comma
  now=${now:-$(date +%s.%N)}
  printf '{"time": %s, "stage": "%s", "node": "%s", "what": "%s"%s}\n' \
    "${now:-null}" "$1" "${node%%.*}" "$2" "${3:+, $3}" >>"$run/events.jsonl"
}
event before started "\"job\": \"$SLURM_JOB_ID\""
[ -z "${CTRAIN_LOCK_FD:-}" ] || exec {CTRAIN_LOCK_FD}>&- # the submission is over
# Tells the store. Where a node cannot write to it, what was recorded at the submission holds.
touch --no-create '--date=+60 minutes' /apps/ctrain/in-use/pytorch_24.12-hd-py3-r3.sif@887be2b4ed78 2>/dev/null
# Signals go on to the tasks, and this script outlives them.
child='' ending=''
pass_on() {
  signalled=yes
  [ "$1" != TERM ] || ending=yes
  [ -z "$child" ] || kill -s "$1" "$child" 2>/dev/null
}
trap 'pass_on TERM' TERM INT
trap 'pass_on USR1' USR1
trap 'pass_on USR2' USR2

wait_for() { # PROCESS: sets code; a signal ends `wait` early
  child=$1 signalled=yes
  [ -z "$ending" ] || kill "$child" 2>/dev/null # a signal that came meanwhile
  while [ "$signalled" ]; do
    signalled=
    wait "$child"
    code=$?
  done
}
finish() {
  rm -f /apps/ctrain/in-use/pytorch_24.12-hd-py3-r3.sif@887be2b4ed78 2>/dev/null
  event after ended "\"code\": $code"
  exit "$code"
}

event run started
[ -z "$ending" ] || { code=143 && finish; } # a signal that came before: no task needs to start
srun --job-name=digits-1 --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=8 --distribution=block:block --cpu-bind=cores --mpi=pmix --kill-on-bad-exit=1 --quit-on-interrupt /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1 &
wait_for $!
finish
