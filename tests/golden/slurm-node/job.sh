#!/bin/bash -p
#SBATCH --job-name=digits-1
#SBATCH --partition=amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gres=gpu:8
#SBATCH --time=01:00:00
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
event before started "\"job\": \"$SLURM_JOB_ID\""
[ -z "${CTRAIN_LOCK_FD:-}" ] || exec {CTRAIN_LOCK_FD}>&- # the submission is over
scontrol show hostnames "$SLURM_JOB_NODELIST" >"$run/hosts"
end_tasks() {
  local step name
  while IFS='|' read -r step name; do
    [ "$name" != digits-1 ] || scancel --signal=TERM "$step"
  done < <(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i|%j') 2>/dev/null
}
# Signals go on to the tasks, and this script outlives them.
exec 6<> <(:) # carries exit codes
child='' ending='' passed='' begun=''
signal_children() { # SIGNAL PID; fails if it has none
  local kids=()
  read -r -a kids <"/proc/$2/task/$2/children"
  ((${#kids[@]})) && kill -s "$1" "${kids[@]}"
} 2>/dev/null
is_over() { # whether what was started has ended
  [ "$begun" ] && ! kill -0 "$child" 2>/dev/null
}
signal_step() { # SIGNAL
  local tries=0
  [ -n "$child" ] || return
  passed=$1
  until signal_children "$1" "$child" || ((++tries > 50)); do sleep 0.02; done
}
run_step() { # COMMAND...
  code=143
  [ -z "$ending" ] || return # a signal that came before
  ( # without bash's own message about a command that was killed
    trap - INT; trap : TERM; trap : USR1 USR2; exec 5>&2 2>/dev/null
    echo 137 >&6 # until it is known: what reports may be killed itself
    "$@" 2>&5 5>&- 6>&-
    echo "$?" >&6
  ) &
  child=$! begun=yes
  [ -z "$ending" ] || [ "$passed" = TERM ] || signal_step TERM
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done 2>/dev/null # a signal ends `wait` early
  while read -t 0 -u 6 && read -r -u 6 code; do :; done # without any, a signal to all came before the command
  child=''
}
signalled() { # SIGNAL: evidence, unless what runs has ended by itself before
  is_over || event run signalled "\"signal\": \"$1\""
}
end_step() { # once, however often it is asked
  [ -z "$ending" ] || return
  signalled TERM
  ending=yes
  end_tasks
}
trap end_step TERM INT
trap 'signalled USR1; signal_step USR1' USR1
trap 'signalled USR2; signal_step USR2' USR2
finish() {
  event after ended "\"code\": $code"
  exit "$code"
}

event preflight started
run_step srun --job-name=digits-1 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 --distribution=block:block --cpu-bind=cores --mpi=none --kill-on-bad-exit=1 --quit-on-interrupt /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1 preflight
if [ "$code" != 0 ]; then
  [ -z "$ending" ] || finish # it was ended, and proves nothing
  grep -qs '^ctrain: preflight' "$run/logs/job.log" || echo "ctrain: preflight failed; messages are in logs/job.log" >&2
  event preflight failed
  code=80
  finish
else
  event preflight passed
fi

event run started
run_step srun --job-name=digits-1 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 --distribution=block:block --cpu-bind=cores --mpi=none --kill-on-bad-exit=1 --quit-on-interrupt /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1
finish
