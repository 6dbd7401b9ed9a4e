"""Singularity recipes as definitions of ctrain: what a layer cannot honour is left as a comment and listed.

The text stays as it is. spython's parser of recipes knows one source of images only, makes the name of the image small,
and knows neither %arguments nor the shell of %post.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from ctrain_builder.definitions import definition
from ctrain_builder.imports.copies import Context, Missing
from ctrain_builder.imports.findings import Finding
from ctrain_builder.imports.stages import Base, of_image, without_tag
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.store import TAG_RE

_BOOTSTRAP = re.compile(r"(?i)bootstrap\s*:")
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_ON_THE_HOST = ("pre", "setup")


@dataclass(frozen=True)
class Recipe:
    """The sections of one stage, without the header, which `base` stands for; None for one that installs packages."""

    header: tuple[str, ...]
    sections: tuple[tuple[int, str, tuple[str, ...]], ...]  # number of its line, that line, those that follow
    findings: tuple[Finding, ...]

    @property
    def keys(self) -> dict[str, str]:
        pairs = (line.split("#")[0].partition(":") for line in self.header)
        return {key.strip().lower(): value.strip() for key, colon, value in pairs if colon}


def read(text: str, where: str) -> Recipe:
    """The last stage of a recipe: Apptainer makes the image of it. Raises ConfigError."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    starts = [number for number, line in enumerate(lines) if _BOOTSTRAP.match(line.strip())]
    if not starts:
        raise ConfigError(f"{where} has no line `Bootstrap:`", "Name a recipe, a Dockerfile or a list of packages")
    why, todo = "a stage before the last one", "Make it an image of its own"
    findings = tuple(Finding(start + 1, lines[start].strip(), why, todo) for start in starts[:-1])
    heads = [at for at in range(starts[-1], len(lines)) if lines[at].lstrip().startswith("%")]
    ends = [*heads[1:], len(lines)]
    sections = tuple((at + 1, lines[at].strip(), tuple(lines[at + 1 : end])) for at, end in zip(heads, ends))
    return Recipe(tuple(lines[starts[-1] : min(heads, default=len(lines))]), sections, findings)


def base(recipe: Recipe) -> Base:
    """What it starts from, its tag an argument. One that is an argument already stays the recipe's."""
    source = recipe.keys.get("from", "")
    if recipe.keys["bootstrap"].lower() != "docker":
        return without_tag(source)
    names = _PLACEHOLDER.findall(source)
    defaults = dict(_defaults(recipe))
    for name in reversed(names):
        if TAG_RE.fullmatch(defaults.get(name, "")):
            return Base(source, {}, name, defaults[name])
    return without_tag(source) if names else of_image(source, list(defaults))


def translate(recipe: Recipe, context: Context) -> tuple[list[str], list[Finding]]:
    """The lines of the sections, and what is left out."""
    written: list[str] = []
    findings = list(recipe.findings)
    for number, head, body in recipe.sections:
        word, _, rest = head[1:].partition(" ")
        reason = _refusal(word.lower(), rest.strip())
        if reason:
            findings.append(Finding(number, head, *reason))
            written += ["", *(f"# {line}".rstrip() for line in (head, *body))]
        elif word.lower() == "files":
            written += ["", head, *_files(number, body, context, findings)]
        else:
            written += ["", head, *_stripped(body)]
    return written, findings


def _refusal(section: str, rest: str) -> Optional[tuple[str, str]]:
    """Why a layer cannot honour a section, and what to do; None for others."""
    if section in _ON_THE_HOST:
        return "it runs on the build host, outside the image", "Use %post"
    if section not in definition.SECTIONS:
        return f"layers have no section %{section}", "Use %post, %environment and %runscript"
    if section == "files" and rest:
        return "it copies from another stage", "Copy from the host instead"
    return None


def _files(number: int, body: Sequence[str], context: Context, findings: list[Finding]) -> Iterator[str]:
    """The lines of %files, relative to what definitions take their files from."""
    for at, line in enumerate(_stripped(body), number + 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            yield line
            continue
        try:
            if '"' in line:
                raise Missing("its names are in quotes", "Write it by hand, relative to the directory of definitions/")
            inside = words[0].startswith(f"{context.root}/")
            if words[0].startswith("/") and not inside:
                raise Missing("it is an absolute path", f"Copy it below {context.root}")
            name = words[0].removeprefix(f"{context.directory}/")
            sources = [context.name(path) for path in context.sources(name)]
            to = words[1] if len(words) > 1 else f"/{name}"
            yield from (f"    {source} {to}" for source in sources)
        except Missing as missing:
            findings.append(Finding(at, line.strip(), missing.why, missing.todo))
            yield f"    # {line.strip()}"


def _stripped(body: Sequence[str]) -> list[str]:
    """Without empty lines at the end."""
    lines = list(body)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _defaults(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for _, head, body in recipe.sections:
        if head[1:].strip().lower() == "arguments":
            for line in body:
                name, equals, value = line.strip().partition("=")
                if equals and not name.startswith("#"):
                    yield name.strip(), value.strip()
