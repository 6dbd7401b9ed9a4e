"""memory.bash: what the kernel's counts say of a task, with the files of its cgroup in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrain_runtime import payload
from samples.scripts import Scripts, slurm_task

TEXT = (payload.FOLDER / "bash/memory.bash").read_text(encoding="utf-8")
UNLIMITED = "9223372036854771712"
# As recorded on Slurm 22.05 with cgroup v1; hybrid hierarchies have a line of v2, too.
V1 = "4:memory:/slurm_node01/uid_1001/job_16/step_0/task_0\n3:cpuset:/\n0::/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_16/step_0/user/task_0\n"
TASK_V1 = "memory/slurm_node01/uid_1001/job_16/step_0/task_0"
TASK_V2 = "system.slice/slurmstepd.scope/job_16/step_0/user/task_0"


def files(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


def state(folder: Path, groups: str) -> list[str]:
    """Kills and limit, as memory.bash has them."""
    (folder / "cgroup").write_text(groups)
    text = TEXT.replace("/sys/fs/cgroup", str(folder)).replace("/proc/self/cgroup", str(folder / "cgroup"))
    script = f"set -u\n{text}\nfind_memory_group; count_memory_kills; find_memory_limit; echo $killed $memory_limit"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(("limit", "expected"), [("209715200", "209715200"), (UNLIMITED, "0")])
def test_version_1(tmp_path: Path, limit: str, expected: str) -> None:
    control, stat = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", f"cache 0\nhierarchical_memory_limit {limit}\n"
    files(tmp_path / TASK_V1, memory__oom_control=control, memory__stat=stat)
    assert state(tmp_path, V1) == ["2", expected]


def test_version_2_has_the_limit_of_the_job_above(tmp_path: Path) -> None:
    files(tmp_path / TASK_V2, memory__events="low 0\noom 1\noom_kill 1\n", memory__max="max\n", memory__stat="anon 0\n")
    files(tmp_path / "system.slice/slurmstepd.scope/job_16", memory__max="2147483648\n")
    files(tmp_path / "system.slice", memory__max="8589934592\n")
    assert state(tmp_path, V2) == ["1", "2147483648"]


@pytest.mark.parametrize("groups", [V1, V2, "", "no cgroups here\n"])
def test_without_files_nothing_is_known(tmp_path: Path, groups: str) -> None:
    assert state(tmp_path, groups) == ["0", "0"]


@pytest.mark.parametrize(("code", "kills", "known"), [(137, 1, True), (1, 1, True), (137, 0, False), (0, 1, False)])
def test_a_rank_records_that_the_kernel_has_killed_processes_of_it(
    scripts: Scripts, code: int, kills: int, known: bool
) -> None:
    """Also if it lives on for a while, as after the death of a worker that loads data."""
    counts = scripts.folder / "cgroup" / TASK_V2 / "memory.events"
    files(counts.parent, memory__events="oom_kill 5\n", memory__max="1000000\n")
    (scripts.folder / "self").write_text(V2)
    scripts.create(scripts.plan("bash", "-c", f"echo oom_kill {5 + kills} >{counts}; exit {code}"))
    library = scripts.run / "ctrain.bash"
    text = library.read_text().replace("/sys/fs/cgroup", str(scripts.folder / "cgroup"))
    library.write_text(text.replace("/proc/self/cgroup", str(scripts.folder / "self")))
    assert scripts.start("task.sh", **slurm_task()).wait() == code
    ended = scripts.node_events()[-1]
    assert (ended["code"], ended.get("memory_limit")) == (code, 1000000 if known else None)
