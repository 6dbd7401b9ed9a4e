"""The catalog of images: definitions/images.yaml as frozen data.

A directory of one's own extends the packaged one: its chains may name packaged definitions, and packaged images can be
asked for by name. What both have is taken from the own one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.definitions import definition, lock_file
from ctrain_builder.definitions import parent as parents
from ctrain_builder.definitions.definition import Definition
from ctrain_builder.definitions.lock_file import LockedImage
from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.base.paths import data_dir
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.store.store import NAME_RE, TAG_RE

FILE = "images.yaml"
ARCHITECTURES = tuple(OCI_ARCH.values())
_DEFINITION_RE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # part of file names, never a path


@dataclass(frozen=True)
class ArchitectureSpec:
    """What differs on one architecture of CPUs; None: nothing."""

    arguments: dict[str, str] = field(default_factory=dict)
    python: Optional[str] = None
    mpi: Optional[str] = None
    constraints: Optional[str] = None
    sm: Optional[str] = None


@dataclass(frozen=True)
class TagSpec:
    """One tag of an image. `arguments` go to its definitions; the rest is what its tests expect to find in it.

    `architectures` has what differs on CPUs of other kinds, by their names in registries (arm64).
    """

    arguments: dict[str, str] = field(default_factory=dict)
    python: str = ""  # as in 3.12
    mpi: str = ""  # the directory of its MPI, as in /opt/hpcx/ompi
    constraints: str = ""  # pip's constraint file in the image
    sm: str = ""  # the GPUs that it is compiled for, as in "7.0 8.0"
    architectures: dict[str, ArchitectureSpec] = field(default_factory=dict)

    def on(self, arch: str) -> TagSpec:
        """What holds on the CPUs of `arch`."""
        other = self.architectures.get(arch, ArchitectureSpec())
        declared = {name: getattr(other, name) for name in ("python", "mpi", "constraints", "sm")}
        changed = {name: value for name, value in declared.items() if value is not None}
        return replace(self, arguments={**self.arguments, **other.arguments}, architectures={}, **changed)

    @property
    def declared(self) -> dict[str, str]:
        """What its tests expect to find."""
        return {name: getattr(self, name) for name in ("python", "mpi", "constraints", "sm")}


@dataclass(frozen=True)
class ImageEntry:
    """An image as images.yaml describes it. `tag` is the value of the base's argument `tag_argument`.

    `parent` (`from` in the file) is the image that the chain is built on instead of a base; then `tag_argument` may be
    one of any definition, or missing. `tags` is its matrix. `horovod` lists what its Horovod can do, in the words of
    `horovodrun --check-build`. `architectures` holds at all tags; what a tag says of an architecture comes over it.
    `redistribute` tells whether it may be passed on to others; None leaves that to its licences.
    """

    chain: tuple[str, ...]
    stack: str
    tag: str
    tag_argument: str = ""
    parent: str = ""
    store_name: Optional[str] = None
    horovod: tuple[str, ...] = ()
    redistribute: Optional[bool] = None
    tags: dict[str, TagSpec] = field(default_factory=dict)
    architectures: dict[str, ArchitectureSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class _File:
    images: dict[str, ImageEntry]


@dataclass(frozen=True)
class ImageSpec:
    """An image at one tag: its definitions from the base, or from what lies above `parent`, upwards; and its names.

    `source_root` holds the definitions directory. `is_default`: the tag is the one that the catalog gives the image.
    """

    name: str
    store_name: str
    stack: str
    tag: str
    tag_argument: str
    chain: tuple[Definition, ...]
    source_root: Path
    variant: TagSpec = field(default_factory=TagSpec)
    horovod: tuple[str, ...] = ()
    is_default: bool = True
    parent: str = ""  # as parent.check wants it, a path absolute; "" for a chain with a base
    redistribute: Optional[bool] = None
    locks: Mapping[str, LockedImage] = field(default_factory=dict)  # by architecture

    @property
    def arguments(self) -> Mapping[str, str]:
        return self.variant.arguments

    @property
    def title(self) -> str:
        """As in pytorch-ngc 24.12."""
        return f"{self.name} {self.tag}"

    @property
    def file_stem(self) -> str:
        return f"{self.name}_{self.tag}-{self.stack}"


def packaged() -> Path:
    """The directory of the definitions that come with ctrain."""
    return data_dir("definitions")


def directory(named: Optional[Path]) -> Path:
    """The definitions to use: `named`, else $CTRAIN_DEFINITIONS, else ./definitions, else the packaged ones."""
    own = named or (Path(value) if (value := os.environ.get("CTRAIN_DEFINITIONS")) else None)
    if own is None:
        here = Path("definitions")
        own = here if (here / FILE).is_file() else packaged()
    return own.resolve()


def find_spec(directory: Path, name: str, tag: str = "") -> ImageSpec:
    """The image `name` of the catalog in `directory`, or else of the packaged one, at `tag` or else at its own.

    A tag that is not in the image's matrix is as good as any other; nothing is declared of it.
    Raises ConfigError, UsageError.
    """
    if tag and not TAG_RE.fullmatch(tag):
        raise UsageError(f"{tag!r} is not a tag", "Use letters, digits, '.' and '-'")
    known: dict[str, str] = {}  # the names in stores, by image
    for place in dict.fromkeys((directory, packaged())):
        entries = _entries(place)
        if name in entries:
            return _spec(place, name, entries[name], tag)
        known = {**{image: entry.store_name or image for image, entry in entries.items()}, **known}
    built = [f"{image} is published as {name}." for image, published in known.items() if published == name]
    hint = f"{' '.join(built) or suggest(name, known)} It has: {', '.join(sorted(known))}".strip()
    raise UsageError(f"{directory / FILE} has no image {name!r}", hint)


def all_specs(directory: Path) -> tuple[ImageSpec, ...]:
    """All images of the catalog at all tags of their matrices, in the file's order. Raises ConfigError."""
    return tuple(
        _spec(directory, name, entry, tag)
        for name, entry in _entries(directory).items()
        for tag in entry.tags or (entry.tag,)
    )


