"""Which versions a store no longer needs to offer: by the retention rules of its policy, and by passed deprecations."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ctrain_builder.files.manifest_writer import utc
from ctrain_builder.store import channels, lifecycle
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.store import lease, policy
from ctrain_runtime.store.policy import ANY, Retention
from ctrain_runtime.store.store import PublishedImage, Store

_MONTH = 31  # days: rather some more than fewer
_DAY = 86400


@dataclass(frozen=True)
class Surplus:
    """A version that is to be retired, and why. `needed_by`: who keeps it from that; () for nobody."""

    image: PublishedImage
    why: str
    needed_by: tuple[str, ...] = ()


def surplus(store: Store, rules: Mapping[str, Retention], now: float) -> list[Surplus]:
    """All such versions at time `now` (seconds since 1970), by name, the oldest first."""
    images = store.images()
    leased = lease.active(store.root, now)
    due: list[Surplus] = []
    for name in sorted({image.manifest.name for image in images}):
        own = [image for image in images if image.manifest.name == name]
        rule = rules.get(name, rules.get(ANY))
        kept = _kept(store, own, rule, now) if rule else {image.path.name for image in own}
        for image in own:
            why = _passed(image, now) or ("" if image.path.name in kept else "older than what the policy keeps")
            if why:
                jobs = (str(leased[image.path.name]),) if image.path.name in leased else ()
                needed_by = (*(f"channel {channel}" for channel in image.channels), *jobs)
                due.append(Surplus(image, why, needed_by))
    return due


def retire(writer: LockedStore, now: float) -> list[Surplus]:
    """Retire what the policy does not keep, as the store is now; what somebody needs stays. Raises ConfigError."""
    due = surplus(writer.store, policy.load(writer.root).retention, now)
    for one in due:
        if not one.needed_by:
            lifecycle.retire(writer, [one.image.manifest.reference], one.why)
    return due


def _kept(store: Store, images: list[PublishedImage], rule: Retention, now: float) -> set[str]:
    """The file names of versions of one image that its rule keeps."""
    surplus = {image.path.name for image in lifecycle.older(images, rule.newest)}
    kept = {image.path.name for image in images} - surplus
    if rule.months:
        since = utc(now - rule.months * _MONTH * _DAY)
        kept |= {image.path.name for image in images if (image.manifest.published or "") >= since}
    recent = set(_recent(store, images[0].manifest.name, rule))
    return kept | {image.path.name for image in images if image.channels or image.manifest.version in recent}


def _recent(store: Store, name: str, rule: Retention) -> Iterator[str]:
    """The last versions that each channel has pointed to."""
    for channel, count in rule.channels.items():
        versions = channels.history(store, name, channel)
        yield from versions[max(0, len(versions) - count) :]


def _passed(image: PublishedImage, now: float) -> str:
    """Why a deprecation is over; "" if it is not, or there is none."""
    note, today = image.deprecation, utc(now)[:10]
    return f"deprecated until {note.until}" if note and note.until < today else ""


def parse_date(text: str) -> datetime.date:
    """As in 2027-03-31. Raises ValueError."""
    return datetime.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=datetime.timezone.utc).date()
