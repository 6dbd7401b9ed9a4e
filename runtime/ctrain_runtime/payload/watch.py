"""Looks for signs of life of the ranks of one node: logs that grow, a heartbeat file that changes, and lines of metrics
of rank 0. What it sees, it writes to a file of the node in the run directory, when that changes, and now and then while
ranks are alive: the judge of the run (judge.py) reads those of all nodes.

Usage: watch.py TASK RUN NODE FIRST_RANK RANKS HEARTBEATS SECONDS, once per node, by its first task, the process TASK.
SECONDS are how long all may be silent, "0" to learn that. The rules are in docs/hangs.md.

ctrain copies this file to the run directory. The node's own Python runs it, from 3.6 on: hence no later annotations.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

LOOK_SECONDS = 15.0
RENEW_SECONDS = 300.0  # a file that says "alive" and is older than a few of these is that of a watch which was killed
# How long a node may be silent, by what it does: generous, as a false alarm costs trust; and ten times the longest
# silence that was seen.
LIMITS = {"start": 1200.0, "first step": 1200.0, "step": 300.0, "checkpoint": 1200.0, "evaluation": 1200.0}
FACTOR = 10.0
STEADY_SIGNS = 5  # of a program that shows no steps: then it is at work
TAIL_BYTES = 1 << 16
LINE_LENGTH = 200
SIGNAL, STACKS = 51, "ctrain-stacks"  # as in stacks.py
ANSWER_SECONDS = 5.0
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<")
COLLECTIVE = re.compile(r"/(torch/distributed|torch/nn/parallel|torch/autograd|horovod|mpi4py|deepspeed/comm|jax)/")
STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waits in the kernel, as for a disk",
}  # proc(5)
MARK = "--- attempt "  # by mark_attempt, in restarts.bash

Mark = Tuple[int, ...]  # sizes and times of the files of a rank


class Seen(NamedTuple):
    """The files of a rank at one look. `step` and `section` are those of its heartbeat: None and "" without one."""

    mark: Mark
    has_output: bool
    step: Optional[int]
    section: str


class Silence:
    """How long a node has been silent, and how long it may be."""

    def __init__(self, now: float, asked: float) -> None:
        self._asked = asked
        self._longest: Dict[str, float] = {}  # silence that was followed by a sign, by section
        self.since = now
        self.signs = 0
        self.section = "start"

    def look(self, now: float, is_sign: bool, section: str) -> str:
        """The status of the node: "alive", "quiet" for too long, or "silent" if there was never a sign."""
        if is_sign:
            if self.signs:
                self._longest[self.section] = max(self._longest.get(self.section, 0.0), now - self.since)
            self.signs += 1
            self.since = now
            self.section = section or ("step" if self.signs > STEADY_SIGNS else "first step")
        if not self.signs and not self._asked:
            return "silent"
        return "quiet" if now - self.since > self.limit else "alive"

    @property
    def limit(self) -> float:
        """How long it may be silent now, in seconds."""
        learned = FACTOR * self._longest.get(self.section, 0.0)
        return self._asked or max(LIMITS.get(self.section, LIMITS["step"]), learned)


class Files:
    """The files of a node's ranks. What cannot be read shows nothing."""

    def __init__(self, run: str, node: str, heartbeats: str) -> None:
        self._run, self._node, self._heartbeats = run, node, heartbeats

    def look(self, rank: int) -> Seen:
        log, beat = _status(self._log(rank)), f"{self._heartbeats}/{rank}"
        metrics = _status(f"{self._run}/metrics.jsonl") if rank == 0 else (0, 0)
        number, _, word = (_read(beat) if os.path.exists(beat) else "").partition("\n")[0].partition(" ")
        step = int(number) if re.match(r"[0-9]{1,18}$", number) else None
        section = word.strip() if step else "first step" if step == 0 else "step" if metrics[0] else ""
        return Seen((*log, *_status(beat), *metrics), bool(self.last_line(rank)), step, section)

    def last_line(self, rank: int) -> str:
        """The last line of its output that is not empty; in a log of the node, lines begin with their rank."""
        path = self._log(rank)
        lines = _read(path).splitlines()
        if path.endswith(f"node{self._node}.log"):
            lines = [line.partition("] ")[2] for line in lines if line.startswith(f"[{rank}] ")]
        line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "" if line.startswith(MARK) else "".join(filter(str.isprintable, line))[:LINE_LENGTH]

    def _log(self, rank: int) -> str:
        own = f"{self._run}/logs/rank{rank}.log"
        return own if os.path.exists(own) else f"{self._run}/logs/node{self._node}.log"

    def have_ended(self, ranks: List[int], attempt: int) -> bool:
        """Whether all these ranks have recorded their end."""
        return set(ranks) <= {event.get("rank") for event in self._events() if event.get("attempt", 0) == attempt}

    def _events(self) -> Iterator[Dict[str, Any]]:
        """The ends of ranks of this node."""
        for line in _read(f"{self._run}/nodes/{self._node}.jsonl", 1 << 24).split("\n")[:-1]:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("what") == "ended":
                    yield event


