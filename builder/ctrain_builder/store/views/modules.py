"""Module files of a store's versions, for environment-modules and for Lmod.

    OUTPUT/ctrain-pytorch/24.12-hd-r3        Tcl: for environment-modules
    OUTPUT/ctrain-pytorch/24.12-hd-r3.lua    Lua: of two files of one name, Lmod takes this one
    OUTPUT/ctrain-pytorch/.modulerc(.lua)    which version is the default, and what the channels mean
    OUTPUT/ctrain-pytorch/prod(.lua)         of a channel that points to no published version: an error with the reason
    OUTPUT/.commands/ctrain-pytorch/24.12-hd-r3/ctrain-pytorch    what its module puts on PATH: it runs a program of the
                                             image, under a name that no program of the host has

Tcl and Lua share a directory: environment-modules sees no file that does not begin with `#%Module`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic
from ctrain_builder.store.writer import Permissions, lock_store
from ctrain_runtime.base.text import format_size, one_line
from ctrain_runtime.errors import StoreError
from ctrain_runtime.images import report
from ctrain_runtime.images.image import Image
from ctrain_runtime.store.outputs import MODULES, read_outputs
from ctrain_runtime.store.references import select
from ctrain_runtime.store.store import (
    DEFAULT_CHANNEL,
    NAME_RE,
    TAG_RE,
    DanglingChannel,
    PublishedImage,
    Store,
    StoreContents,
)

DEFAULT = "default"  # what both tools call the version that a name alone means
_TCL, _LUA, _SHELL = "#%Module1.0 ", "-- ", "#!/bin/sh\n# "  # how the files begin
_COMMANDS = ".commands"  # module tools skip names that begin with a dot
_ENGINE = "engine=$(command -v apptainer || command -v singularity || echo apptainer)\n"  # which this machine has


@dataclass(frozen=True)
class Module:
    """A version as a module. `symbols` are its other names: `default`, and its channels."""

    image: PublishedImage
    symbols: tuple[str, ...]

    @property
    def family(self) -> str:
        return f"ctrain-{self.image.manifest.name}"

    @property
    def name(self) -> str:
        return f"{self.family}/{self.image.manifest.version}"


@dataclass(frozen=True)
class ModulefileChanges:
    """Files that were new or other than before, and those of versions that are no longer offered."""

    written: tuple[Path, ...]
    removed: tuple[Path, ...]


def nameable(image: PublishedImage) -> bool:
    """Whether its name can be a module's. ctrain gives no others, but manifests are only files."""
    return bool(NAME_RE.fullmatch(image.manifest.name) and TAG_RE.fullmatch(image.manifest.version))


def modules(contents: StoreContents) -> list[Module]:
    """A module for each image that is `nameable`. The default is what `ctrain run --image NAME` takes."""
    images = list(filter(nameable, contents.images))
    taken = {(image.manifest.name, name) for image in images for name in (image.manifest.version, DEFAULT)}
    made = []
    for image in images:
        name = image.manifest.name
        default = [DEFAULT] if _default(contents, name) is image else []
        channels = [one for one in image.channels if TAG_RE.fullmatch(one) and (name, one) not in taken]
        made.append(Module(image, (*default, *channels)))
    return made


def _default(contents: StoreContents, name: str) -> Optional[PublishedImage]:
    try:
        return select(contents, name)
    except StoreError:
        return None  # for this channel there is a module that fails


def _broken(contents: StoreContents, offered: Sequence[Module]) -> list[DanglingChannel]:
    """Channels that get a module which fails: without it, the tools would take the last version."""
    taken = {module.name for module in offered}
    named = (one for one in contents.dangling if NAME_RE.fullmatch(one.name) and TAG_RE.fullmatch(one.channel))
    return [one for one in named if one.channel != DEFAULT and f"ctrain-{one.name}/{one.channel}" not in taken]


def update(store: Store, output: Path, say: Callable[[str], None]) -> tuple[list[Module], ModulefileChanges]:
    """Write the module files of a store, and note that they were. Raises StoreError.

    Who may not write to the store gets files of their own, which no change of it brings up to date.
    """
    root = store.root.absolute()
    if not os.access(root, os.W_OK):
        say(f"{root} cannot be written: run this again after each change of the store")
        contents = Store(root).scan()
        offered, done = _write_all(root, output, contents)
    else:
        with lock_store(root, say) as writer:  # what channels mean stays so until it is written
            contents = writer.store.scan()
            offered, done = _write_all(root, output, contents)
            writer.record_output(output, MODULES, contents)
    for problem in (*contents.damaged, *contents.dangling):
        say(str(problem))
    for image in contents.images:
        if not nameable(image):
            say(f"{image.path} gets no module: its name does not have ctrain's form")
    return offered, done


