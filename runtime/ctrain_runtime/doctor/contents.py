"""Checks what is in a store by file sizes and manifests alone, without reading an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ctrain_runtime.doctor import Finding
from ctrain_runtime.errors import ConfigError, CtrainError, ImageUnusable, StoreError
from ctrain_runtime.images.image import check_size
from ctrain_runtime.store import outputs, policy
from ctrain_runtime.store.manifest import Unchecked, is_version, read_manifest
from ctrain_runtime.store.store import (
    QUARANTINE,
    RETIRED,
    Store,
    StoreContents,
    is_gone,
    list_directory,
    pending_manifest,
)


def check_contents(store: Store, contents: StoreContents) -> Iterator[Finding]:
    """One finding per problem; what cannot be listed is one, too, and hides no other."""
    for check in (_check_published, _check_images, _check_retired, _check_policy, _check_outputs):
        try:
            yield from check(store, contents)
        except StoreError as error:
            yield Finding(_subject(store), "fail", error.message, error.hint)


def _subject(store: Store) -> str:
    return f"store {store.root}"


def _check_published(store: Store, contents: StoreContents) -> Iterator[Finding]:
    errors: list[CtrainError] = [*contents.damaged, *(channel.error() for channel in contents.dangling)]
    for image in contents.images:
        try:
            check_size(image.path, image.manifest)
        except ImageUnusable as unusable:
            errors.append(unusable)
    for error in errors:
        yield Finding(_subject(store), "fail", error.message, error.hint)
    for image in contents.images:
        for channel in filter(is_version, image.channels):
            hint = f"Run: ctrain store channel rm {image.manifest.name} {channel} --yes"
            text = f"channel {channel} of {image.manifest.name} looks like a version"
            yield Finding(_subject(store), "warn", text, hint)


def _check_images(store: Store, _: StoreContents) -> Iterator[Finding]:
    for path in list_directory(store.root, "*_*-py3-r*.sif"):
        if _is_empty(path):  # a publish has just taken the name, or was killed then: its manifest comes next
            continue
        if _has_no_manifest(path) and _has_no_manifest(path) and not is_gone(path):  # twice: one may just be moved
            hint = "Restore its .json from a backup, or move the file away; ctrain store gc never removes it"
            yield Finding(_subject(store), "fail", f"{path} has no manifest", hint)


def _is_empty(image: Path) -> bool:
    try:
        return not image.stat().st_size
    except OSError:
        return False


def _has_no_manifest(image: Path) -> bool:
    others = (image.parent / directory / f"{image.stem}.json" for directory in (RETIRED, QUARANTINE))
    return all(map(is_gone, (image.with_suffix(".json"), pending_manifest(image), *others)))


def _check_retired(store: Store, _: StoreContents) -> Iterator[Finding]:
    for path in list_directory(store.root / RETIRED, "*_*.json"):
        try:
            read_manifest(path)
        except Unchecked as unchecked:
            if not is_gone(path):  # else it was restored meanwhile
                yield Finding(_subject(store), "warn", unchecked.message, unchecked.hint)
        except ConfigError as error:
            hint = "Restore it from a backup; ctrain store gc keeps its image until then"
            yield Finding(_subject(store), "fail", error.message, hint)


def _check_policy(store: Store, _: StoreContents) -> Iterator[Finding]:
    try:
        policy.load(store.root)
    except ConfigError as error:
        yield Finding(_subject(store), "fail", f"{error.message}; no channel moves until then", error.hint)


def _check_outputs(store: Store, contents: StoreContents) -> Iterator[Finding]:
    for output in outputs.find_stale(store.root, contents):
        text = f"{output.path} is out of date: the store has changed since"
        yield Finding(_subject(store), "warn", text, f"Run: {output.command(store.root)}")
