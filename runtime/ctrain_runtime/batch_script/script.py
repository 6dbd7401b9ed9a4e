"""A batch script, line by line: its request, its variables and directories, and the launch that becomes the job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Optional

from ctrain_runtime.batch_script.environment import why_left_out
from ctrain_runtime.batch_script.launch import join, read_launch
from ctrain_runtime.batch_script.model import Launch, Remark, Request
from ctrain_runtime.batch_script.request import read_request
from ctrain_runtime.batch_script.statements import Statement, read_statements
from ctrain_runtime.batch_script.variables import Variables, as_written, clean, is_known
from ctrain_runtime.errors import JobError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OPENING = ("if", "for", "while", "until", "case", "select", "{")
_CLOSING = ("fi", "done", "esac", "}")
_KEYWORDS = ("then", "do", "else", "elif", "!", "time")
_DECLARES = ("export", "declare", "typeset", "readonly", "local")
_PRINTS = (  # commands that only print, or set options of the shell
    *(
        "echo",
        "printf",
        "date",
        "hostname",
        "env",
        "printenv",
        "pwd",
        "which",
        "whoami",
        "cat",
        "ls",
        "tee",
        "nvidia-smi",
    ),
    *("rocm-smi", "lscpu", "free", "scontrol", "squeue", "sacct", "set", "wait", "exit", "true", ":", "sleep", "type"),
)
_MODULES = ("module", "ml")
_BINDS = re.compile(r"(?:SINGULARITY|APPTAINER)_BIND(?:PATH)?")
_OF_CONTAINER = re.compile(r"(?:SINGULARITY|APPTAINER)ENV_(\w+)")
_OF_ENGINE = re.compile(r"(?:SINGULARITY|APPTAINER)_\w+")


@dataclass(frozen=True)
class BatchScript:
    """What a script requests, and its launch; `remarks` are about all lines that are neither."""

    request: Request
    launch: Launch
    remarks: tuple[Remark, ...]


@dataclass
class _Shell:
    """The state of the shell at one line. `depth`: how many if, for ... are open. `exported`: names of variables."""

    variables: Variables
    directory: Optional[str]
    depth: int = 0
    exported: set[str] = field(default_factory=set)
    launches: list[Launch] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def read_script(text: str, directory: str, environ: Mapping[str, str]) -> BatchScript:
    """A script that is submitted in `directory`. Raises JobError if no line of it is a launch."""
    text = clean(text).replace("\r\n", "\n")
    request = read_request(text)
    start = join(directory, request.sizes.pop("chdir", "."))
    shell = _Shell(Variables(_known(request, directory, environ), _outputs(request, start)), start)
    for statement in read_statements(text):
        _read(shell, statement)
    if not shell.launches:
        problem = (
            "no line starts a program by srun, mpirun, mpiexec or aprun, or a container by singularity or apptainer"
        )
        raise JobError(problem, "Write the job by hand: ctrain help jobs")
    launch = max(shell.launches, key=lambda launch: (bool(launch.image), bool(launch.starter), launch.line))
    others = (
        Remark(other.line, other.text, f"the job is line {launch.line}") for other in shell.launches if other != launch
    )
    return BatchScript(request, launch, (*request.remarks, *shell.remarks, *others, *launch.remarks))


def _known(request: Request, directory: str, environ: Mapping[str, str]) -> dict[str, Optional[str]]:
    """Variables that the script finds: who and where the user is, and what the scheduler tells of the request."""
    paths = {name: value for name, value in environ.items() if value.startswith("/") and ":" not in value}
    known: dict[str, Optional[str]] = {
        **paths,
        **{name: environ[name] for name in ("USER", "LOGNAME") if name in environ},
    }
    known.update({"PWD": directory, "SLURM_SUBMIT_DIR": directory, "PBS_O_WORKDIR": directory})
    sizes = request.sizes
    for names, key in (
        ("SLURM_NNODES SLURM_JOB_NUM_NODES", "nodes"),
        ("SLURM_NTASKS SLURM_NPROCS", "ntasks"),
        ("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
        ("SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE", "gpus-per-node"),
        ("SLURM_GPUS", "gpus"),
        ("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    ):
        known.update(dict.fromkeys(names.split(), sizes.get(key)))
    per_node = sizes.get("ntasks-per-node")
    if "ntasks" not in sizes and per_node and (sizes.get("nodes", "1") + per_node).isdigit():
        total = str(int(sizes.get("nodes", "1")) * int(per_node))
        known.update({"SLURM_NTASKS": total, "SLURM_NPROCS": total})
    return known


def _outputs(request: Request, directory: Optional[str]) -> dict[str, str]:
    """What some commands print in the job, by their text without blanks and quotes."""
    nodes, tasks = request.sizes.get("nodes", "1"), request.sizes.get("ntasks-per-node", "1")
    outputs = {"pwd": directory or ""} if directory else {}
    if request.scheduler == "pbs" and (nodes + tasks).isdigit():
        lines = str(int(nodes) * int(tasks))  # of the file of nodes: one per rank (man pbs_resources, mpiprocs)
        outputs.update({"wc-l<$PBS_NODEFILE": lines, "cat$PBS_NODEFILE|wc-l": lines})
        outputs["sort-u$PBS_NODEFILE|wc-l"] = outputs["uniq$PBS_NODEFILE|wc-l"] = nodes
    gpus = request.sizes.get("gpus-per-node", "")
    return {**outputs, "nvidia-smi-L|wc-l": gpus} if gpus.isdigit() else outputs


def _read(shell: _Shell, statement: Statement) -> None:
    words = [word for written in statement.words for word in shell.variables.words(written)]
    names = [as_written("".join(part.text for part in word)) for word in statement.words]
    while names and names[0] in _KEYWORDS:
        names, words = names[1:], words[1:]
        statement = Statement(statement.line, statement.text, statement.words[1:], statement.end, statement.reads)
    first = names[0] if names else ""
    if first in _CLOSING:
        shell.depth = max(0, shell.depth - 1)
        return
    if first in _OPENING:
        shell.depth += 1
        _lose(shell, statement, "only simple commands are read")
    elif not words and not names:
        return
    elif not _assign(shell, statement, first):
        _command(shell, statement, words)


def _assign(shell: _Shell, statement: Statement, first: str) -> bool:
    """Read assignments, exported or not; whether that is all that the command is."""
    exports = first in _DECLARES
    own = statement.words[1:] if exports else statement.words
    texts = [shell.variables.text(word) for word in own]
    if not exports and not all(map(_ASSIGNMENT.fullmatch, texts)):
        return False
    for text in texts:
        assignment = _ASSIGNMENT.fullmatch(text)
        name = assignment[1] if assignment else text
        if assignment:
            before = (shell.variables.values.get(name) or "") if assignment[2] else ""
            shell.variables.assign(name, before + assignment[3])
            if shell.depth or not is_known(assignment[3]):
                shell.variables.values[name] = None
        if first == "export" or (exports and "-x" in texts):
            _export(shell, statement, name)
    return True


def _export(shell: _Shell, statement: Statement, name: str) -> None:
    value = shell.variables.values.get(name, "")
    of_container = _OF_CONTAINER.fullmatch(name)
    left_out = why_left_out(of_container[1] if of_container else name, value or "")
    if not of_container and not _BINDS.fullmatch(name) and _OF_ENGINE.fullmatch(name):
        left_out = "the engine gets no settings of the shell", False
    if left_out is None and value is None:
        left_out = _why_unknown(shell), True
    if left_out is None:
        shell.exported.add(name)
    else:
        shell.remarks.append(Remark(statement.line, statement.text, left_out[0], lost=left_out[1]))


def _why_unknown(shell: _Shell) -> str:
    return "it depends on a condition or loop" if shell.depth else "a part of its value is known only in the job"


def _command(shell: _Shell, statement: Statement, words: Sequence[str]) -> None:
    assigned = {}
    rest = list(words)
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        assigned[name] = value
    name = PurePath(rest[0]).name if rest else ""
    if name == "cd" and len(rest) < 3 and not shell.depth:
        _change_directory(shell, statement, rest[1] if len(rest) > 1 else "~")
    elif name == "unset":
        shell.exported -= set(rest[1:])
        for variable in rest[1:]:
            shell.variables.values.pop(variable, None)
    elif name in _MODULES:
        shell.remarks.append(Remark(statement.line, statement.text, "the software is in the image", lost=False))
    elif not _launch(shell, statement, rest, assigned):
        reason, lost = ("it only prints", False) if name in _PRINTS else ("nothing does it now", True)
        shell.remarks.append(Remark(statement.line, statement.text, reason, lost=lost))


def _change_directory(shell: _Shell, statement: Statement, target: str) -> None:
    shell.directory = join(shell.directory, target)
    shell.variables.values["PWD"] = shell.directory
    shell.variables.outputs = {**shell.variables.outputs, **({"pwd": shell.directory} if shell.directory else {})}
    if shell.directory is None:
        _lose(shell, statement, "the directory is not known")


def _launch(shell: _Shell, statement: Statement, words: Sequence[str], assigned: Mapping[str, str]) -> bool:
    """Read a launch; whether the command is one."""
    values = {name: shell.variables.values.get(name) for name in sorted(shell.exported)}
    exported = {**{name: value for name, value in values.items() if value is not None}, **assigned}
    mounts = [value for name, value in exported.items() if _BINDS.fullmatch(name)]
    env = {}
    for name, value in exported.items():
        of_container = _OF_CONTAINER.fullmatch(name)
        if of_container:
            env[of_container[1]] = value
        elif not _OF_ENGINE.fullmatch(name):
            env.setdefault(name, value)
    launch = read_launch(statement.line, statement.text, words, shell.directory, env, mounts)
    if launch is None:
        return False
    shell.launches.append(launch)
    if statement.reads:
        _lose(shell, statement, "its standard input is a text or a file")
    return True


def _lose(shell: _Shell, statement: Statement, reason: str) -> None:
    shell.remarks.append(Remark(statement.line, statement.text, reason))
