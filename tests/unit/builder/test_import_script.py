from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime import job
from ctrain_runtime.batch_script.slurm_options import SAME
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cli.run_options import SETTINGS
from samples.sample_images import sif

Out = pytest.CaptureFixture[str]
SCRIPT = """\
#!/bin/bash
#SBATCH -J python # name
#SBATCH --time=12:00:00
#SBATCH --comment=pytorch
#SBATCH -p amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
module load singularity
export NODE=$(hostname)
srun singularity exec --nv -B /apps:/data:ro {image} \\
     python train.py --epochs 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "train.py").write_text("import torch.distributed\n")
    (directory / "my.sif").write_bytes(sif())
    (directory / "job.sbatch").write_text(SCRIPT.format(image="my.sif"))
    monkeypatch.chdir(directory)
    return directory


def run(*argv: str) -> int:
    return main([*RUNTIME_VERBS, *BUILD_VERBS], argv)


def test_a_script_becomes_a_job_and_the_line_that_runs_it(here: Path, capsys: Out) -> None:
    assert run("import", "script", "job.sbatch") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{here}/job.yaml written: 2 nodes x 8 GPUs, 8 ranks per node, 12:00:00, image {here}/my.sif,"
        " python train.py --epochs 3",
        "1 not carried over, comments in it: line 10 (export NODE=$(hostname))",
        "the same now: ctrain run . --comment pytorch --partition amd_a100nv_8 --mount /apps:/data:ro",
    ]
    made = job.find(".")
    assert (made.images, made.command) == ((f"{here}/my.sif",), ("python", "train.py", "--epochs", "3"))
    assert made.resources == job.Resources(2, 8, 8, "12:00:00")


@pytest.mark.usefixtures("here")
def test_the_plan_is_what_the_script_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """The line that it prints, planned for the site that the script was written for."""
    monkeypatch.setenv("CTRAIN_RUNS", str(tmp_path / "runs"))
    run("import", "script", "job.sbatch")
    words = shlex.split(capsys.readouterr().out.partition("the same now: ctrain ")[2])
    assert run(*words, "--site", "neuron", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["size"]["nodes"], plan["size"]["ranks_per_node"], plan["size"]["gpus_per_node"]) == (2, 8, 8)
    assert (plan["placement"]["partition"], plan["size"]["time_limit"]) == ("amd_a100nv_8", 12 * 60)
    assert plan["placement"]["settings"]["comment"] == "pytorch"
    assert plan["program"]["command"] == ["python", "train.py", "--epochs", "3"]
    assert {"source": "/apps", "target": "/data", "read_only": True, "is_image": False} in plan["mounts"]["paths"]


def test_the_job_is_where_the_script_starts_its_program(here: Path, capsys: Out) -> None:
    (here / "src").mkdir()
    (here / "job.sbatch").write_text("#SBATCH -t 5\ncd src\nsrun apptainer exec ../my.sif ./prog\n")
    assert run("import", "script", "job.sbatch") == 0
    assert (here / "src/job.yaml").is_file()
    assert f"the same now: ctrain run {here}/src\n" in capsys.readouterr().out
    assert run("import", "script", "job.sbatch", "-o", "job.yaml") == 0
    assert f"line 3 (in {here}/src)" in capsys.readouterr().out


def test_nothing_is_overwritten(here: Path, capsys: Out) -> None:
    (here / "job.yaml").write_text("mine")
    assert run("import", "script", "job.sbatch") == job.JobError.exit_code
    assert "job.yaml exists. Remove it, or write another" in capsys.readouterr().err
    assert (here / "job.yaml").read_text() == "mine"


def test_one_file_is_imported(here: Path, capsys: Out) -> None:
    for argv, error in (
        (("script",), "ctrain import script needs a batch script. As in: ctrain import script job.sbatch"),
        (("script", "job.sbatch", "--json"), "ctrain import script takes no option but -o"),
        (("job.sbatch", "Dockerfile"), "ctrain import takes one file, not 2"),
    ):
        assert run("import", *argv) == 64
        assert error in capsys.readouterr().err
    assert not (here / "job.yaml").exists()


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (("nothing",), 65, "cannot read nothing: No such file"),
        ((".",), 65, "cannot read .: Is a directory"),
        (("my.bin",), 65, "my.bin is not a batch script"),
        (("train.py",), 65, "train.py: no line starts a program"),
        (("job.sbatch", "-o", "x.yaml"), 64, "a job is a directory with a job.yaml. As in: -o ./job.yaml"),
        (("job.sbatch", "-o", "none/job.yaml"), 65, "cannot write none/job.yaml: No such file"),
    ],
)
def test_what_cannot_be_imported_is_one_line(
    here: Path, capsys: Out, argv: tuple[str, ...], code: int, error: str
) -> None:
    (here / "my.bin").write_bytes(b"a\0b")
    assert run("import", "script", *argv) == code
    assert error in capsys.readouterr().err
    assert not (here / "job.yaml").exists()


def test_a_job_that_would_be_refused_says_so(here: Path, capsys: Out) -> None:
    (here / "train.py").unlink()
    assert run("import", "script", "job.sbatch") == 0
    assert "look at it first: " in capsys.readouterr().out


def test_options_of_a_script_that_pass_unchanged_are_options_of_run() -> None:
    assert set(SAME) == {*SETTINGS, "partition"}
