"""This ctrain on its way to a login node that has none. It is Python alone: of what it needs, PyYAML works without its
compiled part, and what it can do without stays here."""

from __future__ import annotations

import io
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Optional

from ctrain_runtime.base.paths import data_dir
from ctrain_runtime.base.version import commit, ctrain_version

HERE = Path(__file__).parent
PLACE = ".local/share/ctrain"  # in the home there
SHARE = "ctrain_runtime/share"  # packed of what it is made from: a checkout has none
LEFT_OUT = (SHARE, f"{SHARE}/docs/site")
KINDS_LEFT_OUT = (".so", ".pyc", ".png", ".ipynb")
MAIN = """\
import sys

from ctrain_runtime.cli.main import RUNTIME_VERBS, main

sys.exit(main(RUNTIME_VERBS, sys.argv[1:]))
"""


def name() -> str:
    """What its directory there is called: other versions lie beside it."""
    return "-".join(filter(None, (ctrain_version(), commit()))) or "unknown"


def pack() -> IO[bytes]:
    """What bash gets there: receive.sh, and behind it the archive. The caller closes it."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    stream.write((HERE / "receive.sh").read_bytes())
    version = ctrain_version()
    texts = {"__main__.py": MAIN, f"{SHARE}/commit": commit()}
    if version:
        texts[f"ctrain-{version}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: ctrain\nVersion: {version}\n"
    # Links are followed: in a checkout, payload/ctrain_program.py is one.
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT, dereference=True) as tar:
        for package in ("ctrain_runtime", "yaml"):
            tar.add(_folder(package), package, filter=_kept)
        for data in ("definitions", "examples", "docs"):
            tar.add(data_dir(data), f"{SHARE}/{data}", filter=_kept)
        for path, text in texts.items():
            _add(tar, path, text)
        _add(tar, "bin/ctrain", (HERE / "start.sh").read_text(encoding="utf-8"), 0o755)
    return stream


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec and spec.origin  # noqa: S101  # for mypy: ctrain was imported by it
    return Path(spec.origin).parent


def _kept(entry: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    path = Path(entry.name)
    if entry.name in LEFT_OUT or path.name == "__pycache__" or path.suffix in KINDS_LEFT_OUT:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def _add(tar: tarfile.TarFile, path: str, text: str, mode: int = 0o644) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
