"""`ctrain store adopt`, with an engine that answers as it is told. The real one: tests/integration/test_adopt.py."""

from __future__ import annotations

import json
import platform
import struct
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store import log
from ctrain_builder.store.init import init_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.store import sbom
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.sif import DESCRIPTOR, HEADER, SBOM, SIGNATURE
from ctrain_runtime.store.store import open_store
from samples.programs import write_program
from samples.sample_images import HEADER_OF, sif
from samples.sample_images import sbom as package_list

ARCH = HEADER_OF[platform.machine()]
FOUND = {
    "system": {"ID": "ubuntu", "VERSION_CODENAME": "focal"},
    "deb": [{"package": "libc6", "version": "2.31-0ubuntu9", "architecture": "amd64"}],
    "pypi": {"torch": "1.12.0", "evil": "$(reboot)"},
    "licenses": {"pypi": {"torch": ["BSD-3 $(x)"], "\x1b": []}, "deb": {"libc6": []}, "x": {}},
}
LABELS = {"org.label-schema.usage.singularity.deffile.from": "nvcr.io/nvidia/pytorch:22.03-py3"}
# Adds a list as the engine does, but for its header: a new file with the same partition.
ENGINE = """\
#!/bin/bash
case $* in
  --version) echo apptainer version 1.4.5 ;;
  'sif add'*) printf '%s\\n' "$*" >> {folder}/added; cat {folder}/with-list > "${{@: -2:1}}" ;;
  *inspect*) cat {folder}/inspect ;;
  */broken_1*) echo 'FATAL:   no loop devices' >&2; exit 255 ;;
  *'def dpkg'*) cat {folder}/packages ;;
  *exec*) echo '{{"python": "3.8.10", "torch": "1.12.0", "cuda": "11.6"}}' ;;
  *) exit 1 ;;
esac
"""


