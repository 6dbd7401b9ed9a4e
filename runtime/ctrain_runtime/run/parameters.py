"""The parameters of a run: settings of its program, which become words at the end of its command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import KEY_VALUE, PARAMETER, Job

EXAMPLE = "As in: --set lr=0.1"


def parse_setting(text: str, option: str = "--set") -> tuple[str, str]:
    """The name and the value of NAME=VALUE. Raises UsageError."""
    name, equals, value = text.partition("=")
    if equals and PARAMETER.fullmatch(name):
        return name, value
    bare = text.lstrip("-")
    if bare != text and PARAMETER.match(bare):
        raise UsageError(f"{option} {text}: a parameter has no dashes here", f"Write: {option} {bare}")
    raise UsageError(f"{option} {text} is not NAME=VALUE", EXAMPLE.replace("--set", option))


def with_settings(job: Job, given: Mapping[str, object], style: str = "") -> Job:
    """The job with other values of its parameters, in another style if one is given. A job that declares parameters
    has no others. Raises UsageError."""
    settings = dict(parse_setting(f"{name}={value}", "parameter") for name, value in given.items())
    unknown = next((name for name in settings if job.parameters and name not in job.parameters), None)
    if unknown is not None:
        hint = f"{suggest(unknown, job.parameters)} Its parameters: {', '.join(job.parameters)}".strip()
        raise UsageError(f"job {job.name} has no parameter {unknown!r}", hint)
    changed = replace(job, parameters={**job.parameters, **settings}, parameter_style=style or job.parameter_style)
    if changed.parameters and _is_text_for_shell(job.command):
        problem = f"parameters do not reach the text of {job.command[0]} -c, which does not use its arguments"
        raise UsageError(problem, 'Use "$@" in it, or name the program itself')
    return changed


def words(job: Job) -> tuple[str, ...]:
    """The words that follow the job's command."""
    pairs = job.parameters.items()
    if job.parameter_style == KEY_VALUE:
        return tuple(f"{name}={value}" for name, value in pairs)
    return tuple(word for name, value in pairs for word in (f"--{name}", value))


def _is_text_for_shell(command: tuple[str, ...]) -> bool:
    """Whether a shell runs a text that uses none of its arguments, as in bash -c 'python train.py'."""
    text = command[2] if len(command) > 2 and re.fullmatch(r"-[a-z]*c", command[1]) else ""
    return bool(text) and command[0].endswith("sh") and not re.search(r"\$(@|\*|\{?[0-9@*])", text)
