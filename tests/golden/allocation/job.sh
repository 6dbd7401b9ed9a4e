#!/bin/bash -p
#SBATCH --job-name=digits-1
#SBATCH --partition=amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:4
#SBATCH --time=UNLIMITED
#SBATCH --chdir=/scratch/kim/ctrain/digits-1
#SBATCH --output=/scratch/kim/ctrain/digits-1/logs/job.log
#SBATCH --no-requeue
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
event before started "\"job\": \"$(uname -n):$$:$(cut -d ' ' -f 22 /proc/$$/stat)\""
[ -z "${CTRAIN_LOCK_FD:-}" ] || exec {CTRAIN_LOCK_FD}>&- # the submission is over
unset SLURM_CPU_BIND SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
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
  event after ended "\"code\": $code"
  exit "$code"
}

event run started
[ -z "$ending" ] || { code=143 && finish; } # a signal that came before: no task needs to start
srun --job-name=digits-1 --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8 --gres=gpu:4 --distribution=block:block --cpu-bind=cores --mpi=pmix --kill-on-bad-exit=1 --quit-on-interrupt /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1 &
wait_for $!
finish
