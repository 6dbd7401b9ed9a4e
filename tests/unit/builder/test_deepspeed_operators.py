"""definitions/deepspeed-ops/operators.py, with small packages in place of DeepSpeed, setuptools and torch."""

from __future__ import annotations

import base64
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "definitions" / "deepspeed-ops" / "operators.py"
FACTS = """\
version='0.19.8'
installed_ops={'async_io': False, 'cpu_adam': False, 'other': False}
accelerator_name='cuda'
"""


class Operator:
    """A builder of DeepSpeed's."""

    def __init__(self, name: str, *sources: str) -> None:
        self.name, self._sources = name, sources

    def absolute_name(self) -> str:
        return f"deepspeed.ops.{self.name}_op"

    def builder(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.absolute_name(), sources=list(self._sources), extra_link_args=[])


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """deepspeed/ as pip has installed it."""
    directory, info = tmp_path / "deepspeed", tmp_path / "deepspeed-0.19.8.dist-info"
    (directory / "ops").mkdir(parents=True)
    info.mkdir()
    (directory / "__init__.py").touch()
    (directory / "git_version_info_installed.py").write_text(FACTS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n")
    rows = ("deepspeed-0.19.8.dist-info/RECORD,,", "deepspeed/git_version_info_installed.py,sha256=old,1", "x.py,,")
    (info / "RECORD").write_text("".join(f"{row}\n" for row in rows))
    return directory


@pytest.fixture
def load(package: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The program's names, where setup() is `run_setup`."""

    def load(operators: dict[str, Operator], run_setup: Callable[..., None] = lambda **_: None) -> dict[str, Any]:
        extension = SimpleNamespace(BuildExtension=SimpleNamespace(with_options=lambda **options: options))
        modules = {
            **{
                name: ModuleType(name) for name in ("deepspeed.ops", "deepspeed.ops.op_builder", "torch", "torch.utils")
            },
            "deepspeed.ops.op_builder.all_ops": SimpleNamespace(ALL_OPS=operators),
            "setuptools": SimpleNamespace(setup=run_setup, Extension=object),
            "torch.utils.cpp_extension": extension,
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.syspath_prepend(str(package.parent))
        monkeypatch.setenv("DS_ACCELERATOR", "other")
        monkeypatch.chdir(package)
        return runpy.run_path(str(PROGRAM))

    return load


def test_the_accelerator_is_the_one_that_the_package_was_installed_for(load: Callable[..., dict[str, Any]]) -> None:
    load({})
    assert os.environ["DS_ACCELERATOR"] == "cuda"


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_one_unit_means_what_its_files_mean(load: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Each has its own c_size, as both of DeepSpeed's async_io have, and its own counter."""
    program = load({})
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/extension.h").write_text("#include <cstdio>\n")
    file = "static int counter = {n};\nconst int c_size = {n} * 10;\nint take_{n}() {{ return counter++ + c_size; }}\n"
    sources = [tmp_path / "one.cpp", tmp_path / "two.cpp", tmp_path / "main.cpp"]
    for number, source in enumerate(sources[:2], 1):
        source.write_text(file.format(n=number))
    main = 'int main() { take_1(); std::printf("%d %d %d", take_1(), take_2(), take_2()); }\n'
    sources[2].write_text("#include <cstdio>\nint take_1(), take_2();\n" + main)
    text = program["unit"](sources, [program["local_names"](source) for source in sources])
    (tmp_path / "unit.cpp").write_text(text)
    said = []
    for files in (["unit.cpp"], [source.name for source in sources]):
        subprocess.run(["g++", f"-I{tmp_path}", "-o", "program", *files], cwd=tmp_path, check=True)
        said.append(sorted(subprocess.run([tmp_path / "program"], capture_output=True, text=True).stdout.split()))
    assert said[0] == said[1] == ["12", "22", "23"]


def test_what_is_compiled_in_one_unit(load: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Sources of C++ go into one; those of CUDA, and one alone, stay what they are."""
    asked: list[tuple[list[str], str]] = []

    def run_setup(ext_modules: list[Any], script_args: list[str], **_: object) -> None:
        asked.append((ext_modules[0].sources, script_args[script_args.index("--build-lib") + 1]))

    both = Operator("async_io", "a.cpp", "k.cu", "b.cpp"), Operator("utils", "a.cpp", "k.cu")
    operators = {operator.name: operator for operator in both}
    program = load(operators, run_setup)
    for name in ("a.cpp", "b.cpp"):
        (tmp_path / name).write_text("static int same = 1;\n")
    for name in operators:
        program["compile_operator"](name, tmp_path, tmp_path / "made")
    assert asked == [
        ([str(tmp_path / "async_io.cpp"), "k.cu"], str(tmp_path / "made")),
        (["a.cpp", "k.cu"], str(tmp_path / "made")),
    ]
    text = (tmp_path / "async_io.cpp").read_text()
    assert [line.replace(f"{tmp_path}/", "") for line in text.splitlines()] == [
        "#include <torch/extension.h>",
        *("#define same same_0", '#include "a.cpp"', "#undef same"),
        *("#define same same_1", '#include "b.cpp"', "#undef same"),
    ]


def test_a_header_may_be_included_by_several_files_of_a_unit(
    load: Callable[..., dict[str, Any]], package: Path, tmp_path: Path
) -> None:
    """As most of async_io, which lack a guard; the installed package stays as it is."""
    source = package / "ops/csrc/aio/thread.h"
    source.parent.mkdir(parents=True)
    source.write_text("struct thread_t {};\n")
    load({})["copy_sources"](tmp_path / "work")
    assert (tmp_path / "work/csrc/aio/thread.h").read_text() == "#pragma once\nstruct thread_t {};\n"
    assert source.read_text() == "struct thread_t {};\n"


@pytest.mark.parametrize("error", [SystemExit("error: g++ failed"), RuntimeError("Error compiling objects")])
def test_files_that_do_not_go_together_are_compiled_apart(
    load: Callable[..., dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    asked: list[list[str]] = []

    def run_setup(ext_modules: list[Any], **_: object) -> None:
        asked.append(ext_modules[0].sources)
        if len(asked) == 1:
            raise error

    program = load({"async_io": Operator("async_io", "a.cpp", "b.cpp")}, run_setup)
    for name in ("a.cpp", "b.cpp"):
        (tmp_path / name).touch()
    program["compile_operator"]("async_io", tmp_path, tmp_path / "made")
    assert asked == [[str(tmp_path / "async_io.cpp")], ["a.cpp", "b.cpp"]]
    assert "the files of async_io do not go into one unit; each is compiled by itself" in capsys.readouterr().out


def test_deepspeed_and_pip_are_told(load: Callable[..., dict[str, Any]], package: Path, tmp_path: Path) -> None:
    program = load({name: Operator(name) for name in ("async_io", "cpu_adam", "other")})
    compiled = tmp_path / "made" / "deepspeed" / "ops" / "async_io_op.cpython-311-x86_64-linux-gnu.so"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"operator")
    compiled.chmod(0o775)
    (package / "ops").rmdir()  # as that of deepspeed_shm_comm, which no file of Python is in
    made = program["place"]("async_io", tmp_path / "made")
    assert made == package / "ops" / compiled.name and made.stat().st_mode == compiled.stat().st_mode
    program["record"]([made, *program["register"](["async_io"])])
    facts = package / "git_version_info_installed.py"
    assert facts.read_text() == FACTS.replace("'async_io': False", "'async_io': True")
    assert Path(cache_from_source(str(facts))).exists(), "what Python reads is the new one"

    def row(file: Path) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
        return f"{file.relative_to(package.parent)},sha256={digest},{file.stat().st_size}"

    assert (package.parent / "deepspeed-0.19.8.dist-info/RECORD").read_text().splitlines() == [
        *("deepspeed-0.19.8.dist-info/RECORD,,", row(facts), row(made), "x.py,,")
    ]


def test_facts_of_another_kind_are_refused(load: Callable[..., dict[str, Any]], package: Path) -> None:
    program = load({})
    (package / "git_version_info_installed.py").write_text("version='1.0'\n")
    with pytest.raises(SystemExit, match=r"^operators.py: .*installed.py does not name the installed operators as"):
        program["register"]([])
