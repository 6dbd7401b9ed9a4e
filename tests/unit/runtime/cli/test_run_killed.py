"""A client that is killed at any moment loses nothing: another one ends with a true record, and nothing is orphaned."""

from __future__ import annotations

import json
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from samples.long_mode import often
from samples.runs import Bench, ended, wait_for

pytestmark = pytest.mark.whole_run

KILLS, AT_ONCE, SEED = often(50, 10), 3, 10
FOUR = ("--nodes", "2", "--ranks-per-node", "2", "--launcher", "env")
PROGRAM = ("bash", "-c", 'echo "rank $RANK"; sleep 0.1; [ "$RANK" != 3 ] || exit 9; sleep 0.1')
VARYING = {"start", "end", "created", "attempts", "run_directory", "image"}


def lasting(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its times, paths and ids."""
    (attempt,) = record["attempts"]
    kept = {key: value for key, value in record.items() if key not in VARYING}
    return {**kept, "outcome": attempt["outcome"], "word": attempt["word"]}


def has_run(bench: Bench) -> bool:
    """Whether the job has written anything: its files exist before it does."""
    events = bench.one / "events.jsonl"
    return events.exists() and events.stat().st_size > 0


def bench_in(folder: Path, site: str) -> Bench:
    folder.mkdir()
    return Bench(folder, site)


@pytest.mark.parametrize("site", ["local", "toy"])
def test_another_process_ends_with_the_record_of_an_undisturbed_run(tmp_path: Path, site: str) -> None:
    benches = [bench_in(tmp_path / name, site) for name in ("undisturbed", "disturbed")]
    ended(benches[0].run(*FOUR, "--", *PROGRAM))
    client = benches[1].run(*FOUR, "--", *PROGRAM)
    wait_for(lambda: has_run(benches[1]))
    client.kill()
    ended(client)
    code, out, error = ended(benches[1].attach(run=str(benches[1].one)))
    assert (code, error) == (9, "")
    assert out.splitlines()[-1] == f"run directory: {benches[1].one}"
    undisturbed, disturbed = (lasting(bench.record()) for bench in benches)
    assert disturbed == undisturbed
    assert undisturbed["exit"]["reason"].startswith("rank 3 on ")
    assert not benches[1].orphans()


def kill_and_attach(bench: Bench, moment: float) -> str:
    """Kill a client that long after its start; what then is not true, or ""."""
    client = bench.run(*FOUR, "--", *PROGRAM)
    try:
        client.communicate(timeout=moment)
    except subprocess.TimeoutExpired:
        client.kill()
        ended(client)
    if not (bench.one / "plan.json").exists() or not (bench.one / "record.json").exists():
        return "" if not bench.orphans() and not has_run(bench) else "runs without a plan"
    code, out, error = ended(bench.attach("--json"))
    if left := bench.orphans():
        return f"orphans: {left}"
    record = bench.record()
    shown = json.loads(out) if out else {}
    if shown != record or code != record["exit"]["code"]:
        return f"attach shows {code} {shown} {error}, the record is {record}"
    ran = has_run(bench)
    if record["exit"]["reason"] == "the job was never submitted":
        return "it ran, but the record says it was never submitted" if ran else ""
    return "" if ran and record["exit"]["code"] == 9 and len(record["attempts"]) == 1 else f"not true: {record}"


def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Spread over the life of a run, and closer together where it is submitted."""
    moments = random.Random(SEED)
    probe = bench_in(tmp_path / "probe", "local")
    client = probe.run("--dry-run", *FOUR, "--", *PROGRAM)  # as long as it takes here to get to the submission
    begin = time.monotonic()
    ended(client)
    start = time.monotonic() - begin
    chosen = [moments.uniform(0.5 * start, 1.5 * start) for _ in range(KILLS // 2)]
    chosen += [moments.uniform(0.5 * start, 3 * start + 1) for _ in range(KILLS - len(chosen))]
    benches = [bench_in(tmp_path / str(number), ("local", "toy")[number % 2]) for number in range(KILLS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        complaints = list(pool.map(kill_and_attach, benches, chosen))
    left = [bench.orphans() for bench in benches]
    for bench in benches:
        bench.end()
    assert [complaint for complaint in complaints if complaint] == []
    assert not any(left)
