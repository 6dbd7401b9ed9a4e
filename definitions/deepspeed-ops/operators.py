"""Compiles operators of DeepSpeed from the sources in its package, so that jobs need no compiler for them.

Runs in the image while a layer is built, on its Python (3.8 or later):

    operators.py compile WORK_DIRECTORY DIRECTORY    compiles them, below DIRECTORY, where they are below the package's
    operators.py install DIRECTORY                   puts them into the package
"""

# ruff: noqa: E402  # DeepSpeed reads a variable when it is imported: that is set first
from __future__ import annotations

import base64
import csv
import hashlib
import io
import multiprocessing
import os
import py_compile
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(find_spec("deepspeed").origin).parent
FACTS = PACKAGE / "git_version_info_installed.py"
# Decided when the package was installed; without it DeepSpeed looks for a GPU when it is imported.
os.environ["DS_ACCELERATOR"] = re.search(r"(?m)^accelerator_name='(\w+)'", FACTS.read_text(encoding="utf-8"))[1]

from deepspeed.ops.op_builder.all_ops import ALL_OPS
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension

# Those that an accelerator has. pin_memory: what async_io loads since 0.19; utils: for tensors on GPUs.
WANTED = ("async_io", "pin_memory", "cpu_adam", "fused_adam", "deepspeed_shm_comm", "utils")
# A name that only its file can see, as in: static const std::string c_library_name = "deepspeed_aio";
LOCAL_NAME = re.compile(r"(?m)^(?:static|const|constexpr)\b[\w:<>,* ]*?(\w+)(?:\[\])? *[=;]")


def unit(sources: Sequence[Path], names: Sequence[Sequence[str]]) -> str:
    """The text of one file that includes all: most of a file's time goes into torch's headers.

    `names` are, for each, the names that only it can see. Those of several files get a number, as they stay different.
    """
    count = Counter(name for own in names for name in {*own})
    lines = ["#include <torch/extension.h>"]
    for number, (source, own) in enumerate(zip(sources, names)):
        shared = sorted(name for name in {*own} if count[name] > 1)
        lines += [f"#define {name} {name}_{number}" for name in shared]
        lines += [f'#include "{source}"', *(f"#undef {name}" for name in shared)]
    return "\n".join([*lines, ""])


def copy_sources(work: Path) -> None:
    """Copy DeepSpeed's sources to where they are compiled. Some headers can be included only once, so all say so."""
    shutil.copytree(PACKAGE / "ops" / "csrc", work / "csrc")
    for header in (work / "csrc").rglob("*.h"):
        header.write_bytes(b"#pragma once\n" + header.read_bytes())


def local_names(source: Path) -> list[str]:
    return LOCAL_NAME.findall(source.read_text(encoding="utf-8"))


def compile_operator(name: str, work: Path, made: Path) -> None:
    """Compile one operator to below `made`, in one unit if its files allow that."""
    os.chdir(work)  # builders name sources relative to it
    extension = ALL_OPS[name].builder()
    extension.extra_link_args.append("-s")  # as strip does
    apart = list(extension.sources)
    together = [source for source in apart if source.endswith(".cpp")]
    if len(together) > 1:
        sources = [Path(source).resolve() for source in together]
        whole = work / f"{name}.cpp"
        whole.write_text(unit(sources, [local_names(source) for source in sources]), encoding="utf-8")
        extension.sources = [str(whole), *(source for source in apart if source not in together)]
        try:
            run_setup(extension, work / name, made)
            return
        except (RuntimeError, SystemExit):  # torch raises the one, setuptools the other
            print(f"operators.py: the files of {name} do not go into one unit; each is compiled by itself", flush=True)
            extension.sources = apart
    run_setup(extension, work / f"{name}-apart", made)


def run_setup(extension: Extension, build: Path, made: Path) -> None:
    setup(
        name="operators",
        ext_modules=[extension],
        cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
        script_args=["build_ext", "--build-lib", str(made), "--build-temp", str(build)],
    )


def place(name: str, made: Path) -> Path:
    """Put a compiled operator where DeepSpeed looks for it."""
    [path] = made.glob(f"{ALL_OPS[name].absolute_name().replace('.', '/')}.*.so")
    target = PACKAGE.parent / path.relative_to(made)
    target.parent.mkdir(exist_ok=True)
    return Path(shutil.copy(path, target))


def register(names: Sequence[str]) -> list[Path]:
    """Tell DeepSpeed which operators there are. Returns the files that it is told by."""
    installed: dict[str, bool] = {name: name in names for name in ALL_OPS}
    text, count = re.subn(r"(?m)^installed_ops=.*$", f"installed_ops={installed}", FACTS.read_text(encoding="utf-8"))
    if count != 1:
        sys.exit(f"operators.py: {FACTS} does not name the installed operators as DeepSpeed 0.19.8 does")
    FACTS.write_text(text, encoding="utf-8")
    py_compile.compile(str(FACTS), doraise=True)
    return [FACTS]


def record(changed: Sequence[Path]) -> None:
    """Tell pip of new and changed files."""
    package = distribution("deepspeed")
    [listed] = [path for path in package.files or () if path.name == "RECORD" and path.parent.suffix == ".dist-info"]
    path = Path(str(package.locate_file(listed)))
    rows = {row[0]: row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8")))}
    for file in changed:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
        name = os.path.relpath(file, path.parents[1])
        rows[name] = [name, f"sha256={digest}", str(file.stat().st_size)]
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows(rows[name] for name in sorted(rows))


def compile_all(names: Sequence[str], work: Path, made: Path) -> None:
    copy_sources(work)
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:  # torch is imported once
        for done in [pool.submit(compile_operator, name, work, made) for name in names]:
            done.result()


def main() -> None:
    names = [name for name in WANTED if name in ALL_OPS]
    directories = [Path(word) for word in sys.argv[2:]]
    if sys.argv[1] == "compile":
        compile_all(names, *directories)
    else:
        files = [place(name, *directories) for name in names]
        record([*files, *register(names)])


if __name__ == "__main__":
    main()
