"""What is to be done so that one place has the versions of another. They keep their names, numbers and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Optional

from ctrain_builder.plan.redistribution import reason_to_keep
from ctrain_builder.store import log
from ctrain_builder.store.archive import ArchiveTarget
from ctrain_builder.store.endpoints import Held, NameTaken, Source, StoreEndpoint, Target, Version, needs_copy
from ctrain_builder.store.publish import CopyObserver
from ctrain_builder.store.refresh import Say, refresh
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.errors import (
    ConfigError,
    CtrainError,
    GateNotPassed,
    ImageNotFound,
    ImageTestError,
    ImageUnusable,
    StoreError,
    UsageError,
)
from ctrain_runtime.store import policy
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.store import open_store

Copying = Callable[[Manifest], AbstractContextManager[CopyObserver]]  # is entered while a version is copied


@dataclass(frozen=True)
class Move:
    """A channel that will point to a version. `before` is the one that it points to; "" where it is new."""

    manifest: Manifest
    channel: str
    before: str


@dataclass(frozen=True)
class Request:
    """`images`: NAME, NAME:VERSION or NAME:CHANNEL (then no other channel moves), () for all. `reason`: why what is not
    to be passed on is passed on."""

    images: Sequence[str] = ()
    channels: bool = False
    dry_run: bool = False
    reason: Optional[str] = None


@dataclass(frozen=True)
class Plan:
    """`retired` were retired where they should go; `left_out` tells what can't be read, or is not ours."""

    copies: tuple[Manifest, ...] = ()
    present: tuple[Manifest, ...] = ()
    retired: tuple[Manifest, ...] = ()
    moves: tuple[Move, ...] = ()
    left_out: tuple[CtrainError, ...] = ()


def run(source: Source, target: Target, wanted: Request, say: Say, copying: Copying) -> Plan:
    """Copy what is wanted, or only tell what would be; what of the plan was done. Raises as `_plan`, and UsageError."""
    try:
        if wanted.reason is not None:
            _check_reason(wanted.reason, source)
        plan, failed = _plan(source, target, wanted), list[CtrainError]()
        for left_out in plan.left_out:
            say(f"ctrain: left out: {left_out}")
        if not wanted.dry_run:
            plan, failed = _carry_out(plan, source, target, wanted.reason, say, copying)
    except BaseException:
        if isinstance(target, ArchiveTarget):
            target.discard()
        raise
    for problem in failed:
        say(f"ctrain: {problem}")
    return replace(plan, left_out=(*plan.left_out, *failed))


def _check_reason(reason: str, source: Source) -> None:
    """Raises UsageError."""
    if not reason.strip():
        raise UsageError("--redistribute must not be empty", "The log of SRC keeps this reason")
    if not isinstance(source, StoreEndpoint):
        raise UsageError(f"--redistribute is kept in the log of SRC, and {source} has none", "Copy from a store")


def _plan(source: Source, target: Target, wanted: Request) -> Plan:
    """Raises ImageNotFound; StoreError for a version that `target` has with another digest; ConfigError for a
    policy."""
    if wanted.channels and isinstance(target, StoreEndpoint):
        policy.load(target.root)  # one that cannot be read lets nothing pass: before anything is copied
    versions, left_out = source.versions({reference.partition(":")[0] for reference in wanted.images})
    chosen = _choose(versions, wanted.images, source, left_out)
    untested = [one.manifest for one in chosen if not (one.manifest.tested or one.manifest.adopted)]
    left_out += [_untested(manifest, source) for manifest in untested]
    chosen = [one for one in chosen if one.manifest not in untested]
    held = target.held([one.manifest for one in chosen])
    if target.passes_on and wanted.reason is None:
        kept = [has is None and reason_to_keep(one.manifest) for one, has in zip(chosen, held)]
        left_out += [_kept(one.manifest, why, target) for one, why in zip(chosen, kept) if why]
        chosen, held = _of(chosen, held, [not why for why in kept])
    left_out += [has.problem for has in held if has and has.problem]
    chosen, held = _of(chosen, held, [not (has and has.problem) for has in held])
    manifests = [one.manifest for one in chosen]
    for manifest, has in zip(manifests, held):
        needs_copy(has, manifest, target)
    moves: list[Move] = []
    for one, has in zip(chosen, held):
        for channel in one.channels if wanted.channels and (has is None or has.offered) else ():
            before = target.pointed(one.manifest.name, channel)
            if before != one.manifest.version:
                moves.append(Move(one.manifest, channel, before))
    return Plan(
        tuple(manifest for manifest, has in zip(manifests, held) if has is None),
        tuple(manifest for manifest, has in zip(manifests, held) if has and has.offered),
        tuple(manifest for manifest, has in zip(manifests, held) if has and not has.offered),
        tuple(moves),
        tuple(left_out),
    )


