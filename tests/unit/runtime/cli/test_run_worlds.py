"""Runs on this machine whose ranks join one world, none, or several: real processes and connections, the fake engine.

The scan is the real one, with shorter times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import payload
from samples.programs import write_program
from samples.runs import Bench, ended, wait_for

TWO = ("--ranks-per-node", "2", "--launcher", "env")
# Meets the others as torch does, and stays for as long as the test wants.
MEET = """\
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
server = socket.create_server(address) if os.environ["RANK"] == "0" else None
while True:
    try:
        meeting = socket.create_connection(address)
        break
    except OSError:
        time.sleep(0.01)
done = os.environ["CTRAIN_RUN_DIR"] + "/done"
while not os.path.exists(done):
    time.sleep(0.01)
"""
# Starts two ranks of its own, as torchrun does.
TORCHRUN = """\
#!/bin/bash
for local in 0 1; do
  RANK=$local LOCAL_RANK=$local WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 sleep 600 &
done
wait
"""


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(tmp_path, getattr(request, "param", "local"))
    text = payload.text("scan.py")
    for name, seconds in (("EARLY_SECONDS, LATE_SECONDS", "0.05, 0.05"), ("NESTED_SECONDS", "0.5")):
        text, changed = re.subn(rf"^{name} = [0-9., ]+", f"{name} = {seconds}  ", text, flags=re.MULTILINE)
        assert changed
    bench.environment.update(SCAN=str(write_program(tmp_path / "scan.py", text)), SCAN_AFTER="0.1")
    yield bench
    bench.end()


def world_events(bench: Bench) -> list[dict[str, Any]]:
    lines = [line for path in (bench.one / "nodes").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["stage"] == "world"]


def wait_for_event(bench: Bench, what: str) -> None:
    wait_for(lambda: (bench.one / "nodes").is_dir() and what in [event["what"] for event in world_events(bench)])


@pytest.mark.parametrize("bench", ["local", "pbs", "pals", "toy"], indirect=True)
def test_ranks_that_meet_have_a_certificate(bench: Bench) -> None:
    (bench.folder / "meet.py").write_text(MEET)
    run = bench.run(*TWO, "--", "python3", "meet.py")
    wait_for_event(bench, "joined")
    wait_for(lambda: sum(len(event.get("ranks", ())) for event in world_events(bench)) == 2)
    (bench.one / "done").touch()
    code, out, error = ended(run)
    assert (code, error) == (0, "")
    assert out.splitlines()[-2:] == ["world: joined 2/2", f"run directory: {bench.one}"]
    assert bench.record()["world"] == {"state": "joined", "joined": 2, "of": 2}


def test_ranks_that_never_meet_are_named_at_the_end(bench: Bench) -> None:
    wait = 'until [ -e "$CTRAIN_RUN_DIR/done" ]; do sleep 0.05; done'
    run = bench.run(*TWO, "--", "bash", "-c", wait)
    wait_for_event(bench, "looked")
    (bench.one / "done").touch()
    code, out, error = ended(run)
    assert (code, error) == (0, "")
    note = "world: unproven: no rank was seen to join a group; if none does, use --independent or one rank"
    assert out.splitlines()[-2:] == [note, f"run directory: {bench.one}"]
    assert bench.record()["world"] == {"state": "unproven", "joined": 0, "of": 2}
    assert bench.record()["exit"]["reason"] == "completed"
    assert ended(bench.attach())[1].splitlines()[-2:] == [note, f"run directory: {bench.one}"]


def test_a_run_that_nobody_has_looked_at_is_unproven_without_a_word(bench: Bench) -> None:
    code, out, _ = ended(bench.run(*TWO, "--", "true", SCAN_AFTER="600"))
    assert code == 0
    assert "world:" not in out
    assert bench.record()["world"] == {"state": "unproven", "joined": 0, "of": 2}


def test_one_rank_has_nobody_to_join(bench: Bench) -> None:
    assert ended(bench.run("--launcher", "env", "--", "true"))[0] == 0
    assert bench.record()["world"] == {"state": "independent", "joined": 0, "of": 1}
    assert not (bench.one / "scan.py").exists()


@pytest.mark.parametrize("bench", ["local", "pbs", "pals"], indirect=True)
def test_two_worlds_of_two_are_stopped_with_the_lines_to_type(bench: Bench) -> None:
    write_program(bench.folder / "bin/torchrun", TORCHRUN)
    (bench.folder / "run.sh").write_text("torchrun --nproc-per-node 2 x.py\n")
    code, out, error = ended(bench.run(*TWO, "--", "bash", "run.sh"))
    assert (code, error) == (81, "")
    reason = (
        "each of 2 ranks started ranks of its own (torchrun, 2 worlds of 2, same command): they would train 2 models"
    )
    assert out.splitlines()[-5:] == [
        reason,
        "exit code 81 (ctrain's)",
        "Let your command start the ranks of each node:  ctrain run ... --launcher node -- bash run.sh",
        "Or say that they are meant to be apart:         ctrain run ... --independent -- bash run.sh",
        f"run directory: {bench.one}",
    ]
    assert bench.record()["exit"] == {"code": 81, "reason": reason, "by": "ctrain", "ending": "refused"}
    assert bench.record()["world"] == {"state": "nested", "joined": 0, "of": 2}
    assert bench.orphans() == {}


def test_a_program_that_outlives_sigterm_is_stopped_all_the_same(bench: Bench) -> None:
    scan = Path(bench.environment["SCAN"])
    scan.write_text(scan.read_text().replace("GRACE_SECONDS = 10.0", "GRACE_SECONDS = 0.2"))
    write_program(bench.folder / "bin/torchrun", TORCHRUN.replace("#!/bin/bash\n", "#!/bin/bash\ntrap '' TERM\n"))
    (bench.folder / "run.sh").write_text("trap '' TERM\ntorchrun\ntrue\n")
    code, _, _ = ended(bench.run(*TWO, "--", "bash", "run.sh", GRACE="1"))
    assert code == 81
    assert bench.orphans() == {}


def test_a_program_that_calls_its_end_a_success_is_stopped_all_the_same(bench: Bench) -> None:
    write_program(bench.folder / "bin/torchrun", TORCHRUN)
    (bench.folder / "run.sh").write_text("trap 'kill %1; exit 0' TERM\ntorchrun &\nwait\n")
    code, _, _ = ended(bench.run(*TWO, "--", "bash", "run.sh"))
    assert code == 81
    assert bench.record()["world"]["state"] == "nested"


def test_a_scan_that_fails_leaves_the_run_alone(bench: Bench) -> None:
    """Whatever a node's /proc looks like."""
    scan = Path(bench.environment["SCAN"])
    scan.write_text(scan.read_text().replace('PROC = Path("/proc")', 'PROC = Path("/proc/gone")'))
    run = bench.run(*TWO, "--", "bash", "-c", 'until [ -e "$CTRAIN_RUN_DIR/done" ]; do sleep 0.05; done')
    wait_for_event(bench, "failed")
    (bench.one / "done").touch()
    code, out, error = ended(run)
    assert (code, error, "Traceback" in bench.log(0)) == (0, "", False)
    assert bench.record()["world"]["state"] == "unproven"
    assert "world:" not in out
