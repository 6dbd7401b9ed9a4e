from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.base.command import CommandResult
from ctrain_runtime.schedulers.slurm import client
from samples.recordings import VERSIONS, record


def test_variables_that_are_options_do_not_reach_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = (
        "SBATCH_PARTITION",
        "SLURM_JOB_ID",
        "SLURM_TIME_FORMAT",
        "SQUEUE_FORMAT",
        "SCANCEL_STATE",
        "SACCT_FORMAT",
        "TMPDIR",
    )
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "WANDB_MODE")
    for name in (*dropped, *kept):
        monkeypatch.setenv(name, "x")
    environment = client.client_environment()
    assert not set(dropped) & set(environment)
    assert set(kept) <= set(environment)


# man srun, INPUT ENVIRONMENT VARIABLES, and opt.c of 26.11; all begin with SLURM_.
SRUN_OPTIONS = """
ACCOUNT CONTAINER CORE_SPEC CPUS_PER_GPU CPUS_PER_TASK CPU_BIND DEBUG DISTRIBUTION DIST_PLANESIZE EPILOG EXACT EXCLUSIVE
EXPORT_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GRES GRES_FLAGS HINT HOSTFILE IMMEDIATE
KILL_BAD_EXIT LABELIO MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE NNODES NO_KILL NPROCS NTASKS
NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET NTASKS_PER_TRES OOM_KILL_STEP OPEN_MODE OVERCOMMIT
OVERLAP PARTITION PROLOG QOS REMOTE_CWD RESERVATION SIGNAL SPREAD_JOB SRUN_MULTI STDINMODE STDOUTMODE TASK_EPILOG
TASK_PROLOG THREADS THREADS_PER_CORE TIMELIMIT TRES_BIND TRES_PER_TASK UMASK UNBUFFEREDIO WAIT WORKING_DIR
"""
DESCRIPTION = """
ARRAY_TASK_ID CLUSTERS CONF JOBID JOB_CPUS_PER_NODE JOB_ID JOB_NODELIST NETWORK STEPMGR SUBMIT_DIR WORKING_CLUSTER
"""


