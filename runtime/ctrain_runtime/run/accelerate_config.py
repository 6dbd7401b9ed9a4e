"""The file of `accelerate config`, which `accelerate launch` reads unasked, but not in a run: HOME is the run's own."""

from __future__ import annotations

import os
from pathlib import Path

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.launchers.translate import TranslatedCommand


def notes(translated: TranslatedCommand) -> tuple[str, ...]:
    """A line if the user has such a file, and starts a program by accelerate without naming one."""
    words = " ".join(translated.command)
    if not translated.by.startswith("accelerate") or "--config_file" in words or "--config-file" in words:
        return ()
    cache = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    file = expand_home(str(cache)) / "accelerate/default_config.yaml"  # accelerate 1.15, config_args.py
    if not os.path.isfile(file):  # noqa: PTH113  # Path.is_file raises for a home that cannot be read
        return ()
    return (f"{file} is not read. Pass what it sets as options of {translated.by}, as in --mixed_precision bf16",)
