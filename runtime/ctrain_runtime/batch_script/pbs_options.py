"""Options of qsub, as a script has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.batch_script.model import Remark, Request
from ctrain_runtime.schedulers.pbs.options import DEFAULT_PLACE, ITEM, REFUSED, parse_letters

DECIDED = {
    **dict.fromkeys("eoj", "the output is in the run directory"),
    "N": "runs are named after their job; --name NAME gives another",
    "S": "job.sh has its own shell",
    "V": "what passes to the program is a list",
}
_OPTIONS = {"A": "--account", "q": "--partition"}
_CHUNK_SIZES = {"ngpus": "gpus-per-node", "mpiprocs": "ntasks-per-node", "ppn": "ntasks-per-node"}
_CHUNK_DECIDED = ("ncpus", "ompthreads")  # ranks share the cores of the job's GPUs


def add(request: Request, line: int, text: str, words: Sequence[str]) -> None:
    """Add the options of one line #PBS to the request."""
    rest = list(words)
    while rest:
        option = rest.pop(0)
        if not option.startswith("-"):
            request.remarks.append(Remark(line, text, f"{option} is not an option"))
            return
        for letter, attached in parse_letters(option):
            value = attached.strip() or (rest.pop(0) if rest and not rest[0].startswith("-") else "")
            _add_option(request, line, text, letter, value)


def _add_option(request: Request, line: int, text: str, letter: str, value: str) -> None:
    if letter == "l":
        for item in ITEM.split(value):
            _add_resource(request, line, text, item.strip())
    elif letter in _OPTIONS and value:
        request.options += [_OPTIONS[letter], value]
    elif letter in DECIDED:
        request.remarks.append(Remark(line, text, DECIDED[letter], lost=False))
    elif letter in REFUSED:
        request.remarks.append(Remark(line, text, ". ".join(REFUSED[letter])))
    elif re.fullmatch("[A-Za-z]", letter):
        request.options.append(f"--scheduler-option=-{letter} {value}".rstrip())
    else:
        request.remarks.append(Remark(line, text, "not an option of qsub"))


def _add_resource(request: Request, line: int, text: str, item: str) -> None:
    name, _, value = item.partition("=")
    if name in ("select", "nodes"):
        _add_chunks(request, line, text, value)
    elif name == "walltime":
        request.sizes["time"] = format_limit(-(-int(value) // 60)) if value.isascii() and value.isdigit() else value
    elif name == "place" and value == DEFAULT_PLACE:
        request.remarks.append(Remark(line, text, "each node's tasks are on a host of their own", lost=False))
    elif name in (*_CHUNK_SIZES, *_CHUNK_DECIDED, "mem"):
        _add_of_chunk(request, line, text, item)
    else:
        request.options.append(f"--scheduler-option=-l {item}")


def _add_chunks(request: Request, line: int, text: str, value: str) -> None:
    """The chunks of select=2:ngpus=4:..., each of which is a node to ctrain; those of nodes=2:ppn=4 likewise."""
    first, *further = value.split("+")
    count, *resources = first.split(":")
    if "=" in count:
        count, resources = "1", [count, *resources]
    request.sizes["nodes"] = count
    if further:
        request.remarks.append(Remark(line, text, f"all nodes are alike: {'+'.join(further)} is left out"))
    constraints = [item for item in resources if not _add_of_chunk(request, line, text, item)]
    if constraints:
        request.options += ["--constraint", ":".join(constraints)]


def _add_of_chunk(request: Request, line: int, text: str, item: str) -> bool:
    """Add a resource of a node; whether it is one that ctrain has an option or a key for."""
    name, _, value = item.partition("=")
    if name in _CHUNK_SIZES:
        request.sizes[_CHUNK_SIZES[name]] = value
    elif name == "mem":
        request.options += ["--mem", value]
    elif name in _CHUNK_DECIDED:
        request.remarks.append(Remark(line, text, "ranks share the cores of the job's GPUs", lost=False))
    return name in (*_CHUNK_SIZES, *_CHUNK_DECIDED, "mem")
