#!/bin/bash -p
# Part of job.sh: runs tasks on the hosts of a job by TM. Needs `run`, `hosts`, `node_script`, check_hosts, and
# local/script.py's tasks.
# shellcheck disable=SC2034,SC2154 # they are of the other parts

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
