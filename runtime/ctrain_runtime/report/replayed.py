"""What a replay has other than the run that it replays, before it starts; and where their losses part."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.base.digest import kind as digest_kind
from ctrain_runtime.base.digest import short
from ctrain_runtime.errors import CtrainError, ImageUnusable
from ctrain_runtime.images.foreign import cached_digest
from ctrain_runtime.images.pull import Report
from ctrain_runtime.plan.environment import MASK, secret_names
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.report import comparison, series
from ctrain_runtime.run import manifest, record, revision
from ctrain_runtime.run.follow import read_text
from ctrain_runtime.run.manifest import DataFile, Manifest
from ctrain_runtime.run.submit import Run

Row = tuple[str, ...]


@dataclass(frozen=True)
class Losses:
    """At how many equal steps losses were compared; at which they part first, and both there (None: they agree)."""

    compared: int
    step: Optional[float] = None
    recorded: float = math.nan
    replayed: float = math.nan


def differences(run: Run, path: Path, plan: LaunchPlan, report: Report) -> tuple[list[Row], list[str]]:
    """What differs in the plan of a replay of the run in `path`: its name, what was recorded, what it is now; and lines
    on what is unknown. The image is read, unless that was done before, and `report` shows it."""
    copy = plan.mounts.code.source if plan.mounts.code else ""
    now = manifest.make(plan)  # its code is not copied yet
    now = replace(now, code=manifest.code_digests(Path(copy)) if copy else {})
    plan = _with_digest_of_file(plan, report)
    masked = _masked(plan)
    hidden = [name for name, value in masked.environment.variables.items() if value == MASK]
    unknown = [f"env {name}: its value is not recorded" for name in (*plan.environment.passed, *hidden)]
    if not copy and not run.record.revision and Path(plan.program.workdir).is_dir():
        unknown.append(f"code: {plan.program.workdir} was not copied, and is in no git repository")
    try:
        then = manifest.load(path)
    except CtrainError as error:
        unknown.append(f"code, data and ctrain as they were: {error.message}")
        then = now
    begun = record.begin(plan)
    if copy:  # not that of the directory, which plays no part
        begun = replace(begun, revision=run.record.revision)
    settings = (
        {**comparison.settings_of(run.plan, run.record, then.code), **_rest(then, _recorded_diff(path, copy))},
        {**comparison.settings_of(masked, begun, now.code), **_rest(now, _diff(plan, copy))},
    )
    for name in plan.environment.passed:  # as they were masked, or passed
        for each in settings:
            each.pop(f"env {name}", None)
    return [*comparison.rows_that_differ(settings), *_data(then, now)], unknown + _unlisted(then, now)


def _with_digest_of_file(plan: LaunchPlan, report: Report) -> LaunchPlan:
    """The plan with the digest that its image has, whatever the manifest beside it records. Raises CtrainError."""
    if digest_kind(plan.image.digest) != "sha256":  # a sandbox, or an image in a builder's cache
        return plan
    try:
        digest = cached_digest(Path(plan.image.path), report)
    except OSError as error:
        raise ImageUnusable(f"cannot read {plan.image.path}: {error.strerror}") from error
    return replace(plan, image=replace(plan.image, digest=digest))


def _masked(plan: LaunchPlan) -> LaunchPlan:
    """The plan with what plan.json has in the place of secrets."""
    variables = plan.environment.variables
    masked = {**variables, **dict.fromkeys(secret_names(variables), MASK)}
    return replace(plan, environment=replace(plan.environment, variables=masked))


def _rest(listed: Manifest, diff: str) -> dict[str, str]:
    return {"ctrain": listed.ctrain, **changed_files(diff)}


def _recorded_diff(path: Path, copy: str) -> str:
    return "" if copy else read_text(path / run_files.CODE_DIFF)


def _diff(plan: LaunchPlan, copy: str) -> str:
    return "" if copy else revision.uncommitted(plan.program.workdir)


def changed_files(diff: str) -> dict[str, str]:
    """Of a diff of git, a digest of the part of each file."""
    parts = f"\n{diff}".split("\ndiff --git ")[1:]
    return {f"uncommitted {_name(part.splitlines()[0])}": _digest(part) for part in parts}


def _name(head: str) -> str:
    """Of a/NAME b/NAME, the name; of a file that was renamed, all."""
    length = (len(head) - len("a/ b/")) // 2
    return head[-length:] if head == f"a/{head[-length:]} b/{head[-length:]}" else head


def _digest(text: str) -> str:
    return short(f"sha256:{hashlib.sha256(text.strip().encode(errors='surrogateescape')).hexdigest()}")


def _data(then: Manifest, now: Manifest) -> list[Row]:
    if then.unknown or now.unknown:
        return []
    rows: list[Row] = []
    for name in sorted(then.data.keys() | now.data.keys()):
        pair = then.data.get(name), now.data.get(name)
        with_digests = all(each and each.digest for each in pair)
        one, other = (_in_words(each, with_digests) for each in pair)
        if one != other:
            rows.append((f"data file {name}", one, other))
    return rows


def _in_words(file: Optional[DataFile], with_digest: bool) -> str:
    """A file by its contents if these are known of both, else by its size and time."""
    if file is None:
        return comparison.NONE
    modified = datetime.fromtimestamp(file.modified / 1e9, timezone.utc).isoformat()
    return f"{file.size} bytes, {short(file.digest) if with_digest else modified}"


def _unlisted(then: Manifest, now: Manifest) -> list[str]:
    pairs = (("as it was", then.unknown), ("as it is", now.unknown))
    return [f"data {when}: {why}" for when, why in pairs if why]


def compare_losses(recorded: Path, replayed: Path, tolerance: float) -> Losses:
    """The first step at which the `loss` of two metrics.jsonl differs by more than this, relatively to the larger."""
    one, other = _losses(recorded), _losses(replayed)
    common = sorted(one.keys() & other.keys())
    for step in common:
        if not _agree(one[step], other[step], tolerance):
            return Losses(len(common), step, one[step], other[step])
    return Losses(len(common))


def _agree(one: float, other: float, tolerance: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return (math.isnan(one) and math.isnan(other)) or one == other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=0.0)


def _losses(path: Path) -> Mapping[float, float]:
    """The loss by step; of a step that was repeated, as after a restart, the last."""
    return {each.step: each.values["loss"] for each in series.measures(path) if "loss" in each.values}
