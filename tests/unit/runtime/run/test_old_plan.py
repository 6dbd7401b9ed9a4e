"""Each sample was written by ctrain when that schema was its own; but for the order of mounts they are of one run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ctrain_runtime.errors import ConfigError
from ctrain_runtime.plan.model import DataCopy, Mount, Placement, Program
from ctrain_runtime.plan.size import JobSize
from ctrain_runtime.run import directory, old_plan

SAMPLES = sorted((Path(__file__).parents[3] / "samples/formats").glob("plan-*.json"))
CHECKPOINT = "/scratch/kim/ctrain/digits-0/checkpoint"


def test_there_is_a_sample_of_each_schema() -> None:
    assert [path.name for path in SAMPLES] == [f"plan-{number}.json" for number in range(1, directory.SCHEMA + 1)]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_run_of_an_older_ctrain_reads_with_its_plan_in_groups(sample: Path, tmp_path: Path) -> None:
    shutil.copy(sample, tmp_path / "plan.json")
    launch = directory.load_launch(tmp_path)
    plan = launch.plan
    assert (plan.run, plan.private, launch.argv[0]) == ("digits-1", True, "sbatch")
    assert (plan.image.size, plan.image.engine.version, plan.image.layers[0].packages) == (
        *(5, "1.4.5"),
        {"einops": "0.8.2"},
    )
    assert plan.image.lease.startswith("/apps/ctrain/in-use/")
    command = ("python", "train.py", "--name", "it's $HOME")
    assert plan.program == Program(command, "/opt/ctrain/examples/digits", "torchrun")
    assert plan.size == JobSize(2, 4, 4, 8, 8, time_limit=60)
    assert (plan.tasks, plan.ranks_per_task) == (2, 4)
    assert plan.placement == Placement(
        partition="amd_a100nv_8",
        settings={"comment": "pytorch"},
        options=("--account=ai lab",),
        cpu_bind="cores",
        gpu_order=(3, 2, 1, 0),
    )
    variables, origins = plan.environment.variables, plan.environment.origins
    assert (variables["MESSAGE"], origins["NCCL_DEBUG"], plan.environment.passed) == (
        *("two words", "job digits: env"),
        ("WANDB_API_KEY",),
    )
    assert (plan.mounts.data, plan.mounts.resume, len(plan.mounts.paths)) == ("/apps/imagenet.sqfs", CHECKPOINT, 3)
    data = Mount("/apps/imagenet.sqfs", "/data", read_only=True, is_image=True)
    assert (plan.staging.directory, plan.staging.copies, plan.staging.reason[:16]) == (
        "/local",
        True,
        "copied to /local",
    )
    assert plan.staging.data_copy == DataCopy(data, "sha256:5e1f", 150_000_000_000, "/local")
    assert plan.checks.preflight and plan.checks.preflight.network == "AWS Libfabric"
    assert plan.checks.estimate and plan.checks.estimate.steps == 100


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"image": None}, "plan: unknown key"),
        ({"nodes": "2"}, "plan: size: nodes must be an integer, not a string"),
        ({"rooms": 2}, "plan: unknown key 'rooms'"),
    ],
)
def test_a_damaged_old_plan_is_named(changes: dict[str, object], complaint: str, tmp_path: Path) -> None:
    data = json.loads(SAMPLES[directory.GROUPED_SINCE - 2].read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**data, "plan": {**data["plan"], **changes}}))
    with pytest.raises(ConfigError, match=complaint):
        directory.load_launch(tmp_path)


@pytest.mark.parametrize("plan", [None, [], {}])
def test_what_is_no_plan_stays_for_whoever_loads_it(plan: object) -> None:
    assert old_plan.group({"plan": plan}) == {"plan": plan}
