from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.doctor.sites import check_files, check_selection, check_site
from ctrain_runtime.site.model import Conditional, Site, SitePartition
from ctrain_runtime.site.select import SelectedSite, select_site, site_names
from samples.programs import answer


def some_site(**keys: Any) -> SelectedSite:
    selected = select_site("local")
    changes = {"stores": (".",), "runs": ".", **keys}
    sources = {**selected.sources, **dict.fromkeys((*keys, "datasets.x"), "mine.yaml (user)")}
    return replace(selected, site=replace(selected.site, **changes), sources=sources)


def troubles(selected: SelectedSite) -> list[tuple[str, str]]:
    return [(one.subject, one.text) for one in check_site(selected) if one.level != "ok"]


def selection() -> tuple[str, str, str]:
    found = check_selection(select_site())
    return found.level, found.text, found.hint


@pytest.mark.usefixtures("programs")
def test_a_machine_without_a_scheduler() -> None:
    text = "local (detected: no scheduler here): runs are processes of this machine"
    hint = "On a cluster: load its scheduler's module, or choose a site: ctrain site list"
    assert selection() == ("ok", text, hint)


def test_a_cluster_that_no_file_describes(programs: Path, tmp_path: Path) -> None:
    for name in ("sinfo", "sbatch", "srun"):
        answer(programs, name)
    text = "generic-slurm (detected: sinfo, sbatch, srun)"
    assert selection() == ("warn", f"{text}: no file describes this cluster", "Write a first one: ctrain site init")
    (tmp_path / "config/ctrain/sites").mkdir(parents=True)
    (tmp_path / "config/ctrain/sites/generic-slurm.yaml").write_text("partition: gpu\n")
    assert selection() == ("ok", text, "")


def test_a_site_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRAIN_SITE", "generic-slurm")
    assert selection() == ("ok", "generic-slurm (requested by CTRAIN_SITE)", "")


def test_a_site_whose_needs_are_all_met(tmp_path: Path) -> None:
    (tmp_path / "key.pub").touch()
    here = str(tmp_path)
    keys = {"datasets": {"x": here}, "mounts": (f"{here}:/scratch:ro",), "trusted_keys": (f"{here}/key.pub", "AB" * 20)}
    findings = list(check_site(some_site(cache=here, **keys)))
    assert {one.level for one in findings} == {"ok"}
    subjects = ["scheduler", "stores", "runs", "cache", "datasets.x", "mounts", "trusted_keys"]
    assert [one.subject for one in findings] == subjects


@pytest.mark.parametrize(
    ("keys", "subject", "text"),
    [
        ({"stores": ("/not/there",)}, "stores", "/not/there: directory not found"),
        (
            {"stores": ("$NOT_SET",)},
            "stores",
            "mine.yaml (user): variable not set in '$NOT_SET': 'NOT_SET'",
        ),
        ({"runs": "/dev/null/runs"}, "runs", "/dev/null: not a directory"),
        ({"cache": "/not/there"}, "cache", "/not/there: directory not found"),
        (
            {"partitions": {"prod": SitePartition(1, 1, time_limit={"9-1": "1:00:00"})}},
            "partitions",
            "mine.yaml (user): site local: partitions.prod: invalid range of nodes '9-1'",
        ),
        (
            {"partitions": {"prod": SitePartition(1, 1, time_limit={})}},
            "partitions",
            "mine.yaml (user): site local: partitions.prod: time_limit has no range of nodes",
        ),
        (
            {"partitions": {"prod": SitePartition(1, 1, time_limit="0")}},
            "partitions",
            "mine.yaml (user): site local: partitions.prod: invalid time limit '0'",
        ),
        (
            {"partitions": {"prod": SitePartition(9, 1, min_nodes=5, max_nodes=2)}},
            "partitions",
            "mine.yaml (user): site local: partitions.prod: min_nodes is 5, max_nodes 2: no job fits",
        ),
        (
            {"gpu_order": (1, 2)},
            "gpu_order",
            "mine.yaml (user): site local: gpu_order must hold each GPU of a node once",
        ),
        ({"address_suffix": ".a; b"}, "address_suffix", "mine.yaml (user): site local: address_suffix '.a; b' is no"),
        ({"library_paths": ("lib",)}, "library_paths", "mine.yaml (user): site local: library_paths: 'lib' is not an"),
        ({"host_libraries": ("$x",)}, "host_libraries", "mine.yaml (user): site local: host_libraries: '$x' is not an"),
        ({"env": {"A-B": "1"}}, "env", "mine.yaml (user): site local: env: invalid variable name 'A-B'"),
        (
            {"env_multinode": {"RANK": "1"}},
            "env_multinode",
            "mine.yaml (user): site local: env_multinode: RANK is set by",
        ),
        ({"interactive_time": "soon"}, "interactive_time", "mine.yaml (user): invalid time limit 'soon'"),
        (
            {"env_multinode": {"A": Conditional("1", "new")}},
            "env_multinode",
            "mine.yaml (user): site local: env_multinode.A: since_nccl must be a version of NCCL, not 'new'",
        ),
        ({"image_cache": "/not/there"}, "image_cache", "/not/there: directory not found"),
        ({"datasets": {"x": "/not/there"}}, "datasets.x", "/not/there: directory not found"),
        ({"mounts": ("/not/there:/x:ro",)}, "mounts", "/not/there: not found"),
        ({"trusted_keys": ("/not/there.pub",)}, "trusted_keys", "/not/there.pub: not found"),
        ({"scheduler": "lsf"}, "scheduler", "mine.yaml (user): unknown scheduler 'lsf'"),
    ],
)
def test_what_a_site_lacks(keys: dict[str, Any], subject: str, text: str) -> None:
    (found,) = troubles(some_site(**keys))
    assert (found[0], found[1][: len(text)]) == (subject, text)


