"""The pieces of bash that task.sh and rank.sh are made of, each rendered here and nowhere else.

The scripts run under `bash -p`: else BASH_ENV and functions of the caller's shell would run first (man bash, -p).
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import fragment
from ctrain_runtime.engines import apptainer
from ctrain_runtime.errors import EngineError, SchedulerError
from ctrain_runtime.gpus import COMPAT_DIRS, DRIVER_FILE, HOST_LIBRARIES
from ctrain_runtime.images import user_layer
from ctrain_runtime.images.image import LAYER_MARKER
from ctrain_runtime.launchers import independent, node, staging
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import PREFLIGHT, TaskIdentity, run_step

_HERE = Path(__file__).parent
PROGRAMS = _HERE / "programs.bash"  # finds what signals are for
EXTENSIONS = ".cache/torch_extensions"  # in the home
HOME_TRIES = 50  # to create a home; each loses against one that removes it
NOT_FOUND = 127  # as shells report a command that does not exist
# GPUs and threads of a rank. Besides who it is, everything else of the node stays out of the container.
DEVICES = (
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TERM"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),  # AMD, Intel
)
MEMBER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def passed(plan: LaunchPlan) -> tuple[str, ...]:
    """The variables of a task that pass into its container, whatever its scheduler."""
    if plan.independent:
        return (*independent.VARIABLES, *DEVICES)
    return (*(node.VARIABLES if plan.launcher == "node" else MEMBER), *DEVICES)


def head(plan: LaunchPlan, purpose: str) -> str:
    """The start of a script: the run, the node, and how events of this node are written."""
    return f"""\
#!/bin/bash -p
# {purpose}
run={shlex.quote(plan.run_directory)}
node=$(uname -n) # not HOSTNAME: srun hands down that of the first node
node=${{node%%.*}}
note() {{ # WHAT [MORE]: an event of this node; appends of one host do not get lost, on NFS neither
  local now=${{EPOCHREALTIME/[^0-9]/.}} # some locales write a comma
  now=${{now:-$(date +%s.%N)}}
  printf '{{"time": %s, "stage": "run", "node": "%s", "what": "%s"%s}}\\n' \\
    "${{now:-null}}" "$node" "$1" "${{2:+, $2}}" >>"$run/{run_files.NODES}/$NODE_RANK.jsonl"
}}
refuse() {{ # CODE MESSAGE
  echo "ctrain: $2" >&2
  note refused "\\"rank\\": ${{RANK:-null}}, \\"code\\": $1, \\"message\\": \\"$2\\""
  exit "$1"
}}"""


def recorder(plan: LaunchPlan) -> str:
    """Sends the output of a rank to its log. Needs RANK and NODE_RANK."""
    log = f'"$run/{run_files.LOGS}/rank$RANK.log"'
    if plan.recorded_ranks <= run_files.MAX_RANK_LOGS:
        return f"exec >{log} 2>&1"
    return f"""\
# Ranks of a node share a log, line by line: files grow with nodes, not with ranks.
if [ "$RANK" = 0 ]; then
  exec >{log} 2>&1
else
  exec > >(trap '' INT TERM USR1 USR2 && exec sed -u "s/^/[$RANK] /" >>"$run/{run_files.LOGS}/node$NODE_RANK.log") 2>&1
fi"""


def unless_preflight(plan: LaunchPlan, text: str) -> str:
    """Bash that is left out in the preflight: what that says goes to the job's log."""
    if not plan.preflight:
        return text
    return f'if [ "${{1-}}" != {PREFLIGHT} ]; then\n{text}\nfi'


def world_check(plan: LaunchPlan, started_by: str) -> str:
    """Ranks that each believe to be alone train N wrong models without an error: stop instead."""
    expected = plan.recorded_ranks
    return f"""\
[ "$WORLD_SIZE" = {expected} ] ||
  refuse {SchedulerError.exit_code} "{started_by} started $WORLD_SIZE {plan.unit}s, but the plan has {expected}\""""


