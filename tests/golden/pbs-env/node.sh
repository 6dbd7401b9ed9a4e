#!/bin/bash -p
# The tasks of one node of digits-1, started by pbs_tmrsh.
[ ! -r /scratch/kim/ctrain/digits-1/.environment ] || . /scratch/kim/ctrain/digits-1/.environment
run=/scratch/kim/ctrain/digits-1
signal_children() { # SIGNAL PID; fails if it has none
  local kids=()
  read -r -a kids <"/proc/$2/task/$2/children"
  ((${#kids[@]})) && kill -s "$1" "${kids[@]}"
} 2>/dev/null
marked() { # the processes of the run on this machine
  LC_ALL=C grep -slzxF "CTRAIN_RUN_DIR=$run" /proc/[0-9]*/environ
}
kill_leftovers() { # until none is left: some start others meanwhile
  local pid left=yes tries=0
  while [ "$left" ] && ((++tries <= 50)); do
    left=
    for pid in $(marked); do
      pid=${pid%/environ} pid=${pid#/proc/}
      case $pid in "$$" | "$starter" | "$BASHPID") ;; *) kill -KILL "$pid" 2>/dev/null && left=yes ;; esac
    done
    [ -z "$left" ] || sleep 0.1
  done
}
signal_tasks() { # SIGNAL: to the task alone, which passes it on to the program, past the engine's own processes
  local group
  for group in "${groups[@]}"; do signal_children "$1" "$group"; done
}
any_task() {
  local group
  for group in "${groups[@]}"; do ! kill -0 -- "-$group" 2>/dev/null || return 0; done
  return 1
}
stop() { # SECONDS: that they have
  [ -z "$killer" ] || return
  signal_tasks TERM
  (sleep "$1" && kill_leftovers) &
  killer=$!
  disown "$killer" # else some versions of bash report that it was killed
}
run_task() { # TASK SCRIPT [ARGUMENT]...: the signal is for the task; wait for it, to report how it ended
  trap : TERM USR1 USR2
  CTRAIN_TASK=$1 /bin/bash -p "$run/$2" "${@:3}" 8>&- 9>&-
  report "$?"
}
report() { # CODE
  echo "$1" >&9
  echo >&8
}
start_tasks() { # FIRST COUNT SCRIPT [ARGUMENT]...: returns the exit code of the task that failed first, which ends all
  local task ended left=$2 code=0 groups=() killer='' signals=() starter=$BASHPID
  exec 8<> <(:) 9<> <(:)
  catch_signals
  set -m
  for ((task = $1; task < $1 + $2; task++)); do
    run_task "$task" "${@:3}" &
    groups+=($!)
  done
  set +m
  while ((left)); do
    ended=0
    read -t 0 -u 9 || read -r -t 1 -u 8
    if read -t 0 -u 9; then
      read -r -u 9 ended
      ((left--))
    elif ! any_task && ! read -t 0 -u 9; then
      left=0 ended=137 # what would report was killed
    fi
    [ "$ended" = 0 ] || { [ "$code" != 0 ] || code=$ended; [ "${keep_going-}" ] || stop 10; }
    look_for_signals
    handle_signals
  done
  [ -z "$killer" ] || kill "$killer" 2>/dev/null
  kill_leftovers
  return "$code"
}
tasks() { # FIRST COUNT SCRIPT [ARGUMENT]...: apart, so that signals reach it and not the tasks
  (start_tasks "$@")
}
catch_signals() { # a trap that runs while `read` waits must not start processes: they would go on reading
  trap 'signals+=(TERM); echo >&8' TERM
  trap 'signals+=(USR1); echo >&8' USR1
  trap 'signals+=(USR2); echo >&8' USR2
}
look_for_signals() { # that come another way
  :
}
handle_signals() {
  local name taken=("${signals[@]}")
  signals=()
  for name in "${taken[@]}"; do
    if [ "$name" = TERM ]; then stop 10; else signal_tasks "$name"; fi
  done
}
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
