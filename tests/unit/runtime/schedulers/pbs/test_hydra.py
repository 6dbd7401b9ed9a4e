"""The scripts around Hydra's mpiexec, run as processes. With the real one: tests/integration/test_launchers.py."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from ctrain_runtime import payload
from samples.runs import wait_for

NOTE = 'trap \'echo TERM >>"$0.log"; exit 3\' TERM; echo up >>"$0.log"\n'
WAIT = "while :; do sleep 0.05; done\n"


@pytest.fixture
def guard(tmp_path: Path) -> Path:
    """With a grace period of a second."""
    for name in ("ctrain.bash", "guard.sh"):
        (tmp_path / name).write_text(payload.text(name).replace("\nTENTHS=100 ", "\nTENTHS=10 "))
    return tmp_path / "guard.sh"


def start(guard: Path, task: str, *, fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    """A guard and its task, which writes into task.log."""
    path = guard.with_name("task")
    path.write_text(task)
    argv = ["/bin/bash", "-p", str(guard), str(path), "preflight"]
    return subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, text=True, pass_fds=fds)


def log(guard: Path) -> list[str]:
    path = guard.with_name("task.log")
    return path.read_text().split() if path.exists() else []


def test_a_task_that_succeeds_and_one_that_fails(guard: Path) -> None:
    """Hydra ends all ranks only if one of them is killed."""
    good = start(guard, 'echo "$@"\n')
    assert (good.communicate(timeout=60)[0], good.returncode) == ("preflight\n", 0)
    bad = start(guard, "exit 9\n")
    assert (bad.communicate(timeout=60)[0], bad.returncode) == ("", -signal.SIGKILL)


def test_a_task_whose_guard_is_killed_gets_sigterm(guard: Path) -> None:
    process = start(guard, NOTE + WAIT)
    wait_for(lambda: log(guard) == ["up"])
    os.killpg(process.pid, signal.SIGKILL)  # as Hydra does
    process.communicate(timeout=60)  # until nobody has its output
    assert log(guard) == ["up", "TERM"]


def test_a_task_has_a_session_of_its_own(guard: Path) -> None:
    """PBS signals all of its own, with the processes that serve the image."""
    process = start(guard, NOTE + 'echo "$(ps -o sid= -p $$) $$"\n' + WAIT)
    wait_for(lambda: log(guard) == ["up"])
    for pid in subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGTERM)
    session, task = process.communicate(timeout=60)[0].split()
    assert session == task != str(process.pid)
    assert log(guard) == ["up", "TERM"]


def test_a_task_gets_sigterm_once(guard: Path) -> None:
    """PBS signals the guard on the first host, and Hydra kills it when mpiexec is signalled, too."""
    process = start(guard, 'trap \'echo TERM >>"$0.log"\' TERM; echo up >>"$0.log"\n' + WAIT)
    wait_for(lambda: log(guard) == ["up"])
    os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: log(guard) == ["up", "TERM"])
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert log(guard) == ["up", "TERM"]


def test_a_task_that_ignores_sigterm_is_killed(guard: Path) -> None:
    process = start(guard, "trap '' TERM; echo up >>\"$0.log\"\n" + WAIT)
    wait_for(lambda: log(guard) == ["up"])
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert log(guard) == ["up"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on(guard: Path, number: signal.Signals) -> None:
    name = number.name[3:]
    process = start(guard, f'trap \'echo {name} >>"$0.log"; exit 0\' {name}; echo up >>"$0.log"\n' + WAIT)
    wait_for(lambda: log(guard) == ["up"])
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert log(guard) == ["up", name]


def test_pipes_of_hydra_are_not_handed_down(guard: Path) -> None:
    """An engine's process that outlives its container would keep mpiexec waiting."""
    read, write = os.pipe()
    process = start(guard, 'ls -l /proc/$$/fd >>"$0.log"\n', fds=(write,))
    pipe = str(Path(f"/proc/self/fd/{write}").readlink())
    process.communicate(timeout=60)
    os.close(read)
    os.close(write)
    assert log(guard) and pipe not in log(guard)


def test_the_way_to_hydra_stays_open_until_it_has_seen_the_end(guard: Path) -> None:
    """Hydra kills all ranks if it closes before. The scripts use low numbers."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PMI_FD", str(write))
        process = start(guard, 'echo "$PMI_FD" >>"$0.log"; echo used >&"$PMI_FD"\n', fds=(write,))
    os.close(write)
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert os.read(read, 99) == b"used\n"
    with pytest.raises(BlockingIOError):
        os.read(read, 99)
    process.communicate(timeout=60)
    wait_for(lambda: at_end(read))
    os.close(read)
    assert process.returncode == 0
    assert int(log(guard)[0]) >= 10


def at_end(pipe: int) -> bool:
    try:
        return os.read(pipe, 99) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize(("ends", "counted"), [(True, "2 2"), (False, "2 1")])
def test_the_job_waits_for_tasks_that_mpiexec_left(tmp_path: Path, ends: bool, counted: str) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/0.jsonl").write_text('{"what": "started"}\n{"what": "ended"}\n')
    (tmp_path / "nodes/1.jsonl").write_text('{"what": "started"}\n')
    late = f'(sleep 1; echo \'{{"what": "ended"}}\' >>{tmp_path}/nodes/1.jsonl) >/dev/null &' if ends else ""
    text = f"""\
run={tmp_path}
{payload.text("ctrain.bash")}
CT_HYDRA_TENTHS={310 if ends else 10}
check_hosts() {{ :; }}
mpiexec() {{
  {late}
  return 7
}}
run_hydra
echo "$? $(count_events started) $(count_events ended)"
"""
    done = subprocess.run(["/bin/bash", "-uc", text], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"7 {counted}\n", "")
