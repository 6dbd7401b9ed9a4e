"""What a program may use of ctrain, or do without: docs/contract.md.

    sys.path.append(os.environ.get("CTRAIN_RUN_DIR", ".") + "/python")
    import ctrain_program

One file that needs Python 3.6 and nothing else. Each run directory has a copy; one may also lie beside the program.
Without ctrain all of it works, too: in the current directory, and without a heartbeat.
"""

import atexit
import hashlib
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

EXIT_SAVED = 85  # asked to end, saved, and left before it was done; HTCondor takes this code for the same
EXIT_TRY_AGAIN = 75  # what failed may work the next time: EX_TEMPFAIL of sysexits.h
EXIT_GIVE_UP = 78  # it would fail the same way again: EX_CONFIG

BEAT_SECONDS = 1.0
CHUNK_BYTES = 1 << 20
DIGESTS = ".sha256"  # ends the name of the file with a checkpoint's digests, in the format of sha256sum
INCOMPLETE = (".tmp", ".part")
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "CTRAIN_TASK")


def run_dir() -> Path:
    """The directory for metrics.jsonl and checkpoint/."""
    return Path(os.environ.get("CTRAIN_RUN_DIR", "."))


def resume_dir() -> Optional[Path]:
    """The directory of checkpoints to resume from, or None."""
    return Path(os.environ["CTRAIN_RESUME"]) if os.environ.get("CTRAIN_RESUME") else None


def is_restarted() -> bool:
    """Whether that is the run's own (`--restarts`): it may have no whole checkpoint yet."""
    return resume_dir() == run_dir() / "checkpoint"


class _Signals:
    """Which of SIGTERM, SIGUSR1 and SIGUSR2 has come. Handlers that a library has set before are called as well."""

    def __init__(self) -> None:
        self.come = False
        self.before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
        for number in self.before:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.come = True
        before = self.before[signal.Signals(number)]
        if callable(before):
            before(number, frame)


class _Heartbeat:
    """The file that CTRAIN_HEARTBEAT names, if it does. What cannot be written is reported once."""

    def __init__(self) -> None:
        self.due, self.section, self.file = 0.0, "", -1
        path = os.environ.get("CTRAIN_HEARTBEAT")
        if path:
            try:
                self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                _warn(f"no heartbeat: {error}")

    def beat(self, step: int, section: str) -> None:
        self.due, self.section = time.monotonic() + BEAT_SECONDS, section
        try:
            os.pwrite(self.file, f"{int(step):d} {section}\n".encode(), 0)
        except OSError as error:
            _warn(f"no heartbeat: {error}")
            self.file = -1


class MetricsFile:
    """A file of JSON lines, open for good. What cannot be written is reported once, and the program goes on."""

    def __init__(self, path: Path) -> None:
        self.file, self.begin, self.failed = -1, b"", False
        try:
            self.file = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            size = os.fstat(self.file).st_size  # a rank that was killed, or met a full disk, may have left half a line
            self.begin = b"\n" if size and os.pread(self.file, 1, size - 1) != b"\n" else b""
        except OSError as error:
            _warn(f"no metrics: {error}")

    def append(self, values: Dict[str, Any]) -> None:
        """A line with the time. NaN and infinity become null, since JSON has neither."""
        line = {"time": round(time.time(), 3)}
        line.update((name, _plain(value)) for name, value in values.items())
        data = self.begin + json.dumps(line).encode() + b"\n"
        try:
            if self.file >= 0:  # on a full disk a line may be cut off
                self.begin = b"" if os.write(self.file, data) == len(data) else b"\n"
        except OSError as error:
            if not self.failed:
                _warn(f"metrics are lost: {error}")
            self.failed = True


