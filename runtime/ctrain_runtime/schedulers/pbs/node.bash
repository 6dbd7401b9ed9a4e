#!/bin/bash -p
# The rest of node.sh, which pbs_tmrsh starts on each node of a job. Needs local/script.py's tasks and signals.bash.
# shellcheck disable=SC2034,SC2154 # they are of the other parts

# PBS signals and kills every process in the session that it started, also those that serve the image (FUSE): the
# program's handler would read an image that is gone. So the tasks have a session of their own, and this shell, which is
# not in it, waits for them. Its end, however it comes, ends the only writer of a pipe.
if [ "$1" != tasks ]; then
  trap : TERM USR1 USR2
  exec 9<> <(:)
  exec 3</dev/fd/9 4>/dev/fd/9 9>&-
  setsid /bin/bash -p "$0" tasks "$@" 4>&-
  exit
fi
exec {front}<&3 3<&-
export CTRAIN_RUN_DIR=$run PATH=$2 MASTER_ADDR=$3 MASTER_PORT=$4 NODE_RANK=$6
step=$5 count=$7
shift 7
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
look_for_signals() {
  signals_of_job
  ((${#signals[@]})) || ! read -t 0 -u "$front" || signals+=(TERM) # the shell that waits was killed, after a warning
}
start_tasks "$((NODE_RANK * count))" "$count" "$@"
