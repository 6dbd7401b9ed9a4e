"""Thin images: the base once for all versions. The images are real and tiny: programs of this machine, and a layer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.digests import of_file, of_regions
from ctrain_builder.store.publish import Watch, publish
from ctrain_builder.store.sign import Signer
from ctrain_runtime import image, sif, trust
from ctrain_runtime.cli.main import main
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import ImageNotFound, ImageUnusable, UsageError
from ctrain_runtime.image import LAYER_MARKER, Image
from ctrain_runtime.manifest import Layer, Manifest
from ctrain_runtime.manifest import TestResult as Result
from ctrain_runtime.site import Site
from ctrain_runtime.store import open_store
from samples import gpg, tiny
from samples.cluster import Cluster
from samples.sample_images import sbom

ADD = ("sif", "add", "--groupid", "1", "--datatype")
SYSTEM = ("4", "--partfs", "1", "--partarch", "2", "--parttype")
SILENT = Watch(lambda _: None, lambda _: None)


def run(*argv: object) -> str:
    return subprocess.run(list(map(str, argv)), check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    run("mksquashfs", tiny.rootfs(folder / "root"), folder / "base.sqsh", "-quiet", "-no-progress", "-all-root")
    return folder / "base.sqsh"


def built(folder: Path, base: Path, key: str) -> tuple[Path, Manifest]:
    """An image as a builder's cache has it: a base and one layer with the marker, and its package list."""
    path, layer = folder / f"{key}.sif", folder / key
    marker = layer / LAYER_MARKER
    marker.parent.mkdir(parents=True)
    marker.write_text(key)
    (folder / "definition").write_text("Bootstrap: scratch\n")
    (folder / "sbom").write_bytes(sbom(torch="2.13.0"))
    run("mksquashfs", layer, f"{layer}.sqsh", "-quiet", "-no-progress", "-all-root")
    run("apptainer", "sif", "new", path)
    run("apptainer", *ADD, "1", path, folder / "definition")
    for kind, part in (("2", base), ("4", f"{layer}.sqsh")):
        run("apptainer", *ADD, *SYSTEM, kind, path, part)
    run("apptainer", *ADD, "9", "--sbomformat", "cyclonedx-json", path, folder / "sbom")
    entries = zip(("system", key), sif.partitions(path))
    layers = tuple(Layer(name, name, part.size, of_file(path, part.offset, part.size)) for name, part in entries)
    facts = {"name": "small", "tag": "1.0", "stack": "s", "arch": "amd64", "built": "2026-11-21T00:00:00Z"}
    digests = {"digest": of_regions(path, layers), "size": path.stat().st_size, "layers": layers}
    return path, Manifest(**facts, **digests, software={}, tests=(Result("imports", True, "1.0"),), tools={})


def put(folder: Path, base: Path, key: str, signer: Optional[Signer] = None) -> Image:
    outcome = publish(*built(folder, base, key), folder / "store", key, SILENT, signer, thin=True)
    found = image.find_any_arch((f"small:{key}",), [open_store(folder / "store")])
    assert found.path == outcome.image.path
    return found


def bases(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "bases").iterdir())


def store(folder: Path, *argv: str) -> int:
    return main(BUILD_VERBS, ["store", *argv, "--store", str(folder / "store")])


def test_the_base_is_there_once_and_the_engine_puts_both_together(tmp_path: Path, base: Path) -> None:
    one, two = put(tmp_path, base, "one"), put(tmp_path, base, "two")
    (below,) = bases(tmp_path)
    assert one.exec_path == two.exec_path == below
    assert below.stat().st_size > base.stat().st_size > 50 * two.path.stat().st_size
    as_root = ["--userns"] if os.geteuid() == 0 else []
    for found, marker in ((one, "one"), (two, "two")):
        exec_ = ["apptainer", "--quiet", "exec", *as_root, "--overlay", f"{found.path}:ro", below]
        assert run(*exec_, "cat", f"/{LAYER_MARKER}") == marker
    kinds = ["Def.FILE", "FS (Squashfs/*System/amd64)"]
    listed = [run("apptainer", "sif", "list", path) for path in (below, two.path)]
    assert [kind in listed[0] for kind in kinds] == [True, True]
    assert "FS (Squashfs/Overlay/amd64)" in listed[1] and "SBOM" in listed[1] and "System" not in listed[1]
    assert image.check(two, "x86_64") is two