def _of(
    chosen: Sequence[Version], held: Sequence[Optional[Held]], wanted: Sequence[bool]
) -> tuple[list[Version], list[Optional[Held]]]:
    """The versions that are wanted, and what there is of each."""
    pairs = [pair for pair, is_wanted in zip(zip(chosen, held), wanted) if is_wanted]
    return [one for one, _ in pairs], [has for _, has in pairs]


def _untested(manifest: Manifest, source: Source) -> ImageTestError:
    failed = [test.name for test in manifest.tests if test.outcome == "failed"]
    problem = f"failed its tests ({', '.join(failed)})" if failed else "has not passed its tests"
    return ImageTestError(f"{manifest.reference} in {source} {problem}", "Publish one there that passes them")


def _kept(manifest: Manifest, why: str, target: Target) -> StoreError:
    hint = "If you may pass it on: --redistribute REASON; see: ctrain help licences"
    return StoreError(f"{manifest.reference} is not passed on to {target}: {why}", hint)


def _carry_out(
    plan: Plan, source: Source, target: Target, reason: Optional[str], say: Say, copying: Copying
) -> tuple[Plan, list[CtrainError]]:
    """What of a plan was done, and why the rest was not: a version may be bad, and both ends change while versions are
    copied. `reason`: why what is not to be passed on is passed on."""
    copied: list[Manifest] = []
    failed: list[CtrainError] = []
    for manifest in plan.copies:
        if reason and target.passes_on and isinstance(source, StoreEndpoint):
            _record(manifest, reason, source, target)
        try:
            with copying(manifest) as watch:
                target.put(manifest, source, watch)
            copied.append(manifest)
        except (ImageUnusable, NameTaken) as error:
            failed.append(error)
    here = (*copied, *plan.present)
    failed += _add(here, source, target, say)
    moved: list[Move] = []
    for move in (one for one in plan.moves if one.manifest in here):
        try:
            _point(move, source, target, say)
            moved.append(move)
        except (StoreError, GateNotPassed) as error:
            failed.append(error)
    if isinstance(target, StoreEndpoint):
        refresh(open_store(target.root), say)  # once, not for each version
    if isinstance(target, ArchiveTarget) and copied:
        target.finish()
    return replace(plan, copies=tuple(copied), moves=tuple(moved)), failed


def _add(here: Sequence[Manifest], source: Source, target: Target, say: Say) -> list[ConfigError]:
    """What came to versions after they were published: signatures, scans and deprecations. Why some of it did not."""
    failed: list[ConfigError] = []
    for manifest in here:
        if target.sign(manifest, source.added_signatures(manifest)):
            say(f"{manifest.name} {manifest.version}: signatures added")
        try:
            target.note(manifest, source.notes(manifest), source)
        except ConfigError as error:
            failed.append(error)
    return failed


def _record(manifest: Manifest, reason: str, source: StoreEndpoint, target: Target) -> None:
    """Log in `source` why a version goes to others all the same, if there is a reason against it."""
    if reason_to_keep(manifest):
        with lock_store(source.root) as writer:
            writer.log(log.REDISTRIBUTE, manifest.name, manifest.version, why=f"to {target}: {reason}")


def _point(move: Move, source: Source, target: Target, say: Say) -> None:
    """Make a channel point to what it points to in `source`: still, and not only when the copies began.

    Raises StoreError if the version was taken from the channel there, or is no longer offered where it should go.
    """
    now = source.pointed(move.manifest.name, move.channel)
    if now != move.manifest.version:
        moved = f"points to {now or 'no version'} in {source} now, not to {move.manifest.version}"
        raise StoreError(f"channel {move.channel} of {move.manifest.name} {moved}", "Run the command again")
    target.point(move.manifest, move.channel, source, say)


def _choose(
    versions: Sequence[Version], wanted: Sequence[str], source: Source, left_out: Sequence[CtrainError]
) -> list[Version]:
    chosen: dict[str, Version] = {}
    for reference in wanted:
        name, _, word = reference.partition(":")
        named = [one for one in versions if one.manifest.name == name]
        meant = [one for one in named if word in ("", one.manifest.version)]
        meant = meant or [replace(one, channels=(word,)) for one in named if word in one.channels]
        if not meant:
            known = ", ".join(f"{name}:{one.manifest.version}" for one in named) or "none of that name"
            hint = "; ".join([f"Available: {known}", *map(str, left_out)])
            raise ImageNotFound(f"image {reference!r} is not in {source}", hint)
        for one in meant:
            before = chosen.get(one.manifest.file_name)
            also = before.channels if before else ()
            chosen[one.manifest.file_name] = replace(one, channels=tuple(dict.fromkeys((*also, *one.channels))))
    return list(chosen.values()) if wanted else list(versions)
