"""What stands between Hydra's proxy and a task, so that ranks of MPI end as those of other launchers do."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.process import GRACE_SECONDS
from ctrain_runtime.schedulers.script import run_step

# The guard alone is in the process group that Hydra kills, and in the session that PBS signals, with the engine's
# processes that serve the image: so the task has a session of its own. The guard's end, however it comes, ends the only
# writer of a pipe.
GUARD = """\
#!/bin/bash -p
# Between Hydra and a task of {name}. If a rank fails or is killed, or calls MPI_Abort, or mpiexec is to end, Hydra
# kills with SIGKILL at once: engines then leave processes behind. The task gets SIGTERM instead, and a grace period.
if [ "$1" = watched ]; then # GUARD COMMAND...: what the guard starts, in its session
  (
    trap '' TERM USR1 USR2
    signalled=''
    while read -r -u 3 what; do
      [ "$what" = ended ] || {{ signalled=yes && continue; }}
      exec >&- 2>&- # Hydra kills all ranks if MPI's way to it closes before it has seen the end of the guard
      while kill -0 "$2"; do sleep 0.1; done
      exit
    done
    [ "$signalled" ] || kill -TERM "$$"
    for ((tries = 0; tries < {tenths}; tries++)); do
      kill -0 "$$" || exit
      sleep 0.1
    done
    kill -KILL -- "-$$"
  ) 2>/dev/null &
  exec "${{@:3}}" 3<&-
fi
if [ "${{PMI_FD-}}" ]; then # MPI's way to Hydra; the scripts use low numbers
  exec {{pmi}}>&"$PMI_FD"
  export PMI_FD=$pmi
fi
for fd in /proc/$$/fd/*; do # Hydra's other pipes: it waits for whoever has them
  fd=${{fd##*/}}
  ((fd < 3 || fd == 255 || fd == ${{PMI_FD:-0}})) || eval "exec $fd>&-"
done
exec 9<> <(:) 3</dev/fd/9 4>/dev/fd/9 9>&-
{functions}
watched() {{ # COMMAND...
  exec 4>&-
  setsid /bin/bash -p "$0" watched "$$" "$@"
}}
trap 'echo signalled >&4; signal_step TERM' TERM
trap 'signal_step USR1' USR1
trap 'signal_step USR2' USR2
set -m # a process group for what starts the task
run_step watched /bin/bash -p "$@"
[ "$code" = 0 ] || kill -KILL $$ # Hydra ends the other tasks if one is killed, but not if it fails
echo ended >&4
"""


# mpiexec has ended before the guards and what they guard: how a rank ended would be missed.
RUN_MPIEXEC = """\
count() {{ # EVENT: of all ranks
  cat "$run/{nodes}/"*.jsonl 2>/dev/null | grep -cF "\\"what\\": \\"$1\\""
}}
run_mpiexec() {{
  check_hosts || return
  local code=0 tries
  mpiexec "$@" || code=$?
  for ((tries = 0; code && tries < {tenths}; tries++)); do
    (($(count started) > $(count ended))) || break
    sleep 0.1
  done
  return "$code"
}}"""


def run_mpiexec(patience: int) -> str:
    """The bash function that runs mpiexec. `patience`: seconds after the last SIGKILL."""
    return RUN_MPIEXEC.format(nodes=run_files.NODES, tenths=(GRACE_SECONDS + patience) * 10)


def guard(plan: LaunchPlan) -> str:
    """The script that Hydra starts as each task; its arguments are those of bash for the task."""
    return GUARD.format(name=plan.run, functions=run_step(), tenths=GRACE_SECONDS * 10)