def test_mounts_that_no_engine_could_make() -> None:
    """`ctrain site check` let them pass, and the run blamed --mount, which nobody had given."""
    complaint = "mine.yaml (user): site local: mounts: '/dev:/x:rx' is not SRC[:DST[:ro]]"
    assert ("mounts", complaint) in troubles(some_site(mounts=("/dev:/x:rx",)))


def test_directories_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda _path, mode: mode == 0)
    assert troubles(some_site(cache=".")) == [
        ("stores", ".: cannot be read"),
        ("runs", ".: cannot be written to"),
        ("cache", ".: cannot be written to"),
    ]


def test_the_programs_of_the_scheduler(programs: Path) -> None:
    slurm = some_site(scheduler="slurm")
    for name in ("sinfo", "sbatch", "srun", "scancel", "squeue"):
        answer(programs, name)
    assert troubles(slurm) == [("scheduler", "slurm: not found on PATH: scontrol")]
    answer(programs, "scontrol")
    assert troubles(slurm) == []


def test_mounts_that_only_compute_nodes_need_have(programs: Path) -> None:
    for name in ("sinfo", "sbatch", "srun", "scancel", "squeue", "scontrol"):
        answer(programs, name)
    slurm = some_site(scheduler="slurm", mounts=("/not/there:/x", "/:/host"))
    here, there = [one for one in check_site(slurm) if one.subject == "mounts"]
    assert (here.level, here.text) == ("warn", "/not/there: not found on this machine")
    assert here.hint == "Compute nodes must have it: set by mine.yaml (user)"
    assert (there.level, there.text) == ("ok", "/")


def test_the_run_directory_need_not_exist(tmp_path: Path) -> None:
    assert troubles(some_site(runs="new/runs")) == []
    assert troubles(some_site(runs=f"{tmp_path}/new/runs")) == []


def test_a_site_without_stores() -> None:
    assert troubles(some_site(stores=())) == [("stores", "site local has no stores")]


def test_the_files_of_all_sites(tmp_path: Path) -> None:
    directory = tmp_path / "etc/ctrain/sites"
    directory.mkdir(parents=True)
    for name, text in {"bad": "mpi: x\n", "lost": "extends: nowhere\n", "open": "scheduler: slurm\n"}.items():
        (directory / f"{name}.yaml").write_text(text)
    (directory / "open.yaml").chmod(0o666)
    (directory / "generic-slurm.yaml").write_text("partition: gpu\n")
    findings = {one.subject: one for one in check_files()}
    failed = [subject for subject, one in findings.items() if one.level != "ok"]
    assert failed == ["site bad", "site lost", "site open"]
    assert set(findings) == {f"site {name}" for name in site_names()}
    assert findings["site generic-slurm"].text.endswith(f"/generic-slurm.yaml, {directory}/generic-slurm.yaml")
    assert findings["site bad"].text == f"{directory}/bad.yaml, line 1: mpi must be a list, not a string ('x')"
    assert findings["site lost"].text == f"{directory}/lost.yaml (system): extends: unknown site 'nowhere'"
    assert findings["site open"].hint == f"Run: chmod o-w {directory}/open.yaml"


def test_every_key_that_names_a_directory_is_checked() -> None:
    """A new key of a site has to be considered here."""
    unchecked = {"name", "description", "extends", "detect", "require_signature", "partition", "comment", "submit"}
    unchecked |= {"engine", "expected_bandwidth", "images", "layer_caches", "nccl_network", "partitions", "required"}
    unchecked |= {"mpi", "cpus_per_gpu", "memory_per_gpu", "cpu_bind", "gpu_order", "partition_order", "share_runs"}
    unchecked |= {"env", "env_multinode", "notes", "qos", "default_qos", "interactive_time", "not_requested", "notify"}
    unchecked |= {"login"}
    of_nodes = {
        "staging",
        "job_threads_per_core",
        "host_libraries",
        "library_paths",
        "mpi_library_paths",
        "address_suffix",
    }
    unchecked |= of_nodes
    checked = {"scheduler", "stores", "runs", "cache", "image_cache", "datasets", "mounts", "trusted_keys"}
    assert unchecked | checked == set(Site.__dataclass_fields__)


def test_wrong_sources_of_a_site_are_named_with_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "config/ctrain/sites/sources"
    folder.mkdir(parents=True)
    (folder.parent / "ours.yaml").write_text("extends: local\nrequired: [account]\n")
    (folder / "ours.yaml").write_text("sources: [{source: a, read: 2026-11-23, sure: user, keys: [partition]}]\n")
    ours = next(one for one in check_files() if one.subject == "site ours")
    assert (ours.level, ours.text) == (
        "fail",
        f"{folder}/ours.yaml: partition is not set by {folder.parent}/ours.yaml",
    )
