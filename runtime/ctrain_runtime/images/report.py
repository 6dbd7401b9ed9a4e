"""Describes one image or compares two, for `ctrain images show|diff` and for module files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.base.digest import short
from ctrain_runtime.base.text import format_duration, format_size, one_line, table
from ctrain_runtime.images.image import Image
from ctrain_runtime.store.manifest import (
    ADOPTED_LABEL,
    ENTRY_POINT,
    PACKAGE_LICENSES_LABEL,
    PARENT_LABEL,
    REDISTRIBUTE_LABEL,
    Layer,
    Manifest,
    Requires,
    TestResult,
    layer_licenses,
    stated_licenses,
)

_SHOWN_LICENSES = 4  # of packages; the manifest has all
Packages = Mapping[tuple[str, str], str]  # (kind, name) -> version


@dataclass(frozen=True)
class Change:
    """A package that differs between two images; a version is None if the image lacks the package."""

    kind: str
    name: str
    old: Optional[str]
    new: Optional[str]


@dataclass(frozen=True)
class LayerSize:
    """The size of a layer in two images, in bytes; None if an image lacks it. `same`: its contents are equal."""

    definition: str
    old: Optional[int]
    new: Optional[int]
    same: bool


def changes(old: Packages, new: Packages) -> list[Change]:
    """The packages that differ, sorted."""
    differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return [Change(*key, old.get(key), new.get(key)) for key in differing]


def layer_sizes(old: Manifest, new: Manifest) -> list[LayerSize]:
    """The layers of both images, in the order of the new one; those only in the old one come last."""
    before, after = ({layer.definition: layer for layer in manifest.layers} for manifest in (old, new))
    return [_layer_size(name, before.get(name), after.get(name)) for name in {**after, **before}]


def _layer_size(name: str, old: Optional[Layer], new: Optional[Layer]) -> LayerSize:
    same = old is not None and new is not None and (old.digest or old.key) == (new.digest or new.key)
    return LayerSize(name, old.size if old else None, new.size if new else None, same)


def as_list(packages: Packages) -> list[dict[str, str]]:
    return [{"kind": kind, "name": name, "version": version} for (kind, name), version in sorted(packages.items())]


def describe(
    image: Image, packages: Packages, problem: str, signers: Sequence[str], more: Sequence[tuple[str, str]]
) -> str:
    """All metadata of an image as text. `problem` is the reason why `packages` is empty, if it is. `more`: rows of what
    its store has besides."""
    manifest = image.manifest
    kinds = [kind for kind, _ in packages]
    package_counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    if package_counts:
        package_counts += _package_licenses(manifest)
    channel = f" ({image.channel})" if image.channel else ""
    rows = [
        ("image", f"{manifest.name} {manifest.version}".rstrip() + f"{channel}  {short(manifest.digest)}".rstrip()),
        ("file", f"{image.path} ({format_size(manifest.size)})"),
        ("base", f"{manifest.base.reference}  {short(manifest.base.digest)}".rstrip()),
        ("parent", manifest.labels.get(PARENT_LABEL, "")),
        ("adopted", manifest.labels.get(ADOPTED_LABEL, "")),
        ("licences", stated_licenses(manifest.labels)),
        ("pass on", manifest.labels.get(REDISTRIBUTE_LABEL, "")),
        ("built", _built(manifest)),
        ("starts", f"{manifest.labels[ENTRY_POINT]} (not by ctrain)" if ENTRY_POINT in manifest.labels else ""),
        ("with", ", ".join(f"{name} {number}" for name, number in manifest.tools.items())),
        ("published", _time(manifest.published) if manifest.published else "no"),
        ("signed", f"by {', '.join(signers)}" if signers else "no"),
        *more,
        *facts(manifest, package_counts or problem),
    ]
    if not manifest.layers:
        return _rows(rows)
    layers = [("layer", "size", "key", "digest"), *(_layer(part) for part in manifest.layers)]
    if licenses := layer_licenses(manifest.labels):
        column = ("licence", *(licenses.get(part.definition, "-") for part in manifest.layers))
        layers = [(*row, cell) for row, cell in zip(layers, column)]
    tests = [(test.name, _outcome(test)) for test in manifest.tests]
    merged = "\nIts layers are merged into one file system." if manifest.flat else ""
    return "\n".join(
        (
            _rows(rows),
            f"\n{table(layers[0], layers[1:])}{merged}",
            f"\n{table(('test', 'result'), tests)}",
        )
    )


def _layer(part: Layer) -> tuple[str, ...]:
    return (part.definition, format_size(part.size), part.key[:12], short(part.digest))


def _rows(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{key:<11}{one_line(value)}" for key, value in rows if value)


def _package_licenses(manifest: Manifest) -> str:
    """The most frequent licences of the packages, after their number."""
    named = manifest.labels.get(PACKAGE_LICENSES_LABEL, "").split("; ")
    more = [f"{len(named) - _SHOWN_LICENSES} other licences"] if len(named) > _SHOWN_LICENSES else []
    shown = ", ".join([*named[:_SHOWN_LICENSES], *more])
    return f"; {shown}" if shown else ""


def _built(manifest: Manifest) -> str:
    if not manifest.built:
        return "not by ctrain: untested"
    return f"{_time(manifest.built)}, definitions at {manifest.revision or 'an unknown revision'}"


def facts(manifest: Manifest, packages: str = "") -> list[tuple[str, str]]:
    """Requirements and contents of an image as rows; `packages` is the text of the row `packages`."""
    rows = [
        ("fits", _fits(manifest)),
        ("driver", _driver(manifest.requires)),
        ("software", ", ".join(f"{name} {number}" for name, number in manifest.software.items())),
        ("packages", packages),
        ("tests", _summary(manifest.tests)),
    ]
    return [(key, value) for key, value in rows if value]


def _fits(manifest: Manifest) -> str:
    needs = manifest.requires
    cuda = manifest.software.get("cuda")
    if not cuda:
        return f"{manifest.arch}, no GPU needed".lstrip(", ")
    gpus = f", GPUs {' '.join(needs.gpus)}" if needs.gpus else ""
    compiled = f" (compiled for {' '.join(needs.arch)})" if needs.arch else ""
    return f"{manifest.arch}, CUDA {cuda}{gpus}{compiled}"


def _driver(needs: Requires) -> str:
    older = f"; on data-centre GPUs also {', '.join(needs.older_drivers)}" if needs.older_drivers else ""
    return f"{needs.driver} or newer{older}" if needs.driver else ""


def _summary(tests: Sequence[TestResult]) -> str:
    outcomes = [test.outcome for test in tests]
    kinds = ("passed", "failed", "skipped")
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds if kind in outcomes)


def _outcome(test: TestResult) -> str:
    return (
        f"{test.outcome}: {test.skipped}"
        if test.skipped
        else f"{test.outcome} in {format_duration(float(test.seconds))}"
    )


def _time(stamp: str) -> str:
    return f"{stamp[:16].replace('T', ' ')} UTC"


def compare(old: Manifest, new: Manifest, layers: Sequence[LayerSize], packages: Sequence[Change]) -> str:
    """The changes from the old to the new image as text."""
    sizes = [(part.definition, _size(part.old), _size(part.new), "same" if part.same else "") for part in layers]
    lines = [(_sign(part), part.kind, part.name, part.old or "", part.new or "") for part in packages]
    signs = [sign for sign, *_ in lines]
    summary = ", ".join(
        f"{signs.count(sign)} {word}" for sign, word in (("+", "added"), ("-", "removed"), ("", "changed"))
    )
    title = f"{old.name} {old.version} -> {new.name} {new.version}"
    return "\n".join(
        (
            f"{one_line(title)}: {format_size(old.size)} -> {format_size(new.size)}",
            f"\n{table(('layer', 'old', 'new', ''), sizes)}",
            f"\npackages: {summary}",
            *([table(("", "kind", "package", "old", "new"), lines)] if lines else []),
        )
    )


def _size(total: Optional[int]) -> str:
    return "-" if total is None else format_size(total)


def _sign(change: Change) -> str:
    return "+" if change.old is None else "-" if change.new is None else ""
