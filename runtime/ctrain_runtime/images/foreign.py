"""Images that ctrain did not build: SIF files, sandbox directories and what was pulled. Their facts are learned once.

What such an image prints is only data: bounded, checked, and used for nothing but choosing options and warnings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from ctrain_runtime import payload
from ctrain_runtime.base import command
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.base.user_cache import UserCache, file_conditions
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import CtrainError, EngineError, ImageUnusable
from ctrain_runtime.gpus import COMPAT_DIRS
from ctrain_runtime.images.image import Image
from ctrain_runtime.images.pull import Report
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import ENTRY_POINT, Manifest, Requires

_SCHEMA = 3  # of the cached facts
_TIMEOUT_SECONDS = 180
_MAX_OUTPUT_BYTES = 1 << 20
_MAX_LABELS = 200
_NAMES = frozenset(
    (
        *("python", "torch", "torchvision", "horovod", "deepspeed", "mpi4py", "numpy", "tensorflow"),
        *("cuda", "cuda-compat", "rocm", "xpu", "nccl", "arch", "mpi", "pmix", "glibc", "musl"),
    )
)
_VALUE = re.compile(r"[\w.+:, ()-]{1,200}", re.ASCII)
_PYTHON = """
import ctypes, json
facts = collect()
with suppress(Exception):  # no such library, or one without this function: PMIx is unknown
    library = ctypes.CDLL("libpmix.so.2")
    library.PMIx_Get_version.restype = ctypes.c_char_p
    facts["pmix"] = library.PMIx_Get_version().decode().partition(",")[0]
print()
print(json.dumps(facts))
"""


def locate(path: Path, report: Report, *, name: str = "", digest: str = "") -> Image:
    """The image at `path`, of which nothing is run yet. A sandbox has no digest: its contents may change.

    `name` is the reference that it was pulled by, `digest` that of its file, if known. Raises ImageUnusable.
    """
    path = path.resolve()
    name = name or path.name
    if path.is_dir():
        if not any(os.path.lexists(path / part) for part in (".singularity.d", "bin/sh")):
            raise ImageUnusable(f"{path} is not an image: neither .singularity.d nor bin/sh found", "Name a .sif file")
        return Image(path, _manifest(name, "", 0, ""))
    arch = sif.check(path)
    try:
        return Image(path, _manifest(name, digest or cached_digest(path, report), path.stat().st_size, arch))
    except OSError as error:
        raise ImageUnusable(f"cannot read {path}: {error.strerror}", "Check its permissions") from error


def not_pulled(reference: str, path: Path) -> Image:
    """The image of a reference that will be pulled to `path`: nothing of it is known."""
    return Image(path, _manifest(reference, "", 0, ""))


def examine(image: Image, engine: Engine, report: Report, *, as_root: bool) -> tuple[Image, str]:
    """`image` with its facts, and the reason why they are unknown, "" if they are known.

    Starts a container of it, which has no network and sees no file of the host.
    """
    cache, digest = UserCache("foreign-images"), image.manifest.digest
    known = cache.get(digest, [_SCHEMA]) if digest else None
    if not isinstance(known, dict):
        report(f"examining {image.manifest.name}", "")
        try:
            known = {"software": _software(image.path, engine, as_root), "labels": _labels(image.path, engine)}
        except CtrainError as error:
            return image, error.message
        finally:
            report("", "")
        if digest:
            cache.put(digest, [_SCHEMA], known)
    software = dict(known["software"])
    requires = Requires(arch=tuple(software.pop("arch", "").split()))
    changed = dataclasses.replace(image.manifest, software=software, labels=dict(known["labels"]), requires=requires)
    return dataclasses.replace(image, manifest=changed), ""


def _manifest(name: str, digest: str, size: int, arch: str) -> Manifest:
    return Manifest(name, "", "", digest, size, arch, built="", layers=(), software={}, tests=(), tools={})


def cached_digest(path: Path, report: Report) -> str:
    """The digest of a file, which is read unless it is known from an earlier time. Raises OSError."""
    cache, conditions = UserCache("digests"), file_conditions(path)
    known = cache.get(str(path), conditions)
    if isinstance(known, str):
        return known
    size = path.stat().st_size
    report(f"reading {path}", "")
    try:
        digest = file_digest(path, tick=lambda done: report(f"reading {path}", f"{100 * done // size} %"))
    finally:
        report("", "")
    cache.put(str(path), conditions, digest)
    return digest


def _software(image: Path, engine: Engine, as_root: bool) -> dict[str, str]:
    script, versions = payload.text("facts.sh"), payload.text("versions.py")
    argv = [*apptainer.isolated_exec_argv(engine, as_root=as_root), str(image)]
    lines = output([*argv, "/bin/sh", "-c", script, "ctrain", versions + _PYTHON, *COMPAT_DIRS]).splitlines()
    software: dict[str, Any] = dict(line.partition(" ")[::2] for line in lines)
    software.update(last_object(lines))
    return {name: software[name] for name in sorted(_NAMES & software.keys()) if _is_value(software[name])}


def _is_value(value: object) -> bool:
    return isinstance(value, str) and _VALUE.fullmatch(value) is not None


def _labels(image: Path, engine: Engine) -> dict[str, str]:
    """The labels of an image, and as ENTRY_POINT the program that `run` would start."""
    text = output([engine.path, "--quiet", "inspect", "--json", "--labels", "--runscript", str(image)])
    data = _json(text[text.find("{") :]).get("data")
    attributes = data.get("attributes") if isinstance(data, dict) else None
    if not isinstance(attributes, dict):
        return {}
    labels, script = attributes.get("labels"), attributes.get("runscript")
    named = labels if isinstance(labels, dict) else {}
    if isinstance(script, str) and (entry := re.search(r"""(?m)^OCI_ENTRYPOINT='(.+)'$""", script)):
        named = {ENTRY_POINT: entry[1].replace('"', ""), **named}
    pairs = list(named.items())[:_MAX_LABELS]
    return {_printable(name): _printable(value) for name, value in pairs if isinstance(value, str)}


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:500]


def last_object(lines: list[str]) -> dict[str, Any]:
    """The JSON object in the last line that begins one; {} if there is none."""
    return _json(next((line for line in reversed(lines) if line.startswith("{")), ""))


def _json(text: str) -> dict[str, Any]:
    """The JSON object in what an image, or the engine for it, printed; {} for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def output(argv: list[str]) -> str:
    """The output of a command about an image. Raises EngineError if it fails, takes too long or does not end."""
    with tempfile.TemporaryDirectory(prefix="ctrain-") as directory:
        log = Path(directory) / "output"
        deadline = time.monotonic() + _TIMEOUT_SECONDS

        def tick() -> None:
            if time.monotonic() > deadline:
                raise EngineError(f"the image did not answer within {_TIMEOUT_SECONDS} s")
            if log.stat().st_size > _MAX_OUTPUT_BYTES:
                raise EngineError("the image printed too much")

        code = command.run_logged(argv, log, env=apptainer.clean_environ(os.environ), tick=tick)
        with log.open("rb") as file:
            text = file.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace")
    if code:
        raise EngineError(apptainer.last_error(text) or f"exit code {code}")
    return text