class Site:
    """A folder of images, a store, and an engine."""

    def __init__(self, folder: Path) -> None:
        self.images, self.root, self.added = folder / "images", folder / "store", folder / "added"
        self.images.mkdir()
        init_store(self.root)
        (folder / "inspect").write_text(json.dumps({"data": {"attributes": {"labels": LABELS}}}))
        (folder / "packages").write_text(f"\n{json.dumps(FOUND)}\n")
        (folder / "with-list").write_bytes(sif(ARCH, more=[(SBOM, package_list(torch="1.12.0"))]))
        (folder / "bin").mkdir()
        write_program(folder / "bin/apptainer", ENGINE.format(folder=folder))

    def image(self, name: str, content: bytes = b"") -> Path:
        path = self.images / name
        path.write_bytes(content or sif(ARCH, data=name.encode()))
        return path

    def adopt(self, *words: object, code: int = 0) -> None:
        assert main(BUILD_VERBS, ["store", "adopt", "--store", str(self.root), *map(str, words)]) == code

    def published(self) -> dict[str, Manifest]:
        return {one.manifest.reference: one.manifest for one in open_store(self.root).images()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return made


def test_the_names_are_shown_first_and_nothing_is_done(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    new, old = site.image("pytorch_24.12-py3.sif"), site.image("pytorch_22.03-hd-py3.sif")
    site.adopt(new, old, "--channel", "prod")
    assert [line.split() for line in capsys.readouterr().out.splitlines()[:3]] == [
        ["file", "image", "channel", "size", "torch", "CUDA"],
        [str(old), "pytorch:22.03-hd-r1", "1.3", "kB", "1.12.0", "11.6", "new"],
        [str(new), "pytorch:24.12-adopted-r1", "prod", "1.3", "kB", "1.12.0", "11.6", "new"],
    ]
    assert site.published() == {} and not list((site.root / "channels").glob("*"))
    spaced = site.image("my tools.sif")
    site.adopt(spaced)
    assert f"to name one otherwise: NAME:TAG-STACK='{spaced}'; confirm with --yes\n" in capsys.readouterr().out


def test_a_version_is_a_copy_with_a_manifest(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    file = site.image("pytorch_22.03-hd-py3.sif")
    before = file.stat()
    site.adopt(file, "--channel", "prod", "--yes")
    run = f"ctrain run --store {site.root} --image pytorch:22.03-hd-r1 -- python train.py"
    assert f"adopted\nrun one as: {run}\n" in capsys.readouterr().out
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    ((reference, manifest),) = site.published().items()
    copy = site.root / "pytorch_22.03-hd-py3-r1.sif"
    assert (reference, manifest.digest, manifest.size) == (
        "pytorch:22.03-hd-r1",
        file_digest(copy),
        copy.stat().st_size,
    )
    assert (manifest.adopted, manifest.tested, manifest.tests, manifest.layers) == (True, False, (), ())
    assert (manifest.software["torch"], manifest.base.reference) == ("1.12.0", "nvcr.io/nvidia/pytorch:22.03-py3")
    assert manifest.labels["org.ctrain.adopted"] == f"{file}@{file_digest(file)}"
    assert sbom.packages(copy) == {("pypi", "torch"): "1.12.0"}
    assert (site.root / "channels/pytorch_prod.sif").resolve() == copy
    entry = next(log.read(site.root))
    assert (entry.action, entry.why) == ("adopt", f"from {file}")
    file.write_bytes(b"later")
    assert file_digest(copy) == manifest.digest


def test_a_channel_with_gates_stays_and_the_version_is_adopted(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    file = site.image("env_1.0.sif")
    (site.root / "policy.yaml").write_text("channels: {prod: {tests: true}}\n")
    site.adopt(file, "--channel", "prod", "--yes", code=83)
    shown = capsys.readouterr()
    assert f"ctrain: {file}: published, but channel prod stays: env:1.0-adopted-r1 does not pass" in shown.err
    assert "left out" not in shown.err
    row = shown.out.splitlines()[1].split()
    assert (row[0], row[1], row[-1]) == (str(file), "env:1.0-adopted-r1", "adopted")
    assert [*site.published()] == ["env:1.0-adopted-r1"] and not list((site.root / "channels").glob("*"))


def test_what_hostile_packages_are_called_is_dropped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Any] = []
    monkeypatch.setattr(
        "ctrain_builder.image.sbom.document_of_adopted", lambda _manifest, packages, _time: f"{listed.append(packages)}"
    )
    site.adopt(site.image("env.sif"), "--yes")
    licenses = {"pypi": {"torch": ["BSD-3 (x)"]}, "deb": {"libc6": []}}
    assert listed == [{**FOUND, "pypi": {"torch": "1.12.0"}, "licenses": licenses}]
    (manifest,) = site.published().values()
    assert manifest.labels["org.ctrain.licenses.packages"] == "BSD-3 (x) 1; not named 1"


@pytest.mark.parametrize("kind", [SIGNATURE, SBOM])
def test_a_file_with_a_signature_or_a_list_is_copied_to_the_byte(site: Site, kind: int) -> None:
    file = site.image("env_1.0.sif", sif(ARCH, more=[(kind, b"x")]))
    site.adopt(file, "--yes")
    (manifest,) = site.published().values()
    assert manifest.digest == file_digest(file) == file_digest(site.root / manifest.file_name)
    assert not site.added.exists()


@pytest.mark.parametrize("answer", ["", "{", '{"deb": 3}', '{"deb": [], "pypi": {}}'])
def test_an_image_that_tells_no_packages_is_adopted_without_a_list(site: Site, answer: str) -> None:
    (site.images.parent / "packages").write_text(answer)
    site.adopt(site.image("env_1.0.sif"), "--yes")
    assert list(site.published()) == ["env:1.0-adopted-r1"]
    assert not site.added.exists()


def test_one_bad_file_does_not_stop_the_others(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    whole, other = sif(ARCH), HEADER_OF["aarch64" if platform.machine() != "aarch64" else "x86_64"]
    extra = 128 + DESCRIPTOR.size - 384
    encrypted = [whole[:extra] + struct.pack("<i", kind) + whole[extra + 4 :] for kind in (5, 6)]
    assert HEADER.size == 128
    built = site.image("built_1.0.sif")
    built.with_suffix(".json").write_text("{}")
    bad = {
        site.image("cut_1.0.sif", whole[:-1]): "is truncated",
        site.image("text_1.0.sif", b"hello"): "is not a SIF image",
        site.image("foreign_1.0.sif", sif(other)): "architecture mismatch",
        site.image("secret_1.0.sif", encrypted[0]): "is encrypted",
        site.image("private_1.0.sif", encrypted[1]): "is encrypted",
        site.image("broken_1.0.sif"): "cannot look inside",
        site.images / "missing_1.0.sif": "No such file",
        site.images: "is a directory",
        built: "has a manifest beside it",
    }
    good = site.image("good_1.0.sif")
    site.adopt(*bad, good, "--yes", code=69)
    said = capsys.readouterr().err.splitlines()
    for file, why in bad.items():
        assert [line for line in said if line.startswith("ctrain: left out: ") and str(file) in line and why in line]
    assert list(site.published()) == ["good:1.0-adopted-r1"]


def test_a_version_is_never_replaced_and_a_name_can_be_given(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    first = site.image("pytorch_22.03-hd-py3.sif")
    (site.images / "copy").mkdir()
    second, third = site.image("copy/pytorch_22.03-hd-py3.sif"), site.image("pytorch_22.03_hd.sif")
    site.adopt(first, third, code=76)
    assert f"left out: {third} cannot become pytorch:22.03-hd: {first} has that name" in capsys.readouterr().err
    site.adopt(first, "--yes")
    before = site.published()
    site.adopt(second, "--yes", code=76)
    assert (
        f"left out: {second} cannot become pytorch:22.03-hd: pytorch:22.03-hd-r1 has that name. "
        f"Choose another, as in: pytorch:22.03-hd2={second}\n"
    ) in capsys.readouterr().err
    assert site.published() == before
    site.adopt(f"pytorch:22.03-hd2={second}", "--yes")
    assert sorted(site.published()) == ["pytorch:22.03-hd-r1", "pytorch:22.03-hd2-r1"]


def test_the_same_file_is_adopted_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Also under another file name: its copy, to which a list was added, has another digest."""
    file = site.image("env_1.0.sif")
    site.adopt(file, "--yes")
    again = site.image("env-v1.0.sif", file.read_bytes())
    capsys.readouterr()
    site.adopt(again, "--yes", "--channel", "prod", "--json")
    told = json.loads(capsys.readouterr().out)
    version = {"file": str(again), "image": "env:1.0-adopted-r1", "channel": "prod", "new_version": False}
    assert told == {"adopted": [version], "left_out": [], "done": True}
    ((reference, _),) = site.published().items()
    assert reference == "env:1.0-adopted-r1"
    assert (site.root / "channels/env_prod.sif").resolve().name == "env_1.0-adopted-py3-r1.sif"


def test_what_was_withdrawn_is_not_adopted_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    file = site.image("env_1.0.sif")
    site.adopt(file, "--yes")
    withdraw = ["store", "withdraw", "--store", str(site.root), "env:1.0-adopted-r1", "--why", "has a token", "--yes"]
    assert main(BUILD_VERBS, withdraw) == 0
    site.adopt(file, "--yes", code=76)
    assert f"left out: {file}: this image was withdrawn: has a token" in capsys.readouterr().err


def test_a_file_that_changes_meanwhile_is_not_adopted(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = site.image("env_1.0.sif")
    monkeypatch.setattr("ctrain_runtime.images.foreign.cached_digest", lambda _path, _report: f"sha256:{'0' * 64}")
    site.adopt(file, "--yes", code=69)
    assert f"left out: {file} has changed since it was examined" in capsys.readouterr().err
    assert site.published() == {} and not list(site.root.glob(".env*"))


def test_it_is_shown_and_listed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    file = site.image("env_1.0.sif")
    site.adopt(file, "--yes")
    capsys.readouterr()
    for words in (["images", "show", "env"], ["images"], ["images", "diff", "env", "env"]):
        assert main(RUNTIME_VERBS, [*words, "--store", str(site.root)]) == 0
    said = capsys.readouterr().out
    assert f"adopted    {file}@sha256:" in said
    assert "built      not by ctrain: untested\n" in said
    assert "packages   1 pypi; BSD-3 (x) 1, not named 1\n" in said


def test_it_is_copied_to_another_store(site: Site, tmp_path: Path) -> None:
    site.adopt(site.image("env_1.0.sif"), "--yes")
    init_store(tmp_path / "other")
    assert main(BUILD_VERBS, ["store", "sync", str(site.root), str(tmp_path / "other")]) == 0
    (image,) = open_store(tmp_path / "other").images()
    assert image.manifest.reference == "env:1.0-adopted-r1"


def test_publishing_a_file_says_how_to_adopt_it(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BUILD_VERBS, ["publish", "./my env.sif", "--store", str(site.root)]) == 64
    assert f"store adopt './my env.sif' --store {site.root}\n" in capsys.readouterr().err


def test_the_catalogue_reports_no_missing_list(site: Site) -> None:
    (site.images.parent / "packages").write_text("")
    site.adopt(site.image("env_1.0.sif"), "--yes")
    assert main(BUILD_VERBS, ["store", "catalogue", "--store", str(site.root)]) == 0
    assert "has no package list" not in (site.root / "catalogue.html").read_text()
