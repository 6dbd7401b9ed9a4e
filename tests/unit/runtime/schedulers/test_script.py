"""What the rendered scripts do, seen by running them; their text is in tests/golden."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.run import directory
from ctrain_runtime.schedulers import local_script, script, slurm_script, start
from samples import programs as fakes
from samples.layers import a_layer
from samples.plans import LOCAL, a_job, a_manifest, a_plan, an_image, some_facts

SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "PMIX_RANK": "1"}
NO_LAYERS = an_image(layers=a_manifest().layers[:1])


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    fakes.install(folder, "apptainer", "mpirun")
    return folder


@pytest.fixture
def two_ranks(bin_folder: Path, tmp_path: Path) -> LaunchPlan:
    """Two ranks of a program that says who it is and ends with code 3."""
    say = "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK in $PWD; exit 3"
    return a_plan(
        job=a_job(command=("bash", "-c", say), workdir=str(tmp_path)),
        image=NO_LAYERS,
        facts=some_facts(engine=Engine("apptainer", str(bin_folder / "apptainer"), "1.4.5")),
        ranks_per_node=2,
        run_directory=tmp_path / "run",
    )


def run_rank(launch: Launch, **environment: str) -> int:
    run = directory.create(launch)
    surroundings = {"PATH": fakes.SYSTEM, "TMPDIR": str(run), **environment}
    return subprocess.run(["/bin/bash", str(run / "rank.sh")], env=surroundings, cwd=run).returncode


def log(plan: LaunchPlan, rank: int = 1) -> str:
    return directory.rank_log(plan, rank).read_text(encoding="utf-8")


def test_a_rank_runs_the_program_and_records_how_it_ended(two_ranks: LaunchPlan, tmp_path: Path) -> None:
    assert run_rank(slurm_script.launch(two_ranks), **SLURM) == 3
    assert log(two_ranks) == f"1/2 local 1/2 node 0 in {tmp_path}\n"
    first, last = (tmp_path / "run/ranks/1").read_text().splitlines()
    assert first.split()[::2] == ["start", script_host()]
    assert last.split()[::2] == ["end", "3"]
    assert not list((tmp_path / "run").glob("ctrain-home.*"))


def script_host() -> str:
    return subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.split(".")[0].strip()


def test_a_rank_in_a_world_of_another_size_stops(two_ranks: LaunchPlan, tmp_path: Path) -> None:
    assert run_rank(slurm_script.launch(two_ranks), **{**SLURM, "SLURM_NTASKS": "1"}) == 72
    assert log(two_ranks) == "ctrain: srun started 1 ranks, the plan has 2\n"
    assert (tmp_path / "run/ranks/1").read_text().endswith(" 72\n")


def test_a_rank_without_pmix_stops(two_ranks: LaunchPlan) -> None:
    alone = {key: value for key, value in SLURM.items() if key != "PMIX_RANK"}
    assert run_rank(slurm_script.launch(two_ranks), **alone) == 72
    assert log(two_ranks) == "ctrain: srun started this rank without PMIx: MPI would see a world of one\n"


def test_a_rank_without_a_number_stops(two_ranks: LaunchPlan, tmp_path: Path) -> None:
    assert run_rank(slurm_script.launch(two_ranks)) != 0
    assert not list((tmp_path / "run/ranks").iterdir())


def test_a_rank_without_the_upper_layers_of_its_image_stops(two_ranks: LaunchPlan) -> None:
    plan = a_plan(
        job=a_job(command=("true",), workdir="/"),
        facts=some_facts(engine=two_ranks.engine),
        ranks_per_node=2,
        run_directory=Path(two_ranks.run_directory),
    )
    assert plan.image.marker == "k1"
    assert run_rank(slurm_script.launch(plan), **SLURM) == 73
    assert log(plan).startswith("ctrain: this engine ignores the layers of the image")


def test_a_rank_without_the_user_layer_of_its_plan_stops(two_ranks: LaunchPlan) -> None:
    plan = a_plan(
        job=a_job(command=("true",), workdir="/"),
        image=NO_LAYERS,
        facts=some_facts(engine=two_ranks.engine),
        ranks_per_node=2,
        run_directory=Path(two_ranks.run_directory),
        layers=(a_layer("/home/kim/it's.sqsh"),),
    )
    assert run_rank(slurm_script.launch(plan), **SLURM) == 73
    assert log(plan) == "ctrain: layer /home/kim/it's.sqsh is not the one of the plan: was it built again since?\n"


def test_what_passes_from_the_node_into_the_container(two_ranks: LaunchPlan, bin_folder: Path) -> None:
    (bin_folder / "program").write_text("#!/bin/bash\nexec env\n")
    (bin_folder / "program").chmod(0o755)
    plan = a_plan(
        job=a_job(command=(str(bin_folder / "program"),), workdir="/"),
        image=NO_LAYERS,
        facts=some_facts(engine=two_ranks.engine),
        ranks_per_node=2,
        run_directory=Path(two_ranks.run_directory),
        env=("OMP_NUM_THREADS=7",),
    )
    leaks = {"PYTHONPATH": "/host", "CONDA_PREFIX": "/host", "LD_PRELOAD": "", "USER": "kim"}
    passed = {"CUDA_VISIBLE_DEVICES": "0,1", "MASTER_ADDR": "gpu01", "SLURM_CPUS_PER_TASK": "4", "TERM": ""}
    assert run_rank(slurm_script.launch(plan), **SLURM, **leaks, **passed) == 0
    seen = dict(line.split("=", 1) for line in log(plan).splitlines())
    assert seen.items() >= {**SLURM, **passed, "RANK": "1", "WORLD_SIZE": "2", "PYTHONNOUSERSITE": "1"}.items()
    assert seen["OMP_NUM_THREADS"] == "7"  # what the user says wins over the scheduler's
    assert not leaks.keys() & seen.keys()


PLANS = {
    "slurm-mpi": a_plan(),
    "slurm-env": a_plan(job=a_job(launcher="env"), image=NO_LAYERS, layers=(a_layer(),)),
    "local": a_plan(**LOCAL),
}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not on PATH")
@pytest.mark.parametrize("case", PLANS)
def test_shellcheck_has_nothing_to_say(case: str, tmp_path: Path) -> None:
    for name, text in start.prepare(PLANS[case]).scripts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        # SC2016: text in single quotes is meant for the shell in the container
        done = subprocess.run(["shellcheck", "--exclude=SC2016", name], capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout == ""


@pytest.mark.parametrize("case", PLANS)
def test_every_script_is_bash(case: str) -> None:
    for text in start.prepare(PLANS[case]).scripts.values():
        subprocess.run(["/bin/bash", "-n"], input=text, text=True, check=True)


def test_words_and_arrays_quote_everything() -> None:
    assert script.words(["a b", "$c", "d"]) == "'a b' '$c' d"
    assert script.array("launch", ["a b", ""]) == "launch=(\n  'a b'\n  ''\n)"
    assert script.exports({"B": "x y", "A": ""}) == "export A=''\nexport B='x y'"


def test_the_backend_of_a_plan() -> None:
    assert start.prepare(PLANS["slurm-mpi"]).argv[:2] == ("sbatch", "--parsable")
    assert start.prepare(PLANS["local"]) == local_script.launch(PLANS["local"])
