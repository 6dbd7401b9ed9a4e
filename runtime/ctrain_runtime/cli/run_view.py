"""Descriptions of a run, before it starts and after it has ended."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path

from ctrain_runtime import launchers, payload, schedulers
from ctrain_runtime.base import run_files
from ctrain_runtime.base.digest import short
from ctrain_runtime.base.text import format_duration, format_seconds, format_size, pluralize, table
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.cli import world_view
from ctrain_runtime.cli.progress import last_words
from ctrain_runtime.cli.run_state import last_metrics
from ctrain_runtime.plan.environment import RESUME
from ctrain_runtime.plan.model import CodeCopy, DataCopy, Expectation, LaunchPlan, Mount, Preflight
from ctrain_runtime.run import logs, profiles
from ctrain_runtime.run.advice import advise
from ctrain_runtime.run.conclude import PREFIX, Conclusion
from ctrain_runtime.run.directory import as_data
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.measured import Measured
from ctrain_runtime.run.ranks import Rank
from ctrain_runtime.run.record import Record, duration
from ctrain_runtime.run.request import Prepared

LAST_LINES = 8
EARLY = {
    *(Ending.CANCELLED, Ending.TIME_LIMIT, Ending.PREEMPTED, Ending.SAVED_AND_LEFT, Ending.INTERRUPTED),
    *(Ending.NODE_FAILURE, Ending.UNKNOWN),
}  # the program was not done, and did not fail
WIDTH = 110
TASKS = "each rank's, or its node's if set"


def summary(prepared: Prepared, reason: str, of_sweep: str = "") -> str:
    """What will run, and where, in a few aligned rows; `of_sweep` are the names of the runs of a sweep."""
    plan = prepared.launch.plan
    channel = f" ({plan.image.channel})" if plan.image.channel else ""
    substitute = ""
    if plan.image.instead_of:
        substitute = f", flattened, in place of {plan.image.instead_of}: this engine ignores overlay partitions"
    name = f"{plan.image.name} {plan.image.version}".rstrip() + channel
    estimate = plan.checks.estimate
    read_only = [mount for mount in plan.mounts.paths if mount.read_only]
    rows = [
        ("site", f"{plan.site} ({reason})"),
        ("image", f"{name}  {short(plan.image.digest)}{prepared.image_source}{substitute}"),
        *(("layer", f"{layer.path}  {short(layer.digest)}") for layer in plan.image.layers),
        ("where", _where(plan)),
        *([("code", _code(plan.mounts.code))] if plan.mounts.code else []),
        *((_what(plan, mount), f"{mount.source} -> {mount.target} (read-only)") for mount in read_only),
        *([("staging", plan.staging.reason)] if plan.staging.directory else []),
        *([("staging", _copied(plan.staging.data_copy))] if plan.staging.data_copy else []),
        *(("estimate", line) for line in (_expected(estimate, plan.size.world_size) if estimate else ())),
        *([("preflight", _preflight(plan.checks.preflight))] if plan.checks.preflight else []),
        *([("restarts", _restarts(plan.program.restarts))] if plan.program.restarts else []),
        *([("retries", _retries(plan))] if plan.program.is_requeued else []),
        ("run", f"{of_sweep or plan.run}  ->  {Path(plan.run_directory).with_name(of_sweep or plan.run)}"),
        *(("note", note) for note in prepared.notes),
    ]
    return "\n".join(f"{key:<10}{value}" for key, value in rows)


def _code(code: CodeCopy) -> str:
    if code.source:
        return f"a copy of {code.source}, in the place of {code.directory}: code/ of the run"
    return (
        f"a copy of {code.directory}, which the program sees and changes in its place: code/ of the run (--live: none)"
    )


def _what(plan: LaunchPlan, mount: Mount) -> str:
    """What the run reads is data; the rest is the site's, or for the program to know."""
    return "data" if mount.source == plan.mounts.data or mount.target == RESUME else "mount"


def _copied(copy: DataCopy) -> str:
    return f"data set copied to {copy.directory} on each node ({format_size(copy.size)})"


def _preflight(check: Preflight) -> str:
    effect = "stops the job if it fails" if check.strict else "only warns"
    return f"{check.reason}: some seconds; {effect} (--preflight off|warn|strict)"


def _restarts(allowed: int) -> str:
    return f"up to {allowed}, in the same job and from its last checkpoint, if a rank fails"


