#!/bin/bash
# Restarts: a program that fails starts again in the same job, from its last checkpoint (docs/restarts.md).
# shellcheck disable=SC2034,SC2154  # variables of other parts

CT_SETTLE_SECONDS=1    # what ends a job from outside reaches ranks and job.sh at about the same time
CT_PROGRESS_SECONDS=60 # after these, a program without checkpoints and metrics counts as one that worked
CT_WARNED_SECONDS=900  # a program that fails within these after SIGUSR1 or 2 has left because of it (run/ending.py)
CT_SAVED=85 CT_TRY_AGAIN=75 CT_GIVE_UP=78 # exit codes by which a program tells what it wants (docs/contract.md)
ct_job_lasts=: # a command of the scheduler: whether the job is to go on
ct_saved=''    # the checkpoints at the last failure
ct_own_code='' # of the rank that has failed first
ct_idle=0      # failures in a row before any progress
ct_left_out='' # names of nodes that the program is not started on again

run_job_with_restarts() { # RESTARTS COMMAND...: that runs all tasks to their end
  export CTRAIN_ATTEMPT=${CTRAIN_ATTEMPT-0}
  ct_first_attempt=$CTRAIN_ATTEMPT
  job_event run started
  while :; do
    ct_attempt_began=$SECONDS ct_metrics=$(size_of_metrics)
    run_judged_step "${@:2}"
    may_restart "$1" || break
    prepare_attempt
  done
  end_job
}
may_restart() { # RESTARTS
  local why=''
  (($1 && code)) && [ -z "$ending" ] && has_failed_by_itself || return 1
  begun='' # a signal that comes now ends the run
  sleep "$CT_SETTLE_SECONDS"
  [ -z "$ending" ] && "$ct_job_lasts" || return 1
  look_for_crash_loop
  [ "$ct_own_code" != "$CT_GIVE_UP" ] || why='by that code the program asks not to be restarted'
  [ "$why" ] || ((CTRAIN_ATTEMPT - ct_first_attempt < $1)) || why="restarts used: $1 of $1"
  [ "$why" ] || look_for_nodes
  [ -z "$ending" ] || return 1
  [ "$why" ] || return 0
  job_event run 'not restarted' "\"message\": \"$why\""
  return 1
}
look_for_nodes() { # where the job has more than it needs: sets ct_left_out, or why
  :
}
prepare_attempt() { # the rendezvous of the scheduler's own steps differs by the step
  local from='the start'
  export CTRAIN_ATTEMPT=$((CTRAIN_ATTEMPT + 1))
  if [ "$ct_saved" ]; then
    export CTRAIN_RESUME=$run/checkpoint
    from='the last checkpoint'
  fi
  [ -z "$ct_left_out" ] || from+=", without $ct_left_out"
  [ -z "${ct_address-}" ] || set_rendezvous "$ct_address" $((ct_salt + 1))
  job_event run restarted "\"attempt\": $CTRAIN_ATTEMPT, \"code\": $code, \"message\": \"$from\""
  [ -z "${ct_notify-}" ] || notify restarted "run ${run##*/} is restarted on $node from $from, after exit code $code" &
  mark_attempt
}

# By the events of the attempt. A task that is ended from outside records the signal before it passes it on; one that is
# killed, or whose node fails, records nothing.
has_failed_by_itself() { # whether a rank has, and no check of ctrain's own; sets ct_own_code
  local path line rank seconds moment first='' warned left=''
  ct_own_code=''
  [ -z "$ct_hung" ] || { [ "${ct_judge[4]}" = restart ]; return; }
  for path in "$run/nodes/"*.jsonl; do
    local up=() warned=-$CT_WARNED_SECONDS
    while IFS= read -r line; do
      [[ $line =~ \"attempt\":\ ${CTRAIN_ATTEMPT}[,}] ]] || continue
      rank=''
      [[ ! $line =~ \"rank\":\ ([0-9]+) ]] || rank=${BASH_REMATCH[1]}
      [[ ! $line =~ \"time\":\ ([0-9]+)\.?([0-9]*) ]] || seconds=${BASH_REMATCH[1]} moment=${BASH_REMATCH[2]}000
      case $line in
        *'"what": "refused"'* | *'"what": "stopped"'*) return 1 ;;
        *'"what": "signalled"'*'"signal": "TERM"'*) if [ "$rank" ]; then unset "up[rank]"; else up=(); fi ;;
        *'"what": "signalled"'*) warned=$seconds ;;
        *'"what": "started"'*) up[rank]=yes ;;
        *'"what": "ended"'*)
          if [ "${up[rank]-}" ] && [[ $line =~ \"code\":\ ([1-9][0-9]*) ]] && ((seconds - warned >= CT_WARNED_SECONDS)); then
            moment=$seconds${moment:0:3}
            [ "$first" ] && ((moment >= first)) || first=$moment ct_own_code=${BASH_REMATCH[1]}
          fi
          unset "up[rank]"
          ;;
      esac
    done <"$path"
    [ "${#up[@]}" = 0 ] || left=yes
  done
  [ "$ct_own_code" != "$CT_SAVED" ] && [ "$ct_own_code$left" ]
}
look_for_crash_loop() { # sets why
  local before=$ct_saved
  ct_saved=$(list_checkpoints)
  if [ "$ct_saved" ]; then
    [ "$ct_saved" != "$before" ] || why='crash loop: two failures with no new checkpoint between them'
  elif [ "$(size_of_metrics)" != "$ct_metrics" ] || ((SECONDS - ct_attempt_began > CT_PROGRESS_SECONDS)); then
    ct_idle=0
  elif ((++ct_idle > 1)); then
    why='crash loop: two failures before any progress'
  fi
  [ "$ct_own_code" != "$CT_TRY_AGAIN" ] || why='' # it counts on another cause: only the number of restarts is a limit
}
list_checkpoints() { # files by their times and sizes, without files and directories that are being written
  find "$run/checkpoint/" -mindepth 1 \( -name '.*' -o -name '*.tmp' -o -name '*.part' \) -prune -o \
    -type f -printf '%P %s %T@\n' | sort
} 2>/dev/null
size_of_metrics() {
  stat -c %s "$run/metrics.jsonl"
} 2>/dev/null

mark_attempt() { # in a log, in which attempts follow each other
  printf '\n--- attempt %s ---\n' "$CTRAIN_ATTEMPT"
}
open_log() { # FILE: of a rank
  if [ "${CTRAIN_ATTEMPT:-0}" = 0 ]; then
    exec >"$1" 2>&1
  else
    exec >>"$1" 2>&1
    mark_attempt
  fi
}
resume_from_own() { # PREFIX: of the container's variables. Once the run has a checkpoint, that is the one to resume from
  [ -z "${CTRAIN_RESUME-}" ] || export "$1CTRAIN_RESUME=$CTRAIN_RESUME"
}
