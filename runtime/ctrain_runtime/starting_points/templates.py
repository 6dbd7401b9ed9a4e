"""The templates of `ctrain init`, and what to do with the files that are made of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.errors import ConfigError

MY_IMAGE = "my-image"  # in the definition's template, where the name of the file belongs


@dataclass(frozen=True)
class Kind:
    """A kind of file: its template, where it is written unless -o says so, and the next step, with {directory}, {path}
    and {name} of what was written."""

    template: str
    output: str
    following: str


KINDS = {
    "job": Kind("job.yaml", "job.yaml", "ctrain run {directory} --dry-run"),
    "definition": Kind(
        "definition.def",
        f"definitions/{MY_IMAGE}/{MY_IMAGE}.def",
        "list it in definitions/images.yaml, as its first lines show; then: ctrain build {name} --plan",
    ),
    "site": Kind("site.yaml", "site.yaml", "ctrain site check {path}"),
    "layer": Kind("layer.txt", "layer.txt", "ctrain layer build {path} --on pytorch:prod -o {name}.sqsh"),
}


def read(kind: str) -> str:
    """The template of a kind."""
    return Path(__file__).with_name(KINDS[kind].template).read_text(encoding="utf-8")


def write_new(path: Path, text: str, hint: str) -> None:
    """Write a new file, whole or not at all. Raises ConfigError with `hint`, also if it exists by now."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.link(temporary, path)  # a rename would replace the file of another process
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint) from error
    finally:
        temporary.unlink(missing_ok=True)
