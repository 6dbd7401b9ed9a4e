"""Judges whether a run hangs, by what the watches of its nodes (watch.py) and its ranks have written. It writes events
of the job, and tells the user's command of them.

Usage: judge.py JOB RUN NODES RANKS UNIT SECONDS ACTION [COMMAND...],
once per run, beside the step of job.sh, the process JOB.
As long as node 0 is alive, it reads two small files. SECONDS are how long all may be silent, "0" if that is learned.
Unless ACTION is "report", the judge ends a step that hangs, by SIGURG to job.sh.

ctrain copies this file to the run directory. The node's own Python runs it, from 3.6 on: hence no later annotations.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

LOOK_SECONDS, LOOK_SHARE = 15.0, 0.05  # of the time, at most: to read the files of many nodes
MISSING_SECONDS, LEFT_SECONDS = 1200.0, 300.0  # for which ranks may not have come, or others go on without a sign
STALE_SECONDS = 900.0  # a watch renews what says "alive" every 300 s: an older one was killed, and shows nothing
BEHIND_SECONDS = 3.0  # by which others must have gone on: heartbeats are a second apart
NAMED = 3  # of the ranks of a kind, with their last lines
NOTIFY_SECONDS = 20.0


class Rank(NamedTuple):
    """What is known of a rank. Times are in seconds since the epoch, None or 0 if unknown; `status` is its node's."""

    number: int
    node: str = "?"
    started: Optional[float] = None
    ended: Optional[float] = None
    code: Optional[int] = None
    status: str = "silent"  # or alive, quiet, and unknown: its watch was killed
    quiet_since: float = 0.0  # of its node
    section: str = ""  # of its node
    since: float = 0.0  # its own last sign
    step: Optional[int] = None
    line: str = ""
    place: str = ""  # in the user's code
    waits: bool = False  # for others, by its stack

    @property
    def runs(self) -> bool:
        return self.started is not None and self.ended is None


class Verdict(NamedTuple):
    """That a run hangs: the ranks that hung, left or never came, as far as that is known; since when; all in words."""

    ranks: List[int]
    since: float
    message: str


def judge(ranks: List[Rank], unit: str, now: float, asked: float = 0.0) -> Optional[Verdict]:
    """Whether a run hangs: no node is alive, and at least one has been. Where none has ever shown a sign, that proves
    nothing, unless some ranks have left, or never came, while others go on."""
    running = [rank for rank in ranks if rank.runs]
    if not running or any(rank.status == "alive" for rank in running) or any(rank.code for rank in ranks):
        return None
    left = [rank for rank in ranks if rank.ended is not None]
    missing = [rank for rank in ranks if rank.started is None]
    quiet = [rank for rank in running if rank.status == "quiet"]
    ended, came = max((rank.ended or 0.0 for rank in left), default=0.0), max(rank.started or 0.0 for rank in running)
    if quiet:
        since = max(rank.quiet_since for rank in quiet)
    elif left and now - ended > (asked or LEFT_SECONDS):
        since = ended
    elif missing and now - came > (asked or MISSING_SECONDS):
        since = came
    else:
        return None
    culprits = left or missing or _stuck(_known(running))
    section = f" ({quiet[0].section})" if quiet else ""
    message = f"no sign of life for {duration(now - since)}{section}: {'; '.join(_who(running, left, missing, unit))}"
    return Verdict([rank.number for rank in culprits], since, message)


def unwatched(ranks: List[Rank], unit: str) -> str:
    """That nobody looks at any rank; "" if somebody does."""
    running = [rank for rank in ranks if rank.runs]
    return f"no watch of {names(running, unit)} looks any more" if running and not _known(running) else ""


def _known(running: List[Rank]) -> List[Rank]:
    return [rank for rank in running if rank.status != "unknown"]


def _stuck(running: List[Rank]) -> List[Rank]:
    """The ranks that others wait for: by the steps of their heartbeats, else by where they stand."""
    elsewhere = [rank for rank in running if rank.place and not rank.waits]
    return _behind(running) or (elsewhere if any(rank.waits for rank in running) else [])


