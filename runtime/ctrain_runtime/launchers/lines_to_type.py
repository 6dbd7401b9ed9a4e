"""The lines to type in place of commands that are refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import accumulate
from pathlib import PurePath

from ctrain_runtime.launchers.starters import PYTHON, SRUN

PROGRAM = re.compile(rf"{PYTHON.pattern}|.*\.(py|sh)")
_STEP_OPTION = re.compile(r"(?P<name>-[nN]|--(?:ntasks|nodes|ntasks-per-node))=?(?P<value>[0-9]*)")
_SHORT = {"n": "ntasks", "N": "nodes"}
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def program_line(words: Sequence[str]) -> str:
    """The program in a command, behind what would start it."""
    start = next((at for at in range(1, len(words)) if _begins_program(words, at)), None)
    program = list(words[start:]) if start else ["PROGRAM"]
    return shlex.join(["python", *program] if program[0].endswith(".py") else program)


def _begins_program(words: Sequence[str], at: int) -> bool:
    """Whether the program begins here. A script between an option and Python is the option's value."""
    name, behind = PurePath(words[at]).name, PurePath(words[at + 1]).name if at + 1 < len(words) else ""
    is_value = words[at - 1].startswith("-") and PYTHON.fullmatch(behind)
    return bool(PROGRAM.fullmatch(name)) and not is_value


def step_line(name: str, words: Sequence[str]) -> str:
    """The program of a step of the scheduler; with srun's numbers of nodes and ranks."""
    numbers = _step_numbers(words[1:]) if name == SRUN else {}
    nodes, ranks = numbers.get("nodes"), numbers.get("ntasks")
    evenly = ranks // (nodes or 1) if ranks and ranks % (nodes or 1) == 0 else None
    given = {"--nodes": nodes, "--ranks-per-node": numbers.get("ntasks-per-node", evenly)}
    options = "".join(f" {option} {number}" for option, number in given.items() if number)
    return f"ctrain run ...{options} -- {program_line(words)}"


def _step_numbers(words: Sequence[str]) -> dict[str, int]:
    """The numbers in the options of srun (man srun) by their long names."""
    numbers: dict[str, int] = {}
    for word, behind in zip(words, [*words[1:], ""]):
        option = _STEP_OPTION.fullmatch(word)
        value = option["value"] or behind if option else ""
        if option and _NUMBER.fullmatch(value):
            name = option["name"].lstrip("-")
            numbers[_SHORT.get(name, name)] = int(value)
        if PROGRAM.fullmatch(PurePath(word).name):
            break
    return numbers


def by_rank(numbers: Sequence[str], programs: Sequence[Sequence[str]]) -> str:
    """One command for several programs, each of so many ranks, as of `mpirun -np 1 A : -np 3 B`."""
    ends = accumulate(int(number) if _NUMBER.fullmatch(number) else 1 for number in numbers)
    *firsts, last = map(shlex.join, programs)
    text = "".join(f'[ "$RANK" -ge {end} ] || exec {program}; ' for end, program in zip(ends, firsts))
    return f"ctrain run ... -- bash -c {shlex.quote(f'{text}exec {last}')}"


def on_each_node(start: Sequence[str], options: str, rest: Sequence[str]) -> str:
    """A command that is started on each node, with the options by which these make one world."""
    return (
        f"ctrain run ... --launcher node -- bash -c {shlex.quote(f'{shlex.join(start)} {options} {shlex.join(rest)}')}"
    )
