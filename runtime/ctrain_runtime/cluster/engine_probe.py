"""Whether an engine mounts the layers of images: one container is started, and the answer remembered."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import command
from ctrain_runtime.base.user_cache import UserCache
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.images.image import LAYER_MARKER, Image


def ignores_layers(engine: Engine, image: Image, root: bool) -> bool:
    """Whether the engine does not mount the layers of `image`. The answer is cached: a container takes a while to
    start, and each rank checks its layers anyway."""
    if not image.marker or image.manifest.flat or not command.which(engine.path):
        return False
    # The same engine mounts all layers or none, as long as its configuration stands.
    cache, conditions = UserCache("engines"), [socket.gethostname(), engine.version, root]
    conditions += [_changed(path) for path in (*_configurations(engine), Path(engine.path))]
    ignores = cache.get(engine.path, conditions)
    if ignores is None:
        ignores = _probe_layers(engine, image, root)
        if ignores is not None:
            cache.put(engine.path, conditions, ignores)
    return bool(ignores)


def _configurations(engine: Engine) -> list[Path]:
    """Where an engine may have its configuration: distributions' packages in /etc, others where they are installed."""
    etc = Path("/etc"), Path(command.which(engine.path) or engine.path).resolve().parent.parent / "etc"
    return [directory / engine.name / f"{engine.name}.conf" for directory in etc]


def _changed(path: Path) -> int:
    """The modification time of a file in ns; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _probe_layers(engine: Engine, image: Image, root: bool) -> Optional[bool]:
    """Whether a container of `image` starts and lacks its layers; None if it does not start."""
    argv = apptainer.exec_argv(engine, as_root=root, unmounted="cwd,home,tmp")
    inside = ["/bin/sh", "-c", f"echo started; cat /{LAYER_MARKER}"]
    environ = apptainer.clean_environ(os.environ)
    command_line = [*argv, str(image.path), *inside]
    try:
        words = command.run(command_line, env=environ, check=False).stdout.split()
    except CtrainError:
        return None
    return words[1:] != [image.marker] if words[:1] == ["started"] else None
