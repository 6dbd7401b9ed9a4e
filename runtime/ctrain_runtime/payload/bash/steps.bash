#!/bin/bash
# run_step COMMAND... runs a command and sets `code`. The script outlives signals, and passes them on (signals.bash).
# shellcheck disable=SC2034  # other parts read these
# shellcheck disable=SC2154  # other parts set them

child='' ending='' passed='' begun='' ct_ends=0
ct_ignores_warnings='' ct_is_interactive='' ct_has_witness='' # how a script runs its steps: signals.bash sets it
signal_children() { # SIGNAL PID; fails if it has none
  local kids=()
  read -r -a kids <"/proc/$2/task/$2/children"
  ((${#kids[@]})) && kill -s "$1" "${kids[@]}"
} 2>/dev/null
is_over() { # whether what was started has ended
  [ "$begun" ] && ! kill -0 "$child" 2>/dev/null
}
signal_step() { # SIGNAL: to what the step has started, or is about to start
  local tries=0
  [ -n "$child" ] || return
  passed=$1
  until signal_children "$1" "$child" || ((++tries > 50)); do sleep 0.02; done
}
# The exit code comes through a pipe from a subshell that waits in the foreground: `wait`, once a signal has ended it
# early, loses the status of a child that ends in that moment (seen with bash 5.2).
report_step() { # COMMAND...
  if [ "$ct_is_interactive" ]; then trap : INT QUIT HUP; else trap - INT; fi # Ctrl-C is the command's
  trap : TERM
  if [ "$ct_ignores_warnings" ]; then trap '' USR1 USR2; else trap : USR1 USR2; fi
  exec 5>&2 2>/dev/null # without bash's own message about a command that was killed
  echo 137 >&6          # until it is known: what reports may be killed itself
  "$@" 2>&5 5>&- 6>&-
  echo "$?" >&6
}
run_step() { # COMMAND...
  code=143
  [ -z "$ending" ] || return # a signal that came before
  [ -z "$ct_has_witness" ] || start_witness
  if [ "$ct_is_interactive" ]; then # bash would give a background process no standard input
    (report_step "$@") <&0 &
  else
    (report_step "$@") &
  fi
  child=$! begun=yes
  if [ "$ct_is_interactive" ]; then set -- HUP; else set -- TERM; fi # a `local` would be in the environment of the program
  [ -z "$ending" ] || [ "$passed" = "$1" ] || signal_step "$1"
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done 2>/dev/null # a signal ends `wait` early
  while read -t 0 -u 6 && read -r -u 6 code; do :; done                  # without any, a signal to all came before the command
  if [ "$ct_has_witness" ]; then
    end_witness
    wait_for_survivors
  fi
  child=''
}