class _Profile:
    """The profile that CTRAIN_PROFILE asks for, of some steps that this process makes, by its heartbeats. Whatever goes
    wrong with it is reported, and the program goes on."""

    def __init__(self) -> None:
        self.tool, self.steps, self.running = os.environ.get("CTRAIN_PROFILE", ""), 0, None  # type: str, int, Any
        if self.tool and str(rank()) not in os.environ.get("CTRAIN_PROFILE_RANKS", "0").split(","):
            self.tool = ""
        first, _, last = os.environ.get("CTRAIN_PROFILE_STEPS", "10-19").partition("-")
        try:
            self.first, self.last = int(first), int(last)
        except ValueError as error:
            self._give_up(error)

    def step(self) -> None:
        """A step is done. Which is the first shows only then: it cannot be profiled."""
        self.steps += 1
        if self.running is None and self.steps >= self.first - 1:
            try:
                self.running = _started_profiler(self.tool)
                atexit.register(self.end)  # of a program that ends before
            except Exception as error:
                self._give_up(error)
        elif self.steps >= self.last:
            self.end()

    def end(self) -> None:
        if not self.tool:
            return
        try:
            self.running.stop()
            directory = run_dir() / "profiles"
            directory.mkdir(exist_ok=True)
            attempt = os.environ.get("CTRAIN_ATTEMPT", "0")  # each has its own
            name = f"rank{rank()}" if attempt == "0" else f"rank{rank()}.attempt{attempt}"
            _write_profile(self.tool, self.running, directory / name)
            self.tool = ""
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.tool = ""
        _warn(f"no profile: {type(error).__name__}: {error}")


def _started_profiler(tool: str) -> Any:
    if tool == "torch":
        from torch.profiler import profile

        profiler = profile()  # of CPU and GPU, where there is one
    elif tool == "nsys":  # inside.sh has started it around this process
        from torch.cuda import profiler  # type: ignore[no-redef]  # has start and stop, too
    else:
        from pyinstrument import Profiler

        profiler = Profiler()
    profiler.start()
    return profiler


def _write_profile(tool: str, profiler: Any, path: Path) -> None:
    """What people open, and a summary for the report."""
    if tool == "nsys":
        return  # it writes a report of its own
    if tool == "torch":
        import torch

        key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        averages = profiler.key_averages()
        device = "self_device_time_total" if torch.cuda.is_available() else key
        text = _shares(averages, device) + averages.table(sort_by=key, row_limit=15)
        profiler.export_chrome_trace(f"{path}.trace.json.gz")
    else:
        text = profiler.output_text(unicode=True, color=False)
        _write(Path(f"{path}.html"), profiler.output_html())
    _write(Path(f"{path}.txt"), text + "\n")


def _shares(averages: Any, key: str) -> str:
    """A line on what operators have taken by themselves; "" where their times are unknown."""
    sums = {"communication": 0.0, "data": 0.0, "computation": 0.0}
    for each in averages:
        is_data = each.key.startswith("enumerate(DataLoader)")
        kind = "communication" if each.key.startswith(_COLLECTIVES) else "data" if is_data else "computation"
        sums[kind] += getattr(each, key, 0.0)
    total = sum(sums.values())
    return ", ".join(f"{kind} {part / total:.0%}" for kind, part in sums.items()) + "\n" if total else ""


_COLLECTIVES = ("c10d::", "nccl", "gloo:")  # as torch names operators and kernels of communication
_profile = None  # type: Optional[_Profile]
_signals = None  # type: Optional[_Signals]
_heartbeat = None  # type: Optional[_Heartbeat]
_metrics = None  # type: Optional[MetricsFile]


def stopping() -> bool:
    """Whether the program is to save and leave: SIGTERM, SIGUSR1 or SIGUSR2 has come since the first call, which must
    be in the main thread. The ranks learn it between different steps: let them agree before they leave."""
    global _signals
    if _signals is None:
        _signals = _Signals()
    return _signals.come


def beat(step: int, section: str = "step") -> None:
    """Shows that this rank gets on: `step` is done, or `section` begins ("checkpoint", "evaluation", any word). Call it
    in each step of each rank; it writes once a second, and when the section changes."""
    global _heartbeat, _profile
    if _heartbeat is None or _profile is None:
        _heartbeat, _profile = _Heartbeat(), _Profile()
    if _profile.tool and section == "step":
        _profile.step()
    if _heartbeat.file >= 0 and (section != _heartbeat.section or time.monotonic() >= _heartbeat.due):
        _heartbeat.beat(step, section)


def metrics(**values: Any) -> None:
    """Appends a line to metrics.jsonl, with the time; on rank 0 alone. Numbers of torch, NumPy and TensorFlow are
    taken, too; NaN and infinity become null, since JSON has neither."""
    global _metrics
    if rank() == 0:
        if _metrics is None:
            _metrics = MetricsFile(run_dir() / "metrics.jsonl")
        _metrics.append(values)


