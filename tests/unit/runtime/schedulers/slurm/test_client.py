from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.command import CommandResult
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
    )
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "WANDB_MODE")
    for name in (*dropped, *kept):
        monkeypatch.setenv(name, "x")
    environment = client.client_environment()
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
