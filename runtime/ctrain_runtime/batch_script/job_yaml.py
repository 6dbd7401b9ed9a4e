"""A job as the text of its job.yaml, and as the line that runs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.batch_script.model import BatchJob, Remark
from ctrain_runtime.plan.environment import LOGIN, MASK, secret_names

LONGEST_TEXT = 90  # of a line of the script in a comment
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S+)")


def job_text(job: BatchJob, source: str) -> str:
    """The text of job.yaml, with the lines of the script `source` that are not in the job as comments."""
    resources = {
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "ranks_per_node": job.ranks_per_node,
        "time": job.time,
    }
    lost = [remark for remark in job.remarks if remark.lost]
    needless = [remark for remark in job.remarks if not remark.lost]
    lines = [
        f"# Made from {_printable(source)} by: ctrain import script. Keys: ctrain help jobs",
        f"image: {_flow(job.image)}",
        f"command: {_flow(list(job.command))}",
        *([f"launcher: {job.launcher}"] if job.launcher != "auto" else []),
        f"resources: {_flow(resources)}",
        *([f"env: {_flow(job.env)}"] if job.env else []),
        *_comments("Not carried over:", lost),
        *_comments("No longer needed:", needless),
    ]
    return "\n".join(lines) + "\n"


def run_line(job: BatchJob, directory: str) -> str:
    """The command that runs the job whose job.yaml is in a directory."""
    return quote_argv(["ctrain", "run", directory, *job.options])


def describe(remarks: Iterable[Remark]) -> str:
    """As in: line 14 (export FOO=$(hostname)), line 17 (trap ...)."""
    return ", ".join(f"line {remark.line} ({shorten(remark.text)})" for remark in remarks)


def shorten(text: str) -> str:
    """A line of the script without secrets, on one line."""
    masked = LOGIN.sub(f"://{MASK}@", _ASSIGNED.sub(_masked, _printable(text)))
    return masked if len(masked) <= LONGEST_TEXT else f"{masked[: LONGEST_TEXT - 3]}..."


def _masked(assignment: re.Match[str]) -> str:
    return f"{assignment[1]}={MASK}" if secret_names({assignment[1]: ""}) else assignment[0]


def _comments(title: str, remarks: Sequence[Remark]) -> list[str]:
    lines = [f"#   line {remark.line}: {shorten(remark.text)}  ({shorten(remark.reason)})" for remark in remarks]
    return [f"# {title}", *lines] if lines else []


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def _flow(value: Any) -> str:
    """A value in YAML, on one line."""
    style: dict[str, Any] = {
        "default_flow_style": True,
        "width": float("inf"),
        "sort_keys": False,
        "allow_unicode": True,
    }
    return str(yaml.dump([value], Dumper=_Dumper, **style)).strip()[1:-1]


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes the line breaks of a text as \\n; SafeDumper itself breaks the line, twice each."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


_Dumper.add_representer(str, _text)
