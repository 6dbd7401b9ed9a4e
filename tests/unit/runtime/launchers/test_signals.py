"""Signals that reach the wrapper of a rank (fragments.pass_signals), alone or with all below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_runtime import payload
from samples.scripts import Scripts, is_running, slurm_task, wait_until

# Signals may come while a handler runs: print would then fail.
HANDLER = """\
import os, signal, sys, time
def handle(number, frame):
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_IGN)
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        time.sleep(0.2)
        sys.exit(5)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), handle)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def start_program(scripts: Scripts, *handled: str) -> subprocess.Popen[bytes]:
    program = scripts.folder / "handler.py"
    program.write_text(HANDLER)
    scripts.create(scripts.plan("python3", str(program), *handled))
    task = scripts.start("task.sh", **slurm_task())
    wait_until(lambda: (scripts.run / "logs/rank0.log").exists() and scripts.log() == "ready\n")
    return task


def test_the_wrapper_passes_term_on_and_waits_for_the_program(scripts: Scripts) -> None:
    """Slurm's proctrack/cgroup signals the wrapper alone."""
    task = start_program(scripts, "SIGTERM")
    task.terminate()
    assert task.wait() == 5
    assert scripts.log() == "ready\nSIGTERM\n"
    assert scripts.node_events()[-1]["code"] == 5
    assert not list(scripts.homes.iterdir())


def test_the_wrapper_outlives_a_signal_to_all(scripts: Scripts) -> None:
    """Slurm's proctrack/linuxproc signals every process of a task, and torchrun the group of each rank."""
    task = start_program(scripts, "SIGTERM")
    os.killpg(task.pid, signal.SIGTERM)
    assert task.wait() == 5
    assert set(scripts.log().split()) == {"ready", "SIGTERM"}


# Counts what reaches it, and ends half a second after the first.
COUNTER = """\
import os, signal, sys, time
count = 0
def handle(number, frame):
    global count
    count += 1
signal.signal(signal.SIGTERM, handle)
print("ready", flush=True)
while not count:
    time.sleep(0.01)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    time.sleep(0.01)
print(count, flush=True)
"""


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_term_reaches_the_program_once_however_often_and_to_how_many_it_is_sent(
    scripts: Scripts, send: Callable[[int, int], None], times: int
) -> None:
    """Slurm sends it twice at the time limit. To a group it comes once, as from torchrun."""
    program = scripts.folder / "counter.py"
    program.write_text(COUNTER)
    scripts.create(scripts.plan("python3", str(program)))
    task = scripts.start("task.sh", **slurm_task())
    wait_until(lambda: (scripts.run / "logs/rank0.log").exists() and scripts.log() == "ready\n")
    send(task.pid, signal.SIGTERM)
    for _ in range(times - 1):
        time.sleep(0.1)
        os.kill(task.pid, signal.SIGTERM)
    assert task.wait() == 0
    assert scripts.log() == "ready\n1\n"
    signals = [event for event in scripts.node_events() if event["what"] == "signalled"]
    assert signals == [{"stage": "run", "what": "signalled", "rank": 0, "signal": "TERM"}]


def test_the_witness_of_a_signal_to_all_sleeps_and_goes_with_the_step(scripts: Scripts) -> None:
    task = start_program(scripts, "SIGTERM")
    (witness,) = witnesses(task.pid)
    assert str(Path(f"/proc/{witness}/fd/0").readlink()).startswith("pipe:")  # of /dev/null it would read without end
    held = {str(path.readlink()) for path in Path(f"/proc/{witness}/fd").iterdir()}
    assert not [path for path in held if path.startswith(str(scripts.folder)) and not path.endswith("task.sh")]
    task.terminate()
    assert task.wait() == 5
    wait_until(lambda: not is_running(witness))


def witnesses(group: int) -> list[int]:
    """The witnesses that run in a process group (proc(5), stat, field 5)."""
    mine = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            text = path.read_text()
            if "(witness)" in text and text.rpartition(")")[2].split()[2] == str(group):
                mine.append(int(path.parent.name))
    return list(filter(is_running, mine))


def test_a_witness_does_not_outlive_its_script(scripts: Scripts) -> None:
    task = start_program(scripts, "SIGTERM")
    (witness,) = witnesses(task.pid)
    task.kill()
    task.wait()
    wait_until(lambda: not is_running(witness))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(task.pid, signal.SIGKILL)


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_term_ends_a_program_that_does_not_handle_it(scripts: Scripts, send: Callable[[int, int], None]) -> None:
    task = start_program(scripts)
    send(task.pid, signal.SIGTERM)
    assert task.wait() == 128 + signal.SIGTERM
    assert scripts.node_events()[-1] == {"stage": "run", "what": "ended", "rank": 0, "code": 143}


# A program has just ended, and the trap of the script runs only now, as on a busy machine; $1 is what the witness got.
LATE = """\
cd "$2" && . ./programs.bash && . ./signals.bash
is_over() { true; }
record() { echo "recorded $1"; }
ending='' ct_record_signal=record ct_end_command=:
start_witness
[ "$1" = none ] || kill -s "$1" "$witness"
end_step
end_witness || :
"""


@pytest.mark.parametrize(("sent", "recorded"), [("TERM", "recorded TERM\n"), ("none", "")])
def test_a_signal_to_all_is_recorded_also_when_it_ended_the_program_before_the_script_got_it(
    sent: str, recorded: str
) -> None:
    """Without that, an interrupted rank looks like one that nothing had reached; one that had ended before was not."""
    library = Path(payload.__file__).parent / "bash"
    done = subprocess.run(["bash", "-c", LATE, "late", sent, str(library)], check=True, capture_output=True, text=True)
    assert done.stdout == recorded


# The signal comes again while its trap runs, as at a time limit on a busy machine.
TWICE = """\
cd "$1" && . ./steps.bash && . ./signals.bash
is_over() { false; }
record() { kill -TERM "$$"; echo "recorded $1"; }
pass_on() { echo "passed on"; }
pass_signals record pass_on :
kill -TERM "$$"
echo done
"""


def test_a_signal_that_comes_again_while_it_is_recorded_is_one_signal() -> None:
    library = Path(payload.__file__).parent / "bash"
    done = subprocess.run(["bash", "-c", TWICE, "twice", str(library)], check=True, capture_output=True, text=True)
    assert done.stdout == "recorded TERM\npassed on\ndone\n"


def test_warning_signals_reach_a_program_that_handles_them(scripts: Scripts) -> None:
    task = start_program(scripts, "SIGUSR1", "SIGUSR2")
    task.send_signal(signal.SIGUSR1)
    wait_until(lambda: "SIGUSR1" in scripts.log())
    task.send_signal(signal.SIGUSR2)
    wait_until(lambda: scripts.log() == "ready\nSIGUSR1\nSIGUSR2\n")
    task.terminate()
    assert task.wait() == 143


def test_warning_signals_do_not_kill_a_program_without_a_handler(scripts: Scripts) -> None:
    task = start_program(scripts, "SIGTERM")
    for number in [signal.SIGUSR1, signal.SIGUSR2] * 20:
        os.killpg(task.pid, number)
    task.terminate()
    assert task.wait() == 5
    assert scripts.log() == "ready\nSIGTERM\n"


def test_a_program_killed_by_a_signal(scripts: Scripts) -> None:
    assert scripts.execute(scripts.plan("bash", "-c", "kill -KILL $$"), **slurm_task()) == 137
    assert scripts.node_events()[-1]["code"] == 137
