from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime import site
from ctrain_runtime.errors import ConfigError, SiteError
from samples.programs import answer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the admin's or the user's site files, read after the shipped ones."""
    folder = tmp_path / "sites"
    folder.mkdir()
    monkeypatch.setattr(site, "FOLDERS", (*site.FOLDERS, folder))
    return folder


@pytest.mark.usefixtures("programs")
def test_a_machine_without_a_scheduler_is_local() -> None:
    choice = site.choose()
    assert (choice.site.name, choice.site.scheduler, choice.why) == ("local", "local", "detected: no scheduler here")


def test_a_machine_with_slurm(programs: Path) -> None:
    for name in ("sinfo", "sbatch", "srun"):
        answer(programs, name)
    choice = site.choose()
    assert (choice.site.name, choice.why) == ("slurm", "detected: sinfo, sbatch, srun")


def test_the_site_with_the_most_marks_wins(programs: Path, folder: Path) -> None:
    for name in ("sinfo", "sbatch", "srun"):
        answer(programs, name)
    detect = f"{{commands: [sinfo, sbatch, srun], paths: [{folder}]}}"
    (folder / "ours.yaml").write_text(f"name: ours\nscheduler: slurm\ndetect: {detect}\n")
    choice = site.choose()
    assert (choice.site.name, choice.why) == ("ours", f"detected: sinfo, sbatch, srun, {folder}")


def test_a_later_folder_replaces_a_site(folder: Path) -> None:
    (folder / "slurm.yaml").write_text("name: slurm\nscheduler: slurm\npartition: gpu\n")
    assert site.choose("slurm").site.partition == "gpu"


def test_a_site_by_name_or_by_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nscheduler: local\n")
    assert site.choose("neuron").site.comment == "pytorch"
    assert site.choose("neuron").why == "asked for"
    assert site.choose("./mine.yaml").site.name == "mine"


def test_a_site_that_is_not_there() -> None:
    with pytest.raises(SiteError, match=r"unknown site 'titan'. Sites: local, neuron, slurm; or the path of a site"):
        site.choose("titan")
    with pytest.raises(SiteError, match=r"there is no site file titan/x.yaml"):
        site.choose("titan/x.yaml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: x\nscheduler: lsf\n", "scheduler must be slurm or local, not 'lsf'"),
        ("name: x\n", "key 'scheduler' is missing"),
        ("name: x\nscheduler: slurm\nmpi: pmix\n", "mpi must be a list, not a string ('pmix')"),
        ("name: x\nscheduler: slurm\ndetect: {command: [sinfo]}\n", "unknown key 'command'. Did you mean 'commands'?"),
    ],
)
def test_a_site_file_that_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        site.choose(f"{tmp_path}/x.yaml")
    assert str(tmp_path / "x.yaml") in str(caught.value)
    assert complaint in str(caught.value)


def test_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "kim")
    monkeypatch.setenv("HOME", "/home/kim")
    assert site.expand("/scratch/$USER/ctrain", "x") == "/scratch/kim/ctrain"
    assert site.expand("~/runs", "x") == "/home/kim/runs"
    assert site.expand("/a/${USER}s", "x") == "/a/kims"


@pytest.mark.parametrize("text", ["/scratch/$NOBODY_SET_THIS", "/cost/$5"])
def test_expand_never_leaves_a_hole(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^site neuron: runs: '.*' names a variable that is not set"):
        site.expand(text, "site neuron: runs")
