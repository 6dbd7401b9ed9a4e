"""Definitions as files of ctrain: the sections that spython writes, under a header with arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from spython.logger import bot
from spython.main.parse.parsers import DockerParser
from spython.main.parse.writers import SingularityWriter

from ctrain_builder.definitions import definition
from ctrain_builder.imports.dockerfile import Translation
from ctrain_builder.imports.recipe import Recipe
from ctrain_builder.imports.stages import SCRATCH, Base

BUILD_ENV = "if [ -f /mnt/build-env.sh ]; then . /mnt/build-env.sh; fi"
_USER = re.compile(r"(?m)^su - (.*) # (USER\1\s*)$")
_ORDER = ("files", "post", "environment", "labels", "runscript")


def dockerfile(base: Base, translation: Translation, aside: str, origin: str) -> str:
    """The text of a definition."""
    sections = _sections(translation.lines)
    parts = {name: sections.get(name, []) for name in _ORDER}
    if not translation.has_runscript:  # spython would start bash, in place of what the base starts
        parts["runscript"] = []
    if parts["post"]:
        end = [f"rm -rf {aside}"] if parts["files"] else []
        parts["post"] = [BUILD_ENV, "cd /", *parts["post"], *end]
    if _is_labelled(base):
        parts["labels"].append(_label(base))
    if translation.default:
        parts["runscript"] = [translation.default, *parts["runscript"]]
    head = [*_header(base), "", f"# From {origin}, by ctrain import."]
    listed = {
        "arguments": [f"{name}={value}" for name, value in {**base.arguments, **translation.arguments}.items()],
        **parts,
    }
    body = [f"\n%{name}\n" + "\n".join(f"    {line}" for line in lines) for name, lines in listed.items() if lines]
    return "\n".join([*head, *body]) + "\n"


def _sections(lines: Sequence[str]) -> dict[str, list[str]]:
    """The sections that spython makes of instructions: the lines of each, by its name."""
    bot.level = 0  # it warns on stdout of what is done on purpose
    parser = DockerParser(None, load=False)
    parser.lines = ["FROM base", *lines]
    text = SingularityWriter(parser.parse()).convert()
    # Its writer takes a variable whose name begins with USER for Docker's instruction of that name.
    parsed = definition.parse("spython", Path("spython"), _USER.sub(r"\2", text))
    return {name: section.body.rstrip("\n").split("\n") for name, section in parsed.sections.items()}


def _header(base: Base) -> list[str]:
    if base.source == SCRATCH:
        return ["Bootstrap: scratch"]
    bootstrap = "localimage" if base.source == f"{{{{ {definition.PARENT} }}}}" else "docker"
    return [f"Bootstrap: {bootstrap}", f"From: {base.source}"]


def recipe(base: Base, read: Recipe, lines: Sequence[str], origin: str) -> str:
    """The text of a definition whose sections are the recipe's own."""
    is_parent = base.source == f"{{{{ {definition.PARENT} }}}}"
    own = [line for line in map(str.strip, read.header) if line and not line.startswith("#")]
    others = [line for line in own if line.partition(":")[0].strip().lower() not in ("bootstrap", "from")]
    keep = read.keys["bootstrap"].lower() != "docker" and not is_parent
    head = own if keep else [*_header(base), *([] if is_parent else others)]
    more: list[str] = []
    if base.arguments:
        more += ["", "%arguments", *(f"    {name}={value}" for name, value in base.arguments.items())]
    if _is_labelled(base):
        more += ["", "%labels", f"    {_label(base)}"]
    texts: list[str] = []
    for line in lines:
        texts.append(line)
        if line.split(" ")[0].lower() == "%post":
            texts.append(f"    {BUILD_ENV}")
    return "\n".join([*head, "", f"# From {origin}, by ctrain import.", *more, *texts]) + "\n"


def _is_labelled(base: Base) -> bool:
    """Whether the argument that images.yaml sets is used nowhere else."""
    return bool(base.tag_argument) and f"{{{{ {base.tag_argument} }}}}" not in base.source


def _label(base: Base) -> str:
    return f"org.opencontainers.image.version {{{{ {base.tag_argument} }}}}"