def test_steps_of_an_allocation_have_options_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What says which job it is, and where Slurm is, stays."""
    dropped = [*(f"SLURM_{word}" for word in SRUN_OPTIONS.split()), "SRUN_CPUS_PER_TASK", "SLURMD_DEBUG", "SBATCH_GPUS"]
    kept = [*(f"SLURM_{word}" for word in DESCRIPTION.split()), "SLURMD_NODENAME", "TMPDIR", "WANDB_MODE"]
    for name in (*dropped, *kept):
        monkeypatch.setenv(name, "x")
    environment = client.allocation_environment()
    assert not set(dropped) & set(environment)
    assert set(kept) <= set(environment)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sbatch-bad-partition.err", "invalid partition specified: nosuch; Invalid partition name specified"),
        ("sbatch-bad-gres-type.err", "Requested node configuration is not available"),
        ("dead-sbatch-wrap-hostname.err", "Unable to contact slurm controller (connect failure)"),
        ("scancel-not-mine.err", "Kill job error on job id N: Access/permission denied"),
        ("show-job-unknown.err", "slurm_load_jobs error: Invalid job id specified"),
    ],
)
def test_errors_lose_their_prefixes(version: str, name: str, text: str) -> None:
    error = client.error_text(CommandResult(("x",), 1, "", record(version, name)))
    assert re.sub(r"(?<=job id )\d+", "N", error) == text


def test_a_policy_of_the_site_explains_itself_before_the_last_line() -> None:
    stderr = (
        "sbatch: error: Comment needed: pytorch, ...\nsbatch: error: Batch job submission failed: Unspecified error\n"
    )
    assert client.error_text(CommandResult(("x",), 1, "", stderr)) == "Comment needed: pytorch, ...; Unspecified error"
    assert client.error_text(CommandResult(("x",), 3, "", "")) == "exit code 3"


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("8000M", 8000), ("8000", 8000), ("1.50G", 1536), ("2T", 2097152), ("2048K", 2), ("0", 0), ("N/A", 0), ("", 0)],
)
def test_memory(text: str, megabytes: int) -> None:
    assert client.read_megabytes(text) == megabytes


@pytest.mark.parametrize(("text", "count"), [("12", 12), ("2-4", 2), ("UNLIMITED", None), ("N/A", None), ("", None)])
def test_counts(text: str, count: int | None) -> None:
    assert client.read_count(text) == count


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    list(client.records(text, "NodeName"))
    client.read_fields(text, client.fields_pattern("A", "B"))
    client.read_count(text)
    client.read_megabytes(text)
    assert "\n" not in client.error_text(CommandResult(("x",), 1, text, text))


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", (0, "")),
        ("", (0, "")),
        ("gpu:8", (8, "")),
        ("gpu:a100:8", (8, "a100")),
        ("gpu:a100:8(S:0-1)", (8, "a100")),
        ("gpu:a100:8(S:0,2)", (8, "a100")),
        ("gpu:a100:4(S:0),gpu:a100:4(S:1)", (8, "a100")),
        ("gpu:v100:2,nvme:1", (2, "v100")),
        ("nvme:1,gpu:2080ti:2", (2, "2080ti")),
        ("craynetwork:4", (0, "")),
        ("gpu:a100:2(IDX:0-1)", (2, "a100")),
        ("gres:gpu:2", (2, "")),
        ("gres/gpu:2", (2, "")),
        ("gres/gpu:v100:2", (2, "v100")),
        ("gres/nvme:1,gres/gpu:2", (2, "")),
        ("gres/gpu", (1, "")),
        ("cpu:8", (0, "")),
        ("gpu:a100_1g.5gb:7", (7, "a100_1g.5gb")),
        ("gpu:a100:3(S:0-1),gpu:a100_1g.5gb:7(S:0-1)", (10, "")),
    ],
)
def test_gpus_of_gres(text: str, gpus: tuple[int, str]) -> None:
    assert client.parse_gres(text) == gpus


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("cpu=2,mem=16000M,node=2,billing=2,gres/gpu=16", 16),
        ("cpu=2,gres/gpu=4,gres/gpu:a100=4", 4),
        ("gres/gpu:a100=4,cpu=2,gres/gpu=4", 4),
        ("cpu=2,gres/gpu:a100=4,gres/gpu:v100=2", 6),
        ("cpu=2,node=2", 0),
        ("(null)", 0),
    ],
)
def test_gpus_of_tres(text: str, gpus: int) -> None:
    assert client.parse_tres(text) == gpus


@given(st.text())
def test_any_list_of_gpus_is_survived(text: str) -> None:
    assert client.parse_gres(text)[0] >= 0
    assert client.parse_tres(text) >= 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("gpu1", ("gpu1",)),
        ("gpu[08-10],cpu1", ("gpu08", "gpu09", "gpu10", "cpu1")),
        ("r[1-2]n[1,7-8]x", ("r1n1x", "r1n7x", "r1n8x", "r2n1x", "r2n7x", "r2n8x")),
        ("/home/kim/nodes", ()),
    ],
)
def test_names_in_a_list_of_hosts(text: str, names: tuple[str, ...]) -> None:
    assert client.expand_hosts(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("login", "gpu1"), "login,gpu1"),
        (("gpu08", "gpu09", "gpu10", "gpu12", "gpu7", "gpu09"), "gpu[08-10,12],gpu7"),
        (("r1n3", "r2n1", "r1n1"), "r1n[1,3],r2n1"),
        (tuple(f"n{number:04}" for number in range(1, 1001)), "n[0001-1000]"),
        (("n0000001", "n0000002"), "n0[000001-000002]"),  # at most six digits, as expand_hosts reads them
        (("node1-ib",), "node1-ib"),
    ],
)
def test_names_of_hosts_in_short(names: tuple[str, ...], text: str) -> None:
    assert client.compress_hosts(names) == text
    assert set(client.expand_hosts(text)) == set(names)
