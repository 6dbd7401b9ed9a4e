from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrain_runtime.doctor import Finding, engines
from ctrain_runtime.site import Site, SiteEngine
from ctrain_runtime.text import user_name
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


@pytest.mark.parametrize("name", ["APPTAINER", "SINGULARITY"])
def test_set_uid_root_needs_neither_namespaces_nor_fuse(programs: Path, name: str) -> None:
    answer(programs, "apptainer", f"apptainer version 1.4.5\n{name}_SUID_INSTALL=1\n")
    (programs / "unshare").unlink()
    assert levels() == {"engine": "ok", "subuid": "ok"}
    assert check()["engine"].text.endswith(", set-uid root")


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