def _behind(running: List[Rank]) -> List[Rank]:
    """The ranks that stopped at an earlier step, while others went on."""
    beating = [rank for rank in running if rank.step is not None]
    steps = [rank.step or 0 for rank in beating]
    behind = [rank for rank in beating if rank.step == min(steps) < max(steps)]
    last = max((rank.since for rank in beating), default=0.0)
    return behind if all(rank.since < last - BEHIND_SECONDS for rank in behind) else []


def _who(running: List[Rank], left: List[Rank], missing: List[Rank], unit: str) -> Iterator[str]:
    if left:
        yield f"{names(left, unit)} left with exit code 0"
    if missing:
        yield f"{names(missing, unit)} never came"
    known = _known(running)
    stuck = _stuck(known) if not left and not missing else []
    if stuck:
        yield f"{names(stuck, unit)} hung{_last(stuck)}"
    waiting = [rank for rank in known if rank not in stuck]
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        yield f"{names(waiting, unit)} {verb}{_last(waiting)}"
    if len(known) < len(running):
        yield f"nothing is known of {names([rank for rank in running if rank not in known], unit)}: no watch looks"
    if not (left or missing or stuck) and len(running) > 1:
        yield f"which {unit} hung is unknown"


def _last(ranks: List[Rank]) -> str:
    """Where the first of some ranks are, and their last lines."""
    known = {}  # type: Dict[str, List[Rank]]
    for rank in ranks:
        words = [f"step {rank.step}"] if rank.step is not None else []
        words += [f"at {rank.place}"] if rank.place else []
        words += [f"last line: {rank.line}"] if rank.line else []
        if words:
            known.setdefault(", ".join(words), []).append(rank)
    if len(known) < 2:
        return "".join(f" ({text})" for text in known)
    return f" ({'; '.join(f'{rank.number}: {text}' for text, (rank, *_) in [*known.items()][:NAMED])})"


