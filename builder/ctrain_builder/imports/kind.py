"""What a file is that users import, and how its image is called."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from ctrain_runtime.errors import UsageError


class Kind(Enum):
    DOCKERFILE = "Dockerfile"
    RECIPE = "Singularity recipe"
    REQUIREMENTS = "requirements file"
    UV_LOCK = "lock of uv"
    ENVIRONMENT = "environment of conda"


_NAMES = (
    (Kind.DOCKERFILE, r"(docker|container)file(\..+)?|.+\.(docker|container)file"),
    (Kind.RECIPE, r"singularity(\..+)?|.+\.(def|recipe)"),
    (Kind.UV_LOCK, r"uv\.lock"),
    (Kind.ENVIRONMENT, r".+\.ya?ml"),
    (Kind.REQUIREMENTS, r".+\.(txt|in)"),
)
_CONTENTS = (
    (Kind.RECIPE, re.compile(r"(?im)^\s*bootstrap\s*:")),
    (Kind.DOCKERFILE, re.compile(r"(?im)^\s*from\s+\S")),
)
_PLAIN = ("dockerfile", "containerfile", "singularity")


def kind_of(file: Path, text: str) -> Kind:
    """By the file's name, or else by what is in it. Raises UsageError."""
    for kind, pattern in _NAMES:
        if re.fullmatch(pattern, file.name.lower()):
            return kind
    for kind, content in _CONTENTS:
        if content.search(text):
            return kind
    known = ", ".join(kind.value for kind in Kind)
    raise UsageError(f"{file} is none of: {known}", "See: ctrain help import")


def image_name(file: Path) -> str:
    """The name of the image: that of the file, or of its directory where the file's is one that all have."""
    words = file.name.lower().split(".")
    own = [word for word in words if word not in (*_PLAIN, "def", "recipe")]
    name = "-".join(own if own and words[0] not in _PLAIN else [file.resolve().parent.name.lower(), *own])
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "image"
