#!/bin/bash
# Tasks on the hosts of a PBS job: by mpiexec, PALS's or Hydra's, or by TM.
# shellcheck disable=SC2034,SC2154,SC2317  # variables and functions of other parts, and of the scripts

identify_mpiexec_task() { # TASKS TASKS_PER_NODE
  task=${PMI_RANK:-${PMI_ID:-${PALS_RANKID:?}}} tasks=${PMI_SIZE:-$1}
  local_task=$((task % $2)) NODE_RANK=$((task / $2))
}
need_rendezvous() { # job.sh exports it
  export MASTER_ADDR=${MASTER_ADDR:?} MASTER_PORT=${MASTER_PORT:?}
}
add_pals_sockets() { # which only compute nodes have (ALCF's documentation of containers)
  [ ! -d /var/run/palsd ] || ct_binds+=(/var/run/palsd)
}
add_pmix_sockets() {
  [ -z "${PMIX_SERVER_TMPDIR:-}" ] || ct_binds+=("$PMIX_SERVER_TMPDIR")
}
list_hosts() { # COUNT: two runs may share an allocation: each has its hosts, by the names that TM and mpiexec know
  ct_host_count=$1
  mapfile -t hosts < <(awk '!seen[$0]++' "${PBS_NODEFILE:?}")
  hosts=("${hosts[@]::ct_host_count}")
  printf '%s\n' "${hosts[@]}" >"$run/hosts"
}
check_hosts() {
  [ "${#hosts[@]}" != "$ct_host_count" ] || return 0
  echo "ctrain: PBS_NODEFILE has ${#hosts[@]} hosts, but the plan has $ct_host_count" >&2
  return 72
}
run_mpiexec() {
  check_hosts && mpiexec "$@"
}

find_pbs() { # puts PBS's commands on PATH, if they are not
  PATH=$PATH:$(sed -n 's/^PBS_EXEC=//p' "${PBS_CONF_FILE:-/etc/pbs.conf}" 2>/dev/null)/bin
}

# PBS does not tell a job why it ends, and lets users requeue none (recorded: qrerun, Unauthorized Request). So a job submits
# itself once more, to start when this one has ended. Of a job with -r y that loses a node, PBS starts the same one again.
CT_LATE_SECONDS=30 # job.sh starts later than the time of its job
pbs_cause() { # sets cause
  ((!ct_limit || SECONDS + CT_LATE_SECONDS < ct_limit)) || cause='time limit'
}
resubmit_pbs_job() {
  local id
  id=$(find_pbs; timeout 60 qsub -f -W "depend=afterany:$PBS_JOBID" "$run/job.sh") &&
    job_event run queued "\"job\": \"${id##*$'\n'}\""
}

# Hydra's mpiexec has ended before the guards and what they guard: how a rank ended would be missed.
CT_HYDRA_TENTHS=150 # of a second: from SIGTERM to SIGKILL, and a little for guard.sh
count_events() { # WHAT: of all ranks, in this attempt
  cat "$run/nodes/"*.jsonl 2>/dev/null | grep -cF "\"what\": \"$1\"${CTRAIN_ATTEMPT:+, \"attempt\": $CTRAIN_ATTEMPT,}"
}
run_hydra() {
  check_hosts || return
  local code=0 tries
  mpiexec "$@" || code=$?
  for ((tries = 0; code && tries < CT_HYDRA_TENTHS; tries++)); do
    (($(count_events started) > $(count_events ended))) || break
    sleep 0.1
  done
  return "$code"
}

# TM is PBS's own way to the nodes of a job, which needs no ssh: pbs_tmrsh starts node.sh on each, and that starts the tasks.
# It passes on neither environment nor signals, and delivers output only with the job's: so each node has a file for it.
#
# PBS signals the sessions of a job's tasks, every process in them, but only on its first host; and the demux of the job dies
# of it, so that TM starts nothing more. So what reaches job.sh becomes a file, and each node lists the directory: no file is
# opened, and NFS, which caches attributes and missing names, revalidates a directory that is opened.
ct_last_signal=0 ct_sent=1000
use_tm() { # POLL COMMAND...: that starts node.sh on a host. Tasks, on which tasks.bash works, are nodes then
  ct_grace=15 ct_asked_grace=15 # more than node.sh gives its tasks
  ct_poll=$1 node_script=("${@:2}")
  find_pbs
  mkdir -p "$run/signals"
  run_task() { # NODE COUNT SCRIPT [ARGUMENT]...
    trap '' TERM USR1 USR2
    exec 5>&2 2>/dev/null # without bash's own message about a pbs_tmrsh that was killed
    pbs_tmrsh "${hosts[$1]}" "${node_script[@]}" "$PATH" "$MASTER_ADDR" "$MASTER_PORT" "$step" "$ct_poll" \
      "${CTRAIN_ATTEMPT-}:${CTRAIN_RESUME-}" "$@" 2>&5 5>&- 8>&- 9>&-
    report "$?"
  }
  signal_step() { # SIGNAL: job.sh keeps what it is sent for the nodes of the step that is under way
    [ -n "$child" ] || return
    passed=$1
    ((++ct_sent))
    : >"$run/signals/$child.$ct_sent.$1"
  }
  signal_tasks() { # SIGNAL: those that job.sh has got are on their way; but the first failure ends all
    [ "$1" != TERM ] || : >"$run/signals/$step.9999.TERM"
  }
  catch_signals() { # not directly: on the first host each would come twice
    trap : TERM USR1 USR2
  }
  look_for_signals() {
    signals_of_job
  }
}
signals_of_job() {
  local path
  for path in "$run/signals/$step."*; do # STEP.NUMBER.SIGNAL, in order
    [[ ${path##*/} =~ ^[0-9]+\.([1-9][0-9]*)\.(TERM|USR1|USR2)$ ]] || continue
    ((BASH_REMATCH[1] > ct_last_signal)) || continue
    ct_last_signal=${BASH_REMATCH[1]}
    signals+=("${BASH_REMATCH[2]}")
  done
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
  ct_keep_going=yes run_on_nodes "$@"
}
