"""Makes definitions of Dockerfiles and of Singularity recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.definitions import definition
from ctrain_builder.imports import dockerfile, instructions, recipe, stages, written
from ctrain_builder.imports.copies import Context
from ctrain_builder.imports.entry import Below, entry
from ctrain_builder.imports.findings import Finding
from ctrain_builder.imports.stages import Base
from ctrain_builder.imports.words import Unknown, placeholders
from ctrain_runtime.errors import ConfigError

_PARENT = Base(f"{{{{ {definition.PARENT} }}}}")


@dataclass(frozen=True)
class Imported:
    """The text of a definition, its entry in images.yaml, and what is to be told, by the lines of the imported file."""

    text: str
    entry: str
    findings: tuple[Finding, ...]


def of_dockerfile(text: str, where: str, name: str, context: Context, on: Below | None, target: str) -> Imported:
    """`on` is what it is stacked on, None for its own FROM. Raises ConfigError, UsageError."""
    read, escape = instructions.read(text)
    selected = stages.select(read, where, target, escape)
    aside = f"/usr/local/src/{name}"
    translation = dockerfile.translate(selected, context, aside, escape)
    first = selected.stages[0]
    findings = [*translation.findings]
    if on is None:
        try:
            base = stages.base(first, selected.arguments, list(translation.arguments))
        except Unknown as unknown:
            raise ConfigError(f"{where}, line {first.first.line}: no ARG before FROM is named {unknown}") from unknown
        if not first.image:
            raise ConfigError(f"{where}, line {first.first.line}: FROM names no image")
        if first.first.flags:
            why = "the image is that of the build host's CPU"
            findings.append(Finding(first.first.line, str(first.first), why, lost=False))
        for missing in dict.fromkeys(name for name in placeholders(base.source) if name not in base.arguments):
            todo = f"Give one to each build, --build-arg {missing}=VALUE, or write it into %arguments"
            findings.append(Finding(first.first.line, str(first.first), f"{missing} has no value", todo, lost=False))
    else:
        base = _PARENT
        findings.append(_replaced(first.first.line, str(first.first)))
    made = written.dockerfile(base, translation, aside, where)
    return _checked(made, name, base if on is None else on, findings)


def of_recipe(text: str, where: str, name: str, context: Context, on: Below | None) -> Imported:
    """As of_dockerfile()."""
    read = recipe.read(text, where)
    base = recipe.base(read) if on is None else _PARENT
    lines, findings = recipe.translate(read, context)
    if on is not None:
        at = next((line for line in read.header if line.strip().lower().startswith("from")), read.header[0])
        findings.append(_replaced(text.split("\n").index(at) + 1, at.strip()))
    made = written.recipe(base, read, lines, where)
    return _checked(made, name, base if on is None else on, findings)


def _replaced(line: int, text: str) -> Finding:
    return Finding(line, text, "--on replaces it", lost=False)


def _checked(text: str, name: str, below: Below, findings: Sequence[Finding]) -> Imported:
    """Read and rendered as a build does."""
    parsed = definition.parse(name, Path(name), text)
    definition.render(parsed, dict.fromkeys(parsed.placeholders - parsed.defaults.keys(), "x"))
    return Imported(text, entry(name, below), tuple(sorted(findings, key=lambda finding: finding.line)))
