#!/bin/bash -p
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
MASTER_PORT=$((61000 + ($$ + 4448) % 4536))
while (exec 7<>"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((61000 + (MASTER_PORT - 60999) % 4536))
done
export MASTER_ADDR=127.0.0.1 MASTER_PORT
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
    [ "$ended" = 0 ] || { [ "$code" != 0 ] || code=$ended; [ "${keep_going-}" ] || stop 10; }
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
    if [ "$name" = TERM ]; then stop 30; else signal_tasks "$name"; fi
  done
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

event run started
run_step tasks 0 1 task.sh
finish