def _status(path: str) -> Tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _read(path: str, most: int = TAIL_BYTES) -> str:
    """The end of a file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


class Process(NamedTuple):
    """A process of a rank; if it is a Python that stacks.py has prepared, with the file in memory for its stacks."""

    pid: int
    rank: int
    file: str  # below /proc
    begun: int  # clock ticks since the boot
    words: str


def as_faulthandler(threads: List[Dict[str, Any]]) -> str:
    """Stacks as py-spy writes them in JSON, in the format of faulthandler, whose last thread is the main one."""
    lines = []  # type: List[str]
    for thread in sorted(threads, key=lambda one: one["thread_name"] == "MainThread"):
        lines.append(f"Thread {thread['thread_id']} (most recent call first):")
        lines += [
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}' for frame in thread["frames"]
        ]
        lines.append("")
    return "\n".join(lines)


class Stacks:
    """Asks Pythons of ranks where they are. Only a process is signalled that catches the signal, and still has the file
    for the answer: any other one would die of it, or write elsewhere."""

    def __init__(self, run: str, proc: str = "/proc") -> None:
        self._run, self._proc = run, proc

    def take(self, ranks: List[int]) -> Dict[int, str]:
        """The stacks of ranks, as far as they answer, each process below a line of its own; kept in files."""
        asked = [(one, _status(one.file)[0]) for one in self._find(ranks)]
        for one, _ in asked:
            with contextlib.suppress(OSError):
                os.kill(one.pid, SIGNAL)
        stacks = {}  # type: Dict[int, str]
        deadline = time.monotonic() + ANSWER_SECONDS
        for one, before in sorted(asked, key=lambda pair: pair[0].begun):
            text = self._answer(one, before, deadline)
            stacks[one.rank] = stacks.get(one.rank, "") + f"--- process {one.pid}: {one.words}\n{text}\n"
        stacks.update(self._spied([rank for rank in ranks if rank not in stacks]))
        for rank, text in stacks.items():
            path = f"{self._run}/stacks/rank{rank}.txt"
            with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return stacks

    def _answer(self, one: Process, before: int, deadline: float) -> str:
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                last, size = size, os.stat(one.file).st_size
                if size > before and size == last:
                    return _read(one.file, size - before)
        return f"no answer (state {self._state(one.pid)[:1]})"

    def _spied(self, ranks: List[int]) -> Dict[int, str]:
        """Of ranks without a prepared Python, by py-spy, if the node has it and it may; of the first Python of each."""
        program, stacks = shutil.which("py-spy"), {}  # type: Tuple[Optional[str], Dict[int, str]]
        deadline = time.monotonic() + ANSWER_SECONDS
        for one in sorted(self._processes(ranks) if program and ranks else (), key=lambda one: one.begun):
            if one.rank not in stacks and self._is_python(one.pid):
                # --nonblocking: the program is not stopped while it is read
                command = [str(program), "dump", "--nonblocking", "--json", "--pid", str(one.pid)]
                left = max(0.1, deadline - time.monotonic())
                with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
                    done = subprocess.run(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        timeout=left,
                        check=True,
                    )
                    text = as_faulthandler(json.loads(done.stdout.decode("utf-8", "replace")))
                    stacks[one.rank] = f"--- process {one.pid}: {one.words}\n{text}\n"
        return stacks

    def _is_python(self, pid: int) -> bool:
        try:
            return os.path.basename(os.readlink(f"{self._proc}/{pid}/exe")).startswith("python")
        except OSError:
            return False

    def _find(self, ranks: List[int]) -> Iterator[Process]:
        """Those that are prepared."""
        for one in self._processes(ranks):
            file = self._file(one.pid)
            if file:
                yield one._replace(file=file)

    def _processes(self, ranks: List[int]) -> Iterator[Process]:
        for name in os.listdir(self._proc):
            if name.isdigit():
                environment = _read(f"{self._proc}/{name}/environ", 1 << 20).split("\0")
                if f"CTRAIN_RUN_DIR={self._run}" in environment:
                    beat = next((text for text in environment if text.startswith("CTRAIN_HEARTBEAT=")), "")
                    rank = beat.rpartition("/")[2]
                    if rank.isdigit() and int(rank) in ranks:
                        words = _read(f"{self._proc}/{name}/cmdline").replace("\0", " ").strip()[:LINE_LENGTH]
                        begun = (self._state(int(name)).split() + ["0"] * 20)[19]
                        yield Process(int(name), int(rank), "", int(begun), words)

    def _file(self, pid: int) -> str:
        """Where a process writes its stacks; "" if it does not catch the signal, or has closed the file."""
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", _read(f"{self._proc}/{pid}/status"))
        if caught and int(caught.group(1), 16) >> (SIGNAL - 1) & 1:
            with contextlib.suppress(OSError):
                for name in os.listdir(f"{self._proc}/{pid}/fd"):
                    path = f"{self._proc}/{pid}/fd/{name}"
                    with contextlib.suppress(OSError):
                        if os.readlink(path).startswith(f"/memfd:{STACKS}"):
                            return path
        return ""

    def _state(self, pid: int) -> str:
        """The fields behind the name in stat (proc(5))."""
        return _read(f"{self._proc}/{pid}/stat").rpartition(") ")[2]


class Place(NamedTuple):
    """Where a rank stands: the innermost line of the user's code, and whether it waits for other ranks there."""

    line: str
    waits: bool