def _retries(plan: LaunchPlan) -> str:
    often = "until the program is done" if plan.program.until_done else f"up to {plan.program.retries}"
    return f"{often}: the job is queued again if a time limit, a preemption or a lost node ends it"


def _expected(estimate: Expectation, ranks: int) -> tuple[str, str]:
    parts = ", ".join(f"{part} {format_size(size)}" for part, size in estimate.memory.items() if size)
    usable = f" of {format_size(estimate.usable)} usable" if estimate.usable else ""
    memory = f"{format_size(sum(estimate.memory.values()))} per rank{usable}: {parts}"
    time = "time per step unknown: image without CUDA, or not a GPU of a known type for each rank"
    if estimate.step_seconds:
        total = estimate.step_seconds * estimate.steps
        hours = total * ranks / 3600
        cost = f"{format_seconds(total)}, {format(hours, ',.0f' if hours >= 100 else '.3g')} GPU hours"
        step = format_seconds(estimate.step_seconds)
        if estimate.fastest and estimate.slowest:
            step = f"{step} ({format_seconds(estimate.fastest)} to {format_seconds(estimate.slowest)})"
        time = f"{step} per step on {estimate.gpu}; {estimate.steps} steps: {cost}"
    return f"{estimate.parameters:,} parameters; {memory}", time


def _where(plan: LaunchPlan) -> str:
    kind = "independent task" if plan.unit == "task" else "rank"
    program, size, placement = plan.program, plan.size, plan.placement
    mpi = f" ({program.mpi})" if program.mpi else ""
    ranks = f"{pluralize(size.world_size, kind)}, launcher {program.launcher}{mpi}"
    if not placement.partition:
        groups = f"{size.nodes} groups of {size.ranks_per_node}; " if size.nodes > 1 else ""
        return f"this machine: {groups}{ranks}"
    gpus = f"{pluralize(size.gpus_per_node, 'GPU')} per node, " if size.gpus_per_node else ""
    inside = f" in allocation {placement.allocation}" if placement.allocation else ""
    limit = "no time limit" if size.time_limit is None else f"limit {format_limit(size.time_limit)}"
    cores = f"{gpus}{pluralize(size.cores_per_rank, 'core')} per rank"
    spare = f" and {pluralize(size.spare_nodes, 'spare node')}" if size.spare_nodes else ""
    return f"{size.nodes} x {placement.partition}{spare}{inside}: {cores}; {ranks}; {limit}"


def as_json(prepared: Prepared) -> str:
    """All of a plan. Values of secrets are masked."""
    return json.dumps(as_data(prepared.launch), indent=2)


def describe(prepared: Prepared, *, full: bool = False) -> str:
    """The output of a dry run, `full` with the files that are the same in every run. Values of secrets are masked."""
    launch = prepared.launch
    shown = as_data(launch)
    plan, variables = launch.plan, shown["plan"]["environment"]["variables"]
    parts = [
        summary(prepared, "dry run: nothing is started"),
        *([] if plan.staging.directory else [f"staging   {plan.staging.reason}"]),
        "command   " + " ".join(launch.argv),
        *(f"mount     {mount}" for mount in plan.mounts.paths),
        *(f"env       {name}={value}  ({plan.environment.origins[name]})" for name, value in variables.items()),
        *(f"env       {name}  (option: this shell's value)" for name in plan.environment.passed),
        *(f"env       {line}" for line in textwrap.wrap(f"{' '.join(_variables_of_tasks(plan))}  ({TASKS})", WIDTH)),
        *(f"\n--- {name}\n{text.rstrip()}" for name, text in shown["scripts"].items()),
        *(f"\n--- {name}\n{payload.text(name).rstrip()}" for name in (launch.files if full else ())),
    ]
    return "\n".join(parts)


def _variables_of_tasks(plan: LaunchPlan) -> tuple[str, ...]:
    return launchers.variables_of_tasks(plan, schedulers.get(plan.scheduler).identity(plan))


