"""Whatever %post, a user layer or a checkout leaves behind: nothing outside is read, written or changed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrain_builder.cache import work_directories
from ctrain_builder.definitions import definition, files
from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import base, bytecode, layer, lowerdir, metadata, overlay, pack, user_layer, workspace
from ctrain_builder.layers.container import CommandFailed, Container, LowerLayers
from ctrain_builder.layers.failure import SectionFailed
from ctrain_builder.plan.build_plan import PlannedLayer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError, ConfigError
from ctrain_runtime.images.user_layer import USER_LAYERS
from samples import hostile
from samples.chains import NOTHING, Chain
from samples.long_mode import often

EPOCH = 1_600_000_000
TEXT = """\
Bootstrap: localimage
From: {{ PARENT }}

%files
    sources /opt/sources

%post
    true

%environment
    export X=1

%help
    Help.

%runscript
    true

%startscript
    true

%test
    true
"""
# Names that the builder itself reads or writes, and some around them
IN_IMAGE = (
    *(f".singularity.d{name}" for name in ("", "/labels.json", "/runscript", "/startscript", "/runscript.help")),
    *(f".singularity.d/{name}" for name in ("env", "env/90-environment.sh", "test", "ctrain-layer", "Singularity")),
    *(f".singularity.d/{name}" for name in ("bootstrap_history", "ctrain-user-layers", "bootstrap_history/Apptainer0")),
    *(
        "usr",
        "usr/m.py",
        "usr/__pycache__",
        "usr/__pycache__/m.cpython-311.pyc",
        "usr/x",
        "usr/.wh.y",
        "usr/.wh..wh..opq",
    ),
)
LENT = ("metadata", *(f"metadata/{name}" for name in ("labels.json", "Singularity", "runscript.help", "env")))
LENT = (*LENT, "build-labels", "section", "before", "after", "build-env.sh", "source")
ASKED = ("paths", "answer", "links")
kinds = st.sampled_from(hostile.KINDS)
some = settings(max_examples=often(100, 10))  # each makes dozens of files, and looks at them twice


def trees(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(names), kinds, max_size=len(names))


@contextlib.contextmanager
def untouched() -> Iterator[Path]:
    """A folder for a build beside a host that must be the same afterwards, and not be read."""
    with tempfile.TemporaryDirectory() as folder:
        host, work = hostile.make_host(Path(folder, "host")), Path(folder, "work")
        work.mkdir()
        before = hostile.digest(host)
        yield work
        assert hostile.digest(host) == before
        for path in work.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert hostile.SECRET.encode() not in path.read_bytes()


@dataclass(frozen=True)
class Stub(Container):
    """Containers in which hostile programs run: `acts` is what those of one after the other do."""

    acts: list[Callable[[], None]] = field(default_factory=list)

    def run(self, *_: object, **__: object) -> None:
        if self.acts:
            self.acts.pop(0)()

    def output(self, *_: object, **__: object) -> str:
        return ""


def stub(work: Path, *acts: Callable[[], None], root: bool = True) -> Stub:
    return Stub(Engine("apptainer", "/nowhere", "1.4.5"), work, lambda: None, root, acts=list(acts))


def planned(work: Path) -> PlannedLayer:
    """The plan of a layer of TEXT."""
    root = work.with_name("project")
    (root / "sources").mkdir(parents=True)
    (root / "upper.def").write_text(TEXT)
    return Chain(root, root / "base.sif").planned(root / "upper.def")


def refused_or(make: Callable[[], object]) -> object:
    """What `make` gives; None where it refuses, in a line."""
    try:
        return make()
    except (BuildError, ConfigError) as error:
        assert "\n" not in str(error)
        assert hostile.SECRET not in str(error)
        return None


@some
@given(trees(IN_IMAGE), trees(LENT), st.booleans())
def test_a_layer_whose_post_is_hostile(in_image: dict[str, str], lent: dict[str, str], root: bool) -> None:
    with untouched() as work:
        host, part = work.with_name("host"), planned(work)
        room = workspace.prepare(work, NOTHING)

        def post() -> None:
            hostile.fill(work / "overlay/upper", in_image, host)
            for name in sorted(lent, reverse=True):  # it can remove what was lent
                path = room.mnt_dir / name
                if not path.is_dir():
                    path.unlink(missing_ok=True)
                elif not any(path.iterdir()):
                    path.rmdir()
            hostile.fill(room.mnt_dir, lent, host)

        container = stub(work, post, root=root)
        with contextlib.suppress(FileNotFoundError):  # the stub packs nothing
            refused_or(lambda: layer.make(container, part, LowerLayers(work / "base.sif"), room, work / "log"))


@some
@given(trees(LENT))
def test_a_post_that_fails_with_hostile_answers(lent: dict[str, str]) -> None:
    with untouched() as work:
        part = planned(work)
        room = workspace.prepare(work, NOTHING)

        def post() -> None:
            (room.mnt_dir / "section").unlink()
            (room.mnt_dir / "metadata").rmdir()
            hostile.fill(room.mnt_dir, lent, work.with_name("host"))
            (work / "log").touch()
            raise CommandFailed(1, work / "log")

        try:
            refused_or(lambda: layer.make(stub(work, post), part, LowerLayers(work / "base.sif"), room, work / "log"))
        except SectionFailed as error:
            assert error.section in ("", "files", "post")


@some
@given(trees(IN_IMAGE))
def test_a_base_whose_post_is_hostile(in_image: dict[str, str]) -> None:
    with untouched() as work:
        part = planned(work)
        parent = part.definition.path.with_name("the-parent")
        parent.touch()
        part = replace(part, inputs=replace(part.inputs, base=f"sha256:{files.digest(parent)}"))
        room = workspace.prepare(work, NOTHING)

        def build() -> None:
            (work / "unpack/root").mkdir()
            hostile.fill(work / "unpack/root", in_image, work.with_name("host"))

        with contextlib.suppress(FileNotFoundError):  # the stub packs nothing
            refused_or(lambda: base.make(stub(work, build), part, room, work / "log"))


@some
@given(trees(IN_IMAGE))
def test_a_tree_that_is_packed(in_image: dict[str, str]) -> None:
    with untouched() as work:
        (work / "root").mkdir()
        hostile.fill(work / "root", in_image, work.with_name("host"))
        tree = Tree(work / "root")
        found = overlay.scan(tree)
        overlay.remove_marks(tree, found)
        bytecode.set_source_times(tree, found.others, EPOCH)
        pack._clamp_mtimes(tree, found, EPOCH, 0.0)
        assert {entry.name for entry in tree.walk() if not entry.name.name.startswith(".wh.")} == found.names
        for entry in tree.walk():
            if entry.is_directory:
                assert entry.status.st_mtime == EPOCH


@some
@given(trees(IN_IMAGE), trees(("before", "after", "constraints.txt")))
def test_a_user_layer_whose_script_is_hostile(in_image: dict[str, str], lent: dict[str, str]) -> None:
    with untouched() as work:
        (work / "upper").mkdir()
        (work / "mnt").mkdir()
        hostile.fill(work / "upper", in_image, work.with_name("host"))
        hostile.fill(work / "mnt", lent, work.with_name("host"))
        packages = refused_or(lambda: user_layer._packages(Tree(work / "mnt").read("before") or ""))
        assert packages in ({}, None)
        refused_or(lambda: Tree(work / "upper").write(f"{USER_LAYERS}/{'a' * 64}.json", "{}"))


@some
@given(trees(ASKED))
def test_answers_of_hostile_programs(asked: dict[str, str]) -> None:
    with untouched() as work:
        container, below = stub(work), LowerLayers(work / "base.sif")
        hostile.fill(lowerdir.answers(container).root, asked, work.with_name("host"))
        with contextlib.suppress(FileNotFoundError):  # the stub answers nothing
            refused_or(lambda: lowerdir.hard_link_groups(container, below, [PurePosixPath("a")], work / "log"))


@some
@given(trees(("metadata", "metadata/labels.json", "metadata/Singularity", "metadata/env")))
def test_metadata_of_a_hostile_image(told: dict[str, str]) -> None:
    with untouched() as work:
        hostile.fill(work, told, work.with_name("host"))
        texts = refused_or(lambda: layer.read_metadata(Tree(work), "metadata"))
        assert hostile.SECRET not in str(texts)
        if isinstance(texts, dict):
            refused_or(lambda: metadata.inspection(texts, {}))


@some
@given(kinds)
def test_a_hostile_program_in_the_place_of_mksquashfs(kind: str) -> None:
    with untouched() as work:
        container = stub(work)
        (work / "lend").mkdir()
        hostile.fill(work / "lend", {pack.PACKED: kind}, work.with_name("host"))
        with contextlib.suppress(FileNotFoundError):  # no device could be made
            if refused_or(lambda: pack.move_out(container)):
                assert not pack.packed(container).is_symlink()
                assert pack.packed(container).is_file()


@some
@given(trees(IN_IMAGE))
def test_the_work_directory_of_a_hostile_build_is_removed(in_image: dict[str, str]) -> None:
    with untouched() as work:
        (work / "left").mkdir()
        hostile.fill(work / "left", in_image, work.with_name("host"))
        for path, folders, _ in os.walk(work / "left", topdown=False):
            for name in folders:
                if not Path(path, name).is_symlink():
                    Path(path, name).chmod(0)
        work_directories._remove(work / "left")
        assert not list(work.iterdir())


SOURCES = ("sources", *(f"sources/{name}" for name in ("a", "b", "b/c", "b/d", "b/d/e", "f")))


@some
@given(trees(SOURCES))
def test_sources_never_leave_the_project(sources: dict[str, str]) -> None:
    with untouched() as work:
        hostile.fill(work, sources, work.with_name("host"))
        part = definition.render(definition.parse("upper", work / "upper.def", TEXT), {"PARENT": "x"})
        listing = refused_or(lambda: files.listing(part, work))
        if listing:
            assert isinstance(listing, tuple)
            staged = work / "staged"
            files.stage(listing, staged)
            assert {path for path in staged.rglob("*") if not path.is_dir()} == {
                staged / file.relative for file in listing
            }
        outside = {"link", "link to directory", "link up"} & set(sources.values())
        made = [work / name for name in sources if (work / name).is_symlink()]
        if outside and any(path.exists() for path in made):
            assert listing is None


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    host = hostile.make_host(tmp_path / "host")
    (tmp_path / "tree").mkdir()
    hostile.fill(tmp_path / "tree", {"name": kind}, host)
    tree = Tree(tmp_path / "tree")
    if tree.status("name"):  # no device could be made by an ordinary user
        assert tree.read("name") is None
        with pytest.raises(BuildError, match="name must be a regular file"):
            tree.open("name")
