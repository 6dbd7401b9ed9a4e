"""The job that does what a batch script did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ctrain_runtime.base.time_limit import parse_limit
from ctrain_runtime.batch_script.environment import why_left_out
from ctrain_runtime.batch_script.model import BatchJob, Launch, Remark
from ctrain_runtime.batch_script.script import BatchScript
from ctrain_runtime.batch_script.variables import as_written, is_known, unknown_in
from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count, Resources
from ctrain_runtime.launchers.spawner_options import SPAWNERS
from ctrain_runtime.launchers.translate import TranslatedCommand, keep, translate_command
from ctrain_runtime.plan.mounts import parse_mount

DEFAULT_IMAGE = "pytorch"  # of scripts without a container
_ONE_RANK = ("torchrun", "torch.distributed.launch")  # what they start on each node unless they are told a number
_TASKS = ("ntasks", "ntasks-per-node")


def make_job(script: BatchScript) -> BatchJob:
    """The job of a script."""
    launch = script.launch
    remarks = list(script.remarks)
    sizes = _sizes(script)
    nodes, tasks = _layout(sizes, launch, remarks)
    translated = _translate(launch.program)
    is_translated = translated.by in SPAWNERS and not (
        translated.untranslated or translated.prefix or translated.command == launch.program
    )
    command = translated.command if is_translated else launch.program
    ranks = _ranks(translated, nodes, tasks, launch, remarks)
    options = [*script.request.options, *_mounts(launch)]
    options += ["--nodes", str(nodes)] if translated.hostfile and not is_translated else []
    env = _environment({**launch.env, **dict(_pair(text) for text in translated.env if "=" in text)}, launch, remarks)
    image = _image(launch, options, remarks)
    reason = "not known here: the program gets it as it is written"
    remarks.extend(Remark(launch.line, unknown, reason) for word in command for unknown in unknown_in(word))
    return BatchJob(
        line=launch.line,
        image=image,
        command=tuple(map(as_written, command)),
        launcher=_launcher(translated, launch, is_translated=is_translated),
        nodes=nodes,
        gpus_per_node=_gpus(sizes, script, nodes, tasks),
        ranks_per_node=ranks,
        time=_time(sizes, launch, remarks),
        env=env,
        options=tuple(map(as_written, options)),
        directory=launch.directory,
        remarks=tuple(sorted(dict.fromkeys(remarks), key=lambda remark: remark.line)),
    )


def _sizes(script: BatchScript) -> dict[str, str]:
    """The numbers of the launch, which win over those of the request."""
    requested, own = script.request.sizes, script.launch.sizes
    inherited = {name: value for name, value in requested.items() if name not in _TASKS or not own.keys() & {*_TASKS}}
    return {**inherited, **own}


def _number(sizes: Mapping[str, str], name: str) -> Optional[int]:
    """The number of an option; the least of a range. None if it is not given, or not known."""
    text = sizes.get(name, "").partition("-")[0]
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text) else None


def _layout(sizes: Mapping[str, str], launch: Launch, remarks: list[Remark]) -> tuple[int, Optional[int]]:
    """Nodes, and tasks per node; None for a number of tasks that is not known."""
    nodes, tasks, per_node = (_number(sizes, name) for name in ("nodes", *_TASKS))
    if not launch.starter:
        if nodes and nodes > 1:
            remarks.append(Remark(launch.line, launch.text, f"it started on the first of {nodes} nodes only"))
        return 1, 1
    if per_node and tasks:
        nodes = -(-tasks // per_node)
    if nodes is None and "nodes" in sizes:
        remarks.append(Remark(launch.line, as_written(sizes["nodes"]), "the number of nodes is not known: 1"))
    nodes = nodes or 1
    if per_node:
        return nodes, per_node
    if tasks is None:
        unknown = [as_written(sizes[name]) for name in _TASKS if name in sizes]
        reason = "the number of ranks is not known: one per GPU"
        remarks.extend(Remark(launch.line, text, reason) for text in unknown[:1])
        return nodes, None if unknown else 1
    nodes = min(nodes, tasks)
    if tasks % nodes:
        remarks.append(Remark(launch.line, launch.text, f"{tasks} ranks do not spread evenly over {nodes} nodes"))
    return nodes, max(1, tasks // nodes)


def _ranks(
    translated: TranslatedCommand, nodes: int, tasks: Optional[int], launch: Launch, remarks: list[Remark]
) -> Count:
    """Ranks per node: those that the program starts itself, else a node's tasks."""
    if not translated.by:
        return tasks or "auto"
    if tasks and tasks > 1:
        remarks.append(
            Remark(launch.line, launch.text, f"{translated.by} started ranks in each of {tasks} tasks of a node")
        )
    if translated.ranks_per_node:
        return translated.ranks_per_node
    if translated.ranks and translated.ranks % nodes == 0:
        return translated.ranks // nodes
    return 1 if translated.by in _ONE_RANK else "auto"