def find_place(text: str) -> Place:
    """The place of the main thread, which faulthandler writes last, of the first process. "" without any. One that
    can answer to no signal stands still because of that."""
    first = text.partition("\n--- process ")[0]
    state = re.search(r"(?m)^no answer \(state (.)\)$", first)
    if state and state.group(1) in STATES:
        return Place(f"an unknown line: {STATES[state.group(1)]}", False)
    thread = re.split(r"(?m)^(?:Current thread|Thread) .*$", first)[-1]
    frames = re.findall(r'(?m)^  File "(.+)", line (\d+) in (.+)$', thread)
    for number, (path, line, function) in enumerate(frames):
        if not LIBRARY.search(path):
            waits = any(COLLECTIVE.search(inner) for inner, _, _ in frames[:number])
            text = _source(path, int(line))
            return Place(f"{os.path.basename(path)}:{line} in {function}{f': {text}' if text else ''}", waits)
    return Place("", False)


def _source(path: str, number: int) -> str:
    """The text of a line, if this host sees the program's file as its container does."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for at, line in enumerate(file, 1):
            if at == number:
                return "".join(filter(str.isprintable, line.strip()))[:LINE_LENGTH]
    return ""


class Watch:
    """What the ranks of one node have shown so far."""

    def __init__(
        self, files: Files, ranks: List[int], asked: float, now: float, stacks: Optional[Stacks] = None
    ) -> None:
        self._files, self._ranks, self._stacks = files, ranks, stacks
        self._silence = Silence(now, asked)
        self._seen: Dict[int, Seen] = {}
        self._since = dict.fromkeys(ranks, 0.0)  # the last sign of each
        self._looked = self._reported = now
        self.status = ""

    def look(self, now: float) -> bool:
        """Look once; whether that is to be reported: the status has changed, or the report that it is alive is old."""
        seen = {rank: self._files.look(rank) for rank in self._ranks}
        signs = [rank for rank in self._ranks if self._is_sign(seen[rank], self._seen.get(rank))]
        for rank in signs:
            self._since[rank] = now
        self._seen = seen
        section = next((seen[rank].section for rank in signs if seen[rank].section), "")
        before, self.status = self.status, self._silence.look(now, bool(signs), section)
        self._looked = now
        if self.status == before and (self.status != "alive" or now - self._reported < RENEW_SECONDS):
            return False
        self._reported = now
        return True

    @staticmethod
    def _is_sign(now: Seen, before: Optional[Seen]) -> bool:
        """At the first look, a log that was continued has only its mark."""
        return now.mark != before.mark if before else now.has_output or now.step is not None

    def report(self) -> Dict[str, Any]:
        """All that is known; of a node that is quiet, also where its ranks stand."""
        stacks = self._stacks.take(self._ranks) if self._stacks and self.status == "quiet" else {}
        places = {rank: find_place(text) for rank, text in stacks.items()}
        nowhere = Place("", False)
        ranks = [
            {
                "rank": rank,
                "since": self._since[rank],
                "step": self._seen[rank].step,
                "section": self._seen[rank].section,
                "line": self._files.last_line(rank),
                "place": places.get(rank, nowhere).line,
                "waits": places.get(rank, nowhere).waits,
            }
            for rank in self._ranks
        ]
        silence = self._silence
        return {
            "status": self.status,
            "looked": self._looked,
            "since": silence.since,
            "section": silence.section,
            "ranks": ranks,
        }


def write(path: str, data: Dict[str, Any]) -> None:
    """Replace a file; a full disk stops nothing."""
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(f"{path}.new", path)


def main() -> None:
    task, run, node, first, count, heartbeats, seconds = sys.argv[1:8]
    os.closerange(3, 1 << 10)  # some starters wait for whoever has what they gave to the task
    attempt, asked = int(os.environ.get("CTRAIN_ATTEMPT") or 0), float(seconds)
    ranks = list(range(int(first), int(first) + int(count)))
    files = Files(run, node, heartbeats)
    watch = Watch(files, ranks, asked, time.time(), Stacks(run))
    about = {"node": os.uname().nodename.partition(".")[0], "attempt": attempt}
    # The first task may end before others of the node, which wait for it: that is what is looked for.
    while not files.have_ended(ranks, attempt) and (os.getppid() == int(task) or files.have_ended(ranks[:1], attempt)):
        if watch.look(time.time()):
            write(f"{run}/watch/{node}.json", {**about, **watch.report()})
        time.sleep(min(LOOK_SECONDS, asked / 4 or LOOK_SECONDS))


if __name__ == "__main__":
    main()
