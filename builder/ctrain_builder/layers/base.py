"""Base layers: the first definition of a chain. Plain `apptainer build` unpacks what its header names; %files and
%post run as those of upper layers do.

The engine would write the metadata of an image from outside, through links that a %post has put in their place.
"""

from __future__ import annotations

import re
from pathlib import Path

from ctrain_builder.build_plan import PlannedLayer
from ctrain_builder.definition import Definition, parse, render
from ctrain_builder.layers import layer, metadata, pack, sif_file
from ctrain_builder.layers.container import CommandFailed, Container, SectionFailed
from ctrain_builder.layers.workspace import Workspace
from ctrain_builder.tree import Tree, remove

_FROM = re.compile(r"(?mi)^(\s*from\s*:).*$")
_FIRST_SECTION = re.compile(r"(?m)^[ \t]*%")
_MOUNTED = ("mnt", "tmp", "var/tmp", "sys/bus", "sys/class", "sys/devices")  # a container of folders can't add these


def make(container: Container, planned: PlannedLayer, workspace: Workspace, log: Path) -> Path:
    """Build the base of a chain. Returns the new SIF, in the work folder. Raises SectionFailed, BuildError."""
    definition, root = render(planned.definition, planned.arguments), _root(container)
    workspace.set_time(planned.epoch)
    layer.fill_mnt_dir(definition, planned, workspace.mnt_dir)
    _header(container, planned).write_text(header(planned), encoding="utf-8")
    try:
        container.run(_unpack_argv(container, planned), log, variables=pack.epoch_env(planned.epoch))
    except CommandFailed as error:
        raise SectionFailed("", error.code, log) from error
    if container.downloads.exists():
        remove(container.downloads)  # space is freed step by step: an image may take most of the disk
    tree = Tree(root)
    for name in _MOUNTED:
        tree.make_directory(name)
    try:
        if _runs(definition):
            layer.run_post(container, _post_argv(container, definition, workspace), workspace, log)
    finally:
        container.take_ownership(root, _made(container, workspace), log)
    texts = metadata.for_base(_metadata(tree, workspace), shown(planned), planned)
    layer.write_metadata(tree, texts)
    files = layer.read_metadata(tree, metadata.FOLDER)
    packed = pack.pack_base(container, root, log, planned.epoch)
    remove(root)
    return sif_file.new(container, packed, planned.inputs.arch, files, {}, log)


def header(planned: PlannedLayer) -> str:
    """What the engine gets: where the base comes from, by digest if it is a docker image."""
    text = _FIRST_SECTION.split(render(planned.definition, planned.arguments).text, maxsplit=1)[0]
    return _by_digest(text, planned)


def shown(planned: PlannedLayer) -> Definition:
    """The definition that the image shows."""
    text = _by_digest(metadata.shown(planned).text, planned)
    return parse(planned.name, planned.definition.path, text)


def _by_digest(text: str, planned: PlannedLayer) -> str:
    return _FROM.sub(rf"\1 {planned.base}", text, count=1) if planned.base else text


def _unpack_argv(container: Container, planned: PlannedLayer) -> list[str]:
    argv = [container.engine.path, "build", "--sandbox"]
    if container.root:
        argv.append("--fakeroot")  # root of a restricted machine lacks capabilities that are needed
    return [*argv, str(_root(container)), str(_header(container, planned))]


def _post_argv(container: Container, definition: Definition, workspace: Workspace) -> list[str]:
    # With the host's name: else the engine mounts a file at /etc/hostname, which %post could not remove.
    root = _root(container)
    argv = container.argv("exec", root, binds=workspace.binds, as_root=True, writable=True, hostname="")
    return [*argv, *layer.post_argv(definition)]


def _runs(definition: Definition) -> bool:
    return bool(definition.files or definition.body("post").strip())


def _made(container: Container, workspace: Workspace) -> list[Path]:
    """The folders that the engine and %post can write to."""
    return [_root(container), workspace.mnt_dir, workspace.scratch]


def _metadata(tree: Tree, workspace: Workspace) -> dict[str, str]:
    return layer.with_labels(layer.read_metadata(tree, metadata.FOLDER), Tree(workspace.mnt_dir))


def _root(container: Container) -> Path:
    return container.work / "root"


def _header(container: Container, planned: PlannedLayer) -> Path:
    return container.work / f"{planned.name}.def"
