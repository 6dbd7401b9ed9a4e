"""Real layers: the same bytes whoever makes them, and the files of plain builds."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.image import flatten, sbom
from ctrain_builder.image.assemble import assemble
from ctrain_builder.layers import base, layer, lowerdir, workspace
from ctrain_builder.layers.container import LowerLayers
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.store import sif
from samples import fuse, tiny
from samples.chains import NOTHING, Chain, container
from samples.cluster import Cluster
from samples.trees import differences, seen

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")
LABELS = {"org.example.image": "small"}

IMAGES = """\
images:
  small:
    chain: [base, first, second]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = """\
Bootstrap: localimage
From: {tiny}

%arguments
    VERSION=1.0

%post
    . /mnt/build-env.sh
    mkdir /opt/folder
    echo {{{{ VERSION }}}} $SOURCE_DATE_EPOCH > /opt/folder/version
    ln /opt/folder/version /opt/folder/link

%environment
    export VERSION={{{{ VERSION }}}}

%labels
    org.example.version {{{{ VERSION }}}}

%help
    Help.

%runscript
    echo ran "$@"

%test
    test -e /opt/folder/version
"""
FIRST = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    . /mnt/build-env.sh
    echo 'x = 1' > /opt/module.py
    python3 -m compileall -q /opt
    # What only root of the build can read, and what is somebody else's
    echo secret > /opt/secret
    chmod 0 /opt/secret
    mkdir /opt/theirs
    cp /bin/true /opt/theirs/program
    chown 5:6 /opt/theirs/program
    chmod 6755 /opt/theirs/program
    chown 7:8 /opt/theirs
    chmod 700 /opt/theirs
    python3 -c 'import os; os.setxattr("/opt/module.py", "user.colour", b"red")'
"""
SECOND = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    echo more >> /opt/folder/version
    rm -r /opt/theirs /opt/secret
    mkdir /opt/theirs
    echo new > /opt/theirs/new

%test
    test "$(cat /opt/theirs/new)" = new
"""


class Built:
    """The image of a plan, made step by step, and what each step wrote to its log."""

    def __init__(self, work: Path, plan: BuildPlan) -> None:
        self.work, self.plan = work, plan
        self.files: list[Path] = []
        for part in plan.layers:
            step = self.room(part.name)
            room = workspace.prepare(step, NOTHING)
            if part.definition.is_base:
                self.files.append(base.make(container(step), part, room, self.log(part.name)))
            else:
                below = LowerLayers(self.files[0], tuple(self.files[1:]))
                self.files.append(layer.make(container(step), part, below, room, self.log(part.name)))
        self.image = self.put_together("image", assemble)
        self.flat = self.put_together("flat", functools.partial(flatten.flatten, compression="zstd"))

    def put_together(self, name: str, make: Callable[..., Path]) -> Path:
        step, (first, *rest) = self.room(name), self.files
        made = make(container(step), first, rest, self.plan.arch, LABELS, self.log(name))
        sbom.attach(container(step), self.plan, made, {}, {}, self.log(name))
        return made

    def room(self, name: str) -> Path:
        (self.work / name).mkdir()
        return self.work / name

    def log(self, name: str) -> Path:
        return self.work / f"{name}.log"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("project"))


def write_project(root: Path) -> Path:
    texts = {"base": BASE.format(tiny=tiny.sif(root / "tiny.sif")), "first": FIRST, "second": SECOND}
    for name, text in texts.items():
        (root / "definitions" / name).mkdir(parents=True)
        (root / "definitions" / name / f"{name}.def").write_text(text)
    (root / "definitions" / "images.yaml").write_text(IMAGES)
    return root


@pytest.fixture(scope="module")
def plan(project: Path) -> BuildPlan:
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, lambda _reference: "")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, plan: BuildPlan) -> Built:
    return Built(tmp_path_factory.mktemp("built"), plan)


def test_a_flat_image_has_the_same_files_in_one_partition(built: Built) -> None:
    assert differences(seen(built.flat), seen(built.image)) == []
    assert len(sif.partitions(built.flat)) == 1
    assert len(sif.partitions(built.image)) == 3
    heads = [sif.entry_bytes(image, sif.partitions(image)[0])[:22] for image in (built.image, built.flat)]
    assert [int.from_bytes(head[20:], "little") for head in heads] == [1, 6]  # of squashfs: gzip and zstd
    assert inspect(built.flat) == inspect(built.image)
    assert inspect(built.flat)["labels"]["org.example.image"] == "small"


def test_layers_show_what_plain_builds_of_the_definitions_show(built: Built, project: Path, tmp_path: Path) -> None:
    paths = [part.definition.path for part in built.plan.layers]
    plain = Chain(project, project / "tiny.sif").plain(tmp_path / "plain", paths)
    assert differences(seen(built.image), seen(plain)) == []


