"""Base layers: the first definition of a chain, unpacked by plain `apptainer build` and packed as layers are."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from ctrain_builder import files
from ctrain_builder.make import image, metadata, pack
from ctrain_builder.make.container import Container, Failed, SectionFailed, last_lines
from ctrain_builder.make.layer import read_metadata
from ctrain_builder.make.workspace import Workspace
from ctrain_builder.plan import MIRROR, PlannedLayer
from ctrain_builder.tree import Tree
from ctrain_runtime import command

_FROM = re.compile(r"(?mi)^(\s*from\s*:).*$")


def make(container: Container, layer: PlannedLayer, workspace: Workspace, log: Path) -> Path:
    """Build the base of a chain. Returns the new SIF, in the work folder. Raises SectionFailed, ConfigError."""
    _written(container, layer).write_text(text(layer), encoding="utf-8")
    workspace.set_time(layer.epoch)
    sources = container.work / "sources"  # %files are relative to the folder that the engine runs in
    sources.mkdir()
    files.stage(layer.files, sources)
    variables = {**pack.times(layer.epoch), **mirror_variables(layer.arguments, container.work)}
    root = _root(container)
    try:
        container.run(build_argv(container, layer, workspace), log, sources, variables)
    except Failed as error:
        raise _in_section(error) from error
    container.take_ownership(root, [root, workspace.scratch], log)
    tree, labels = Tree(root), f"{metadata.FOLDER}/labels.json"
    tree.write(labels, metadata.dated(tree.read(labels) or "{}", layer.epoch))
    packed = pack.pack_base(container, root, log, layer.epoch)
    return image.new(container, packed, layer.inputs.arch, read_metadata(tree, metadata.FOLDER), {}, log)


def build_argv(container: Container, layer: PlannedLayer, workspace: Workspace) -> list[str]:
    argv = [container.engine.path, "build", "--sandbox", "--notest"]  # it is tested as it was packed
    if container.root:
        argv.append("--fakeroot")  # root of a restricted machine lacks capabilities that %post would be given
    for bind in workspace.binds:
        argv += ["--bind", bind]
    return [*argv, str(_root(container)), str(_written(container, layer))]


def argvs(container: Container, layer: PlannedLayer, workspace: Workspace) -> list[list[str]]:
    """All commands that make a base."""
    root = _root(container)
    taken = [] if container.root else [container.ownership_argv(root, [root, workspace.scratch])]
    new = image.new_argvs(container, pack.packed(container), layer.inputs.arch)
    return [build_argv(container, layer, workspace), *taken, pack.base_argv(container, root), *new]


def text(layer: PlannedLayer) -> str:
    """The definition as the engine gets it, and writes it into the image. A docker base is named by its digest."""
    rendered = metadata.shown(layer).text
    return _FROM.sub(rf"\1 {layer.base}", rendered, count=1) if layer.base else rendered


def mirror_variables(arguments: Mapping[str, str], work: Path) -> dict[str, str]:
    """A PATH with a debootstrap that puts the mirror's URL in the placeholder's place."""
    mirror, real = arguments.get(MIRROR), command.which("debootstrap")
    if not mirror or not real:
        return {}
    tools = work / "tools"
    tools.mkdir()
    shim = tools / "debootstrap"  # the engine gives the mirror as the last argument
    call = f'exec {shlex.quote(real)} "${{@:1:$#-1}}" {shlex.quote(mirror)}'
    shim.write_text(f"#!/bin/bash\n{call}\n", encoding="utf-8")
    shim.chmod(0o755)
    return {"PATH": f"{tools}:{os.environ.get('PATH', os.defpath)}"}


def _root(container: Container) -> Path:
    return container.work / "root"


def _written(container: Container, layer: PlannedLayer) -> Path:
    return container.work / f"{layer.name}.def"


def _in_section(error: Failed) -> SectionFailed:
    """The failure with the section's name and exit code, which the engine's last lines tell."""
    text = "\n".join(last_lines(error.log, 5))
    section = re.search(r"%(post|setup|pre)\b", text)
    code = re.search(r"exit status (\d+)", text)
    return SectionFailed(section[1] if section else "", int(code[1]) if code else error.code, error.log)
