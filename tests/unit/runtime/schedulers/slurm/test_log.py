from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.schedulers.protocol import FailedTask
from ctrain_runtime.schedulers.slurm.log import first_failed_task
from samples.recordings import VERSIONS, collection

HOSTS = {"22.05.8": ("gpu01", "gpu02"), "24.11.5": ("gpu03", "gpu04"), "26.05.5": ("gpu05", "gpu06")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "task", "node", "how"),
    [
        ("srun-exit3-one", 3, 1, "Exited with exit code 3"),
        ("srun-exit3-kill-on-bad-exit", 3, 1, "Exited with exit code 3"),
        ("srun-exit3-K-label", 0, 0, "Exited with exit code 3"),
        ("srun-exit-mixed", 2, 1, "Exited with exit code 2"),
        ("srun-sigkill-one", 2, 1, "Killed"),
        ("srun-sigkill-kill-on-bad-exit", 2, 1, "Killed"),
        ("srun-sigsegv-one", 1, 0, "Segmentation fault"),
        ("srun-sigterm-one", 2, 1, "Terminated"),
    ],
)
def test_the_task_that_failed_first(version: str, name: str, task: int, node: int, how: str) -> None:
    assert first_failed_task(collection(version, "srun.txt")[name]) == FailedTask(task, HOSTS[version][node], how)


@pytest.mark.parametrize("version", VERSIONS)
def test_of_tasks_that_failed_together_the_lowest(version: str) -> None:
    failed = first_failed_task(collection(version, "srun.txt")["srun-exit3-all"])
    assert failed in (
        FailedTask(0, HOSTS[version][0], "Exited with exit code 3"),
        FailedTask(2, HOSTS[version][1], "Exited with exit code 3"),
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name",
    [
        *("srun-scancelled", "srun-timeout", "srun-exit0-wait5", "srun-node-dies"),
        *("oom.job-out", "state.CANCELLED.job-out", "state.TIMEOUT.job-out"),
    ],
)
def test_tasks_that_end_with_their_step_did_not_fail(version: str, name: str) -> None:
    log = collection(version, "srun.txt").get(name)
    if log is None:
        assert (version, name) in [("22.05.8", "srun-node-dies"), ("22.05.8", "oom.job-out")]
        return
    assert first_failed_task(log) is None


def test_a_list_of_tasks() -> None:
    expected = FailedTask(1, "n-7.example", "Out Of Memory")
    assert first_failed_task("x\nsrun: error: n-7.example: tasks 1,4-6: Out Of Memory\n") == expected


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    first_failed_task(text)
    failed = first_failed_task(f"srun: error: n1: task 3: {text}")
    assert failed is None or (failed.task, failed.host) == (3, "n1")
