"""Arguments of a program that are paths here, which its container will not see."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ctrain_runtime.plan.model import LaunchPlan

# Of the image, or as engines mount them: what the host has there says nothing.
_OF_THE_IMAGE = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc", "run", "sbin", "sys", "tmp"}
_OF_THE_IMAGE |= {"usr", "var"}


def notes(plan: LaunchPlan) -> tuple[str, ...]:
    """A line for each word of the command that names an existing path outside of every mount."""
    words = dict.fromkeys(word.partition("=")[2] or word for word in plan.program.command)
    return tuple(
        f"no mount shows {word} to the program, unless the engine's configuration does: --mount {shlex.quote(mount)}"
        for word in words
        if (mount := _missing_mount(word, plan))
    )


def _missing_mount(word: str, plan: LaunchPlan) -> str:
    """The mount without which the program cannot see a path; "" for one that it sees, and for all other words."""
    path = os.path.normpath(Path(plan.program.workdir, word))
    if not os.path.exists(path) or not _is_of_users(path):  # noqa: PTH110  # Path.exists raises for long words
        return ""
    real = os.path.realpath(path)
    if not any(_is_below(path, mount.target) for mount in plan.mounts.paths):
        return real if path == real else f"{real}:{path}"
    copied = [plan.mounts.code.directory] if plan.mounts.code else []
    shown = (*(mount.source for mount in plan.mounts.paths), *copied)
    sources = map(os.path.realpath, shown)  # a symlink may lead out of them
    return real if _is_of_users(real) and not any(_is_below(real, source) for source in sources) else ""


def _is_of_users(path: str) -> bool:
    top = Path(path).parts[1:2]
    return bool(top) and top[0] not in _OF_THE_IMAGE


def _is_below(path: str, directory: str) -> bool:
    return Path(directory) in (Path(path), *Path(path).parents)
