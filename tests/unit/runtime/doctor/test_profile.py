from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.doctor import fabric, profile
from ctrain_runtime.errors import ConfigError, SchedulerError, UsageError
from ctrain_runtime.site import default_runs
from ctrain_runtime.site.model import Site, SitePartition
from ctrain_runtime.site.select import load_site, select_site
from ctrain_runtime.starting_points.templates import write_new
from samples import programs as fakes

GPU = Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type="a100", time_limit=1440, arch="x86_64")
CPU = Partition("cpu", False, nodes=1, cpus=4, gpus=0)


@pytest.fixture(autouse=True)
def machine(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The login node of a cluster without accounting, without SCRATCH and without adapters."""
    fakes.slurm(programs, GPU, CPU)
    fakes.answer(programs, "apptainer", "apptainer version 1.4.5\n")
    for name in ("SCRATCH", *profile._PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "kim")
    monkeypatch.setattr(default_runs, "_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setattr(fabric, "adapters", dict)
    return tmp_path


def write(name: str = "ours") -> tuple[Site, str]:
    """The site as ctrain reads what it has written, and the text."""
    path, text = profile.make_profile(select_site(), name)
    write_new(path, text, "")
    return load_site(name)[0], text


def test_the_site_of_a_cluster(machine: Path) -> None:
    site, text = write()
    assert (site.name, site.scheduler, site.mpi, site.stores) == ("ours", "slurm", ("pmix",), ())
    assert site.partitions == {
        "gpu": SitePartition(4, 16, 2, "a100", "x86_64", "1-00:00:00"),
        "cpu": SitePartition(1, 4),
    }
    assert site.runs == "~/ctrain-runs"
    assert "scheduler: slurm    # site generic-slurm: detected: sinfo, sbatch, srun\n" in text
    assert "mpi: [pmix]    # of pmix, none\n" in text
    assert "# engine: apptainer 1.4.5 on PATH here; nodes need it at the same path\n" in text
    assert select_site().site.name == "ours"  # it has more criteria than generic-slurm
    assert list((machine / "config/ctrain/sites").iterdir()) == [machine / "config/ctrain/sites/ours.yaml"]


def test_what_the_environment_and_the_machine_add(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch/kim").mkdir(parents=True)
    assert write("one")[0].runs == f"{tmp_path}/scratch/$USER/ctrain"
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.setenv("CTRAIN_STORE", "/apps/ctrain")
    monkeypatch.setenv("https_proxy", "http://kim:secret@proxy:3128")
    monkeypatch.setattr(fabric, "adapters", lambda: {"mlx5_0": "ACTIVE 200 Gb/sec (4X HDR)"})
    fakes.scontrol(programs, partition="PartitionName=gpu State=UP\n", config="ClusterName = ctrain\n")
    site, text = write("two")
    assert (site.runs, site.stores) == ("$SCRATCH/ctrain", ("/apps/ctrain",))
    assert "# env: {https_proxy: ...}" in text and "secret" not in text
    assert "# fabric: mlx5_0 ACTIVE 200 Gb/sec (4X HDR); NCCL finds it by itself" in text
    assert profile.make_profile(select_site())[0].name == "ctrain.yaml"


def test_names_are_data_not_yaml(programs: Path) -> None:
    fakes.slurm(programs, dataclasses.replace(GPU, name="no:#[yaml", gpu_type="{a"))
    assert write()[0].partitions["no:#[yaml"].gpu_type == "{a"


def test_this_machine_alone(programs: Path) -> None:
    (programs / "sinfo").unlink()
    (programs / "apptainer").unlink()
    site, text = write("laptop")
    assert (site.scheduler, site.description, site.partitions) == ("local", "machine laptop", {})
    assert "# engine: {path: apptainer, version: 1.3.6, modules: []}    # none here: say what nodes have\n" in text


def test_nothing_is_overwritten(machine: Path) -> None:
    write()
    path = machine / "config/ctrain/sites/ours.yaml"
    with pytest.raises(UsageError, match=rf"^site ours already exists: {path}. Choose another name"):
        profile.make_profile(select_site(), "ours")
    with pytest.raises(UsageError, match=r"^site neuron already exists: "):
        profile.make_profile(select_site(), "neuron")
    path.write_text("scheduler: local\n")
    with pytest.raises(ConfigError, match=rf"^cannot write {path}: File exists"):  # of another process meanwhile
        write_new(path, "scheduler: slurm\n", "See what it would be: --dry-run")
    assert path.read_text() == "scheduler: local\n"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "two words"])
def test_names_that_are_no_file_names(name: str) -> None:
    with pytest.raises(UsageError, match=r"^invalid name of a site: "):
        profile.make_profile(select_site(), name)


def test_a_scheduler_that_does_not_answer(programs: Path) -> None:
    fakes.answer(programs, "scontrol", error="Unable to contact slurm controller\n", code=1)
    with pytest.raises(SchedulerError, match="Unable to contact slurm controller"):
        profile.make_profile(select_site(), "ours")
