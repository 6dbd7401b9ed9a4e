from __future__ import annotations

from pathlib import Path

import pytest
from ctrain_runtime.schedulers.handle import Status

from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.facts import Allocation, Partition
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers import slurm
from samples import programs as fakes
from samples.plans import a_plan

RECORDED = Path(__file__).resolve().parents[3] / "data/slurm"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")

# The state of a job when it was recorded, where the record's name does not begin with it.
RECORDED_AS = {
    "REQUEUED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "NODE_FAIL-requeue": "PENDING",
    "PENDING-nodes-down": "COMPLETED",  # the nodes had come back at once
    "oom-sampler": "COMPLETED",
    "oom-sampler-batch": "FAILED",
    "scancel-b-KILL": "FAILED",
}
ENDED = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT")


def recorded(version: str, name: str) -> str:
    return (RECORDED / version / name).read_text(encoding="utf-8")


def jobs(version: str) -> dict[str, str]:
    """What had happened to a job -> the line that scontrol said of it."""
    lines = recorded(version, "jobs.txt").splitlines()
    return {name[2:]: line for name, line in zip(lines[::2], lines[1::2])}


JOBS = [pytest.param(name, line, id=f"{v}-{name}") for v in VERSIONS for name, line in jobs(v).items()]


@pytest.mark.parametrize(("name", "line"), JOBS)
def test_every_recorded_state_of_a_job(name: str, line: str) -> None:
    state = RECORDED_AS.get(name, name.split("-")[0])
    status = slurm.parse_job(line)
    if state in ENDED:
        assert status == Status("ended", state)
    elif state in ("PENDING", "SPECIAL_EXIT"):
        assert status.phase == "waiting"
        assert f"Reason={status.detail} " in line
    else:
        assert status == Status("running", "" if state in ("RUNNING", "COMPLETING") else state)


def test_every_state_was_recorded_in_every_version() -> None:
    for version in VERSIONS:
        assert {name.split("-")[0] for name in jobs(version)} >= {*ENDED, "PENDING", "RUNNING", "COMPLETING"} - (
            {"NODE_FAIL"} if version == "22.05.8" else set()
        )


def test_what_scontrol_never_said_counts_as_running() -> None:
    assert slurm.parse_job("JobId=1 JobState=STAGE_OUT Reason=None") == Status("running", "STAGE_OUT")
    assert slurm.parse_job("") == Status("running", "")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_mpi_plugins(version: str) -> None:
    offered = slurm.parse_mpi_list(recorded(version, "mpi-list.out"))
    expected = {
        "22.05.8": {"pmix", "none", "cray_shasta", "pmi2", "pmix_v4"},
        "24.11.5": {"pmix", "none", "cray_shasta", "pmi2", "pmix_v5"},
        "26.05.5": {"none", "cray_shasta", "pmi2"},
    }
    assert set(offered) == expected[version]
    assert len(offered) == len(set(offered))


