#!/bin/bash
# Ranks that torchrun or mpirun starts inside a container, as rank.sh: neither passes on the signals that warn.
# shellcheck disable=SC2013,SC2034,SC2154  # paths in /proc are one word; variables of other parts

rank_scripts() { # prints the processes of rank.sh of this run on this node
  local pid
  for pid in $(LC_ALL=C grep -slzxF "$run/rank.sh" /proc/[0-9]*/cmdline); do
    pid=${pid%/cmdline} pid=${pid#/proc/}
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != bash ] || echo "$pid"
  done
}
warn_ranks() { # SIGNAL: to the programs of each of them
  local pid programs=() shells=() others=()
  for pid in $(rank_scripts); do find_programs "$pid"; done
  mapfile -t programs < <(printf '%s\n' "${programs[@]}" | sort -u) # below the script, and below its subshell
  kill -s "$1" "${programs[@]}"
} 2>/dev/null
# torchrun passes SIGTERM on and waits for half a minute. mpirun kills its ranks a second later, and likewise when the first
# of them fails (odls_base_sigkill_timeout of Open MPI 4.1): too soon to save a checkpoint. So SIGTERM goes past it.
end_ranks() {
  local pids
  read -r -d '' -a pids < <(rank_scripts)
  kill -TERM "${pids[@]}" 2>/dev/null || signal_step TERM # it has not started them yet
}