# Evidence, as long as what was started has not ended by itself; and SIGTERM once, however often it is sent.
END_STEP = """\
signalled() {{ # SIGNAL
  is_over || note signalled "\\"rank\\": ${{RANK:-null}}, \\"signal\\": \\"$1\\""
}}
end_step() {{
  [ -z "$ending" ] || return
  signalled TERM
  ending=yes
  {end}
}}"""


def pass_signals(warn: str = "signal_programs", *, end: str = "pass_term", interactive: bool = False) -> str:
    """Bash that passes signals on to the step of this script (run_step); `warn` is the command for SIGUSR1 and SIGUSR2,
    `end` that for SIGTERM.

    Many schedulers signal nothing but this script: Slurm with proctrack/cgroup sends only SIGKILL to all that a task
    has started (its source, proctrack_cgroup.c). Some programs expect SIGUSR1 or SIGUSR2 before their time is over;
    they are ignored by default, because the engine's own processes would die of them.

    They reach programs past the shells that have started them (programs.bash).

    An interactive shell ignores SIGTERM, and hands SIGHUP on to its jobs before it ends (man bash, SIGNALS).
    """
    warned = f"signalled {{0}}; {warn} {{0}}"
    end = f"{END_STEP.format(end=end)}\ntrap end_step TERM"
    if interactive:
        warned = "signal_step {0}"
        end = "trap 'ending=yes; signal_step HUP' TERM HUP\ntrap : INT QUIT # from the terminal: the shell's alone"
    programs = "" if interactive else fragment(PROGRAMS) + "\n"
    return f"""\
{programs}{run_step("USR1 USR2", interactive=interactive, witness=not interactive)}
{end}
trap '{warned.format("USR1")}' USR1
trap '{warned.format("USR2")}' USR2"""


def run_recorded(before: str = "", after: str = "") -> str:
    """Runs the array `launch` as a rank, and records when it started and how it ended; bash before and after that."""
    return f"""\
{fragment(_HERE / "memory.bash")}
find_memory_group
count_memory_kills
killed_before=$killed
note started "\\"rank\\": $RANK"
run_step "${{launch[@]}}"
count_memory_kills
memory=''
if [ "$code" != 0 ] && ((killed > killed_before)); then
  find_memory_limit
  memory=", \\"memory_limit\\": $memory_limit"
fi
{before}note ended "\\"rank\\": $RANK, \\"code\\": $code$memory"
{after}exit "$code"
"""


def container(plan: LaunchPlan, identity: TaskIdentity) -> str:
    """Sets the array `launch` to the engine's argv up to the image, and exports the container's environment.

    Binds that only the node knows come from the array `binds`, which the identity may have filled, and the data set.
    """
    argv = apptainer.exec_argv(
        plan.engine,
        workdir=plan.workdir,
        as_root=plan.as_root,
        cuda=plan.image.cuda,
        rocm=plan.image.rocm,
        binds=(str(mount) for mount in plan.mounts if not plan.data_copy or mount != plan.data_copy.mount),
        overlays=[layer.path for layer in plan.layers],
    )
    names = (*passed(plan), *identity.passed, *plan.passed)
    modules = apptainer.load_modules(plan.engine, plan.modules)
    complaint = "the engine is not on PATH on $node, nor do the modules of the site file load it"
    check = f'command -v {shlex.quote(plan.engine.path)} >/dev/null || refuse {EngineError.exit_code} "{complaint}"\n'
    return f"""\
{modules + check if modules else ""}\
export LOCAL_WORLD_SIZE={plan.ranks_per_node} OMP_NUM_THREADS={plan.cores_per_rank}
{order_gpus(plan, identity)}\
{independent.own_gpus(plan) if plan.independent else ""}\
{apptainer.container_environment(plan.engine, plan.environment, names, identity.passed_prefixes)}
{staging.data(plan)}{staging.image(plan)}
{apptainer.launch_array(argv, plan.host_libraries)}"""


