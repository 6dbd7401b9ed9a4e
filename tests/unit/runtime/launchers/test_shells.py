"""Signals for programs below a shell (programs.bash): real shells, real programs, a fake engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.programs import write_program
from samples.scripts import Scripts, is_running, slurm_task, wait_until

pytestmark = pytest.mark.whole_run

# Saves for half a second after its first signal, and says how often each came.
SAVES = """\
import os, signal, sys, time
seen = []
for name in ("SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, _: seen.append(signal.Signals(number).name))
os.write(1, b"ready\\n")
while not seen:
    time.sleep(0.01)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    time.sleep(0.01)
os.write(1, f"saved {seen.count('SIGTERM')} {seen.count('SIGUSR1')}\\n".encode())
"""
SHELLS = {
    "foreground": ("python3 saves.py\necho after", "ready saved 1 0"),
    "loop": ("while :; do python3 saves.py; done", "ready saved 1 0"),
    "pipe": ("python3 saves.py | cat", "ready saved 1 0"),
    "reader": ("python3 saves.py | while read -r line; do echo $line; done", "ready saved 1 0"),
    "shell in the shell": ("bash -c 'python3 saves.py; echo inner'\necho after", "ready saved 1 0"),
    "background": ("sleep 600 &\npython3 saves.py &\nwait $!\necho after", "ready saved 1 0"),
    "cleans up": ("trap 'echo clean' EXIT\npython3 saves.py\necho after", "ready saved 1 0 clean"),
    "catches": ("trap 'echo caught' TERM\npython3 saves.py\necho after", "ready saved 1 0 caught after"),
    "passes on": (
        "trap 'kill $p' TERM\npython3 saves.py &\np=$!\nwait $p\nwait $p\necho after",
        "ready saved 1 0 after",
    ),
    "translates": ("trap 'kill -USR1 $p' TERM\npython3 saves.py & p=$!\nwait $p; wait $p", "ready saved 0 1"),
    "wrapped": ("timeout 600 bash -c 'python3 saves.py; echo inner'\necho after", "ready saved 1 0"),
    "shell alone": ("echo ready\nwhile :; do :; done", "ready"),
}


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    scripts = Scripts(tmp_path)
    yield scripts
    mark = f"CTRAIN_RUN_DIR={scripts.run}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def start(scripts: Scripts, *command: str, ready: int = 1) -> subprocess.Popen[bytes]:
    (scripts.folder / "saves.py").write_text(SAVES)
    scripts.create(scripts.plan(*command))
    task = scripts.start("task.sh", **slurm_task())
    wait_until(lambda: (scripts.run / "logs/rank0.log").exists() and scripts.log().count("ready") == ready)
    return task


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("kind", SHELLS)
def test_term_reaches_the_program_below_a_shell_once_and_the_shell_after_it(
    scripts: Scripts, kind: str, shell: str
) -> None:
    if (kind, shell) == ("cleans up", "sh"):
        pytest.skip("dash runs no EXIT trap when a signal ends it")
    text, expected = SHELLS[kind]
    (scripts.folder / "run.sh").write_text(text)
    task = start(scripts, shell, "run.sh")
    task.terminate()
    task.wait(60)
    assert scripts.log().split() == expected.split()
    assert scripts.node_events()[-1]["what"] == "ended"
    assert not list(scripts.homes.iterdir())


def test_an_executable_script_is_a_shell_as_well(scripts: Scripts) -> None:
    write_program(scripts.folder / "run.sh", "#!/usr/bin/env bash\npython3 saves.py\necho after")
    task = start(scripts, "./run.sh")
    task.terminate()
    assert task.wait(60) == 143
    assert scripts.log().split() == ["ready", "saved", "1", "0"]


# What the real one does: the program is its child, served by others, and gets the signals that reach it.
ENGINE = """\
sleep 600 &
server=$!
"$@" &
program=$!
trap 'kill -TERM $program' TERM
while kill -0 $program 2>/dev/null; do wait $program; code=$?; done
kill $server
exit $code
"""


@pytest.mark.parametrize("command", [("bash", "run.sh"), ("python3", "saves.py")])
def test_an_engine_that_serves_the_image_is_not_signalled_with_the_program(
    scripts: Scripts, command: tuple[str, ...]
) -> None:
    (scripts.folder / "run.sh").write_text("python3 saves.py; echo after")
    serve(scripts)
    task = start(scripts, *command)
    task.terminate()
    assert task.wait(60) == (143 if command[0] == "bash" else 0)
    assert scripts.log().split() == ["ready", "saved", "1", "0"]


def serve(scripts: Scripts) -> None:
    """Put the ENGINE below the fake one."""
    (scripts.folder / "engine.sh").write_text(ENGINE)
    shutil.copy("/bin/bash", scripts.bin / "starter")
    engine = scripts.bin / "apptainer"
    call = f'"${{inside[@]}}" starter {scripts.folder}/engine.sh "$@"'
    engine.write_text(engine.read_text().replace('"${inside[@]}" "$@"', call))


# As the real one while it prepares the container: a process that later becomes the program, and that loses signals.
BEGINNING = """\
trap : TERM
touch beginning
until ((SECONDS >= 2)); do :; done
exec "$@"
"""


def test_a_signal_that_comes_while_the_engine_begins_is_not_lost(scripts: Scripts) -> None:
    (scripts.folder / "engine.sh").write_text(BEGINNING)
    shutil.copy("/bin/bash", scripts.bin / "starter")
    engine = scripts.bin / "apptainer"
    call = f'"${{inside[@]}}" starter {scripts.folder}/engine.sh "$@"'
    engine.write_text(engine.read_text().replace('"${inside[@]}" "$@"', call))
    scripts.create(scripts.plan("sleep", "600"))
    task = scripts.start("task.sh", **slurm_task())
    wait_until(lambda: (scripts.folder / "beginning").exists())
    task.terminate()
    assert task.wait(30) == 143
    assert scripts.node_events()[-1]["what"] == "ended"


def test_a_signal_to_all_leaves_the_program_its_time_to_save(scripts: Scripts) -> None:
    """As torchrun signals the group of a rank: the shell dies of it at once."""
    (scripts.folder / "run.sh").write_text("python3 saves.py\necho after")
    task = start(scripts, "bash", "run.sh")
    os.killpg(task.pid, signal.SIGTERM)
    assert task.wait(60) == 143
    assert scripts.log().split() == ["ready", "saved", "1", "0"]


def test_what_a_program_starts_is_its_own(scripts: Scripts) -> None:
    """As torchrun, which signals its workers itself."""
    starter = (
        "import signal, subprocess, sys\nworkers = [subprocess.Popen([sys.executable, 'saves.py']) for _ in '12']\n"
    )
    end = "signal.signal(signal.SIGTERM, lambda *_: [w.terminate() for w in workers])\n[w.wait() for w in workers]\n"
    (scripts.folder / "starter.py").write_text(starter + end)
    (scripts.folder / "run.sh").write_text("python3 starter.py\necho after")
    task = start(scripts, "bash", "run.sh", ready=2)
    task.terminate()
    task.wait(60)
    assert sorted(scripts.log().splitlines()) == ["ready", "ready", "saved 1 0", "saved 1 0"]


# As the real ones: the first dies of SIGTERM and leaves its child behind; the second, deepspeed's or mpirun, ends its
# ranks itself, here so that not all have time to save.
DEEPSPEED = """\
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-u", "-m", "deepspeed.launcher.launch", *sys.argv[1:]]).returncode)
"""
LAUNCH = """\
import signal, subprocess, sys
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]]) for _ in "12"]
signal.signal(signal.SIGTERM, lambda *_: [ranks[0].terminate(), ranks[0].wait(), ranks[1].kill(), sys.exit(1)])
sys.exit(max(rank.wait() for rank in ranks))
"""
# Starts shells by spawned processes, beside which runs a tracker that ignores SIGTERM.
HOROVODRUN = """\
import multiprocessing, subprocess, sys
def run(words):
    subprocess.run(["/bin/sh", "-c", " ".join(words) + "; exit $?"])
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run, args=([sys.executable, *sys.argv[1:]],)) for _ in "12"]
    [rank.start() for rank in ranks]
    [rank.join() for rank in ranks]
