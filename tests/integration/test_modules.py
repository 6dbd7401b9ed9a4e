"""Module files in the real environment-modules and the real Lmod, as Debian has them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.install import modulefiles
from ctrain_builder.install.prefix import Installation, Prefix, complete, make_current
from ctrain_builder.store.views.modules import lua_text, tcl_text
from ctrain_runtime.cli.main import main
from samples.long_mode import often
from samples.programs import write_program
from samples.sample_images import write_store

TOOLS = Path("/var/cache/ctrain-cluster/module-tools")
COMMANDS = {
    "environment-modules": "usr/lib/x86_64-linux-gnu/modulecmd.tcl",
    "lmod": "usr/share/lmod/lmod/libexec/lmod",
}
HOSTILE = """a 'b' "c" $(touch pwned) `touch pwned` $HOME [exit] {d} }e{ \\ ; * # -- ]] é"""
IMAGES = (
    {"release": 1},
    {"release": 2, "software": {"torch": "2.6.0", "evil": f"{HOSTILE}\n]]\nputs x"}},
    {"release": 3, "flat": True},
    {"name": "cpu", "release": 1},
)
CHANNELS = {"pytorch_prod": "pytorch_24.12-hd-py3-r1.sif", "pytorch_dev": "pytorch_24.12-hd-py3-r2.sif"}
SHOW = r"""printf '%s|' "$SIF" "$CTRAIN_IMAGE" "$CTRAIN_STORE" "$LOADEDMODULES"; echo"""
Module = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    if not TOOLS.is_dir():
        if os.environ.get("CI"):
            pytest.fail("CI must have environment-modules and Lmod: see tests/cluster/install")
        pytest.skip("no environment-modules and Lmod here: tests/cluster/install brings them")


@pytest.fixture(params=[HOSTILE, "plain"], ids=["hostile", "plain"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store, and beside it its module files in `modules`."""
    root = write_store(tmp_path / request.param, *IMAGES, channels=CHANNELS)
    assert main(BUILD_VERBS, ["store", "modules", "--store", str(root), "--output", str(tmp_path / "modules")]) == 0
    return root


@pytest.fixture(params=list(COMMANDS))
def module(request: pytest.FixtureRequest, root: Path) -> Module:
    """module(line, ...): what bash shows after these lines, in each of which `module` is the tool's."""

    def run(*lines: str) -> str:
        said = run_lines(request.param, root.parent, *lines)
        assert not (root.parent / "pwned").exists()
        return said

    return run


def run_lines(tool: str, directory: Path, *lines: str) -> str:
    """What bash shows in this directory, which has module files in modules/ or modulefiles/."""
    program = shlex.quote(str((TOOLS / COMMANDS[tool]).resolve()))
    script = "\n".join((f'module() {{ eval "$({program} bash "$@")"; }}', *lines))
    path = f"{directory}/modules:{directory}/modulefiles"
    surroundings = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "MODULEPATH": path}
    quiet = {"LMOD_PAGER": "none", "MODULES_PAGER": "", "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-c", script], env={**surroundings, **quiet}, cwd=directory, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def loaded(root: Path, name: str, release: int) -> str:
    """What SHOW says when this version's module is loaded, and no other."""
    file = root / f"{name}_24.12-hd-py3-r{release}.sif"
    return f"{file}|{name}:24.12-hd-r{release}|{root}|ctrain-{name}/24.12-hd-r{release}|\n"


@pytest.mark.parametrize(
    ("name", "release"),
    [("", 1), ("/default", 1), ("/prod", 1), ("/dev", 2), ("/24.12-hd-r2", 2)],
)
def test_a_module_is_loaded_and_unloaded(module: Module, root: Path, name: str, release: int) -> None:
    said = module(f"module load ctrain-pytorch{name}", SHOW, "module unload ctrain-pytorch", SHOW)
    assert said == loaded(root, "pytorch", release) + "||||\n"


@pytest.mark.parametrize("name", ["", "/default", "/prod"])
def test_a_withdrawn_version_is_an_error_with_the_reason(module: Module, root: Path, name: str) -> None:
    """Not another version instead. Other versions and channels load as before."""
    argv = ["withdraw", "pytorch:24.12-hd-r1", "--why", HOSTILE, "--yes"]
    assert main(BUILD_VERBS, ["store", *argv, "--store", str(root)]) == 0
    said = module(f"module load ctrain-pytorch{name}", SHOW)
    assert "channel prod of pytorch points to 24.12-hd-r1: it was withdrawn" in " ".join(said.split())
    assert said.startswith("||||\n")
    assert module("module load ctrain-pytorch/dev", SHOW) == loaded(root, "pytorch", 2)


def test_a_command_runs_programs_of_the_image_while_it_is_loaded(module: Module, root: Path) -> None:
    show = "command -v ctrain-pytorch || echo none"
    commands = root.parent / "modules/.commands/ctrain-pytorch/24.12-hd-r1/ctrain-pytorch"
    assert module("module load ctrain-pytorch", show, "module unload ctrain-pytorch", show) == f"{commands}\nnone\n"
    python = "command -v python3"
    assert module(python, "module load ctrain-pytorch", python) == "/usr/bin/python3\n/usr/bin/python3\n"
    engine = root.parent / "engine"
    engine.mkdir()
    write_program(engine / "apptainer", '#!/bin/sh\nprintf "%s|" "$@"\n')
    said = module("module load ctrain-pytorch", f"PATH={engine}:$PATH", "ctrain-pytorch torchrun 'a b'")
    assert said == f"exec|--nv|{root}/pytorch_24.12-hd-py3-r1.sif|torchrun|a b|"


def test_switching(module: Module, root: Path) -> None:
    first = "module load ctrain-pytorch"
    to_dev = "module swap ctrain-pytorch ctrain-pytorch/dev 2>/dev/null"  # Lmod tells of the change
    assert module(first, to_dev, SHOW) == loaded(root, "pytorch", 2)
    assert module(first, "module switch ctrain-pytorch ctrain-cpu", SHOW) == loaded(root, "cpu", 1)


def test_two_images_at_once_are_refused(module: Module, root: Path) -> None:
    """They would overwrite each other's variables."""
    assert module("module load ctrain-pytorch; module load ctrain-cpu 2>/dev/null", SHOW) == loaded(root, "pytorch", 1)
    complaint = module("module load ctrain-pytorch; module load ctrain-cpu >/dev/null")
    assert "conflict" in complaint or "because these module(s) are loaded" in complaint


def test_what_is_there(module: Module) -> None:
    """Each version once, whatever the number of its files; symbols beside the versions."""
    words = module("module avail").split()
    assert {word.partition("(")[0] for word in words if word.startswith("ctrain-")} == {
        "ctrain-cpu/24.12-hd-r1",
        "ctrain-pytorch/24.12-hd-r1",
        "ctrain-pytorch/24.12-hd-r2",
        "ctrain-pytorch/24.12-hd-r3-flat",
    }
    assert sum(word.startswith("ctrain-") for word in words) == 4


def test_help_and_whatis(module: Module) -> None:
    said = module("module help ctrain-pytorch/dev")
    assert "fits       amd64" in said
    assert "tests      1 passed" in said
    assert HOSTILE in said
    assert f"torch 2.6.0, evil {HOSTILE} ]] puts x" in " ".join(module("module whatis ctrain-pytorch/dev").split())


def test_what_is_retired_is_gone(module: Module, root: Path) -> None:
    def store(*argv: str) -> None:
        assert main(BUILD_VERBS, ["store", *argv, "--store", str(root)]) == 0

    store("promote", "pytorch", "24.12-hd-r2", "prod")
    store("retire", "pytorch:24.12-hd-r1", "--yes")
    store("modules", "--output", f"{root.parent}/modules")
    assert module("module load ctrain-pytorch", SHOW) == loaded(root, "pytorch", 2)
    assert "24.12-hd-r1" in module("module load ctrain-pytorch/24.12-hd-r1", SHOW).replace("\n||||\n", "")


@pytest.mark.parametrize("tool", COMMANDS)
def test_the_modules_of_ctrain_itself(tool: str, tmp_path: Path) -> None:
    """The default is the current version; versions replace each other; users keep their own python."""
    prefix = Prefix(tmp_path)
    for version in ("0.1.0", "0.2.0"):
        (tmp_path / version / "bin").mkdir(parents=True)
        write_program(tmp_path / version / "bin/ctrain", f"#!/bin/sh\necho {version}\n")
        complete(prefix.version(version), Installation(version, "2026-11-24", "a wheel"))
    show = "ctrain; echo $LOADEDMODULES"
    for version in ("0.1.0", "0.2.0"):
        make_current(prefix, version)
        modulefiles.write(prefix)
        assert run_lines(tool, tmp_path, "module load ctrain", show) == f"{version}\nctrain/{version}\n"
    switched = run_lines(tool, tmp_path, "module load ctrain", "module switch ctrain ctrain/0.1.0 2>/dev/null", show)
    assert switched == "0.1.0\nctrain/0.1.0\n"
    unloaded = run_lines(
        tool, tmp_path, "module load ctrain/0.1.0; module unload ctrain", "command -v ctrain || echo no"
    )
    assert unloaded == "no\n"
    assert "ctrain 0.2.0: distributed deep learning" in run_lines(tool, tmp_path, "module whatis ctrain")


@settings(max_examples=often(50, 20))
@given(st.lists(st.text("""a \\"$[]{}();#'`é\n\t"""), max_size=20))
def test_text_is_text_in_tcl_and_lua(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("quoting")
    inside = "\n".join(f"puts -nonewline {tcl_text(text)}; puts -nonewline \\0" for text in texts)
    (folder / "one.tcl").write_text(f"fconfigure stdout -encoding utf-8\nproc inside {{ }} {{\n{inside}\n}}\ninside\n")
    (folder / "one.lua").write_text("\n".join(f'io.write({lua_text(text)}, "\\0")' for text in texts))
    for argv in (["tclsh", "-encoding", "utf-8", "one.tcl"], ["lua5.3", "one.lua"]):
        done = subprocess.run(argv, cwd=folder, capture_output=True, check=True)
        assert done.stdout.decode().split("\0")[:-1] == texts