def ending(plan: LaunchPlan, conclusion: Conclusion, step: int = 0, shown: str = "") -> str:
    """The last lines of a run; the very last one is always the run directory.

    `step`: the last one seen; `shown`: the end of the output above, whose last lines are not repeated.
    """
    ended, attempts = conclusion.record.exit, conclusion.record.attempts
    estimate, measured = conclusion.record.estimate, conclusion.record.measured
    lines = []
    if ended and ended.by == "user":
        name = attempts[-1].name if attempts else plan.run
        lines.append(f"cancelled {name}" + (f" at step {step}" if step else "") + ended.reason[len("cancelled") :])
    elif ended and ended.code != 0:
        lines += [_reason(plan, conclusion, shown), *([f"last step: {step}"] if ended.ending in EARLY and step else [])]
        if conclusion.failed:
            lines += _describe_failed(plan, conclusion.failed, conclusion.others, shown)
        if not re.search(rf"exit code {ended.code}\b", ended.reason):
            lines.append(f"exit code {ended.code}" + ("" if ended.by == "program" else f" ({ended.by}'s)"))
    elif ended:
        lines.append(_completed(plan, conclusion.record))
    if ended and ended.ending in EARLY and has_checkpoint(plan):
        lines.append(f"checkpoint kept; resume with: --resume {plan.run_directory}")
    lines += world_view.closing(plan, conclusion.record)
    lines += filter(None, [profiles.note(plan)])
    if estimate and measured:
        lines.append(_compared(estimate, measured))
    if conclusion.record.doubtful:
        again = f"ctrain attach {shlex.quote(plan.run_directory)}"
        lines.append(f"not all files of the run are visible here yet; look again in a minute with: {again}")
    if conclusion.unsaved:
        again = f"Make it writable, and complete the record with: ctrain attach {shlex.quote(plan.run_directory)}"
        lines.append(f"cannot write to the run directory: {conclusion.unsaved}. {again}")
    lines.append(f"run directory: {plan.run_directory}")
    return "\n".join(lines)


def _completed(plan: LaunchPlan, record: Record) -> str:
    """That a run is complete, how long its job took, and what its program has last measured."""
    took = ""
    seconds = duration(record)
    if seconds is not None:
        took = f" in {seconds:.0f} s" if seconds < 10 else f" in {format_duration(seconds)}"  # they are whole ones
    again = f", with {pluralize(len(record.restarts), 'restart')}" if record.restarts else ""
    measured = last_words(last_metrics(Path(plan.run_directory)))
    return f"completed{took}{again}" + (f"; last metrics: {measured}" if measured else "")


def _compared(estimate: Expectation, measured: Measured) -> str:
    """What was estimated beside what the program has measured; "-" is unknown."""
    seconds, rate = estimate.step_seconds, measured.tokens_per_second
    rows = (
        ("time per step", format_seconds, seconds, rate and estimate.tokens / rate),
        ("tokens/s", "{:,.0f}".format, seconds and estimate.tokens / seconds, rate),
        ("memory per rank", format_size, sum(estimate.memory.values()), measured.memory),
    )
    cells = [(name, *(text(value) if value else "-" for value in values)) for name, text, *values in rows]
    return table(("", "estimated", "measured"), cells)


def has_checkpoint(plan: LaunchPlan) -> bool:
    checkpoint = Path(plan.run_directory) / run_files.CHECKPOINT
    return checkpoint.is_dir() and any(checkpoint.iterdir())


def _reason(plan: LaunchPlan, conclusion: Conclusion, shown: str) -> str:
    """Why a run has failed; what ends the output above is not repeated."""
    failed, reason = conclusion.failed, conclusion.record.exit.reason if conclusion.record.exit else ""
    above = _last(shown.splitlines())[-1:]
    if failed and failed.refusal and above == [f"{PREFIX}{failed.refusal}"]:
        return f"{plan.describe(failed.number, failed.host)} did not start its program"
    return reason


def _describe_failed(plan: LaunchPlan, failed: Rank, others: tuple[tuple[int, str], ...], shown: str) -> list[str]:
    node = failed.number // (plan.recorded_ranks // plan.size.nodes)
    log = Path(plan.run_directory) / run_files.rank_log(failed.number, node, plan.recorded_ranks)
    (number, what), *rest = others or [(0, "")]
    more = "".join(f", {number} {what}" for number, what in rest)
    fates = f"; {pluralize(number, f'other {plan.unit}')} {what}{more}" if number else ""
    printed = logs.last_lines(log, failed.number)
    last, remedy = _last(printed), advise(printed)
    is_shown = last == _last(shown.splitlines())[-len(last) :]
    is_shown = is_shown or last[-1:] == [f"{PREFIX}{failed.refusal}"]  # then the reason has it
    advice = [f"advice: {remedy}"] if remedy else []
    return [*(f"  | {line}" for line in last if not is_shown), *advice, f"its log: {log}{fates}"]


def _last(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip()][-LAST_LINES:]