"""
STARTERS = ("bin/deepspeed", "-m deepspeed", "bin/accelerate launch", "bin/mpirun", "bin/horovodrun")


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("command", STARTERS)
def test_ranks_get_the_signal_past_starters_that_do_not_pass_it_on(
    scripts: Scripts, command: str, served: bool
) -> None:
    launcher = scripts.folder / "deepspeed" / "launcher"
    launcher.mkdir(parents=True)
    (launcher / "launch.py").write_text(LAUNCH)
    (launcher.parent / "__main__.py").write_text(DEEPSPEED)
    write_program(scripts.bin / "deepspeed", f"#!/usr/bin/env python3\n{DEEPSPEED}")
    write_program(scripts.bin / "accelerate", f"#!/usr/bin/env python3\n{DEEPSPEED.replace('argv[1:]', 'argv[2:]')}")
    write_program(scripts.bin / "mpirun", f"#!/usr/bin/env python3\n{LAUNCH}")
    write_program(scripts.bin / "horovodrun", f"#!/usr/bin/env python3\n{HOROVODRUN}")
    (scripts.folder / "run.sh").write_text(f"python3 {command} saves.py\necho after")
    if served:
        serve(scripts)
    task = start(scripts, *(("python3", *command.split(), "saves.py") if served else ("bash", "run.sh")), ready=2)
    task.terminate()
    task.wait(60)
    assert sorted(scripts.log().splitlines()) == ["ready", "ready", "saved 1 0", "saved 1 0"]
    assert scripts.node_events()[-1]["what"] == "ended"


def test_a_warning_reaches_the_program_below_a_shell(scripts: Scripts) -> None:
    (scripts.folder / "run.sh").write_text("python3 saves.py\necho after")
    task = start(scripts, "bash", "run.sh")
    task.send_signal(signal.SIGUSR1)
    assert task.wait(60) == 0
    assert scripts.log().split() == ["ready", "saved", "0", "1", "after"]


def test_a_shell_that_was_stopped_does_not_outlive_its_task(scripts: Scripts) -> None:
    (scripts.folder / "run.sh").write_text("echo $$ >shell\npython3 saves.py\necho after")
    task = start(scripts, "bash", "run.sh")
    shell = int((scripts.folder / "shell").read_text())
    task.terminate()
    wait_until(lambda: "(stopped)" in Path(f"/proc/{shell}/status").read_text())
    task.kill()
    task.wait()
    wait_until(lambda: not is_running(shell))
