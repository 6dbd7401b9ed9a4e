"""The files that ctrain names for an image run whole with plain `apptainer exec`, also after a move; and with
SingularityCE, where it is on PATH."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files.digests import regions_digest
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_builder.store.views import catalogue_page
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import main
from ctrain_runtime.doctor.engines import check_engine
from ctrain_runtime.engines.apptainer import Engine, builds, engine_at, exec_argv
from ctrain_runtime.images.image import LAYER_MARKER, find_any_arch
from ctrain_runtime.site.model import Site, SiteEngine
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Layer, Manifest
from ctrain_runtime.store.manifest import TestResult as Result
from ctrain_runtime.store.store import open_store
from samples import tiny

ADD = ("apptainer", "sif", "add", "--groupid", "1", "--datatype", "4", "--partfs", "1", "--partarch", "2", "--parttype")


def run(*argv: object) -> str:
    return subprocess.run(list(map(str, argv)), check=True, capture_output=True, text=True).stdout


def squashed(folder: Path) -> Path:
    run("mksquashfs", folder, f"{folder}.sqsh", "-quiet", "-no-progress", "-all-root")
    return Path(f"{folder}.sqsh")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an image of a base and one layer, published to prod, and its module files in `modules`."""
    folder = tmp_path_factory.mktemp("plain")
    marker = folder / "layer" / LAYER_MARKER
    marker.parent.mkdir(parents=True)
    marker.write_text("mounted")
    path = folder / "image.sif"
    run("apptainer", "sif", "new", path)
    for kind, part in (("2", tiny.rootfs(folder / "base")), ("4", folder / "layer")):
        run(*ADD, kind, path, squashed(part))
    entries = zip(("base", "layer"), sif.partitions(path))
    layers = tuple(Layer(name, name, part.size, file_digest(path, part.offset, part.size)) for name, part in entries)
    facts = {"name": "small", "tag": "1.0", "stack": "s", "arch": "amd64", "built": "2026-11-21T00:00:00Z"}
    digests = {"digest": regions_digest(path, layers), "size": path.stat().st_size, "layers": layers}
    manifest = Manifest(**facts, **digests, software={}, tests=(Result("imports", True, "1.0"),), tools={})
    init_store(folder / "store")
    publish(path, manifest, folder / "store", "prod")
    assert main(BUILD_VERBS, ["store", "modules", "--store", f"{folder}/store", "--output", f"{folder}/modules"]) == 0
    return folder / "store"


def is_whole(argv: list[str]) -> bool:
    """Whether a container has its layer."""
    as_root = ["--userns"] if os.geteuid() == 0 else []
    return run(argv[0], "--quiet", argv[1], *as_root, *argv[2:], "cat", f"/{LAYER_MARKER}") == "mounted"


def test_the_channels_link_the_shown_file_and_the_modules_sif(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(BUILD_VERBS, ["store", "show", "small", "--store", str(store), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["path"]
    (sif_of_module,) = re.findall(r'setenv SIF "(\S+)"', (store.parent / "modules/ctrain-small/1.0-s-r1").read_text())
    for file in (store / "channels/small_prod.sif", shown, sif_of_module):
        assert is_whole(["apptainer", "exec", str(file)])


def test_the_command_of_a_module_and_the_line_to_copy(store: Path) -> None:
    command = (store.parent / "modules/.commands/ctrain-small/1.0-s-r1/ctrain-small").read_text()
    (line,) = re.findall(r"exec \"\$engine\" (exec .*?) \"\$@\"", command)
    (found,) = re.findall(
        r"apptainer exec [^\"]*? python", catalogue_page.render(catalogue_page.load_entries(open_store(store)))
    )
    for argv in (["apptainer", *shlex.split(line)], shlex.split(found)[:-1]):
        assert is_whole(argv)


def test_a_copy_elsewhere(store: Path, tmp_path: Path) -> None:
    image = find_any_arch(("small:prod",), [open_store(store)])
    assert is_whole(["apptainer", "exec", shutil.copy(image.path, tmp_path / "mine.sif")])


@pytest.fixture
def singularity() -> Engine:
    path = shutil.which("singularity")
    engine = engine_at(path) if path else None
    if engine is None or builds(engine):
        pytest.skip("no SingularityCE is on PATH")
    site = Site(name="x", scheduler="local", engine=SiteEngine(engine.path, engine.version))
    if not next(check_engine(site)).text.endswith("set-uid root"):
        pytest.skip(f"{engine.path} is not set-uid root")
    return engine


@pytest.fixture
def ordinary(store: Path) -> Iterator[Path]:
    """A copy of the image in a place where every user may read it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copy(find_any_arch(("small:prod",), [open_store(store)]).path, folder))


def test_singularity_mounts_layers_set_uid_root_alone(singularity: Engine, ordinary: Path) -> None:
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
    show = [str(ordinary), "cat", f"/{LAYER_MARKER}"]
    assert run(*user, *exec_argv(singularity), *show) == "mounted"
    in_namespace = [*user, *exec_argv(singularity), "--userns", *show]
    assert "No such file" in subprocess.run(in_namespace, capture_output=True, text=True).stderr
