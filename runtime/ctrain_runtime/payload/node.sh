#!/bin/bash -p
# The tasks of one node, where pbs_tmrsh starts this. TM passes on neither environment nor signals:
#
#   node.sh PATH MASTER_ADDR MASTER_PORT STEP POLL ATTEMPT:RESUME NODE_RANK COUNT SCRIPT [ARGUMENT]...
# shellcheck source=bash/tasks.bash
# shellcheck disable=SC2034,SC2154  # variables of the library

[ ! -r "${0%/*}/.environment" ] || . "${0%/*}/.environment"
# PBS signals and kills every process in the session that it started, also those that serve the image (FUSE): the program's
# handler would read an image that is gone. So the tasks have a session of their own, and this shell, which is not in it,
# waits for them. Its end, however it comes, ends the only writer of a pipe.
if [ "$1" != tasks ]; then
  trap : TERM USR1 USR2
  exec 9<> <(:)
  exec 3</dev/fd/9 4>/dev/fd/9 9>&-
  setsid /bin/bash -p "$0" tasks "$@" 4>&-
  exit
fi
exec {front}<&3 3<&-
run=${0%/*}
. "$run/ctrain.bash" || exit 71
export CTRAIN_RUN_DIR=$run PATH=$2 MASTER_ADDR=$3 MASTER_PORT=$4 NODE_RANK=$8
step=$5 ct_poll=$6 count=$9
[ "$7" = : ] || export CTRAIN_ATTEMPT=${7%%:*} CTRAIN_RESUME=${7#*:}
shift 9
exec >>"$run/logs/node$NODE_RANK.out" 2>&1
marked() { # the processes of the tasks: not what job.sh runs on this node; but FUSE, which has no mark, is of the session
  LC_ALL=C grep -slzxF "CTRAIN_RUN_DIR=$run" /proc/[0-9]*/environ | xargs -r grep -slzxF "NODE_RANK=$NODE_RANK"
  local path stat fields
  for path in /proc/[0-9]*/stat; do
    stat=''
    { IFS= read -r -d '' stat <"$path"; } 2>/dev/null
    read -r -a fields <<<"${stat##*) }" # state, parent, group, session ... (proc(5))
    if [ "${fields[3]-}" != "$$" ] || [ "${fields[0]}" = Z ]; then continue; fi
    path=${path%/stat}
    [[ " ${groups[*]} " == *" ${path#/proc/} "* ]] || echo "$path/environ" # those report how the tasks end
  done
}
catch_signals() { # PBS signals this node, if it is the first, and job.sh the same: each would come twice
  trap : TERM USR1 USR2
}
look_for_signals() {
  signals_of_job
  ((${#signals[@]})) || ! read -t 0 -u "$front" || signals+=(TERM) # the shell that waits was killed, after a warning
}
start_tasks "$((NODE_RANK * count))" "$count" "$@"
