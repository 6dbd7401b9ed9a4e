"""What `ctrain images show` and `ctrain images diff` tell: facts about images, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.image import Image
from ctrain_runtime.manifest import Layer, Manifest, Requires, TestResult
from ctrain_runtime.text import format_duration, format_size, table

Packages = Mapping[tuple[str, str], str]  # (kind, name) -> version


@dataclass(frozen=True)
class Change:
    """A package that differs between two images; None for the version where it is missing."""

    kind: str
    name: str
    old: Optional[str]
    new: Optional[str]


@dataclass(frozen=True)
class LayerSize:
    """The size of a layer in two images, in bytes; None where it is missing. `same`: nothing in it differs."""

    definition: str
    old: Optional[int]
    new: Optional[int]
    same: bool


def changes(old: Packages, new: Packages) -> list[Change]:
    differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return [Change(*key, old.get(key), new.get(key)) for key in differing]


def layer_sizes(old: Manifest, new: Manifest) -> list[LayerSize]:
    """The layers of both, in the order of the new image; those that only the old one has come last."""
    before, after = ({layer.definition: layer for layer in manifest.layers} for manifest in (old, new))
    return [_layer_size(name, before.get(name), after.get(name)) for name in {**after, **before}]


def _layer_size(name: str, old: Optional[Layer], new: Optional[Layer]) -> LayerSize:
    same = old is not None and new is not None and (old.digest or old.key) == (new.digest or new.key)
    return LayerSize(name, old.size if old else None, new.size if new else None, same)


def as_list(packages: Packages) -> list[dict[str, str]]:
    return [{"kind": kind, "name": name, "version": version} for (kind, name), version in sorted(packages.items())]


def describe(image: Image, packages: Packages, why_none: str) -> str:
    """All that is known of an image. `why_none` says why there are no `packages`."""
    manifest = image.manifest
    kinds = [kind for kind, _ in packages]
    held = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    channel = f" ({image.channel})" if image.channel else ""
    rows = [
        ("image", f"{manifest.name} {manifest.version}{channel}  {manifest.digest[:19]}"),
        *zip(("file", "over"), (f"{path} ({format_size(total)})" for path, total, _ in reversed(image.sif_files))),
        ("base", f"{manifest.base.reference}  {manifest.base.digest[:19]}".rstrip()),
        ("built", f"{_time(manifest.built)}, definitions at {manifest.revision or 'an unknown revision'}"),
        ("with", ", ".join(f"{name} {number}" for name, number in manifest.tools.items())),
        ("published", _time(manifest.published) if manifest.published else "no"),
        ("signed", "yes" if manifest.signed else "no"),
        *facts(manifest, held or why_none),
    ]
    layers = [(part.definition, format_size(part.size), part.key[:12], part.digest[:19]) for part in manifest.layers]
    tests = [(test.name, _outcome(test)) for test in manifest.tests]
    merged = "\nIts layers are merged into one file system." if manifest.flat else ""
    return "\n".join(
        (
            *(f"{key:<11}{value}" for key, value in rows if value),
            f"\n{table(('layer', 'size', 'key', 'digest'), layers)}{merged}",
            f"\n{table(('test', 'result'), tests)}",
        )
    )


def facts(manifest: Manifest, packages: str = "") -> list[tuple[str, str]]:
    """What an image needs of a machine, and what is in it; `packages` says how many packages."""
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
        return f"{manifest.arch}, no GPU needed"
    gpus = f", GPUs {' '.join(needs.gpus)}" if needs.gpus else ""
    compiled = f" (compiled for {' '.join(needs.arch)})" if needs.arch else ""
    return f"{manifest.arch}, CUDA {cuda}{gpus}{compiled}"


def _driver(needs: Requires) -> str:
    older = f"; on data-centre GPUs also {', '.join(needs.older_drivers)}" if needs.older_drivers else ""
    return f"{needs.driver} or newer{older}" if needs.driver else ""


def _summary(tests: Sequence[TestResult]) -> str:
    words = [test.outcome for test in tests]
    return ", ".join(f"{words.count(word)} {word}" for word in ("passed", "failed", "skipped") if word in words)


def _outcome(test: TestResult) -> str:
    return (
        f"{test.outcome}: {test.skipped}"
        if test.skipped
        else f"{test.outcome} in {format_duration(float(test.seconds))}"
    )


def _time(stamp: str) -> str:
    return f"{stamp[:16].replace('T', ' ')} UTC"


def compare(old: Manifest, new: Manifest, layers: Sequence[LayerSize], packages: Sequence[Change]) -> str:
    """What changed from the old to the new image."""
    sizes = [(part.definition, _size(part.old), _size(part.new), "same" if part.same else "") for part in layers]
    lines = [(_sign(part), part.kind, part.name, part.old or "", part.new or "") for part in packages]
    signs = [sign for sign, *_ in lines]
    told = ", ".join(
        f"{signs.count(sign)} {word}" for sign, word in (("+", "added"), ("-", "removed"), ("", "changed"))
    )
    return "\n".join(
        (
            f"{old.name} {old.version} -> {new.name} {new.version}: {format_size(old.size)} -> {format_size(new.size)}",
            f"\n{table(('layer', 'old', 'new', ''), sizes)}",
            f"\npackages: {told}",
            *([table(("", "kind", "package", "old", "new"), lines)] if lines else []),
        )
    )


def _size(total: Optional[int]) -> str:
    return "-" if total is None else format_size(total)


def _sign(change: Change) -> str:
    return "+" if change.old is None else "-" if change.new is None else ""
