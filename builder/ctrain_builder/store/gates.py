"""What a version needs before a channel may point to it, by the store's policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from ctrain_builder.files.manifest_writer import seconds_since
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import ConfigError, CtrainError, GateNotPassed
from ctrain_runtime.images import trust
from ctrain_runtime.images.image import Image
from ctrain_runtime.store import notes, policy
from ctrain_runtime.store.manifest import BASE_BUILT_LABEL
from ctrain_runtime.store.policy import Gates
from ctrain_runtime.store.store import PublishedImage, Store

_DAY = 86400


def require(store: Store, image: PublishedImage, channel: str) -> None:
    """Raise GateNotPassed, with all that is missing and what to type, unless the channel may point to a version. Raises
    ConfigError for a policy that cannot be read."""
    gates = policy.load(store.root).channels.get(channel)
    missing = list(_missing(image, gates)) if gates else []
    if missing:
        what = "; ".join(problem for problem, _ in missing)
        hints = list(dict.fromkeys(hint for _, hint in missing if hint))
        name = image.manifest.reference
        raise GateNotPassed(f"{name} does not pass the gates of channel {channel}: {what}", "; ".join(hints))


def lacks_scan(root: Path, image: PublishedImage, channel: str) -> bool:
    """Whether a channel asks for a clean scan that a version does not have. Raises ConfigError."""
    gates = policy.load(root).channels.get(channel)
    return bool(gates and gates.scan and list(_unscanned(image, gates)))


def _missing(image: PublishedImage, gates: Gates) -> Iterator[tuple[str, str]]:
    """Each gate that is not passed: why, and what to do."""
    manifest = image.manifest
    if gates.tests and not manifest.tested:
        adopted = "it was adopted, and has no tests" if manifest.adopted else "its tests have not passed"
        yield adopted, "Build it, or publish one that passes them"
    if gates.signed_by:
        yield from _unsigned(image, gates.signed_by)
    if gates.base_max_age is not None:
        yield from _old_base(image, gates.base_max_age)
    if gates.scan:
        yield from _unscanned(image, gates)


def _unsigned(image: PublishedImage, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    sign = f"ctrain store sign {image.manifest.reference} --key KEY"
    try:
        engine = find_engine()
        if not any(trust.is_signed_by(Image(image.path, image.manifest), trust.check_key(key), engine) for key in keys):
            yield f"it is signed by none of {', '.join(keys)}", f"Run: {sign}"
    except CtrainError as error:  # no engine, or no such key: that it is signed is not known
        yield f"its signatures cannot be verified: {error.message}", error.hint


def _old_base(image: PublishedImage, days: float) -> Iterator[tuple[str, str]]:
    manifest = image.manifest
    rebuild = f"Run: ctrain build {manifest.name}:{manifest.tag} --base-max-age {days:g}"
    age = _days_since(manifest.labels.get(BASE_BUILT_LABEL, ""))
    if age is None:
        yield "when its base was built is unknown", "That is known of bases from package mirrors: use another channel"
    elif age > days:
        yield f"its base was built {age:.0f} days ago (at most {days:g})", rebuild


def _unscanned(image: PublishedImage, gates: Gates) -> Iterator[tuple[str, str]]:
    scan = f"Run: ctrain store scan {image.manifest.reference}"
    try:
        last = notes.read_scan(image.path, image.manifest)
    except ConfigError as error:
        yield f"its scan is unknown: {error.message}", scan
        return
    if last is None:
        yield "it was not scanned", scan
    elif last.verdict == notes.FAILED:
        yield f"its scan failed (exit code {last.code})", scan
    elif last.verdict != notes.CLEAN:
        yield "its scan has findings", f"See: ctrain store show {image.manifest.reference}"
    elif gates.scan_max_age is not None and _is_older(last.when, gates.scan_max_age):
        yield f"its scan is older than {gates.scan_max_age:g} days", scan


def _is_older(moment: str, days: float) -> bool:
    age = _days_since(moment)
    return age is None or age > days


def _days_since(moment: str) -> Optional[float]:
    """None if that is unknown."""
    try:
        return seconds_since(moment) / _DAY
    except ValueError:
        return None
