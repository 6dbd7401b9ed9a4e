#!/bin/bash -p
#PBS -N digits-1
#PBS -q amd_a100nv_8
#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=64gb:gpu_type=a100
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -j oe
#PBS -o /scratch/kim/ctrain/digits-1/logs/scheduler.log
#PBS -r n
#PBS -A 'ai lab'
#PBS -Wdepend=afterok:41.pbs
#PBS -l filesystems=home:eagle
trap 'rm -f /scratch/kim/ctrain/digits-1/.environment' EXIT
[ ! -r /scratch/kim/ctrain/digits-1/.environment ] || . /scratch/kim/ctrain/digits-1/.environment
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
event before started "\"job\": \"$PBS_JOBID\""
[ -z "${CTRAIN_LOCK_FD:-}" ] || exec {CTRAIN_LOCK_FD}>&- # the submission is over
cd "$run" && exec >>"$run/logs/job.log" 2>&1
# Tells the store. Where a node cannot write to it, what was recorded at the submission holds.
touch --no-create '--date=+60 minutes' /apps/ctrain/in-use/pytorch_24.12-hd-py3-r3.sif@887be2b4ed78 2>/dev/null
mapfile -t hosts < <(awk '!seen[$0]++' "${PBS_NODEFILE:?}")
hosts=("${hosts[@]::2}")
printf '%s\n' "${hosts[@]}" >"$run/hosts"
check_hosts() {
  [ "${#hosts[@]}" != 2 ] || return 0
  echo "ctrain: PBS_NODEFILE has ${#hosts[@]} hosts, but the plan has 2" >&2
  return 72
}
MASTER_PORT=$((61000 + ($$ + 4448) % 4536))
while (exec 7<>"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((61000 + (MASTER_PORT - 60999) % 4536))
done
export MASTER_ADDR="${hosts[0]}" MASTER_PORT
marked() { # the processes of the run on this machine
  LC_ALL=C grep -slzxF "CTRAIN_RUN_DIR=$run" /proc/[0-9]*/environ
}
kill_leftovers() { # until none is left: some start others meanwhile
  local pid left=yes tries=0
  while [ "$left" ] && ((++tries <= 50)); do
    left=
    for pid in $(marked); do
      pid=${pid%/environ} pid=${pid#/proc/}
      case $pid in "$$" | "$starter" | "$BASHPID") ;; *) kill -KILL "$pid" 2>/dev/null && left=yes ;; esac
    done
    [ -z "$left" ] || sleep 0.1
  done
}
signal_tasks() { # SIGNAL: to the task alone, which passes it on to the program, past the engine's own processes
  local group
  for group in "${groups[@]}"; do signal_children "$1" "$group"; done
}
any_task() {
  local group
  for group in "${groups[@]}"; do ! kill -0 -- "-$group" 2>/dev/null || return 0; done
  return 1
}
stop() { # SECONDS: that they have
  [ -z "$killer" ] || return
  signal_tasks TERM
  (sleep "$1" && kill_leftovers) &
  killer=$!
  disown "$killer" # else some versions of bash report that it was killed
}
run_task() { # TASK SCRIPT [ARGUMENT]...: the signal is for the task; wait for it, to report how it ended
  trap : TERM USR1 USR2
  CTRAIN_TASK=$1 /bin/bash -p "$run/$2" "${@:3}" 8>&- 9>&-
  report "$?"
}
report() { # CODE
  echo "$1" >&9
  echo >&8
}
start_tasks() { # FIRST COUNT SCRIPT [ARGUMENT]...: returns the exit code of the task that failed first, which ends all
  local task ended left=$2 code=0 groups=() killer='' signals=() starter=$BASHPID
  exec 8<> <(:) 9<> <(:)
  catch_signals
  set -m
  for ((task = $1; task < $1 + $2; task++)); do
    run_task "$task" "${@:3}" &
    groups+=($!)
  done
  set +m
  while ((left)); do
    ended=0
    read -t 0 -u 9 || read -r -t 1 -u 8
    if read -t 0 -u 9; then
      read -r -u 9 ended
      ((left--))
    elif ! any_task && ! read -t 0 -u 9; then
      left=0 ended=137 # what would report was killed
    fi
    [ "$ended" = 0 ] || { [ "$code" != 0 ] || code=$ended; [ "${keep_going-}" ] || stop 15; }
    look_for_signals
    handle_signals
  done
  [ -z "$killer" ] || kill "$killer" 2>/dev/null
  kill_leftovers
  return "$code"
}
tasks() { # FIRST COUNT SCRIPT [ARGUMENT]...: apart, so that signals reach it and not the tasks
  (start_tasks "$@")
}
catch_signals() { # a trap that runs while `read` waits must not start processes: they would go on reading
  trap 'signals+=(TERM); echo >&8' TERM
  trap 'signals+=(USR1); echo >&8' USR1
  trap 'signals+=(USR2); echo >&8' USR2
}
look_for_signals() { # that come another way
  :
}
handle_signals() {
  local name taken=("${signals[@]}")
  signals=()
  for name in "${taken[@]}"; do
    if [ "$name" = TERM ]; then stop 15; else signal_tasks "$name"; fi
  done
}
# PBS signals the sessions of a job's tasks, every process in them, but only on its first host; and the demux of the job
# dies of it, so that TM starts nothing more. So what reaches job.sh becomes a file, and each node lists the directory:
# no file is opened, and NFS, which caches attributes and missing names, revalidates a directory that is opened.
catch_signals() { # not directly: on the first host each would come twice
  trap : TERM USR1 USR2
}
last_signal=0
signals_of_job() {
  local path
  for path in "$run/signals/$step."*; do # STEP.NUMBER.SIGNAL, in order
    [[ ${path##*/} =~ ^[0-9]+\.([1-9][0-9]*)\.(TERM|USR1|USR2)$ ]] || continue
    ((BASH_REMATCH[1] > last_signal)) || continue
    last_signal=${BASH_REMATCH[1]}
    signals+=("${BASH_REMATCH[2]}")
  done
}
node_script=(/bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/node.sh /scratch/kim/ctrain/digits-1)
# TM passes on neither environment nor signals, and delivers output only with the job's: so each node has a file for it.
PATH=$PATH:$(sed -n 's/^PBS_EXEC=//p' "${PBS_CONF_FILE:-/etc/pbs.conf}" 2>/dev/null)/bin
mkdir -p "$run/signals"
run_task() { # NODE COUNT SCRIPT [ARGUMENT]...
  trap '' TERM USR1 USR2
  pbs_tmrsh "${hosts[$1]}" "${node_script[@]}" "$PATH" "$MASTER_ADDR" "$MASTER_PORT" "$step" "$@" 8>&- 9>&-
  report "$?"
}
signal_tasks() { # SIGNAL: those that job.sh has got are on their way; but the first failure ends all
  [ "$1" != TERM ] || : >"$run/signals/$step.9999.TERM"
}
look_for_signals() {
  signals_of_job
}
run_on_nodes() { # COUNT SCRIPT [ARGUMENT]...: runs a script COUNT times on each node
  local code log step=$BASHPID # as job.sh knows it, too
  check_hosts || return
  tasks 0 "${#hosts[@]}" "$@"
  code=$?
  for log in "$run/logs/"node*.out; do [ ! -e "$log" ] || { cat "$log" && rm "$log"; }; done
  return "$code"
}
run_all_on_nodes() { # a node that fails does not end the others
  keep_going=yes run_on_nodes "$@"
}
end_tasks() {
  signal_step TERM
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
sent=1000
signal_step() { # SIGNAL
  [ -n "$child" ] || return
  passed=$1
  ((++sent))
  : >"$run/signals/$child.$sent.$1"
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
  rm -f /apps/ctrain/in-use/pytorch_24.12-hd-py3-r3.sif@887be2b4ed78 2>/dev/null
  event after ended "\"code\": $code"
  exit "$code"
}

event stage-in started
(umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' 
' >"$run/.stage")
run_step run_all_on_nodes 1 stage.sh
rm -f "$run/.stage"
event stage-in ended "\"code\": $code" # a node without a copy reads the file where it is

event run started
run_step run_on_nodes 4 task.sh
finish
