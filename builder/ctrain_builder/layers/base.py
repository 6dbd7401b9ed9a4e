"""Base layers: the first definition of a chain. Plain `apptainer build` unpacks what its header names; %files and
%post run as those of upper layers do.

The engine would write the metadata of an image from outside, through links that a %post has put in their place.
"""

from __future__ import annotations

import re
from pathlib import Path

from ctrain_builder.definitions import base_source
from ctrain_builder.definitions.definition import Definition, parse
from ctrain_builder.files.tree import Tree, remove
from ctrain_builder.layers import layer, metadata, pack, sif_file
from ctrain_builder.layers.container import CommandFailed, Container
from ctrain_builder.layers.failure import SectionFailed
from ctrain_builder.layers.unpack import unpack
from ctrain_builder.layers.workspace import Workspace
from ctrain_builder.plan.build_plan import PlannedLayer

_FROM = re.compile(r"(?mi)^(\s*from\s*:).*$")
_FIRST_SECTION = re.compile(r"(?m)^[ \t]*%")
# A container made of directories cannot add these.
_MOUNTED = ("mnt", "tmp", "var/tmp", "sys/bus", "sys/class", "sys/devices")


def make(container: Container, planned: PlannedLayer, workspace: Workspace, log: Path) -> Path:
    """Build the base of a chain. Returns the new SIF, in the work directory. Raises SectionFailed, BuildError."""
    definition, root = planned.rendered, container.work / "root"
    workspace.set_time(planned.epoch)
    layer.fill_mnt_dir(definition, planned, workspace.mnt_dir)
    _unpack(container, planned, root, log)
    tree = Tree(root)
    for name in _MOUNTED:
        tree.make_directory(name)
    # With the host's name: else the engine mounts a file at /etc/hostname, which %post could not remove.
    argv = container.argv("exec", root, binds=workspace.binds, as_root=True, writable=True, hostname="")
    try:
        if definition.files or definition.body("post").strip():
            layer.run_post(container, argv, definition, workspace, log)
    finally:
        container.take_ownership(root, [root, workspace.mnt_dir, workspace.scratch], log)
    before = layer.with_labels(layer.read_metadata(tree, metadata.DIRECTORY), Tree(workspace.mnt_dir))
    layer.write_metadata(tree, metadata.for_base(before, shown(planned), planned))
    files = layer.read_metadata(tree, metadata.DIRECTORY)
    packed = pack.pack_base(container, root, log, planned.epoch, planned.compression)
    remove(root)
    return sif_file.new(container, packed, planned.inputs.arch, files, {}, log)


def _unpack(container: Container, planned: PlannedLayer, root: Path, log: Path) -> None:
    """Let the engine make the directory `root` of what the header names. Raises SectionFailed."""
    definition = parse(planned.name, planned.definition.path, header(planned))
    values = definition.header
    try:
        if values["bootstrap"].lower() in base_source.PACKAGES:
            _install(container, planned, root, log)
        else:
            unpack(container, header(planned), values.get("from", ""), root, log, planned.epoch)
    except CommandFailed as error:
        raise SectionFailed("", error) from error
    base_source.require_unchanged(definition, planned.inputs.base, _resolve)
    if container.downloads.exists():
        remove(container.downloads)  # space is freed step by step: an image may take most of the disk


def _resolve(reference: str) -> str:
    from ctrain_runtime.images import remote  # not for each start of ctrain

    return remote.resolve(reference).digest


def _install(container: Container, planned: PlannedLayer, root: Path, log: Path) -> None:
    """Let the engine install packages. Raises CommandFailed."""
    header_file = container.work / f"{planned.name}.def"
    header_file.write_text(header(planned), encoding="utf-8")
    options = ["--fakeroot"] if container.root else []  # root of a restricted machine may lack capabilities
    argv = [container.engine.path, "build", "--sandbox", *options, str(root), str(header_file)]
    container.run(argv, log, variables=pack.epoch_env(planned.epoch))


def header(planned: PlannedLayer) -> str:
    """What the engine gets: where the base comes from, by digest if it is a docker image, by its whole path if it is a
    file: the engine builds in a directory of its own."""
    definition = planned.rendered
    text = _FIRST_SECTION.split(definition.text, maxsplit=1)[0]
    return _from(text, planned.base or base_source.located(definition))


def shown(planned: PlannedLayer) -> Definition:
    """The definition that the image shows."""
    text = _from(planned.public.text, planned.base)
    return parse(planned.name, planned.definition.path, text)


def _from(text: str, source: str) -> str:
    """The text of a definition with another source, if there is one."""
    return _FROM.sub(lambda line: f"{line[1]} {source}", text, count=1) if source else text
