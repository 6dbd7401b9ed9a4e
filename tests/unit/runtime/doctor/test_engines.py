from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrain_runtime.base.text import user_name
from ctrain_runtime.doctor import Finding, engines
from ctrain_runtime.site.model import Site, SiteEngine
from samples.programs import answer, write_program

SITE = Site(name="ours", scheduler="slurm")
USER = user_name(os.getuid())


@pytest.fixture(autouse=True)
def machine(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where an Apptainer without set-uid root works."""
    write_program(
        programs / "apptainer",
        '#!/bin/bash\n[ "$1" = buildcfg ] && echo APPTAINER_SUID_INSTALL=0 || echo apptainer version 1.4.5\n',
    )
    answer(programs, "unshare")
    (tmp_path / "fuse").touch()
    (tmp_path / "subuid").write_text(f"somebody:1:2\n{USER}:100000:65536\n")
    monkeypatch.setattr(engines, "_FUSE", tmp_path / "fuse")
    monkeypatch.setattr(engines, "_SUBORDINATE_IDS", (tmp_path / "subuid",))
    return tmp_path


def check(site: Site = SITE) -> dict[str, Finding]:
    return {finding.subject: finding for finding in engines.check_engine(site)}


def levels() -> dict[str, str]:
    return {subject: finding.level for subject, finding in check().items()}


def test_an_engine_that_works(programs: Path) -> None:
    assert levels() == dict.fromkeys(("engine", "namespaces", "fuse", "subuid"), "ok")
    assert check()["engine"].text == f"apptainer 1.4.5 ({programs}/apptainer), user namespaces"


def test_no_engine(programs: Path) -> None:
    (programs / "apptainer").unlink()
    (finding,) = check().values()
    assert (finding.level, finding.text) == ("fail", "neither apptainer nor singularity is on PATH")
    assert "module load singularity" in finding.hint


def install_set_uid(programs: Path, machine: Path, name: str, config: str = "allow setuid = yes\n") -> Path:
    """An engine that is built for set-uid root. Returns its starter, which is so."""
    (programs / "apptainer").unlink()
    starter, file = machine / "libexec" / name / "bin/starter-suid", machine / f"{name}.conf"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755)
    file.write_text(config)
    built = f"LIBEXECDIR={machine}/libexec\n{name.upper()}_CONF_FILE={file}\n{name.upper()}_SUID_INSTALL=1\n"
    banner = {"apptainer": "apptainer version 1.4.5\n", "singularity": "singularity-ce version 4.5.1\n"}[name]
    answer(programs, name, built, version=banner)
    return starter


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_set_uid_root_needs_neither_namespaces_nor_fuse(
    programs: Path, machine: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_set_uid(programs, machine, name)
    (programs / "unshare").unlink()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    last = {"apptainer": {"subuid": "ok"}, "singularity": {"builds": "warn"}}[name]
    assert levels() == {"engine": "ok", **last}
    assert check()["engine"].text.endswith(", set-uid root")


def test_an_engine_that_could_be_set_uid_root_and_is_not(programs: Path, machine: Path) -> None:
    """Apptainer's packages have the starter in one of its own; the configuration can forbid it."""
    starter = install_set_uid(programs, machine, "apptainer", "# allow setuid = yes\nallow setuid = no\n")
    assert check()["engine"].text.endswith(", user namespaces")
    (machine / "apptainer.conf").write_text("allow setuid = yes\n")
    assert check()["engine"].text.endswith(", set-uid root")
    starter.chmod(0o755)
    assert check()["engine"].text.endswith(", user namespaces")
    starter.unlink()
    assert check()["engine"].text.endswith(", user namespaces")


def test_singularity_in_user_namespaces_mounts_no_layers(
    programs: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = install_set_uid(programs, machine, "singularity")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert (check()["layers"].level, check()["layers"].text[:9]) == ("warn", "for root,")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "layers" not in check()
    (machine / "singularity.conf").write_text("allow setuid = yes\nallow kernel squashfs = no\n")
    assert check()["layers"].text.startswith("with `allow kernel squashfs = no`, Singularity mounts neither layers")
    assert "subuid" not in check()  # only builds need that
    starter.unlink()
    assert check()["layers"].text == "without set-uid root, Singularity mounts neither layers nor SquashFS data sets"


def test_an_engine_that_only_nodes_have() -> None:
    (finding,) = check(Site(name="x", scheduler="slurm", engine=SiteEngine("/soft/apptainer", "1.4.1"))).values()
    assert (finding.level, finding.text) == ("ok", "apptainer 1.4.1 (/soft/apptainer), on compute nodes only")


def test_no_user_namespaces(programs: Path) -> None:
    answer(programs, "unshare", error="unshare: unshare failed: Operation not permitted\n", code=1)
    finding = check()["namespaces"]
    assert finding.level == "fail"
    assert finding.text.endswith("unshare failed: Operation not permitted")
    assert "sysctl -w user.max_user_namespaces" in finding.hint


def test_no_fuse(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "fuse").unlink()
    assert (check()["fuse"].level, check()["fuse"].text) == (
        "fail",
        f"{machine}/fuse: not found; images cannot be mounted",
    )
    (machine / "fuse").touch()
    monkeypatch.setattr("os.access", lambda *_: False)
    assert engines._check_fuse().text == f"{machine}/fuse: not accessible to this user; images cannot be mounted"


@pytest.mark.parametrize("text", ["", "somebody:100000:65536\n", f"x{USER}:1:2\n"])
def test_no_subordinate_ids(machine: Path, text: str) -> None:
    (machine / "subuid").write_text(text)
    finding = check()["subuid"]
    assert (finding.level, f"no range for {USER}" in finding.text) == ("warn", True)
    assert finding.hint.endswith(f"--add-subgids 100000-165535 {USER}")
    (machine / "subuid").unlink()
    assert check()["subuid"].level == "warn"
