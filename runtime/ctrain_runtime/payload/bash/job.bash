#!/bin/bash
# What job.sh does around its steps: its record, the lease on the image in the store, stages before the run.
# shellcheck disable=SC2154  # variables of other parts, and of the script

ct_lease='' # on the image in its store
ct_cancel_watch=''
CT_CANCEL_SECONDS=5 # between two looks
ct_notify=() # the words of a command of the user's
notify() { # EVENT MESSAGE: that it fails, or does not end within 20 s, changes nothing
  printf '%s\n' "$2" |
    CTRAIN_EVENT=$1 CTRAIN_MESSAGE=$2 CTRAIN_RUN=${run##*/} timeout -k 2 20 "${ct_notify[@]}" >>"$run/logs/notify.log" 2>&1 || :
}
begin_job() { # ID [PROCESS]: which has to end before
  export CTRAIN_RUN_DIR=$run # marks every process of the run
  unset CTRAIN_ATTEMPT CTRAIN_RESUME # of a run around this one
  if [ "${2-}" ]; then job_event queue waiting "\"job\": \"$1\""; else job_event before started "\"job\": \"$1\""; fi
  [ -z "${CTRAIN_LOCK_FD:-}" ] || exec {CTRAIN_LOCK_FD}>&- # the submission is over
  [[ $1 != *:* ]] || { watch_for_cancel & ct_cancel_watch=$! && disown; } # no scheduler knows this process
  [ -z "${2-}" ] || { wait_for_process "$2" && job_event before started "\"job\": \"$1\""; }
  [ -z "${ct_notify-}" ] || notify started "run ${run##*/} started on $node" &
}
wait_for_process() { # HOST:PID:START, of this host: job.sh of an earlier run of a sweep, however it ends
  local pid=${1%:*} stat fields=()
  pid=${pid##*:}
  trap 'record_job_signal TERM; code=143; end_job' TERM
  # A zombie has ended, too; its parent may be a notebook that does not look.
  while read -r stat <"/proc/$pid/stat"; do
    read -r -a fields <<<"${stat##*) }"
    [[ ${fields[0]} != [ZX] && ${fields[19]} = "${1##*:}" ]] || break
    sleep 0.5
  done 2>/dev/null
  trap - TERM
}
# Another host cannot signal this process: ctrain writes there to `cancelled`. NFS, which remembers missing names, revalidates
# a directory that is opened.
watch_for_cancel() {
  local path asked=''
  exec <> <(:) >/dev/null 2>&1 # nobody writes to it
  while [ -z "$asked" ] && kill -0 "$$"; do
    read -r -t "$CT_CANCEL_SECONDS"
    for path in "$run/cancelled"*; do read -r asked <"$path"; done
  done
  [ -z "$asked" ] || kill -TERM "$$"
}
renew_lease() { # MINUTES: that the job may take. Where a node cannot write to the store, what was recorded before holds
  touch --no-create "--date=+$1 minutes" "$ct_lease" 2>/dev/null
}
end_job() {
  [ -z "$ct_retries" ] || retry_if_due
  [ -z "$ct_warning" ] || kill "$ct_warning" 2>/dev/null
  [ -z "$ct_queued_again" ] || leave_to_next_job
  [ -z "$ct_cancel_watch" ] || kill "$ct_cancel_watch" 2>/dev/null
  [ -z "$ct_lease" ] || rm -f "$ct_lease" 2>/dev/null
  local event=failed first=''
  [ "$code" != 0 ] || event=ended
  [ -z "${ct_notify-}" ] || { (set -C && : >"$run/notified") 2>/dev/null && first=yes; }
  job_event after ended "\"code\": $code"
  [ -z "$first" ] || notify "$event" "run ${run##*/} ended on $node with exit code $code"
  exit "$code"
}
copy_to_nodes() { # COMMAND...: by which each node copies a file to its disk, as far as it can
  job_event stage-in started
  (umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$run/.stage")
  run_step "$@"
  rm -f "$run/.stage"
  job_event stage-in ended "\"code\": $code" # a node without a copy reads the file where it is
}
preflight() { # CODE ADVICE COMMAND...: without a code to end with, its failure is only reported
  job_event preflight started
  run_step "${@:3}"
  if [ "$code" = 0 ]; then
    job_event preflight passed
    return
  fi
  [ -z "$ending" ] || end_job # it was ended, and proves nothing
  grep -qs '^ctrain: preflight' "$run/logs/job.log" ||
    echo "ctrain: preflight failed; messages are in logs/job.log$2" >&2
  job_event preflight failed
  [ -z "$1" ] || { code=$1 && end_job; }
}
run_job() { # COMMAND...: that runs all tasks to their end
  job_event run started
  run_judged_step "$@"
  end_job
}