def order_gpus(plan: LaunchPlan, identity: TaskIdentity) -> str:
    """Bash that puts the visible GPUs (of the image's maker) into the site's order, as far as the job has these GPUs.

    It stays as it is where it holds anything else than numbers of the node's GPUs (UUIDs, MIG) and the scheduler does
    not tell these, and where it is not set although the job may have only some of the GPUs.
    """
    if not plan.gpu_order:
        return ""
    name = "ROCR_VISIBLE_DEVICES" if plan.image.rocm else "CUDA_VISIBLE_DEVICES"
    every = ",".join(map(str, sorted(plan.gpu_order))) if plan.gpus_per_node == len(plan.gpu_order) else ""
    numbers = f"${{{identity.gpu_numbers}:-$devices}}" if identity.gpu_numbers else "$devices"
    return f"""\
devices=${{{name}-{every}}}
IFS=, read -r -a numbers <<<"{numbers}"
IFS=, read -r -a devices <<<"$devices"
ordered=()
for number in {" ".join(map(str, plan.gpu_order))}; do
  for i in "${{!devices[@]}}"; do [ "${{numbers[i]-}}" != "$number" ] || ordered+=("${{devices[i]}}"); done
done
if ((${{#ordered[@]}} && ${{#ordered[@]}} == ${{#devices[@]}} && ${{#devices[@]}} == ${{#numbers[@]}})); then
  printf -v devices '%s,' "${{ordered[@]}}"
  export {name}=${{devices%,}}
fi
"""


def home(plan: LaunchPlan) -> str:
    """One empty home per node and run on the node's disk: caches land there once for all ranks, and nothing of ~
    comes in.

    Whoever uses it holds a shared lock on it, so that the last to leave removes it, and so that what killed runs left
    behind can be told from what is in use. The first one removes locks of compilations that an earlier attempt left.
    """
    image = "".join((plan.image.digest, *(layer.digest for layer in plan.layers)))
    key = hashlib.sha256(image.encode()).hexdigest()[:16] if plan.image.digest else ""
    return f"""\
base=${{TMPDIR:-/tmp}} # the submitting host's may be missing here; and engines read ':' and ',' as separators
[[ $base == /* && -d $base && -w $base && $base != *[:,\\\\\\"[:cntrl:]]* ]] || base=/tmp
home=$base/ctrain-$UID-$node.{plan.run_key} # a node's own, where TMPDIR is shared: locks on NFS may be local
remove_unused() {{ # DIRECTORY: unless another process holds it
  (exec 7<"$1" && flock -n -x 7 && rm -rf "$1") 2>/dev/null
}}
for old in "$base/ctrain-$UID-$node."*; do # what runs left behind that were killed
  [ "$old" = "$home" ] || [ -L "$old" ] || [ ! -O "$old" ] || remove_unused "$old"
done
tries=0
until [ "$home" -ef /dev/fd/8 ]; do # again while the last user of it removes it
  if mkdir -m 700 "$home" 2>/dev/null || {{ [ -d "$home" ] && [ -O "$home" ] && [ ! -L "$home" ]; }}; then
    {{ exec 8<"$home"; }} 2>/dev/null && {{ ! flock -n -x 8 || rm -f "$home"/{EXTENSIONS}/*/lock; }} && flock -s 8
  elif ((++tries > {HOME_TRIES})); then
    refuse {EngineError.exit_code} "cannot create a home in $base on $node"
  fi
done
extensions_key={key}
{fragment(_HERE / "extensions.bash")}
leave() {{
  exec 8<&-
  (exec 7<"$home" && flock -n -x 7 && {{ [ "$code" != 0 ] || keep_extensions; rm -rf "$home"; }}) 2>/dev/null
}}
take_extensions"""


