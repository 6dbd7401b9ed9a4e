"""How a run on this machine starts and ends its tasks: real processes, a fake engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from ctrain_runtime import payload
from ctrain_runtime.schedulers.local import script
from samples.scripts import Scripts, is_running, wait_until

pytestmark = pytest.mark.whole_run

LIBRARY = f"run=/\n{payload.text('ctrain.bash')}"


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def start(scripts: Scripts, bash: str, ranks: int = 1, launcher: str = "env") -> subprocess.Popen[bytes]:
    """A run of `ranks` tasks on this machine; each runs `bash`."""
    scripts.create(scripts.plan("bash", "-c", bash, local=True, ranks_per_node=ranks, launcher=launcher))
    return scripts.start("job.sh")


def pids(scripts: Scripts, count: int) -> list[int]:
    """The numbers that programs wrote into files pid*."""

    def written() -> list[str]:
        return [text for path in scripts.folder.glob("pid*") if (text := path.read_text().strip())]

    wait_until(lambda: len(written()) == count)
    return [int(text) for text in written()]


def test_all_tasks_run_and_find_each_other(scripts: Scripts) -> None:
    job = start(scripts, "echo $RANK/$WORLD_SIZE $LOCAL_RANK $NODE_RANK $MASTER_ADDR:$MASTER_PORT", ranks=3)
    assert job.wait() == 0
    first = scripts.log(0).split()[-1]
    assert first.startswith("127.0.0.1:6")
    assert [scripts.log(rank) for rank in range(3)] == [f"{rank}/3 {rank} 0 {first}\n" for rank in range(3)]
    begin, run, end = scripts.job_events()
    assert begin["job"] == f"{socket.gethostname()}:{job.pid}:{begin['job'].rsplit(':', 1)[1]}"
    assert (run["what"], end["code"]) == ("started", 0)


def test_groups_of_ranks_stand_for_nodes(scripts: Scripts) -> None:
    plan = scripts.plan("sh", "-c", "echo $LOCAL_RANK $NODE_RANK", local=True, nodes=2, ranks_per_node=2)
    scripts.create(plan)
    assert scripts.start("job.sh").wait() == 0
    assert [scripts.log(rank) for rank in range(4)] == ["0 0\n", "1 0\n", "0 1\n", "1 1\n"]


def test_the_task_that_fails_first_ends_the_others_and_gives_the_exit_code(scripts: Scripts) -> None:
    job = start(scripts, "[ $RANK = 1 ] && exit 3; echo $$ >pid$RANK; sleep 60", ranks=3)
    assert job.wait() == 3
    assert scripts.job_events()[-1]["code"] == 3
    assert not any(is_running(int(text)) for path in scripts.folder.glob("pid*") if (text := path.read_text()))
    codes = {event["rank"]: event["code"] for event in scripts.node_events() if event["what"] == "ended"}
    assert codes[1] == 3
    assert not [code for rank, code in codes.items() if rank != 1 and code == 0]


def test_a_task_that_ends_just_when_nobody_listens_has_not_failed(scripts: Scripts) -> None:
    """Its exit code is in the pipe when job.sh notices that it is gone."""
    scripts.create(scripts.plan("bash", "-c", "until [ -e go ]; do sleep 0.01; done", local=True))
    library = scripts.run / "ctrain.bash"
    late = f'any_task() {{\n  touch {scripts.folder}/go; while kill -0 -- "-${{groups[0]}}"; do sleep 0.01; done\n'
    library.write_text(library.read_text().replace("any_task() {\n", late))
    assert scripts.start("job.sh").wait() == 0
    assert (scripts.folder / "go").exists()


def test_a_failure_is_seen_although_what_wakes_the_shell_is_lost(scripts: Scripts) -> None:
    """`read` with a time limit may take a line and fail, which must never be the one with the exit code."""
    scripts.create(scripts.plan("bash", "-c", "exit 3", local=True))
    library = scripts.run / "ctrain.bash"
    text = library.read_text()
    assert text.count("\n  echo >&8\n") == 1
    assert "-t" not in next(line for line in text.splitlines() if "ended" in line and "read" in line)
    library.write_text(text.replace("\n  echo >&8\n", "\n"))
    assert scripts.start("job.sh").wait() == 3
    assert scripts.job_events()[-1]["code"] == 3


@pytest.mark.parametrize("delay", range(12))
def test_a_failure_right_after_another_tasks_end_is_not_missed(scripts: Scripts, delay: int) -> None:
    """While the shell handles the end of one task, another may fail."""
    early = "[ $RANK = 0 ] && exit 0"
    late = f"[ $RANK = 1 ] && {{ sleep 0.{delay:03}; exit 3; }}"
    go = "until [ -e go ]; do sleep 0.01; done"
    job = start(scripts, f"touch up$RANK; {go}; {early}; {late}; exec sleep 60", ranks=3)
    wait_until(lambda: len(list(scripts.folder.glob("up*"))) == 3)
    (scripts.folder / "go").touch()
    assert job.wait() == 3


def test_a_task_whose_wrapper_is_killed(scripts: Scripts) -> None:
    """The group of the task goes with what reports for it."""
    job = start(scripts, "echo $$ >pid$RANK; sleep 60")
    (program,) = pids(scripts, 1)
    os.killpg(os.getpgid(program), signal.SIGKILL)
    assert job.wait() == 137
    assert scripts.job_events()[-1]["code"] == 137


def test_a_task_that_ignores_term_is_killed_after_the_grace_period(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "CANCEL_GRACE_SECONDS", 0.5)
    job = start(scripts, "trap '' TERM; echo $$ >pid$RANK; while :; do sleep 0.1; done", ranks=2)
    programs = pids(scripts, 2)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 137
    assert not any(map(is_running, programs))
    assert scripts.job_events()[-1]["code"] == 137


def test_a_task_that_handles_term_is_waited_for(scripts: Scripts) -> None:
    job = start(scripts, "trap 'sleep 0.2; echo saved; exit 5' TERM; echo $$ >pid$RANK; while :; do sleep 0.05; done")
    pids(scripts, 1)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 5
    assert scripts.log().endswith("saved\n")


def test_warning_signals_reach_all_tasks_and_kill_none(scripts: Scripts) -> None:
    # A print in a handler would fail within another one, as on a busy machine: reentrant call.
    handler = "import os, signal, time; signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'warned\\n'))"
    loop = f"{handler}; print('ready', flush=True); [time.sleep(0.05) for _ in range(2000)]"
    scripts.create(scripts.plan("python3", "-c", loop, local=True, ranks_per_node=2))
    job = scripts.start("job.sh")
    wait_until(lambda: len(list((scripts.run / "logs").glob("rank*"))) == 2)
    wait_until(lambda: {scripts.log(0), scripts.log(1)} == {"ready\n"})
    job.send_signal(signal.SIGUSR1)
    wait_until(lambda: {scripts.log(0), scripts.log(1)} == {"ready\nwarned\n"})
    job.send_signal(signal.SIGUSR2)
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 143


@pytest.mark.parametrize("code", [0, 4])
def test_what_programs_leave_behind_is_killed_at_the_end(scripts: Scripts, code: int) -> None:
    daemon = "setsid bash -c 'echo $$ >pid; exec sleep 60' </dev/null >/dev/null 2>&1 &"
    job = start(scripts, f"{daemon} until [ -s pid ]; do sleep 0.02; done; exit {code}")
    assert job.wait() == code
    (left,) = pids(scripts, 1)
    wait_until(lambda: not is_running(left))


def test_processes_of_other_runs_are_not_touched(scripts: Scripts) -> None:
    environment = {"PATH": "/usr/bin:/bin", "CTRAIN_RUN_DIR": f"{scripts.run}2", "X": f"CTRAIN_RUN_DIR={scripts.run}"}
    with subprocess.Popen(["sleep", "60"], env=environment) as other:
        job = start(scripts, "exit 3")
        assert job.wait() == 3
        assert other.poll() is None
        other.kill()


def test_mpirun_and_all_of_its_ranks_end_with_the_job(scripts: Scripts) -> None:
    job = start(scripts, "echo $$ >pid$RANK; sleep 60", ranks=4, launcher="mpi")
    ranks = pids(scripts, 4)
    job.send_signal(signal.SIGTERM)
    assert job.wait() != 0
    wait_until(lambda: not any(map(is_running, ranks)))


def test_a_port_in_use_is_not_chosen() -> None:
    with socket.socket() as taken:
        port = next(port for port in range(65535, 61000, -1) if taken.connect_ex(("127.0.0.1", port)))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        code = f"{LIBRARY}\nset_rendezvous 127.0.0.1 $(({port - 61000} - $$ % 4536 + 4536))\necho $MASTER_PORT"
        done = subprocess.run(["/bin/bash", "-p", "-c", code], capture_output=True, text=True, check=True)
    assert 61000 <= int(done.stdout) <= 65535
    assert int(done.stdout) != port


def test_ports_are_never_below_or_above_their_range() -> None:
    for pid in ("1", "4536", "32768", "4194304"):
        code = (
            f"{LIBRARY.replace('(61000 + ($$', f'(61000 + ({pid}')}\nset_rendezvous 127.0.0.1 4535\necho $MASTER_PORT"
        )
        done = subprocess.run(["/bin/bash", "-c", code], capture_output=True, text=True, check=True)
        assert 61000 <= int(done.stdout) <= 65535
