#!/bin/bash -p
# Between Hydra's mpiexec and a task. If a rank fails or is killed, or calls MPI_Abort, or mpiexec is to end, Hydra kills with
# SIGKILL at once: engines then leave processes behind. The task gets SIGTERM instead, and a grace period.
#
# The guard alone is in the process group that Hydra kills, and in the session that PBS signals, with the engine's processes
# that serve the image: so the task has a session of its own. The guard's end, however it comes, ends the only writer of a
# pipe.
# shellcheck source=bash/steps.bash

TENTHS=100            # of a second between SIGTERM and SIGKILL
if [ "$1" = watched ]; then # GUARD COMMAND...: what the guard starts, in its session
  (
    trap '' TERM USR1 USR2
    signalled=''
    while read -r -u 3 what; do
      [ "$what" = ended ] || { signalled=yes && continue; }
      exec >&- 2>&- # Hydra kills all ranks if MPI's way to it closes before it has seen the end of the guard
      while kill -0 "$2"; do sleep 0.1; done
      exit
    done
    [ "$signalled" ] || kill -TERM "$$"
    for ((tries = 0; tries < TENTHS; tries++)); do
      kill -0 "$$" || exit
      sleep 0.1
    done
    kill -KILL -- "-$$"
  ) 2>/dev/null &
  exec "${@:3}" 3<&-
fi
if [ "${PMI_FD-}" ]; then # MPI's way to Hydra; the scripts use low numbers
  exec {pmi}>&"$PMI_FD"
  export PMI_FD=$pmi
fi
for fd in "/proc/$$/fd/"*; do # Hydra's other pipes: it waits for whoever has them
  fd=${fd##*/}
  ((fd < 3 || fd == 255 || fd == ${PMI_FD:-0})) || eval "exec $fd>&-"
done
exec 9<> <(:) 3</dev/fd/9 4>/dev/fd/9 9>&-
run=${0%/*}
. "$run/ctrain.bash" || exit 71
exec 6<> <(:) # carries exit codes
watched() { # COMMAND...
  exec 4>&-
  setsid /bin/bash -p "$0" watched "$$" "$@"
}
trap 'echo signalled >&4; signal_step TERM' TERM
trap 'signal_step USR1' USR1
trap 'signal_step USR2' USR2
set -m # a process group for what starts the task
run_step watched /bin/bash -p "$@"
[ "$code" = 0 ] || kill -KILL $$ # Hydra ends the other tasks if one is killed, but not if it fails
echo ended >&4