def as_asked(version: str, name: str = "sinfo-o.out", cpus: str = "8") -> str:
    """Lines of SINFO from the recorded fields of `sinfo -o '%P|%a|%l|%D|%t|%N|%G|%f'`."""
    fields = [line.split("|") for line in recorded(version, name).splitlines()]
    return "".join("|".join([*row[:5], cpus, row[6]]) + "\n" for row in fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions(version: str) -> None:
    assert slurm.parse_sinfo(as_asked(version)) == (Partition("amd_a100nv_8", True, 2, 2, 8, 8, "a100", 2880),)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_node_that_is_down_is_not_idle(version: str) -> None:
    (partition,) = slurm.parse_sinfo(as_asked(version, "down.sinfo-o.out"))
    assert (partition.nodes, partition.idle) == (2, 1)


def test_partitions_of_several_kinds_of_nodes() -> None:
    said = """\
cpu*|up|infinite|4|idle|40+|(null)
gpu|up|1-00:00:00|2|mix|128|gpu:a100:8(S:0-1)
gpu|up|1-00:00:00|1|idle|64|gpu:v100:4(S:0),nvme:1
old|down|30:00|9|idle|8|(null)
empty|up|30:00|0|n/a|0|
"""
    assert slurm.parse_sinfo(said) == (
        Partition("cpu", True, 4, 4, 40, 0, "", None),
        Partition("gpu", False, 3, 1, 64, 4, "v100", 1440),
        Partition("empty", False, 0, 0, 0, 0, "", 30),
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(null)", (0, "")),
        ("", (0, "")),
        ("gpu:8", (8, "")),
        ("gpu:a100:8", (8, "a100")),
        ("gpu:a100:8(S:0-1)", (8, "a100")),
        ("gpu:a100:4(S:0),gpu:a100:4(S:1)", (8, "a100")),
        ("nvme:1,gpu:2080ti:2", (2, "2080ti")),
        ("craynetwork:4", (0, "")),
        ("gpu", (0, "")),
    ],
)
def test_gpus_of_a_node(text: str, found: tuple[int, str]) -> None:
    assert slurm.parse_gres(text) == found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_allocation_that_one_is_in(version: str) -> None:
    found = slurm.parse_allocation("37", jobs(version)["RUNNING"])
    assert found == Allocation("37", nodes=2, partition="amd_a100nv_8", cpus=1, gpus=8)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [("gres:gpu:2", 2), ("gres/gpu:a100:4", 4), ("gres/gpu:2080ti:4", 4), ("gres/nvme:1,gres/gpu:2", 2), ("cpu:8", 0)],
)
def test_the_gpus_of_an_allocation(tres: str, gpus: int) -> None:
    assert slurm.parse_allocation("1", f"JobId=1 NumNodes=2 NumCPUs=8 TresPerNode={tres}").gpus == gpus


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cluster(programs: Path, version: str) -> None:
    fakes.slurm(programs, sinfo=as_asked(version), mpi=recorded(version, "mpi-list.out"))
    fakes.answer(programs, "sinfo", as_asked(version), version=recorded(version, "version-sinfo.out"))
    cluster = slurm.cluster()
    assert (cluster.version, cluster.partitions[0].name, cluster.allocation) == (version, "amd_a100nv_8", None)
    assert "none" in cluster.mpi


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cluster_from_inside_an_allocation(programs: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.slurm(programs, sinfo=as_asked(version))
    monkeypatch.setenv("SLURM_JOB_ID", "37")
    calls = fakes.answer(programs, "scontrol", jobs(version)["RUNNING"])
    assert slurm.cluster().allocation == Allocation("37", 2, "amd_a100nv_8", 1, 8)
    assert calls.read_text() == "--oneliner show job 37\n"
    fakes.answer(programs, "scontrol", error=recorded(version, "show-job-unknown.err"), code=1)
    with pytest.raises(SchedulerError, match=r"^SLURM_JOB_ID is 37: .*Invalid job id specified. Leave this shell"):
        slurm.cluster()


@pytest.mark.parametrize("missing", ["sinfo", "sbatch", "srun", "scontrol"])
def test_no_slurm(programs: Path, missing: str) -> None:
    fakes.slurm(programs, sinfo=as_asked("22.05.8"))
    (programs / missing).unlink()
    with pytest.raises(SchedulerError, match=rf"no scheduler here: {missing} is not on PATH. Run it on this machine"):
        slurm.cluster()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slurm_whose_controller_is_dead(programs: Path, version: str) -> None:
    fakes.slurm(programs, sinfo="")
    fakes.answer(programs, "sinfo", error=recorded(version, "dead-sinfo.err"), code=1)
    with pytest.raises(SchedulerError) as caught:
        slurm.cluster()
    assert str(caught.value) == (
        "Slurm does not answer: sinfo failed: slurm_load_partitions: Unable to contact slurm controller "
        "(connect failure). Try again later, or ask the admins"
    )


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    run = tmp_path / "run"
    run.mkdir()
    return Launch(a_plan(run_directory=run), ("sbatch", "--parsable", f"{run}/job.sh"), {})


def test_submit(programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    show = '#!/bin/bash\necho "$PWD $* ${SBATCH_PARTITION-unset} ${SLURM_CONF-unset}" >called\necho 41873\n'
    fakes.write_program(programs / "sbatch", show)
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    job = slurm.submit(launch)
    run = launch.plan.run_directory
    assert (job.job_id, job.name) == ("41873", "job 41873")
    assert Path(run, "called").read_text() == f"{run} --parsable {run}/job.sh unset /etc/slurm.conf\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_submit_reads_the_recorded_answer(programs: Path, launch: Launch, version: str) -> None:
    said = recorded(version, "sbatch-parsable.out")
    fakes.answer(programs, "sbatch", said)
    assert slurm.submit(launch).job_id == said.strip()


def test_submit_on_a_federation(programs: Path, launch: Launch) -> None:
    fakes.answer(programs, "sbatch", "41873;neuron\n")
    assert slurm.submit(launch).job_id == "41873"


REFUSALS = {
    "sbatch-bad-partition.err": "Invalid partition name specified",
    "sbatch-bad-gres-type.err": "Requested node configuration is not available",
    "dead-sbatch-wrap-hostname.err": "Unable to contact slurm controller (connect failure)",
    "enforce.sbatch-parsable-time-over.err": "Requested time limit is invalid (missing or exceeds some limit)",
}


@pytest.mark.parametrize(
    ("version", "name"), [(v, name) for v in VERSIONS for name in REFUSALS if (RECORDED / v / name).exists()]
)
def test_a_refusal_is_slurms_own_words(programs: Path, launch: Launch, version: str, name: str) -> None:
    fakes.answer(programs, "sbatch", error=recorded(version, name), code=1)
    with pytest.raises(SchedulerError) as caught:
        slurm.submit(launch)
    script = f"{launch.plan.run_directory}/job.sh"
    assert (
        str(caught.value)
        == f"Slurm refused the job: Batch job submission failed: {REFUSALS[name]}. Its script is {script}"
    )
    assert caught.value.exit_code == 72


@pytest.mark.parametrize("version", VERSIONS)
def test_status_asks_for_the_job(programs: Path, version: str) -> None:
    calls = fakes.answer(programs, "scontrol", jobs(version)["TIMEOUT"])
    assert slurm.SlurmJob("37").status() == Status("ended", "TIMEOUT")
    assert calls.read_text() == "--oneliner show job 37\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_slurm_has_forgotten_has_ended(programs: Path, version: str) -> None:
    fakes.answer(programs, "scontrol", error=recorded(version, "show-job-unknown.err"), code=1)
    assert slurm.SlurmJob("37").status() == Status("ended", "no longer known to Slurm")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_controller_that_is_away_ends_no_job(programs: Path, version: str) -> None:
    fakes.answer(programs, "scontrol", error=recorded(version, "dead-scontrol-show-job-1.err"), code=1)
    status = slurm.SlurmJob("37").status()
    assert status.phase == "running"
    assert status.detail.startswith("Slurm does not answer (slurm_load_jobs error: Unable to contact slurm controller")


def test_cancel(programs: Path) -> None:
    calls = fakes.answer(programs, "scancel")
    slurm.SlurmJob("37").cancel()
    assert calls.read_text() == "37\n"
