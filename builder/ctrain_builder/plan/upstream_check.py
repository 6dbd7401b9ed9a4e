"""What is new upstream of an image: tags that images.yaml does not have, tags that have moved, tags that are gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, TypeVar

from ctrain_builder.definitions import definition, ngc
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.definitions.ngc import Release, Table
from ctrain_builder.plan.build_plan import HOST_ARGUMENTS
from ctrain_builder.registry.resolver import CachedDigest, DigestResolver
from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.client import Reference, RegistryClient, parse
from ctrain_runtime.registry.http_client import Unreachable

T = TypeVar("T")
LISTED, MOVED, GONE, NEW = "listed", "moved", "gone", "new"
_ANY = "ctrain-any"  # stands for a tag while the pattern of its reference is made
_NVIDIA = re.compile(r".*/nvidia/[\w-]+")  # also in a site's own copy of NVIDIA's registry


@dataclass(frozen=True)
class TagStatus:
    """A tag of the base. `digest` is what it is now ("": not asked), `before` what the last builder was told."""

    tag: str
    reference: str
    state: str
    release: Release
    digest: str = ""
    before: Optional[CachedDigest] = None

    @property
    def framework(self) -> str:
        """The field of `release` that this image is about."""
        return "tensorflow" if "tensorflow" in self.reference else "torch"


def uses_registry(spec: ImageSpec) -> bool:
    """Whether an image starts from one in a registry."""
    return spec.chain[0].header["bootstrap"].lower() == "docker"


class UpstreamChecker:
    """Looks at one image after the other. Without a `registry` (offline), it knows what `table` and `upstream` do.

    `given` are values of definitions' arguments, as for a build.
    `troubles` tells what could not be asked, and why; `blind` names the images whose registry did not list its tags:
    others than those of the table may exist.
    """

    def __init__(
        self,
        table: Table,
        upstream: DigestResolver,
        registry: Optional[RegistryClient],
        arch: str,
        given: Mapping[str, str],
    ) -> None:
        self._table, self._upstream, self._registry, self._arch = table, upstream, registry, arch
        self._given = given
        self._unreachable: set[str] = set()
        self.troubles: list[RegistryError] = []
        self.blind: set[str] = set()

    def tags(self, specs: Sequence[ImageSpec]) -> tuple[TagStatus, ...]:
        """The tags of an image, which `specs` are at each tag of its matrix, and the newer ones; the oldest first."""
        listed = {spec.tag: self._source(spec, spec.tag) for spec in specs}
        first = next(iter(listed.values()))
        listed_tags = self._query(first, lambda registry: registry.tags(first.name))
        statuses = [self._listed(tag, ref, listed_tags) for tag, ref in listed.items()]
        newest = max(map(_version, listed))
        if listed_tags is None:
            self.blind.add(specs[0].name)
            candidates = list(self._table.releases) if _in_table(first) else []
        else:
            candidates = self._versions(specs[0], listed_tags)
        for tag in candidates:
            if _version(tag) > newest:
                ref = self._source(specs[0], tag)
                statuses.append(TagStatus(tag, str(ref), NEW, self._release(tag, ref)))
        return tuple(sorted(statuses, key=lambda tag: _version(tag.tag)))

    def _listed(self, tag: str, ref: Reference, listed_tags: Optional[Iterable[str]]) -> TagStatus:
        if listed_tags is not None and ref.tag not in listed_tags:
            return TagStatus(tag, str(ref), GONE, self._release(tag, ref), before=self._upstream.remembered(str(ref)))
        before = self._upstream.remembered(str(ref))
        digest = self._query(ref, lambda registry: registry.digest(str(ref))) or ""
        state = MOVED if before and digest and before.digest != digest else LISTED
        return TagStatus(tag, str(ref), state, self._release(tag, ref), digest, before)

    def _release(self, tag: str, ref: Reference) -> Release:
        """What is known of a tag: by the table, or else by the image's own variables."""
        known = self._table.releases.get(tag, Release()) if _NVIDIA.fullmatch(ref.name) else Release()
        if _in_table(ref) and tag in self._table.releases:
            return known
        config = self._query(ref, lambda registry: registry.config(str(ref), self._arch))
        variables = (config or {}).get("Env")
        return ngc.of_image(map(str, variables)) if isinstance(variables, list) else known.shared

    def _source(self, spec: ImageSpec, tag: str) -> Reference:
        """What the base at `tag` starts from, by its definition."""
        base, neutral = spec.chain[0], dict.fromkeys(HOST_ARGUMENTS, "")
        values = {**neutral, **spec.arguments, **self._given, spec.tag_argument: tag}
        return parse(definition.render(base, values).header["from"])

    def _versions(self, spec: ImageSpec, tags: Iterable[str]) -> list[str]:
        """Those of a registry's tags that the image could have, as it calls them: 24.12 for 24.12-py3."""
        pattern = re.compile(re.escape(self._source(spec, _ANY).tag).replace(re.escape(_ANY), r"(\d+(?:\.\d+)*)"))
        return [match[1] for tag in tags if pattern.groups and (match := pattern.fullmatch(tag))]

    def _query(self, ref: Reference, question: Callable[[RegistryClient], T]) -> Optional[T]:
        """The answer of a registry, or None; one that can't be reached is asked once."""
        if self._registry is None or ref.host in self._unreachable:
            return None
        try:
            return question(self._registry)
        except RegistryError as error:
            self.troubles.append(error)
            if isinstance(error, Unreachable):
                self._unreachable.add(ref.host)
            return None


def _in_table(ref: Reference) -> bool:
    """Whether the table is about this image, and does not only share some facts with it."""
    return bool(_NVIDIA.fullmatch(ref.name)) and ref.name.endswith("/pytorch")


def _version(tag: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", tag)))
