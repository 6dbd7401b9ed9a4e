"""What a report is about: a run, with everything that its directory tells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.report import nsys, series, timeline
from ctrain_runtime.report.series import Metrics
from ctrain_runtime.report.timeline import Phase
from ctrain_runtime.run import events, hangs, logs, ranks, restarts
from ctrain_runtime.run.advice import advise
from ctrain_runtime.run.follow import read_text
from ctrain_runtime.run.profiles import SUMMARIES
from ctrain_runtime.run.record import Record
from ctrain_runtime.run.submit import Run

LAST_LINES = 30
TEXT_CHARACTERS = 40_000  # of all stacks, and of all profiles, of a run
RANKS_NAMED = 8  # ranks with the same


@dataclass(frozen=True)
class Failure:
    """Why a run is not complete: the `reason`, what to do (""), and whose last lines these are."""

    reason: str
    advice: str
    log: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """`state` is in words; `failure` is None while a run goes on, and of one that is complete. `hangs` are lines with
    their time, `stacks` those of ranks that hung: of which ranks, and the text; `profiles` likewise."""

    run: Run
    record: Record
    state: str
    metrics: Metrics
    phases: tuple[Phase, ...]
    failure: Optional[Failure]
    hangs: tuple[tuple[Optional[float], str], ...] = ()
    stacks: tuple[tuple[str, str], ...] = ()
    profiles: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return self.record.run

    @property
    def seconds(self) -> Optional[float]:
        """How long its job has taken."""
        if not (self.record.start and self.record.end):
            return None
        return (datetime.fromisoformat(self.record.end) - datetime.fromisoformat(self.record.start)).total_seconds()


def examine(run: Run, record: Record, state: str) -> Subject:
    """All about a run. Files that are missing or damaged make it tell less."""
    metrics = series.read(run.path / run_files.METRICS)
    phases = tuple(timeline.phases(run, metrics))
    job = events.read_all_job_events(run.path)
    hung = tuple((event.time, line) for event in job for line in hangs.lines([event]))
    stacks, profiles = _texts(run.path / run_files.STACKS, "*"), _texts(run.path / run_files.PROFILES, SUMMARIES)
    return Subject(
        run, record, state, metrics, phases, _failure(run, record), hung, stacks, (*profiles, *nsys.profiles(run.path))
    )


def _failure(run: Run, record: Record) -> Optional[Failure]:
    if not record.exit or record.exit.code == 0:
        return None
    failed = None
    if record.exit.by in ("program", "ctrain"):
        started = ranks.from_events(events.read_node_events(run.path))
        failed = restarts.first_failure(run, started, restarts.job_logs(run)[-1])
    number = failed.number if failed else 0
    path = logs.select(run.plan, [number])[0].path
    lines = [line for line in logs.last_lines(path, number) if line.strip()]
    if not lines:
        path = run.path / run_files.JOB_LOG
        lines = [line for line in logs.last_lines(path, 0) if line.strip()]
    log = str(path.relative_to(run.path))
    return Failure(record.exit.reason, advise(lines), log, tuple(lines[-LAST_LINES:]))


def _texts(directory: Path, pattern: str) -> tuple[tuple[str, str], ...]:
    """The texts of ranks in files, once where they are the same, as far as they fit."""
    texts: dict[str, list[str]] = {}
    files = [path for path in directory.glob(pattern) if path.is_file()]
    for path in sorted(files, key=lambda path: (len(path.name), path.name)):
        texts.setdefault(read_text(path), []).append(path.stem)
    shown, left = [], TEXT_CHARACTERS
    for text, names in texts.items():
        more = f" and {len(names) - RANKS_NAMED} more" if len(names) > RANKS_NAMED else ""
        if cut := text[:left]:
            shown.append((", ".join(names[:RANKS_NAMED]) + more, cut))
        left -= len(cut)
    return tuple(shown)