def save_checkpoint(writer: Callable[[str], Any], step: int, suffix: str = ".pt", keep: int = 2) -> Path:
    """Makes checkpoint/step-N, whole or not at all: `writer` gets a path, and writes a file or a directory there. Its
    digests lie beside it. Of all with this suffix the newest few are kept. One rank calls it."""
    directory = run_dir() / "checkpoint"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{step:08d}{suffix}"
    partial = directory / ("." + path.name)
    _remove(partial)
    try:
        writer(str(partial))
        digests = digests_of_files(partial, path.name)
        _remove(path)
        write_digests(path, digests)
        partial.rename(path)
        _sync(directory)
    finally:
        _remove(partial)
    whole = [old for old in directory.glob("step-*" + suffix) if _is_candidate(old)]
    for old in sorted(whole, key=_age)[: -max(keep, 1)]:
        _remove(old)
    return path


def checkpoint_to_resume(pattern: str = "step-*") -> Optional[Path]:
    """The newest checkpoint whose digests are right, by the numbers in its name; one without digests is believed if it
    is not empty. None if there is nothing to resume.

    Ends the program where `ctrain run --resume` names a run without any: a new training is not what was asked for.
    """
    directory = resume_dir()
    if directory is None:
        return None
    newest = newest_whole(filter(_is_candidate, directory.glob(pattern)))
    if newest is None and not is_restarted():
        give_up(f"{directory} has no checkpoint to resume from")
    return newest


def newest_whole(paths: Iterable[Path]) -> Optional[Path]:
    """The newest checkpoint, by the numbers in their names, whose digests are right; a line about each newer one."""
    for path in sorted(paths, key=_age, reverse=True):
        try:
            problem = _problem(path)
        except OSError as error:
            problem = str(error)
        if not problem:
            return path
        _warn(f"{path} is damaged ({problem}): it is not used")
    return None


def digests_of_files(path: Path, name: str, chosen: Callable[[Path], bool] = lambda _: True) -> str:
    """The lines of digests of those files of a checkpoint of this name that are chosen; they are on disk then."""
    files = (pair for pair in _files(path, name) if chosen(pair[1]))
    return "".join(f"{_digest(file, True)}  {full}\n" for full, file in files)


def write_digests(path: Path, digests: str) -> None:
    """Seals a checkpoint: of one that several ranks have written, each has the digests of what is its own."""
    _write(_digests_of(path), digests)


def leave_saved() -> None:
    """Ends the program: it was asked to, and has saved."""
    sys.exit(EXIT_SAVED)


def give_up(reason: str) -> None:
    """Ends the program, which would fail the same way again: ctrain does not restart it."""
    _warn(reason)
    sys.exit(EXIT_GIVE_UP)


def rank() -> int:
    """The number of this rank, by the variables of its launcher; 0 without one."""
    return next((int(os.environ[name]) for name in RANKS if os.environ.get(name, "").isdigit()), 0)


def _warn(text: str) -> None:
    print("{}: {}".format(Path(sys.argv[0]).name or "ctrain_program", text), file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):  # as in seconds_by_rank
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, str, type(None))):
        value = float(value)
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _is_candidate(path: Path) -> bool:
    return not path.name.startswith(".") and not path.name.endswith((DIGESTS, *INCOMPLETE))


def _age(path: Path) -> Tuple[List[int], str]:
    """By which checkpoints are sorted: step-9 comes before step-10."""
    return [int(number) for number in re.findall(r"[0-9]+", path.name)], path.name


def _digests_of(path: Path) -> Path:
    return path.with_name(path.name + DIGESTS)


def _problem(path: Path) -> str:
    """What is wrong with a checkpoint; "" if nothing is."""
    files = dict(_files(path, path.name))
    if not _digests_of(path).exists():
        return "" if any(file.stat().st_size for file in files.values()) else "empty"
    for line in _digests_of(path).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if name not in files:
            return f"{name} is missing"
        if _digest(files[name]) != digest:
            return f"digest mismatch of {name}"
    return ""


def _files(path: Path, name: str) -> Iterator[Tuple[str, Path]]:
    """The files of a checkpoint, with their names below its directory; itself, if it is one."""
    if not path.is_dir():
        yield name, path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield f"{name}/{file.relative_to(path)}", file


def _digest(path: Path, sync: bool = False) -> str:
    """Of a file; with `sync`, that is on disk then."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
            sha.update(chunk)
        if sync:
            os.fsync(file.fileno())
    return sha.hexdigest()


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(str(directory), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """A checkpoint, and then its digests."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    for file in (path, _digests_of(path)):
        if file.exists():
            file.unlink()