def _gpus(sizes: Mapping[str, str], script: BatchScript, nodes: int, tasks: Optional[int]) -> Count:
    """GPUs per node. A job that asks for none gets none by Slurm, and all of its node by PBS."""
    total, per_task = _number(sizes, "gpus"), _number(sizes, "gpus-per-task")
    if "gpus-per-node" in sizes:
        number = _number(sizes, "gpus-per-node")
        return number if number else 0 if sizes["gpus-per-node"] == "0" else "auto"
    if total:
        return max(1, total // nodes)
    if per_task and tasks:
        return per_task * tasks
    return "auto" if script.launch.gpus or script.request.scheduler != "slurm" else 0


def _translate(program: tuple[str, ...]) -> TranslatedCommand:
    """The program without what starts its ranks; the whole of it, where a number is not known."""
    try:
        return translate_command(program)
    except UsageError:
        try:
            return keep(program)
        except UsageError:
            return TranslatedCommand(program)


def _launcher(translated: TranslatedCommand, launch: Launch, *, is_translated: bool) -> str:
    if is_translated:
        return translated.launcher
    by_mpi = launch.mpi.startswith("pm") or launch.starter not in ("", "srun")
    return "mpi" if by_mpi and not translated.by else "auto"


def _mounts(launch: Launch) -> list[str]:
    """Binds as options; but the directory where the program starts is mounted anyway."""
    words: list[str] = []
    for text in dict.fromkeys(launch.mounts):
        mount = parse_mount(text)
        if mount.source != mount.target or mount.source != launch.directory:
            words += ["--mount", text]
    return words


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _environment(env: Mapping[str, str], launch: Launch, remarks: list[Remark]) -> dict[str, str]:
    """The variables that go into job.yaml."""
    kept = {}
    for name, value in env.items():
        left_out = why_left_out(name, value)
        if left_out is None and not is_known(value):
            left_out = ("a part of its value is known only in the job", True)
        if left_out is None:
            kept[name] = value
        else:
            remarks.append(Remark(launch.line, f"{name}={as_written(value)}", left_out[0], lost=left_out[1]))
    return kept


def _image(launch: Launch, options: list[str], remarks: list[Remark]) -> str:
    if launch.image and is_known(launch.image):
        return launch.image
    reason = "name the image" if launch.image else "it has no container: name an image with its software"
    remarks.append(Remark(launch.line, as_written(launch.image) or launch.text, reason))
    options += ["--image", "IMAGE"]
    return as_written(launch.image) or DEFAULT_IMAGE


def _time(sizes: Mapping[str, str], launch: Launch, remarks: list[Remark]) -> str:
    time = sizes.get("time", "")
    try:
        if parse_limit(time) != 0:
            return time
    except UsageError:
        pass
    remarks.append(Remark(launch.line, f"time limit {time}".strip(), f"none to read: job.yaml has {Resources().time}"))
    return Resources().time
