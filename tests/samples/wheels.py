"""Python packages made by hand: what pip installs without any index; and the wheel of ctrain."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, name: str, version: str, code: str, *, requires: str = "") -> Path:
    """The wheel of a package whose only module holds `code`; `requires` as in "torch==2.9"."""
    return _pack(folder, name, version, {f"{name}.py": code.encode()}, [requires] if requires else [])


def write_tree_wheel(checkout: Path, folder: Path, version: str) -> Path:
    """The packages and the command of this checkout as a wheel, without what setup.py adds: in no time."""
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for root in (checkout / "builder", checkout / "runtime")
        for path in sorted(root.glob("ctrain_*/**/*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    files[f"ctrain-{version}.dist-info/entry_points.txt"] = (
        b"[console_scripts]\nctrain = ctrain_builder.cli.main:main\n"
    )
    return _pack(folder, "ctrain", version, files, ["pyyaml", "requests"])


def repack(folder: Path, name: str) -> Path:
    """The wheel of a package that this Python has."""
    installed = metadata.distribution(name)
    files = [path for path in installed.files or [] if ".." not in path.parts and path.suffix != ".pyc"]
    info = next(path.parts[0] for path in files if path.name == "METADATA")
    tag = str(installed.read_text("WHEEL")).partition("Tag: ")[2].split()[0]
    path = folder / f"{info[: -len('.dist-info')]}-{tag}.whl"
    _zip(path, info, {str(file): Path(str(file.locate())).read_bytes() for file in files if file.name != "RECORD"})
    return path


def build_wheel(checkout: Path, files: Sequence[PurePosixPath], work: Path) -> Path:
    """The wheel of ctrain, built in `work` from a copy of these files: setuptools leaves a build folder in its source,
    which the next wheel would take along."""
    source, out = work / "source", work / "wheel"
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / name, source / name)
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


def _pack(folder: Path, name: str, version: str, files: Mapping[str, bytes], requires: Sequence[str]) -> Path:
    info = f"{name}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    about = {f"{info}/METADATA": "\n".join(lines).encode() + b"\n", f"{info}/WHEEL": _WHEEL.encode()}
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    _zip(path, info, {**files, **about})
    return path


def _zip(path: Path, info: str, files: Mapping[str, bytes]) -> None:
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(name, content)