def names(ranks: List[Rank], unit: str) -> str:
    """As in rank 3 on gpu01, ranks 0-2 and 5."""
    if len(ranks) == 1:
        (one,) = ranks
        return f"{unit} {one.number}" + (f" on {one.node}" if one.started is not None else "")
    spans = []  # type: List[List[int]]
    for number in sorted(rank.number for rank in ranks):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return f"{unit}s {', '.join(parts[:NAMED])}" + (f" and others ({len(ranks)} in all)" if parts[NAMED:] else "")


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _changed(path: str) -> float:
    """When a file was last changed; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


class Reader:
    """Reads what nodes have written. What cannot be read shows nothing."""

    def __init__(self, run: str, nodes: int, ranks: int, attempt: int) -> None:
        self._run, self._nodes, self._ranks, self._attempt = run, nodes, ranks, attempt

    def node_0_is_alive(self, now: float) -> bool:
        first = self._with_views([0], now)
        return any(rank.runs and rank.status == "alive" for rank in first)

    def ranks(self, now: float) -> List[Rank]:
        """All ranks of the run, by number."""
        return self._with_views(range(self._nodes), now)

    def _with_views(self, nodes: Any, now: float) -> List[Rank]:
        ranks = {number: Rank(number) for number in range(self._ranks)}
        for node in nodes:
            for event in self._events(node):
                self._add(ranks, event)
        for node in nodes:
            view = next(self._objects(f"{self._run}/watch/{node}.json"), {})
            if view.get("attempt") == self._attempt and isinstance(view.get("ranks"), list):
                self._see(ranks, {**view, "status": "unknown"} if self._is_stale(node, view, now) else view)
        return list(ranks.values())

    def _add(self, ranks: Dict[int, Rank], event: Dict[str, Any]) -> None:
        number = event.get("rank")
        rank = ranks.get(number) if isinstance(number, int) else None
        if rank is None or event.get("attempt", 0) != self._attempt:
            return
        when = float(event.get("time") or 0.0)
        if event.get("what") == "started":
            ranks[rank.number] = rank._replace(started=when, node=str(event.get("node")))
        elif event.get("what") in ("ended", "refused"):
            ranks[rank.number] = rank._replace(ended=when, code=event.get("code"))

    def _is_stale(self, node: int, view: Dict[str, Any], now: float) -> bool:
        """Whether the watch of a node was killed, and its ranks show no sign that can be seen from here, either."""
        if view["status"] != "alive" or now - view["looked"] <= STALE_SECONDS:
            return False
        names = [f"logs/rank{one['rank']}.log" for one in view["ranks"]]
        names += [f"logs/node{node}.log", *(["metrics.jsonl"] if node == 0 else [])]
        return all(now - _changed(f"{self._run}/{name}") > STALE_SECONDS for name in names)

    @staticmethod
    def _see(ranks: Dict[int, Rank], view: Dict[str, Any]) -> None:
        for one in view["ranks"]:
            rank = ranks.get(one["rank"])
            if rank:
                ranks[rank.number] = rank._replace(
                    status=view["status"],
                    quiet_since=view["since"],
                    section=view["section"],
                    since=one["since"],
                    step=one["step"],
                    line=one["line"],
                    place=one["place"],
                    waits=one["waits"],
                )

    def _events(self, node: int) -> Iterator[Dict[str, Any]]:
        return self._objects(f"{self._run}/nodes/{node}.jsonl")

    @staticmethod
    def _objects(path: str) -> Iterator[Dict[str, Any]]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return
        for line in lines:
            with contextlib.suppress(ValueError):
                data = json.loads(line)
                if isinstance(data, dict):
                    yield data


class Report:
    """Events of the job, and the user's command."""

    def __init__(self, run: str, command: List[str]) -> None:
        self._run, self._command = run, command

    def tell(self, what: str, message: str, **more: Any) -> None:
        host = os.uname().nodename.partition(".")[0]
        event = {"time": time.time(), "stage": "watch", "node": host, "what": what, **more, "message": message}
        with contextlib.suppress(OSError), open(f"{self._run}/events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")  # a full disk stops nothing
        if self._command and what in ("hung", "went on"):
            self._notify(what, f"run {os.path.basename(self._run)} {what}: {message}")

    def _notify(self, what: str, message: str) -> None:
        variables = {"CTRAIN_EVENT": what, "CTRAIN_MESSAGE": message, "CTRAIN_RUN": os.path.basename(self._run)}
        with contextlib.suppress(OSError, subprocess.SubprocessError), open(f"{self._run}/logs/notify.log", "a") as log:
            started = subprocess.Popen(
                self._command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
            try:
                started.communicate(f"{message}\n".encode(), timeout=NOTIFY_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()


def main() -> None:
    job, run, nodes, count, unit, seconds, action = sys.argv[1:8]
    asked, attempt = float(seconds), int(os.environ.get("CTRAIN_ATTEMPT") or 0)
    reader, report = Reader(run, int(nodes), int(count), attempt), Report(run, sys.argv[8:])
    more = {"attempt": attempt} if "CTRAIN_ATTEMPT" in os.environ else {}
    hung = None  # type: Optional[Verdict]
    blind = ""
    pause = min(LOOK_SECONDS, asked / 4 or LOOK_SECONDS)
    while os.getppid() == int(job):
        begun = time.time()
        ranks = [] if reader.node_0_is_alive(begun) else reader.ranks(begun)
        spent = time.time() - begun
        verdict, before, blind = judge(ranks, unit, begun, asked), blind, unwatched(ranks, unit)
        if blind and not before:
            report.tell("failed", blind, **more)
        if verdict and not hung:
            report.tell("hung", verdict.message, ranks=verdict.ranks, seconds=round(begun - verdict.since), **more)
            if action != "report":
                report.tell("given up", verdict.message, **more)
                os.kill(int(job), signal.SIGURG)
                return
        elif hung and not verdict:
            report.tell("went on", f"after {duration(begun - hung.since)}", **more)
        hung = verdict
        time.sleep(max(pause, spent / LOOK_SHARE))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the run goes on, and its events say that nobody looks
        Report(sys.argv[2], []).tell("failed", repr(error))
        raise