def _entries(directory: Path) -> dict[str, ImageEntry]:
    path = directory / FILE
    data = strict_yaml.read(path)
    _check_tags_are_text(data, path)
    _rename_from(data, path)
    return config.load(_File, data, str(path)).images


def _rename_from(data: Mapping[str, Any], path: Path) -> None:
    """Give the key `from`, which can't be the name of a field in Python, that of its field."""
    for name, image in _mappings(data.get("images")):
        if "parent" in image:
            raise ConfigError(f"{path}: images.{name}: unknown key 'parent'", "Did you mean 'from'?")
        if "from" in image:
            image["parent"] = image.pop("from")


def _check_tags_are_text(data: Mapping[str, Any], path: Path) -> None:
    """Refuse `22.10:` as a key, which YAML takes for the number 22.1."""
    for name, image in _mappings(data.get("images")):
        tags = image.get("tags")
        for tag in tags if isinstance(tags, dict) else ():
            if not isinstance(tag, str):
                raise ConfigError(f"{path}: images.{name}: tags: {tag} is a number", f'Write it in quotes: "{tag}"')


def _mappings(images: Any) -> list[tuple[Any, dict[Any, Any]]]:
    """Name and content of what is an image, by its type at least."""
    return [pair for pair in images.items() if isinstance(pair[1], dict)] if isinstance(images, dict) else []


def _spec(directory: Path, name: str, entry: ImageEntry, tag: str) -> ImageSpec:
    where = f"{directory / FILE}: images.{name}"
    stem = entry.store_name or name
    _check_names(where, {"image": name, "store_name": stem}, {"stack": entry.stack})
    for word in (entry.tag, *entry.tags):
        _check_names(where, {}, {"tag": word})
    if entry.tags and entry.tag not in entry.tags:
        raise ConfigError(f"{where}: tag {entry.tag!r} is not one of its tags", f"They are {', '.join(entry.tags)}")
    chain = tuple(_definition(where, directory.resolve(), member) for member in entry.chain)
    _check_chain(where, chain, entry)
    _check_arguments(where, chain, entry)
    tag = tag or entry.tag
    root, variant = directory.resolve().parent, _variant(entry, tag)
    return ImageSpec(
        name=name,
        store_name=stem,
        stack=entry.stack,
        tag=tag,
        tag_argument=entry.tag_argument,
        chain=chain,
        source_root=root,
        variant=variant,
        horovod=entry.horovod,
        is_default=tag == entry.tag,
        parent=_parent(where, entry.parent, root),
        redistribute=entry.redistribute,
        locks=lock_file.read(directory).images.get(f"{name}:{tag}", {}),
    )


