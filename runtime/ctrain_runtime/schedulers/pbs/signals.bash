#!/bin/bash -p
# Part of job.sh and node.sh: how signals pass from one to the other. Needs `run`, `step`, and local/script.py's tasks.
# shellcheck disable=SC2034,SC2154 # they are of the other parts

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
