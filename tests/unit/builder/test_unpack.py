"""The container in which the engine unpacks an image. That it does is in tests/integration/test_hostile.py."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ctrain_builder.layers import without_owners
from ctrain_builder.layers.container import Container
from ctrain_builder.layers.unpack import unpack
from ctrain_runtime.engines.apptainer import Engine

BUILDCFG = "PREFIX=/usr\nSYSCONFDIR=/etc\nSESSIONDIR=/var/lib/apptainer/mnt/session\n"
PROXY = "http://kim:s3cret@proxy:3128"


@dataclass(frozen=True)
class Stub(Container):
    """An engine that makes an empty root; `calls` are its commands and variables."""

    calls: list[tuple[Sequence[str], Mapping[str, str]]] = field(default_factory=list)

    def output(self, *_: object, **__: object) -> str:
        return BUILDCFG

    def run(self, argv: Sequence[str], *_: object, variables: Mapping[str, str], **__: object) -> None:
        assert (self.work / "unpack-rootfs/var/lib/apptainer/mnt/session").is_dir()
        (self.work / "unpack/root/locked").mkdir(parents=True, mode=0)
        self.calls.append((argv, variables))


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    for name in [name for name in os.environ if name.startswith(("APPTAINER", "SINGULARITY", "SSL_CERT", "DOCKER"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    return Stub(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), tmp_path / "work", lambda: None, root=True)


def call(stub: Stub, source: str = "nvcr.io/small:1") -> tuple[list[str], Mapping[str, str]]:
    """The binds and the variables inside."""
    unpack(stub, f"Bootstrap: docker\nFrom: {source}\n", source, stub.work / "root", stub.work / "log", 1_600_000_000)
    assert (stub.work / "root").is_dir()
    ((argv, variables),) = stub.calls
    assert "s3cret" not in " ".join(argv)
    inside = {name[len("APPTAINERENV_") :]: value for name, value in variables.items()}
    return [after for word, after in zip(argv, argv[1:]) if word == "--bind"], inside


@pytest.mark.parametrize("root", [True, False])
def test_images_with_owners_and_locked_directories_can_be_unpacked(stub: Stub, root: bool) -> None:
    """Only root's engine changes owners; whoever builds must read what it has unpacked."""
    call(replace(stub, root=root))
    ((argv, _),) = stub.calls
    assert (list(argv[:2]) == [sys.executable, without_owners.__file__]) is root
    assert stat.S_IMODE((stub.work / "root/locked").stat().st_mode) == 0o500


def test_only_the_work_directory_and_the_cache_are_writable(stub: Stub) -> None:
    binds, inside = call(stub)
    assert "/usr:/usr:ro" in binds
    assert [bind for bind in binds if not bind.endswith(":ro")] == [
        f"{stub.work}/unpack:/unpack",
        f"{stub.downloads}:{inside['APPTAINER_CACHEDIR']}",
    ]
    assert inside["SOURCE_DATE_EPOCH"] == "1600000000"


def test_a_named_cache_and_the_logins_are_those_of_the_caller(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stub.work.with_name("home")
    (home / ".apptainer").mkdir(parents=True)
    monkeypatch.setenv("SINGULARITY_CACHEDIR", str(home / "cache"))
    monkeypatch.setenv("https_proxy", PROXY)
    binds, inside = call(stub)
    assert f"{home}/cache:{inside['APPTAINER_CACHEDIR']}" in binds
    assert f"{home}/.apptainer:{inside['APPTAINER_CONFIGDIR']}:ro" in binds
    assert not any(
        str(home) in bind for bind in binds if bind.partition(":")[0] not in (f"{home}/cache", f"{home}/.apptainer")
    )
    assert (inside["https_proxy"], "HOME" in inside) == (PROXY, False)


@pytest.mark.parametrize("tag", ["", ":1.0"])
def test_an_image_of_this_machine_is_shown(stub: Stub, tag: str) -> None:
    archive = stub.work.with_name("image.tar")
    archive.touch()
    assert f"{archive}:{archive}:ro" in call(stub, f"{archive}{tag}")[0]