def _variant(entry: ImageEntry, tag: str) -> TagSpec:
    """What is declared of a tag; of one that is not in the matrix only what holds on an architecture at all tags."""
    variant = entry.tags.get(tag, TagSpec())
    both = dict(entry.architectures)
    for arch, own in variant.architectures.items():
        general = both.get(arch, ArchitectureSpec())
        known = {name: value for name, value in asdict(own).items() if value is not None}
        both[arch] = replace(general, **{**known, "arguments": {**general.arguments, **own.arguments}})
    return replace(variant, architectures=both)


def _parent(where: str, reference: str, root: Path) -> str:
    """What `from` names; a path is relative to what %files are relative to."""
    if not reference:
        return ""
    try:
        parents.check(reference)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", error.hint) from error
    return reference if reference.startswith(parents.STORE) else str(root / Path(reference).expanduser())


def _definition(where: str, directory: Path, name: str) -> Definition:
    """The definition `name` in `directory`, or else the packaged one. Raises ConfigError."""
    if not _DEFINITION_RE.fullmatch(name):
        raise ConfigError(f"{where}: chain: {name!r} is not the name of a definition", "Name its directory, not a path")
    places = tuple(dict.fromkeys((directory, packaged())))
    for path in (place / name / f"{name}.def" for place in places):
        if path.exists():
            return definition.read(name, path)
    known = sorted({path.stem for place in places for path in place.glob("*/*.def") if path.stem == path.parent.name})
    hint = suggest(name, known) or f"Known: {', '.join(known)}"
    raise ConfigError(f"{where}: chain: definition {name} not found: no file {directory / name / name}.def", hint)


def _check_names(where: str, names: Mapping[str, str], words: Mapping[str, str]) -> None:
    for key, value in names.items():
        if not NAME_RE.fullmatch(value):
            raise ConfigError(f"{where}: {key} {value!r}: image names have lowercase letters, digits and '-'")
    for key, value in words.items():
        if not TAG_RE.fullmatch(value):
            raise ConfigError(f"{where}: {key} {value!r}: tags and stacks have letters, digits, '.' and '-'")


def _check_chain(where: str, chain: tuple[Definition, ...], entry: ImageEntry) -> None:
    if not chain:
        raise ConfigError(f"{where}: chain is empty", "Name the definitions that make the image")
    for position, member in enumerate(chain):
        if entry.parent and member.is_base:
            rule = "the base of an image with `from` is its parent; definitions of its chain say `From: {{ PARENT }}`"
            raise ConfigError(f"{where}: {member.name} is a base, but {rule}")
        if member.is_base != (position == 0) and not entry.parent:
            rule = "only the first definition of a chain is a base; the others say `From: {{ PARENT }}`"
            raise ConfigError(f"{where}: {member.name} is at position {position + 1} of the chain, but {rule}")
        for section in ("pre", "setup"):
            if section in member.sections:
                raise ConfigError(
                    f"{member.path}: %{section} would run on the build host, outside the image", "Use %post"
                )
    used = frozenset().union(*(member.placeholders for member in chain)) if entry.parent else chain[0].placeholders
    if entry.tag_argument not in used and not (entry.parent and not entry.tag_argument):
        users = "any definition of the chain" if entry.parent else str(chain[0].path)
        raise ConfigError(f"{where}: tag_argument {entry.tag_argument!r} is not used by {users}")


def _check_arguments(where: str, chain: tuple[Definition, ...], entry: ImageEntry) -> None:
    known = frozenset().union(*(member.placeholders for member in chain)) - {definition.PARENT, entry.tag_argument}
    given = {f"tags.{tag}": variant.arguments for tag, variant in entry.tags.items()}
    parts = {"": entry.architectures, **{f"tags.{tag}.": variant.architectures for tag, variant in entry.tags.items()}}
    for prefix, architectures in parts.items():
        for arch, other in architectures.items():
            if arch not in ARCHITECTURES:
                hint = f"{suggest(arch, ARCHITECTURES)} Known: {', '.join(ARCHITECTURES)}".strip()
                raise ConfigError(f"{where}: {prefix}architectures: {arch} is not an architecture of images", hint)
            given[f"{prefix}architectures.{arch}"] = other.arguments
    for place, arguments in given.items():
        for name in arguments:
            if name not in known:
                hint = f"{suggest(name, known)} Known: {', '.join(sorted(known))}".strip()
                raise ConfigError(f"{where}: {place}: no definition of the chain uses argument {name}", hint)