def test_all_verbs_know_both_parts(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = put(tmp_path, base, "one"), put(tmp_path, base, "two")
    (below,) = bases(tmp_path)
    assert store(tmp_path, "verify", "--cache", str(tmp_path / "cache")) == 0
    assert "3 files whole" in capsys.readouterr().out
    assert store(tmp_path, "show", "small:two") == 0
    assert f"over       {below}" in capsys.readouterr().out
    assert store(tmp_path, "du", "--json") == 0
    assert {Path(part["path"]) for part in json.loads(capsys.readouterr().out)["versions"]} == {
        one.path,
        two.path,
        below,
    }
    for name, kept in (("one", True), ("two", False)):
        (tmp_path / "store" / "channels" / f"small_{name}.sif").unlink()
        assert store(tmp_path, "retire", f"small:1.0-s-r{1 + (name == 'two')}", "--yes") == 0
        assert store(tmp_path, "gc", "--grace", "0", "--yes") == 0
        assert store(tmp_path, "gc", "--grace", "0", "--yes") == 0  # then no version needs the base any more
        assert below.exists() is kept


def test_a_damaged_base_is_found_and_hides_what_needs_it(tmp_path: Path, base: Path) -> None:
    put(tmp_path, base, "one")
    (below,) = bases(tmp_path)
    content = bytearray(below.read_bytes())
    content[len(content) // 2] ^= 1
    below.chmod(0o644)
    below.write_bytes(content)
    assert store(tmp_path, "verify", "--cache", str(tmp_path / "cache")) == 69
    assert bases(tmp_path) == []
    scan = open_store(tmp_path / "store").scan()
    assert scan.images == () and "is missing" in str(scan.damaged[0])
    with pytest.raises(ImageNotFound):
        image.find_any_arch(("small",), [open_store(tmp_path / "store")])


@pytest.fixture(params=["PEM", "gpg"])
def key(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """A key that signs, and the name of its public part."""
    if request.param == "gpg":
        with gpg.admin(monkeypatch, tmp_path) as fingerprint:
            yield f"gpg:{fingerprint}", fingerprint
    else:
        run("openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "key.pem")
        run("openssl", "pkey", "-in", tmp_path / "key.pem", "-pubout", "-out", tmp_path / "key.pub")
        (tmp_path / "key.pem").chmod(0o600)
        yield str(tmp_path / "key.pem"), str(tmp_path / "key.pub")


def test_both_parts_are_signed_and_verified(
    tmp_path: Path, base: Path, key: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    site = Site("strict", "local", require_signature=True, trusted_keys=(key[1],))
    signer = Signer(find_engine(), key[0])
    unsigned = put(tmp_path, base, "one")
    signed = put(tmp_path, base, "two", signer)
    trust.require_trusted(signed, site)
    assert signed.exec_path != unsigned.exec_path
    with pytest.raises(ImageUnusable, match="is not signed by a key that site strict trusts"):
        trust.require_trusted(unsigned, site)
    for part, *_ in signed.sif_files:
        numbers = [entry.number for entry in sif.read(part).entries]
        assert len(set(numbers)) == len(numbers) == 3, "two objects and a signature"
        good = part.read_bytes()
        part.chmod(0o644)
        part.write_bytes(good[:-5000] + bytes([good[-5000] ^ 1]) + good[-4999:])
        with pytest.raises(ImageUnusable):
            trust.require_trusted(signed, site)
        part.write_bytes(good)


def test_what_can_not_be_split(tmp_path: Path, base: Path) -> None:
    path, manifest = built(tmp_path, base, "one")
    with pytest.raises(UsageError, match="has no layers above its base"):
        publish(path, replace(manifest, flat=True), tmp_path / "store", thin=True)
    with path.open("r+b") as file:
        file.seek(sif.partitions(path)[1].offset + 100)
        file.write(b"changed")
    with pytest.raises(ImageUnusable, match="has changed since it was built"):
        publish(path, manifest, tmp_path / "store", thin=True)
    assert open_store(tmp_path / "store").images() == ()
    assert not list((tmp_path / "store").rglob("*.part"))


@pytest.fixture
def thin(cluster: Cluster) -> Iterator[Path]:
    """A store with the cluster's own image, thin."""
    root = cluster.state / "apps" / "thin"
    argv = ["ctrain", "publish", "pytorch-cpu", "--thin", "--channel", "prod", "--store", str(root)]
    assert main(BUILD_VERBS, argv[1:]) == 0
    yield root
    subprocess.run(["rm", "-rf", str(root)], check=True)


def test_a_run_on_two_nodes(cluster: Cluster, thin: Path) -> None:
    program = "import horovod.torch as hvd; hvd.init(); print('WORLD', hvd.size())"
    argv = ["ctrain", "run", "--nodes", "2", "--image", "pytorch-cpu", "--name", "thin", "--store", str(thin)]
    done = cluster.run(*argv, "--", "python", "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WORLD 4" in (cluster.home / "ctrain-runs/thin/logs/rank3.log").read_text()


def test_sync_brings_the_base_along_once(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("one", "two"):
        put(tmp_path, base, key)
    there = tmp_path / "other" / "store"
    argv = ["store", "sync", str(tmp_path / "store"), str(there), "--channels"]
    assert main(BUILD_VERBS, argv) == 0
    assert "2 versions copied" in capsys.readouterr().out
    assert main(BUILD_VERBS, argv) == 0
    assert "0 versions copied" in capsys.readouterr().out
    assert [path.read_bytes() for path in bases(tmp_path / "other")] == [path.read_bytes() for path in bases(tmp_path)]
    assert image.check(image.find_any_arch(("small:two",), [open_store(there)]), "x86_64")
    assert main(BUILD_VERBS, [*argv[:3], "oras://127.0.0.1:1/images"]) == 76
    assert "small 1.0-s-r1 is thin. An image in a registry is one file" in capsys.readouterr().err
