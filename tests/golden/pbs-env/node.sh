#!/bin/bash -p
# The tasks of one node of digits-1, started by pbs_tmrsh. With a signal as its only argument: passes it on to them.
[ ! -r /scratch/kim/ctrain/digits-1/.environment ] || . /scratch/kim/ctrain/digits-1/.environment
run=/scratch/kim/ctrain/digits-1
if [ "$#" = 1 ]; then
  for pid in $(LC_ALL=C grep -slzxF "$run/node.sh" /proc/[0-9]*/cmdline); do
    pid=${pid%/cmdline} pid=${pid#/proc/}
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != bash ] || [ "$pid" = "$$" ] || kill -s "$1" "$pid"
  done 2>/dev/null
  exit 0
fi
export CTRAIN_RUN_DIR=$run PATH=$1 MASTER_ADDR=$2 MASTER_PORT=$3 NODE_RANK=$4
count=$5
shift 5
exec >>"$run/logs/node$NODE_RANK.out" 2>&1
signal_children() { # SIGNAL PID; fails if it has none
  local kids=()
  read -r -a kids <"/proc/$2/task/$2/children"
  ((${#kids[@]})) && kill -s "$1" "${kids[@]}"
} 2>/dev/null
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
stop() {
  [ -z "$killer" ] || return
  signal_tasks TERM
  (sleep 10 && kill_leftovers) &
  killer=$!
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
  # A trap that runs while `read` waits must not start processes: they would go on reading.
  trap 'signals+=(TERM); echo >&8' TERM
  trap 'signals+=(USR1); echo >&8' USR1
  trap 'signals+=(USR2); echo >&8' USR2
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
    [ "$ended" = 0 ] || { [ "$code" != 0 ] || code=$ended; [ "${keep_going-}" ] || stop; }
    handle_signals
  done
  [ -z "$killer" ] || kill "$killer" 2>/dev/null
  kill_leftovers
  return "$code"
}
tasks() { # FIRST COUNT SCRIPT [ARGUMENT]...: apart, so that signals reach it and not the tasks
  (start_tasks "$@")
}
handle_signals() {
  local name taken=("${signals[@]}")
  signals=()
  for name in "${taken[@]}"; do
    if [ "$name" = TERM ]; then stop; else signal_tasks "$name"; fi
  done
}
marked() { # not what job.sh runs on this node
  LC_ALL=C grep -slzxF "CTRAIN_RUN_DIR=$run" /proc/[0-9]*/environ | xargs -r grep -slzxF "NODE_RANK=$NODE_RANK"
}
start_tasks "$((NODE_RANK * count))" "$count" "$@"
