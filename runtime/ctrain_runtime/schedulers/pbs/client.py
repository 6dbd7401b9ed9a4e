"""Runs PBS's commands and parses their answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ctrain_runtime.base import command
from ctrain_runtime.base.command import CommandResult
from ctrain_runtime.errors import CtrainError, SchedulerError

TIMEOUT_SECONDS = 30
# Of the variables of an outer job (PBS_JOBID, PBS_O_WORKDIR ...) and those that are options of commands (PBS_DPREFIX),
# the commands get only those needed to reach the server (man qsub, pbs.conf).
KEPT = frozenset({"PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC", "PBS_PRIMARY", "PBS_SECONDARY", "PBS_SERVER"})
FINISHED, UNKNOWN = 35, 153  # exit codes for jobs (pbs_error.h, modulo 256): PBSE_HISTJOBID, PBSE_UNKJOBID

SERVER_WITHIN = 1000  # characters, at the start of every answer: later ones may be a user's

_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "pb": 1 << 50}
_CHUNK = re.compile(r"\(([^)]*)\)")


def run(argv: Sequence[str], timeout: float = TIMEOUT_SECONDS, **options: Any) -> CommandResult:
    """Run a command of PBS, whatever its exit code; `options` are those of command.run. Raises CtrainError if it
    cannot start or times out."""
    environ = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith("PBS_")}
    return command.run(argv, env=environ, timeout=timeout, check=False, **options)


def run_with_history(program: str, *options: str, timeout: float = TIMEOUT_SECONDS) -> CommandResult:
    """Run a command about jobs that may have ended (-x), as far as the server keeps a history of jobs."""
    result = run([program, "-x", *options], timeout=timeout)
    if "not configured to maintain job history" in result.stderr:
        return run([program, *options], timeout=timeout)
    return result


def ask(*argv: str, kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind (Queue, Server, nodes, Jobs) in the answer to a command, by name.

    Raises SchedulerError if PBS does not answer.
    """
    if not command.which(argv[0]):
        hint = "Load PBS's module, or run here with --site local"
        raise SchedulerError(f"PBS command {argv[0]} not found on PATH", hint)
    hint = "Retry later, or run here with --site local"
    try:
        result = run(argv)
    except CtrainError as error:
        raise SchedulerError(f"PBS does not answer: {error.message}", hint) from error
    if result.code != 0:
        raise SchedulerError(f"PBS does not answer: {error_text(result)}", hint)
    return parse(result.stdout, kind)


def parse(text: str, kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind in JSON output, {} if it has none. Raises SchedulerError if it is not JSON.

    Control characters are let through: values of environments are in it as they are.
    """
    try:
        answer = json.loads(text[max(0, text.find("{")) :], strict=False)
    except (ValueError, RecursionError) as error:
        raise SchedulerError(f"PBS's answer is not JSON: {error}") from error
    objects = answer.get(kind) if isinstance(answer, dict) else None
    objects = objects if isinstance(objects, dict) else {}
    return {name: value for name, value in objects.items() if isinstance(value, dict)}


def mapping(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The attribute of an object that has names of its own, as resources_max; {} if it has another form."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def server(text: str) -> str:
    """The name of the server that gave an answer in JSON; "" if it has none."""
    name = re.search(r'"pbs_server"\s*:\s*"([^"\n]*)"', text[:SERVER_WITHIN])
    return name[1] if name else ""


def error_text(result: CommandResult) -> str:
    """The errors that a command of PBS printed, in one line, without its name and its usage."""
    text = re.split(r"(?m)^usage:", result.stderr)[0]
    lines = [re.sub(r"^(?:q\w+|pbsnodes): ", "", line.strip()) for line in text.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines)) or result.last_error_line()


def read_count(value: object) -> int:
    """A number of resources, which PBS prints as a number or as text; 0 for anything else."""
    text = str(value)
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0


def read_megabytes(value: object) -> int:
    """Memory as PBS writes it, in MB: 24684084kb, 500gb, 1024 (bytes); 0 for any other text."""
    amount = re.fullmatch(r"([0-9]{1,18})([kmgtp]?b)?", str(value).lower())
    return int(amount[1]) * _BYTES[amount[2] or "b"] >> 20 if amount else 0


def read_hosts(job: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The hosts of a job in their order, and what it has on each: ncpus, ngpus, and mem in MB.

    exec_host (pbs01/0*2+pbs02/0) and exec_vnode ((pbs01:ncpus=2:ngpus=1)+(pbs02:ncpus=1)) have the same order.
    """
    hosts: dict[str, dict[str, int]] = {}
    for name, chunk in zip(host_names(job), _CHUNK.findall(str(job.get("exec_vnode", "")))):
        total = hosts.setdefault(name, {"ncpus": 0, "ngpus": 0, "mem": 0})
        for resource, value in re.findall(r":(ncpus|ngpus|mem)=([^:+]*)", chunk):
            total[resource] += read_megabytes(value) if resource == "mem" else read_count(value)
    return hosts


def host_names(job: Mapping[str, Any]) -> list[str]:
    """The host of each chunk of a job."""
    return [part.split("/")[0] for part in str(job.get("exec_host", "")).split("+") if part]
