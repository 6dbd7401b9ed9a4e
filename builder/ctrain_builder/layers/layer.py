"""Upper layers: a definition run in an overlay on the layers below it, and packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ctrain_builder.definitions import files
from ctrain_builder.definitions.definition import Definition, Section
from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import hardlinks, metadata, pack
from ctrain_builder.layers.container import CommandFailed, Container, LowerLayers
from ctrain_builder.layers.failure import SectionFailed
from ctrain_builder.layers.workspace import Workspace
from ctrain_builder.plan.build_plan import PlannedLayer

# Runs in the container, as root; its arguments are the command of %post. %files are copied here and not from outside,
# so that links and directories of the layers below mean what they mean in the image.
_INSIDE = """\
set -eu
umask 002 # as in `apptainer build`
echo files > /mnt/section
export APPTAINER_LABELS=/mnt/build-labels SINGULARITY_LABELS=/mnt/build-labels
while IFS= read -r source && IFS= read -r target; do
    case $target in
        */) mkdir -p "$target" ;;
        *) mkdir -p "$(dirname "$target")" ;;
    esac
    cp -fLr "/mnt/files/$source" "$target"
done < /mnt/files.list
echo post > /mnt/section
"$@"
: > /mnt/section
cp -r /.singularity.d/. /mnt/metadata/
"""
_SECTIONS = ("files", "post")


def make(container: Container, layer: PlannedLayer, below: LowerLayers, workspace: Workspace, log: Path) -> Path:
    """Make one layer. Returns the squashfs file, in the work directory. Raises SectionFailed, BuildError."""
    definition = layer.rendered
    workspace.set_time(layer.epoch)
    upper = container.new_overlay()
    fill_mnt_dir(definition, layer, workspace.mnt_dir)
    overlays = [*below.overlays, str(container.overlay)]
    argv = container.argv("exec", below.base, overlays=overlays, binds=workspace.binds, as_root=True)
    try:
        run_post(container, argv, definition, workspace, log)
    finally:
        written = [*container.overlay_directories, workspace.mnt_dir, workspace.scratch]
        container.take_ownership(below.base, written, log)
    hardlinks.relink(container, upper, below, log)
    mnt = Tree(workspace.mnt_dir)
    before = with_labels(read_metadata(mnt, "metadata"), mnt)
    write_metadata(Tree(upper), metadata.for_layer(before, layer.public, layer.key, layer.epoch))
    return pack.pack(container, upper, below, log, layer.epoch, layer.compression)


def fill_mnt_dir(definition: Definition, layer: PlannedLayer, mnt_dir: Path) -> None:
    """Put what the script above reads where it will be /mnt."""
    files.stage(layer.files, mnt_dir / "files")
    (mnt_dir / "files.list").write_text("".join(f"{copy.source}\n{copy.target}\n" for copy in definition.files))
    (mnt_dir / "post").write_text(definition.body("post"), encoding="utf-8")
    (mnt_dir / "inside.sh").write_text(_INSIDE)
    (mnt_dir / "section").touch()
    (mnt_dir / "metadata").mkdir()


def run_post(
    container: Container, argv: Sequence[str], definition: Definition, workspace: Workspace, log: Path
) -> None:
    """Copy %files and run %post in the container that `argv` starts. Raises SectionFailed."""
    post = script_argv(definition.sections.get("post", Section("", "")), "/mnt/post")
    try:
        container.run([*argv, "/bin/sh", "/mnt/inside.sh", *post], log)
    except CommandFailed as error:
        section = (Tree(workspace.mnt_dir).read("section") or "").strip()
        raise SectionFailed(section if section in _SECTIONS else "", error) from error


def script_argv(section: Section, script: str) -> list[str]:
    """The command for a section's script, as the engine makes it: `%post ARGS` gives ARGS to the shell, and after
    -c they are the interpreter."""
    words = section.args.split()
    if "-c" in words:
        place = words.index("-c") + 1
        return ["/bin/sh", "-ex", *words[:place], " ".join([*words[place:], script])]
    return ["/bin/sh", "-ex", *words, script]


def with_labels(texts: Mapping[str, str], mnt: Tree) -> dict[str, str]:
    """The texts of /.singularity.d, with what %post has written as labels."""
    return {**texts, metadata.BUILD_LABELS: mnt.read(metadata.BUILD_LABELS) or ""}


def write_metadata(tree: Tree, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        tree.write(f"{metadata.DIRECTORY}/{name}", text, metadata.mode(name))


def copy_metadata(container: Container, layers: LowerLayers, log: Path) -> dict[str, str]:
    """The text files of /.singularity.d in an image of these layers. Raises BuildError."""
    directory = container.work / "metadata"
    directory.mkdir()
    argv = container.argv("exec", layers.base, overlays=layers.overlays, binds=[f"{directory}:/mnt"])
    copy = [*argv, "cp", "-r", f"/{metadata.DIRECTORY}/.", "/mnt/"]
    container.require(copy, log, f"cannot read {layers.base} as an image")
    return read_metadata(Tree(container.work), directory.name)


def read_metadata(tree: Tree, directory: str) -> dict[str, str]:
    """The text files of /.singularity.d, or of a copy of it: name, relative to `directory` -> content."""
    names = (entry.name for entry in tree.walk(directory))
    texts = {str(name.relative_to(directory)): tree.read(name) for name in sorted(names)}
    return {name: text for name, text in texts.items() if text is not None}
