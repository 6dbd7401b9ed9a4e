#!/bin/bash
# Tasks as processes of this machine. Each is a process group (set -m), so that its end shows even if what would report it
# was killed. Processes that are left after the grace period, or at the end, are known by the environment that all of the
# run have. How tasks end comes through a pipe: `wait -n` misses those that end while the shell does something else. A `read`
# with a time limit can take a line and fail, so that one waits at another pipe, where nothing is lost.
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

ct_grace=10 ct_asked_grace=10 # seconds between SIGTERM and SIGKILL, where a task has failed, and where somebody has ended the run
ct_poll=1 ct_keep_going=''
CT_KILL_TRIES=50 # a tenth of a second each

identify_task() { # TASKS TASKS_PER_NODE: of a group, which stands for a node, all have the same NODE_RANK
  task=${CTRAIN_TASK:?} tasks=$1
  local_task=$((task % $2)) NODE_RANK=$((task / $2))
}
set_rendezvous() { # HOST SALT: of a run whose first task is on this machine. The port is tried: another run may have it
  ct_address=$1 ct_salt=$2
  MASTER_PORT=$((61000 + ($$ + $2) % 4536))
  while (exec 7<>"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null; do
    MASTER_PORT=$((61000 + (MASTER_PORT - 60999) % 4536))
  done
  export MASTER_ADDR=$1 MASTER_PORT
}
marked() { # the processes of the run on this machine
  LC_ALL=C grep -slzxF "CTRAIN_RUN_DIR=$run" /proc/[0-9]*/environ
}
kill_leftovers() { # until none is left: some start others meanwhile. All are stopped first: else the script of a rank whose
  # program is killed before it would record that this has ended by itself.
  local pid left=yes tries=0 pids
  while [ "$left" ] && ((++tries <= CT_KILL_TRIES)); do
    left='' pids=()
    for pid in $(marked); do
      pid=${pid%/environ} pid=${pid#/proc/}
      case $pid in "$$" | "$starter" | "$BASHPID") ;; *) pids+=("$pid") ;; esac
    done
    [ "${#pids[@]}" = 0 ] || kill -STOP "${pids[@]}" 2>/dev/null
    for pid in "${pids[@]}"; do ! kill -KILL "$pid" 2>/dev/null || left=yes; done
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
  exec 5>&2 2>/dev/null # without bash's own message about a task that was killed
  CTRAIN_TASK=$1 /bin/bash -p "$run/$2" "${@:3}" 2>&5 5>&- 8>&- 9>&-
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
    read -t 0 -u 9 || read -r -t "$ct_poll" -u 8
    if read -t 0 -u 9; then
      read -r -u 9 ended
      ((left--))
    elif ! any_task && ! read -t 0 -u 9; then
      left=0 ended=137 # what would report was killed
    fi
    [ "$ended" = 0 ] || { [ "$code" != 0 ] || code=$ended; [ "$ct_keep_going" ] || stop "$ct_grace"; }
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
handle_signals() { # each is taken in one command: a trap that runs between two adds others
  local name
  while ((${#signals[@]})); do
    name=${signals[0]} signals=("${signals[@]:1}")
    if [ "$name" = TERM ]; then stop "$ct_asked_grace"; else signal_tasks "$name"; fi
  done
}
