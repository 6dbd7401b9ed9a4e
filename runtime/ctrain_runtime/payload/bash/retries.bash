#!/bin/bash
# Retries: a job that ends early, before its program is done, is queued again and goes on from the last checkpoint
# (docs/restarts.md). job.sh asks for it: it alone is there when nobody watches. What a scheduler queues again by itself, as after
# the loss of a node, starts in the same way.
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

CT_WARNING_SECONDS=300        # before the time limit, at most; of short ones a tenth
CT_LEFT='^(138|140|143)$'     # exit codes of a program that has left as it was warned to: 128 + the signal
ct_retries=''                 # how often; "done": until the program is
ct_retried=0                  # how often the job was queued again before
ct_saved_before=''            # the checkpoints when the job began
ct_warning=''                 # the process that warns before the time limit
ct_retry_decided=0 ct_queued_again=''
ct_lacks_nodes='' # whether too few of the job's nodes are well for another start of the program
ct_find_cause=: ct_queue_again=: ct_leave_out=: ct_last_job=: # commands of the scheduler: set cause; queue the job again; keep
# it from the nodes that are not well; it is the last

retry_job() { # RETRIES SECONDS: of its time limit, 0 without one
  local line starts=0 last=0 from='the start'
  while IFS= read -r line; do
    [[ ! $line =~ \"stage\":\ \"before\".*\"what\":\ \"started\" ]] || ((++starts))
    [[ ! $line =~ \"attempt\":\ ([0-9]{1,9}) ]] || ((BASH_REMATCH[1] <= last)) || last=${BASH_REMATCH[1]}
  done <"$run/events.jsonl"
  export CTRAIN_ATTEMPT=0
  ct_retries=$1 ct_limit=$2 ct_retried=$((starts - 1)) ct_end_command=end_tasks_and_retry
  ct_saved_before=$(list_checkpoints)
  if ((ct_retried)); then
    rm -f "$run/signals/"* # of the job before, on PBS
    CTRAIN_ATTEMPT=$((last + 1))
    [ -z "$ct_saved_before" ] || { export CTRAIN_RESUME=$run/checkpoint && from='the last checkpoint'; }
    job_event before continued "\"attempt\": $CTRAIN_ATTEMPT, \"message\": \"$from\""
    mark_attempt
  fi
  [ "$1" = "done" ] || ((ct_retried < $1)) || "$ct_last_job"
  [ "$2" = 0 ] || { warn_before_limit "$2" & ct_warning=$! && disown; }
}
warn_before_limit() { # SECONDS
  local before=$(($1 / 10))
  ((before <= CT_WARNING_SECONDS)) || before=$CT_WARNING_SECONDS
  exec <> <(:) >/dev/null 2>&1 # nobody writes to it
  read -r -t "$(($1 - before))"
  kill -USR1 "$$"
}
end_tasks_and_retry() { # at once: job.sh may be killed with its tasks
  end_tasks
  retry_if_due
}
retry_if_due() { # sets ct_queued_again
  local cause='' why='' marks=("$run/cancelled"*) # NFS remembers names that are missing, but lists anew
  ((!ct_retry_decided++)) && [ ! -e "${marks[0]}" ] || return # in one command, as in end_step
  "$ct_find_cause"
  [ "$cause" ] || [ "$ending" ] || [ -z "$ct_lacks_nodes" ] || cause='too few of its nodes are well'
  [ "$cause" ] || [ "$ending" ] || ! has_left_unfinished || cause='saved and left'
  [ "$cause" ] || return
  [ "$ct_retries" = "done" ] || ((ct_retried < ct_retries)) || why="retries used: $ct_retries of $ct_retries"
  [ "$why" ] || [[ $cause != 'time limit' && $cause != 'saved and left' ]] || ((!ct_retried)) || [ "$(list_checkpoints)" != "$ct_saved_before" ] ||
    why='crash loop: two ends with no new file in checkpoint/ between them'
  if [ -z "$why" ]; then
    ct_queued_again=yes
    job_event run requeued "\"message\": \"$cause\"" # first: what queues the job again may end this
    if "$ct_queue_again" >&2; then
      "$ct_leave_out"
    else
      ct_queued_again='' why='the scheduler does not queue the job again'
    fi
  fi
  if [ "$why" ]; then
    job_event run 'not requeued' "\"message\": \"$why\""
  elif [ "${ct_notify-}" ]; then
    notify requeued "run ${run##*/} is queued again: $cause" &
  fi
}
has_left_unfinished() { # by the events of the attempt: the rank that failed first has, or all have saved and ended with 0
  local path line seconds warned='' first='' first_code=''
  for path in "$run/nodes/"*.jsonl; do
    while IFS= read -r line; do
      [[ $line =~ \"attempt\":\ ${CTRAIN_ATTEMPT}[,}] && $line =~ \"time\":\ ([0-9]+\.[0-9]{3}) ]] || continue
      seconds=${BASH_REMATCH[1]/./} # thousandths
      case $line in
        *'"what": "signalled"'*'"signal": "USR'*) warned=${warned:-$seconds} ;;
        *'"what": "ended"'*)
          [[ $line =~ \"code\":\ ([1-9][0-9]*) ]] || continue
          [ "$first" ] && ((first <= seconds)) || first=$seconds first_code=${BASH_REMATCH[1]}
          ;;
      esac
    done <"$path"
  done
  if [ "${first_code:=$code}" = "$CT_SAVED" ]; then
    return 0 # by its own word
  elif [ -z "$warned" ]; then
    return 1
  elif [ "$first_code" = 0 ]; then
    [ "$(find "$run/checkpoint/" -type f -newermt "@${warned::-3}.${warned: -3}" 2>/dev/null)" ]
  else
    [[ $first_code =~ $CT_LEFT ]]
  fi
}
leave_to_next_job() { # the lease on the image stays
  [ -z "$ct_lease" ] || renew_lease 43200
  trap - EXIT # what is removed at the end of a run
  exit "$code"
}
