#!/bin/bash
# Hangs: watch.py beside the ranks of each node, judge.py beside the step of job.sh (docs/hangs.md). Both start some
# seconds later, with bash alone until then: runs that end at once have neither.
# shellcheck disable=SC2154  # variables of other parts, and of the scripts

CT_WATCH_AFTER=5 # seconds
CT_HUNG_GRACE=30 # seconds, from SIGTERM to what ends the step for good
ct_watch='' ct_outlived='' ct_judge=()
ct_hung='' ct_forcing='' # of the step: whether the judge has ended it
start_watch() { # RANKS SECONDS: of the node's ranks, by its first task, once it has its home
  [ "$ct_stage" != preflight ] || return 0
  prepare_stacks
  [ "$local_task" = 0 ] || return 0
  run_later watch.py "$run" "$NODE_RANK" "$((NODE_RANK * $1))" "$1" "$ct_home/.heartbeat" "$2" &
  ct_watch=$!
  disown "$ct_watch" # bash would tell of its end
  echo "$ct_watch" >"$ct_home/.startup/.watch"
}
prepare_stacks() { # a copy on the node's disk, from which thousands of Pythons may start; inside.sh puts it on PYTHONPATH
  local folder=$ct_home/.startup
  [ ! -e "$folder/sitecustomize.py" ] || return 0
  mkdir -p "$folder" && cp "$run/stacks.py" "$folder/.$BASHPID" && mv "$folder/.$BASHPID" "$folder/sitecustomize.py"
} 2>/dev/null
run_later() { # PROGRAM ARGUMENT...
  local python
  exec </dev/null >/dev/null 2>&1 8<&- # before the process below, which may end late, and would hold the home
  exec 4<> <(:)                        # nobody writes to it
  read -r -t "$CT_WATCH_AFTER" -u 4
  find_python
  [ -z "$python" ] || exec nice -n 19 "$python" -I -S "$run/$1" "$$" "${@:2}" # after the program, where cores are few
}
end_watch() { # unless others of the node may go on: the last to leave ends it (leave_home)
  if [ -z "$ct_outlived" ] || [ "$code" != 0 ] || [ "$ending" ] || ((SECONDS <= CT_WATCH_AFTER)); then
    end_beside "$ct_watch"
  fi
}
end_beside() { # PID: of a process that this script has started; it may have ended long ago, and another have its number
  local parent=''
  [ -n "$1" ] || return 0
  read -r _ _ _ parent _ <"/proc/$1/stat"
  [ "$parent" = "$$" ] || return 0
  disown "$1"
  kill_at_once "$1"
} 2>/dev/null
end_watch_of_node() { # a process that a step leaves behind costs a second: so long Slurm waits before it looks again
  local pid=''
  read -r pid <"$ct_home/.startup/.watch"
  ! grep -qzxF -e "$run/watch.py" -e "$0" "/proc/$pid/cmdline" || kill_at_once "$pid" # $0: it still looks for a Python
} 2>/dev/null
kill_at_once() { # PID
  local pause
  kill -KILL "$1" # it may have inherited that SIGTERM is ignored
  for pause in 0 0.01 0.02 0.05 0.1 0.2 0.5 1; do
    sleep "$pause"
    kill -0 "$1" || return 0 # until then it may hold the home
  done
} 2>/dev/null
run_judged_step() { # COMMAND...: that runs all tasks to their end
  local judge=''
  ct_hung='' ct_forcing=''
  if [ "${ct_judge-}" ]; then
    mkdir -p "$run/watch" "$run/stacks"
    trap give_up URG
    run_later judge.py "$run" "${ct_judge[@]}" "${ct_notify[@]}" &
    judge=$!
  fi
  run_step "$@"
  end_beside "$judge"
  end_beside "$ct_forcing"
  [ -z "$ct_hung" ] || [ "$code" = 0 ] || code=84
}
give_up() { # ends a step that hangs
  [ -z "$ending" ] && [ "$child" ] || return
  ct_hung=yes
  "$ct_end_command"
  force_step_to_end &
  ct_forcing=$!
}
force_step_to_end() { # where its tasks do not answer SIGTERM: srun kills them when it gets one
  exec <> <(:) >/dev/null 2>&1 # nobody writes to it
  read -r -t "$CT_HUNG_GRACE"
  signal_step TERM
}