def test_a_base_is_described_as_a_plainly_built_image_is(built: Built, project: Path, tmp_path: Path) -> None:
    ours = built.files[0]
    plain = Chain(project, project / "tiny.sif").plain(tmp_path / "plain", [built.plan.layers[0].definition.path])
    told = [inspect(path) for path in (ours, plain)]
    dates = [entry["labels"].pop("org.label-schema.build-date") for entry in told]
    assert "1980" in dates[0]
    assert told[0] == told[1]
    assert [(entry.kind, entry.number) for entry in sif.read(ours).entries] == [
        (entry.kind, entry.number) for entry in sif.read(plain).entries
    ]
    assert run("apptainer", "run", "--userns", str(ours), "well") == "ran well\n"
    assert ours.stat().st_mode & 0o777 == plain.stat().st_mode & 0o777
    assert ours.read_bytes()[:32] == plain.read_bytes()[:32]


def test_compiled_python_files_are_used_as_they_are(built: Built) -> None:
    code = "import sys; sys.path.insert(0, '/opt'); import module"
    argv = ["apptainer", "--quiet", "exec", "--userns", "--no-mount", "home,cwd", str(built.image)]
    said = subprocess.run([*argv, "python3", "-v", "-c", code], capture_output=True, text=True, check=True)
    assert re.search(r"__pycache__/module\S+\.pyc matches /opt/module\.py", said.stderr), said.stderr


def inspect(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("apptainer", "inspect", "--all", str(path)))["data"]["attributes"]
    return found


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def digests(cache: Path) -> dict[str, str]:
    """File and number of each squashfs file and partition in a cache -> digest."""

    def found() -> Iterator[tuple[str, bytes]]:
        for path in sorted(cache.glob("layers/*.sqsh")):
            yield path.name, path.read_bytes()
        for path in sorted(cache.glob("*/*.sif")):
            for part in sif.partitions(path):
                yield f"{path.name} {part.number}", path.read_bytes()[part.offset : part.offset + part.size]

    return {name: hashlib.sha256(content).hexdigest() for name, content in found()}


def test_files_that_only_share_an_inode_number_are_no_hard_links(tmp_path: Path) -> None:
    """As fuse-overlayfs shows the first files of two squashfs layers. The third lower directory has the programs."""
    files = {"below": ("one",), "above": ("other",)}
    seen_at, mounts = tmp_path / "seen", [tmp_path / "mounted-above", tmp_path / "mounted-below"]
    for path in (seen_at, *mounts):
        path.mkdir()
    for layer_name, names in files.items():
        (tmp_path / layer_name).mkdir()
        for name in names:
            (tmp_path / layer_name / name).write_text(name)
    os.link(tmp_path / "below/one", tmp_path / "below/two")
    tools = tiny.rootfs(tmp_path / "tools")
    with contextlib.ExitStack() as stack:
        for path in mounts:
            name = path.name.partition("-")[2]
            packed = tmp_path / f"{name}.sqsh"
            subprocess.run(["mksquashfs", str(tmp_path / name), str(packed), "-quiet", "-no-progress"], check=True)
            stack.enter_context(fuse.mounted(["squashfuse_ll", "-f", str(packed)], path))
        lower = ":".join(map(str, (*mounts, tools)))
        stack.enter_context(fuse.mounted(["fuse-overlayfs", "-f", "-o", f"lowerdir={lower}"], seen_at))
        assert (seen_at / "one").stat().st_ino == (seen_at / "other").stat().st_ino
        loop = f"for name; do {lowerdir._NAMES}\ndone".replace("2>/dev/null", "")  # which this root does not have
        argv = ["chroot", str(seen_at), "/bin/sh", "-ec", loop, "sh", "/one", "/other"]
        found = subprocess.run(argv, check=True, capture_output=True).stdout
    assert sorted(found.split(b"\0")) == [b"", b"", b"/one", b"/two"]


def test_two_builds_in_other_places_at_other_times_by_other_users_are_the_same_bytes(
    cluster: Cluster, tmp_path: Path
) -> None:
    home = cluster.home / "layers"
    subprocess.run(["rm", "-rf", str(home)], check=True)
    home.mkdir()
    root = write_project(home / "project")
    subprocess.run(["chown", "-R", "researcher:", str(home)], check=True)
    build = ["build", "small", "--definitions", str(root / "definitions"), "--cache"]
    subprocess.run([CTRAIN, *build, str(tmp_path / "cache")], check=True)
    theirs = cluster.run("ctrain", *build, str(home / "cache"))
    assert theirs.returncode == 0, theirs.stderr
    ours = digests(tmp_path / "cache")
    assert len(ours) == 2 + 1 + 3  # layers, the base, the image
    assert digests(home / "cache") == ours
    assert list((home / "cache" / "tmp").iterdir()) == []
