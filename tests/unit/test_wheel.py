"""The wheel holds exactly what the tree holds, and works where there is no checkout."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
import yaml

from ctrain_builder.definitions import image_spec
from ctrain_builder.plan import build_plan
from ctrain_runtime.images.image import OCI_ARCH
from samples.wheels import build_wheel

pytestmark = pytest.mark.whole_run

Ctrain = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(checkout: Path, project_files: list[PurePosixPath], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout, project_files, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def ctrain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Ctrain:
    """Runs `ctrain` from a fresh environment, outside the checkout."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv")
    install = ["install", "--no-index", "--no-deps", wheel]
    run([sys.executable, "-m", "pip", "--python", place / "venv", *install])
    # The one dependency is borrowed from this Python, so that no network is needed.
    shutil.copytree(Path(yaml.__file__).parent, place / "borrowed" / "yaml")
    environment = {"PATH": os.defpath, "HOME": str(place), "PYTHONPATH": str(place / "borrowed")}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [place / "venv" / "bin" / "ctrain", *arguments]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)

    return call


def test_it_holds_the_packages_and_the_data_of_the_tree(wheel: Path, project_files: list[PurePosixPath]) -> None:
    wanted = {place for name in project_files if (place := place_in_wheel(name))}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_it_carries_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())


def test_installed_it_knows_its_version(ctrain: Ctrain, wheel: Path) -> None:
    """And no commit: it was made from a copy of the files."""
    done = ctrain("--version")
    first, *others = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"ctrain {wheel.name.split('-')[1]}")
    assert not any(line.startswith("commit") for line in others)


def test_installed_it_explains_the_exit_codes(ctrain: Ctrain) -> None:
    done = ctrain("help", "exit-codes")
    assert done.returncode == 0
    assert "  64  invalid option or argument\n" in done.stdout


def test_installed_it_has_the_pages_that_errors_point_to(ctrain: Ctrain, checkout: Path) -> None:
    assert "ctrain help jobs" in ctrain("run", "./nowhere").stderr
    assert ctrain("help", "jobs").stdout == (checkout / "docs/jobs.md").read_text(encoding="utf-8")


def test_installed_it_finds_the_packaged_jobs(ctrain: Ctrain, checkout: Path) -> None:
    jobs = sorted(path.parent.name for path in checkout.glob("examples/*/job.yaml"))
    done = ctrain("run", "nosuch")
    assert done.returncode == 65
    assert f"Jobs: {', '.join(jobs)}; or" in done.stderr


def test_installed_it_finds_the_packaged_images(ctrain: Ctrain, tmp_path: Path) -> None:
    done = ctrain("build", "nosuch", "--cache", str(tmp_path / "cache"))
    assert done.returncode == 64
    assert "share/definitions/images.yaml has no image 'nosuch'" in done.stderr


def test_installed_it_plans_the_layers_that_the_checkout_plans(ctrain: Ctrain, tmp_path: Path) -> None:
    """The packaged definitions and all that their %files copy are in the wheel, with the modes that count."""

    def keys(*argv: str) -> dict[str, str]:
        done = ctrain("build", *argv, "--plan", "--json", "--cache", str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        [image] = json.loads(done.stdout)["images"]
        return {layer["definition"]: layer["key"] for layer in image["layers"]}

    packaged = keys("pytorch-cpu")
    spec = image_spec.find_spec(image_spec.packaged(), "pytorch-cpu")
    here = {build_plan.MIRROR: "http://mirror"}
    made = build_plan.plan_image(spec, {}, here, OCI_ARCH[platform.machine()], lambda _key, _is_base: False, str)
    assert packaged == dict(zip((layer.name for layer in made.layers), made.keys))
    own = tmp_path / "lab/definitions"
    (own / "mine").mkdir(parents=True)
    (own / "mine/mine.def").write_text("Bootstrap: localimage\nFrom: {{ PARENT }}\n%post\n    true\n")
    chain = "chain: [pytorch-cpu, horovod, mine], stack: lab, tag: 2.13.0, tag_argument: TORCH"
    (own / "images.yaml").write_text(f"images:\n  lab: {{{chain}}}\n")
    extended = keys("--definitions", str(own))
    assert list(extended) == ["pytorch-cpu", "horovod", "mine"]
    assert extended["horovod"] == packaged["horovod"], "nothing is copied, and nothing built twice"


def test_installed_it_finds_the_parts_of_the_catalogue(ctrain: Ctrain, tmp_path: Path) -> None:
    (tmp_path / "ctrain-store.json").write_text('{"layout": 1}')
    done = ctrain("store", "catalogue", "--store", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "catalogue.html").stat().st_size > 20_000


def place_in_wheel(name: PurePosixPath) -> str:
    """Where the wheel has a file of the tree; "" when it is none of its files."""
    if name.parts[0] in ("builder", "runtime"):
        return str(PurePosixPath(*name.parts[1:]))
    if name.parts[0] in ("definitions", "examples") or (name.parts[0] == "docs" and name.suffix in (".md", ".json")):
        return f"ctrain_runtime/share/{name}"
    return ""


def run(command: list[str | os.PathLike[str]]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
