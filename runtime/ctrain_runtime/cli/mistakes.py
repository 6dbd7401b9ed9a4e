"""Common mistakes on a command line; the error shows the line to type."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ctrain_runtime import job
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError
from ctrain_runtime.launchers.spawner_options import SPAWNERS
from ctrain_runtime.launchers.starters import PYTHON
from ctrain_runtime.run.typed_command import INTERPRETERS

HABITS = {  # commands of other tools, and what does the same
    **dict.fromkeys(("stop", "kill"), "ctrain cancel"),
    **dict.fromkeys(("log", "tail", "output"), "ctrain logs"),
    **dict.fromkeys(("ps", "queue", "top"), "ctrain runs"),
    **dict.fromkeys(("list", "ls"), "ctrain runs, or ctrain images"),
}
# With a value; hardly ever a program's own.
OWN_OPTIONS = ("--image", "--nodes", "--gpus-per-node", "--ranks-per-node", "--partition", "--account", "--site")
OF_SCHEDULERS = {  # options of srun, sbatch and qsub
    "-A": "--account",
    "-C": "--constraint",
    "-J": "--name",
    "-N": "--nodes",
    "-n": "--ranks-per-node",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
    "--gres": "--gpus-per-node",
    "--job-name": "--name",
    "--ntasks": "--ranks-per-node",
    "--ntasks-per-node": "--ranks-per-node",
    "--queue": "--partition",
    "--walltime": "--time",
}


def unknown_command(name: str, known: Sequence[str]) -> UsageError:
    """The error for a first argument that is not a command."""
    if name in HABITS:
        return UsageError(f"unknown command {name!r}", f"Did you mean: {HABITS[name]}")
    return UsageError(f"unknown command {name!r}", f"{suggest(name, known)} Known: {', '.join(known)}".strip())


def check(parser: argparse.ArgumentParser, own: Sequence[str], args: argparse.Namespace, unknown: list[str]) -> None:
    """Raise UsageError for a command in place of the job, and for arguments that the verb does not have.

    `own` are the arguments before `--`, `args` the parsed ones, `unknown` the rest.
    """
    reference = getattr(args, "job", None)
    if reference and _is_command(reference):
        start = position(parser, own, reference)
        interpreter = INTERPRETERS.get(Path(reference).suffix)
        options, words = _own_options(own[start:])
        command = [*([interpreter] if interpreter else []), *words, *args.rest]
        line = _line(parser, [*own[:start], *options], command)
        raise UsageError(f"{reference!r} is a program, not a job", f"Put the command after --: {line}")
    if unknown:
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", _hint(parser, own, args, unknown))


def _hint(parser: argparse.ArgumentParser, own: Sequence[str], args: argparse.Namespace, unknown: list[str]) -> str:
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    meant = _suggest_options(options, list(_options(parser, own)))
    reference = getattr(args, "job", None)
    if reference and _is_job(reference):
        line = _line(parser, _without(own, unknown), [*unknown, *args.rest])
    elif reference and not meant:  # as in --epochs 4 resnet50, where 4 is parsed as the job
        line = f"{parser.prog} JOB -- ARGUMENTS"
    else:
        return f"{meant} See: {parser.prog} --help".strip()
    return f"{meant} Put the program's own arguments after --: {line}".strip()


def _own_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options among the words of a command that are ctrain's, with their values, and all other words."""
    options: list[str] = []
    others: list[str] = []
    for word in words:
        is_value = bool(options) and options[-1] in OWN_OPTIONS
        (options if is_value or word.partition("=")[0] in OWN_OPTIONS else others).append(word)
    return options, others


def _suggest_options(options: Sequence[str], known: Sequence[str]) -> str:
    """The question for unknown options: short ones of schedulers may have their value behind them, as in -N2."""
    same = [OF_SCHEDULERS.get(option if option.startswith("--") else option[:2]) for option in options]
    meant = list(dict.fromkeys(name for name in same if name in known))
    if meant:
        return f"Did you mean {', '.join(map(repr, meant))}?"
    return next(filter(None, (suggest(option, known) for option in options)), "")


def _line(parser: argparse.ArgumentParser, own: Sequence[str], program: Sequence[str]) -> str:
    return " ".join([parser.prog, *map(shlex.quote, own), "--", *map(shlex.quote, program)])


def _is_job(reference: str) -> bool:
    return reference in job.names() or ("/" in reference and job.is_job_directory(reference))


def _is_command(reference: str) -> bool:
    """Whether it is a program or script, and neither a job nor a job's directory without its ./."""
    if reference in job.names() or job.is_job_directory(reference):
        return False
    path = Path(reference)
    if path.suffix in INTERPRETERS or PYTHON.fullmatch(reference) or reference in SPAWNERS:
        return True
    return path.is_file() or shutil.which(reference) is not None


def position(parser: argparse.ArgumentParser, own: Sequence[str], reference: str) -> int:
    """The index of the job in `own`; the same word may be the value of an option before it."""
    for index, word in enumerate(own):
        with suppress(UsageError):  # the words before it end with an option that lacks its value
            if word == reference and parser.parse_known_args(own[:index])[0].job is None:
                return index
    return len(own)


def _without(own: Sequence[str], unknown: Sequence[str]) -> list[str]:
    """`own` without the unknown words, which are in the same order."""
    remaining, words = list(unknown), []
    for word in own:
        if remaining and word == remaining[0]:
            remaining.pop(0)
        else:
            words.append(word)
    return words


def _options(parser: argparse.ArgumentParser, own: Sequence[str]) -> Iterator[str]:
    """The options of the verb, and of its action if it has actions."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name in action.choices.keys() & set(own):
                yield from _options(action.choices[name], own)