def _write_all(root: Path, output: Path, contents: StoreContents) -> tuple[list[Module], ModulefileChanges]:
    offered = modules(contents)
    made = [one for one in read_outputs(root) if one.path == output.absolute()]
    names = [Path(one.store) for one in made if one.is_moved() or one.names(root)]
    return offered, write(output, root, files(root, output, offered, _broken(contents, offered)), names)


def files(
    root: Path, output: Path, offered: Sequence[Module], broken: Sequence[DanglingChannel] = ()
) -> dict[str, str]:
    """Path below `output` -> text, of all module files for the store at `root`. Raises StoreError."""
    if ":" in str(output):
        raise StoreError(f"{output} has a ':' in its path", "Choose another directory: PATH could not hold this one")
    if not str(root).isprintable():
        raise StoreError(
            f"store {str(root)!r} has control characters in its path", "Shells would not receive it intact"
        )
    families = sorted({*(module.family for module in offered), *(f"ctrain-{one.name}" for one in broken)})
    texts = {}
    for module in offered:
        path = str(output / _COMMANDS / module.name)
        texts[module.name] = _head(_TCL, root) + _in_tcl(module, root, families, path)
        texts[f"{module.name}.lua"] = _head(_LUA, root) + _in_lua(module, root, families, path)
        argv = shlex.join(_image(module, root).plain_argv[1:])
        usage = f'[ $# -gt 0 ] || {{ echo "use: {module.family} PROGRAM [ARGUMENT ...]" >&2; exit 64; }}\n'
        texts[f"{_COMMANDS}/{module.name}/{module.family}"] = (
            f'{_head(_SHELL, root)}{usage}{_ENGINE}exec "$engine" {argv} "$@"\n'
        )
    for one in broken:
        name, reason = f"ctrain-{one.name}/{one.channel}", one_line(str(one))
        texts[name] = _head(_TCL, root) + _failure_in_tcl(reason)
        texts[f"{name}.lua"] = f'{_head(_LUA, root)}if mode() == "load" then\n    LmodError({lua_text(reason)})\nend\n'
    for family in families:
        named = [(module.name, symbol) for module in offered if module.family == family for symbol in module.symbols]
        named += [(f"{family}/{DEFAULT_CHANNEL}", DEFAULT) for one in broken if _is_default(one, family)]
        tcl = [f"module-version {tcl_text(name)} {tcl_text(symbol)}\n" for name, symbol in named]
        lua = [f"module_version({lua_text(name)}, {lua_text(symbol)})\n" for name, symbol in named]
        texts[f"{family}/.modulerc"] = _head(_TCL, root) + "".join(tcl)
        texts[f"{family}/.modulerc.lua"] = _head(_LUA, root) + "".join(lua)
    return texts


def _failure_in_tcl(reason: str) -> str:
    return f"if {{ [module-info mode load] }} {{\n    puts stderr {tcl_text(reason)}\n    break\n}}\n"


def _is_default(one: DanglingChannel, family: str) -> bool:
    return (f"ctrain-{one.name}", one.channel) == (family, DEFAULT_CHANNEL)


def write(output: Path, root: Path, texts: Mapping[str, str], names: Sequence[Path] = ()) -> ModulefileChanges:
    """Make `output` hold these files and no others for the store at `root`, or under its other or earlier `names`. What
    this did not make stays.

    Raises StoreError, before anything is written, when something else is in the place of one of these.
    """
    wanted = {output / name: text for name, text in texts.items()}
    roots = (root, *names)
    try:
        for path in wanted:
            if (path.exists() or path.is_symlink()) and not _is_own(path, roots):
                what = f"{path} was not made by `ctrain store modules` for store {root}"
                raise StoreError(what, "Choose another directory, or remove it")
        written = [path for path, text in wanted.items() if not path.exists() or path.read_bytes() != text.encode()]
        for path in written:
            atomic.write_text(path, wanted[path], *_access(output, path.parent))
        candidates = {*output.glob("ctrain-*/*"), *output.glob(f"{_COMMANDS}/ctrain-*/*/*")}
        removed = [path for path in sorted(candidates - {*wanted}) if _is_own(path, roots)]
        for path in removed:
            path.unlink()
        for directory in {path.parent for path in removed}:
            _remove_empty(directory, output)
    except OSError as error:
        raise StoreError(f"{error.filename or output} can't be read or written: {error.strerror}") from error
    return ModulefileChanges(tuple(written), tuple(removed))