def checked_command(plan: LaunchPlan, argv: list[str]) -> list[str]:
    """`argv` behind a check that runs in the container: are all layers there, of the image and of the user, and the
    program?

    Engines whose overlay is switched off, and Singularity in user namespaces, ignore a SIF's overlay partitions
    silently; and a user may replace the file of a layer while the job waits. Only builtins of sh are used: PATH may be
    anything.
    """
    checks = []
    if plan.image.marker:
        test = f'{{ read -r key </{LAYER_MARKER}; }} 2>/dev/null; [ "$key" = {shlex.quote(plan.image.marker)} ]'
        complaint = "this engine ignores the layers of the image (overlay is off, or Singularity lacks set-uid root)"
        checks.append((test, EngineError.exit_code, complaint))
    for layer in plan.layers:
        test = f"[ -e /{user_layer.USER_LAYERS}/{layer.key}.json ]"
        complaint = f"layer {layer.path} differs from the plan; was it rebuilt after submission?"
        checks.append((test, EngineError.exit_code, complaint))
    program = shlex.quote(plan.command[0])
    checks.append((f"command -v {program} >/dev/null", NOT_FOUND, f"command not found in the image: {plan.command[0]}"))
    who = ("CTRAIN_TASK", "CTRAIN_NODE") if plan.independent else ("RANK", "NODE_RANK")
    who = ("NODE_RANK", "NODE_RANK") if plan.launcher == "node" else who
    text = "; ".join(
        (*libraries(plan), *(f"{test} || {refusal(code, complaint, *who)}" for test, code, complaint in checks))
    )
    return ["/bin/sh", "-c", f'{text}; exec "$@"', "ctrain", *argv]


def libraries(plan: LaunchPlan) -> tuple[str, ...]:
    """Commands of sh that put the libraries of the site and of the right driver first on the loader's path, for all
    that runs in the container."""
    driver = plan.image.native_driver
    paths = library_paths(plan.library_paths) if plan.library_paths else ""
    return tuple(filter(None, (paths, _driver_libraries(driver) if driver else "")))


def library_paths(patterns: tuple[str, ...]) -> str:
    """sh that puts directories first on the loader's path, as far as the container has them. Of several that a pattern
    matches the last by its name comes first: of versions, the newest."""
    text = """\
more=
for directory in {patterns}; do [ ! -d "$directory" ] || more="$directory${{more:+:}}$more"; done
[ -z "$more" ] || {{ export LD_LIBRARY_PATH="$more${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"; }}"""
    return text.format(patterns=" ".join(reversed(patterns)))


def _driver_libraries(native_driver: int) -> str:
    """sh that puts the right driver libraries first: the image's where the node's driver is older than its CUDA needs.

    Elsewhere these would not work (error 803); so where the image puts them on the path, the node's come first.
    NVIDIA's images choose by BASH_ENV: it takes seconds in every start of bash, and misses programs that need no bash.
    """
    return f"""\
{{ read -r line <{DRIVER_FILE}; }} 2>/dev/null && for word in $line; do case $word in [1-9][0-9][0-9].*)
  case $((${{word%%.*}} < {native_driver})):${{LD_LIBRARY_PATH-}} in
    1:*) first="{" ".join(COMPAT_DIRS)}" ;;
    0:*{COMPAT_DIRS[-1]}*) first={HOST_LIBRARIES} ;;
    *) first= ;;
  esac
  for libraries in $first; do
    [ ! -e "$libraries/libcuda.so.1" ] ||
      {{ export LD_LIBRARY_PATH="$libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"; break; }}
  done; break ;; esac; done"""


def refusal(code: int, complaint: str, number: str = "RANK", node: str = "NODE_RANK") -> str:
    """As refuse(), for the sh of the image; `number` and `node` are the variables that have these in the container. The
    message is made JSON here: it may hold what users typed.

    printf, because the echo of some shells reads backslashes.
    """
    fields = json.dumps({"what": "refused", "stage": "run", "code": code, "message": complaint})[1:]
    event = f'"{{\\"rank\\": ${{{number}:-null}}, "{shlex.quote(fields)}'
    file = f'"$CTRAIN_RUN_DIR/{run_files.NODES}/${node}.jsonl"'
    show = f"printf '%s\\n' {shlex.quote('ctrain: ' + complaint)} >&2"
    return f"{{ {show}; printf '%s\\n' {event} >>{file}; exit {code}; }}"