def _access(output: Path, directory: Path) -> tuple[int, int]:
    """Mode and group for files in `directory`, which is made if it isn't there: all follows `output`, as in a store."""
    if not output.exists():
        output.mkdir(parents=True)
        output.chmod(0o755)
    access = Permissions(output.stat())
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        atomic.create_directory(path, access.directory, access.group)
    is_command = _COMMANDS in directory.relative_to(output).parts
    return access.file | (access.file & 0o444) >> 2 if is_command else access.file, access.group


def _remove_empty(directory: Path, output: Path) -> None:
    """Remove a directory and those above it, up to `output`, as far as they are empty."""
    while directory != output and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def _head(kind: str, root: Path) -> str:
    """The first line (of a script the second), by which a file is known again."""
    return f"{kind}made by `ctrain store modules` for store {json.dumps(str(root))}, and replaced by it\n"


def _is_own(path: Path, roots: Sequence[Path]) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    heads = tuple(_head(kind, root).encode() for kind in (_TCL, _LUA, _SHELL) for root in roots)
    with path.open("rb") as file:
        return file.read(max(map(len, heads))).startswith(heads)


def _in_tcl(module: Module, root: Path, families: Sequence[str], path: str) -> str:
    settings = [f"setenv {name} {tcl_text(value)}" for name, value in _settings(module, root).items()]
    lines = [
        f"proc ModulesHelp {{ }} {{\n    puts stderr {tcl_text(_help(module))}\n}}",
        f"module-whatis {tcl_text(_whatis(module))}",
        f"conflict {' '.join(map(tcl_text, families))}",
        *settings,
        f"prepend-path PATH {tcl_text(path)}",
    ]
    if note := _note(module):
        lines.append(f"if {{ [module-info mode load] }} {{\n    puts stderr {tcl_text(note)}\n}}")
    return "\n".join(lines) + "\n"


def _in_lua(module: Module, root: Path, families: Sequence[str], path: str) -> str:
    settings = [f"setenv({lua_text(name)}, {lua_text(value)})" for name, value in _settings(module, root).items()]
    lines = [
        f"help({lua_text(_help(module))})",
        f"whatis({lua_text(_whatis(module))})",
        f"conflict({', '.join(map(lua_text, families))})",
        *settings,
        f'prepend_path("PATH", {lua_text(path)})',
    ]
    if note := _note(module):
        lines.append(f'if mode() == "load" then\n    LmodMessage({lua_text(note)})\nend')
    return "\n".join(lines) + "\n"


def _note(module: Module) -> str:
    """What users are shown when they load it; "" for nothing."""
    deprecation = module.image.deprecation
    return f"{module.image.manifest.reference} {deprecation}" if deprecation else ""


def _settings(module: Module, root: Path) -> dict[str, str]:
    manifest = module.image.manifest
    image = manifest.reference
    return {"SIF": str(_image(module, root).path), "CTRAIN_IMAGE": image, "CTRAIN_STORE": str(root)}


def _image(module: Module, root: Path) -> Image:
    return Image(root / module.image.manifest.file_name, module.image.manifest)


def _whatis(module: Module) -> str:
    manifest = module.image.manifest
    facts = dict(report.facts(manifest))
    return one_line(
        f"Description: {manifest.name} {manifest.version} for ctrain: {facts.get('software', facts['fits'])}"
    )


def _help(module: Module) -> str:
    manifest = module.image.manifest
    rows = [*report.facts(manifest), ("size", format_size(manifest.size))]
    return "\n".join(
        (
            f"{manifest.name} {manifest.version}, a container image for distributed deep learning\n",
            *(one_line(f"  {key:<11}{value}") for key, value in rows),
            "\nSIF is its path. `ctrain run` takes it by CTRAIN_IMAGE and CTRAIN_STORE:",
            "  ctrain run resnet50 --nodes 2",
            f"{module.family} runs any program of it:",
            f"  srun {module.family} python train.py",
        )
    )


def tcl_text(text: str) -> str:
    """`text` as a word of Tcl, in which nothing is replaced; braces are escaped for the procedures around it."""
    return '"' + re.sub(r'[\\"$\[\]{}]', r"\\\g<0>", text).replace("\n", "\\n") + '"'


def lua_text(text: str) -> str:
    """`text` as a string of Lua."""
    return '"' + re.sub(r'[\\"]', r"\\\g<0>", text).replace("\n", "\\n") + '"'
