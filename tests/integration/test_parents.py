"""Images on parent images: published versions (layered, flat, signed) and other SIF files, built for real."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import main
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import PARENT_LABEL, Manifest, read_manifest
from samples import tiny

SITE_IMAGES = """\
images:
  small:
    chain: [base, tools]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = """\
Bootstrap: localimage
From: {tiny}

%arguments
    VERSION=1.0

%labels
    org.opencontainers.image.description the site's base
    org.opencontainers.image.licenses MIT
    version {{{{ VERSION }}}}
"""
TOOLS = """\
Bootstrap: localimage
From: {{ PARENT }}

%arguments
    ROUND=1

%post
    mkdir -p /opt/tools
    echo {{ ROUND }} > /opt/tools/round

%test
    test -s /opt/tools/round

%environment
    export TOOLS=/opt/tools
"""
LAB_IMAGES = """\
images:
  lab:
    from: {parent}
    chain: [mine]
    stack: lab
    tag: "7"
"""
MINE = """\
Bootstrap: localimage
From: {{ PARENT }}

%files
    program.sh /opt/mine/program.sh

%post
    cp /opt/tools/round /opt/mine/round

%test
    sh /opt/mine/program.sh

%labels
    org.opencontainers.image.description the lab's layer
    org.opencontainers.image.licenses Apache-2.0
"""


@dataclass(frozen=True)
class Lab:
    """Builds the image of a group on what the site has; `said` is what ctrain has printed."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    def ctrain(self, *argv: str) -> tuple[int, str, str]:
        code = main(BUILD_VERBS, argv)
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def site(self, *argv: str) -> None:
        """Run a verb on the site's definitions, with the cache of its administrators. It must succeed."""
        verb, *rest = argv
        places = ["--definitions", str(self.root / "site/definitions"), "--cache", str(self.root / "site-cache")]
        code, _, err = self.ctrain(verb, *rest, *places)
        assert code == 0, err

    def release(self, number: int, *publish: str, build: tuple[str, ...] = ()) -> Path:
        """Build the site's image anew, and publish it as prod. Returns the new file in the store."""
        init_store(self.root / "store")
        before = set((self.root / "store").glob("*.sif"))
        argument = ("--build-arg", f"ROUND={number}")
        self.site("build", "small", *argument, *build)
        self.site("publish", "small", "--store", str(self.root / "store"), "--channel", "prod", *argument, *publish)
        [new] = set((self.root / "store").glob("*.sif")) - before
        return new

    def build(self, parent: str = "store:small:prod", *argv: str) -> tuple[int, str, str]:
        """Build the lab's image in its own cache."""
        self.write(parent)
        places = ["--definitions", str(self.root / "lab/definitions"), "--cache", str(self.root / "lab-cache")]
        return self.ctrain("build", *argv, *places, "lab")

    def write(self, parent: str) -> None:
        (self.root / "lab/definitions/images.yaml").write_text(LAB_IMAGES.format(parent=parent))

    @property
    def image(self) -> Path:
        return self.root / "lab-cache/images/lab_7-lab.sif"

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.image.with_suffix(".json"))

    def run(self, *argv: str) -> str:
        command = ["apptainer", "--quiet", "exec", *(["--userns"] if os.geteuid() == 0 else []), str(self.image), *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def plan(self) -> dict[str, str]:
        """Layer -> state."""
        code, out, err = self.build("store:small:prod", "--plan", "--json")
        assert code == 0, err
        [image] = json.loads(out)["images"]
        return {layer["definition"]: layer["state"] for layer in image["layers"]}


@pytest.fixture(scope="module")
def tiny_sif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.sif(tmp_path_factory.mktemp("tiny") / "tiny.sif", tiny.SHELL)


@pytest.fixture
def lab(tmp_path: Path, tiny_sif: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name in ("CTRAIN_CACHE", "CTRAIN_CACHE_SIZE", "CTRAIN_DEFINITIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CTRAIN_SITE", "local")
    monkeypatch.setenv("CTRAIN_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    files = {
        "site/definitions/images.yaml": SITE_IMAGES,
        "site/definitions/base/base.def": BASE.format(tiny=tiny_sif),
        "site/definitions/tools/tools.def": TOOLS,
        "lab/definitions/mine/mine.def": MINE,
        "lab/program.sh": "echo hello\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    init_store(tmp_path / "store")
    return Lab(tmp_path, capsys)


def test_a_group_stacks_on_what_the_site_published(lab: Lab) -> None:
    published = lab.release(1)
    code, out, err = lab.build()
    assert code == 0, err
    done = [line.split()[1:3] for line in out.splitlines() if line.startswith("layer") and "started" not in line]
    assert done == [
        ["base", "copied"],
        ["tools", "copied"],
        ["mine", "built"],
    ]
    assert lab.run("cat", "/opt/mine/round") == "1\n"
    assert lab.run("sh", "-c", "echo $TOOLS") == "/opt/tools\n", "the parent's environment is the image's"
    assert lab.run("sh", "/opt/mine/program.sh") == "hello\n"
    parent, child = read_manifest(published.with_suffix(".json")), lab.manifest
    assert [layer.definition for layer in child.layers] == ["base", "tools", "mine"]
    assert [layer.digest for layer in child.layers[:2]] == [layer.digest for layer in parent.layers], "byte for byte"
    for layer, entry in zip(child.layers, sif.partitions(lab.image)):
        assert layer.digest == file_digest(lab.image, entry.offset, entry.size)
    assert child.labels[PARENT_LABEL] == f"small:1.0-s-r1@{parent.digest}"
    assert child.labels["org.opencontainers.image.base.digest"] == parent.digest
    assert child.labels["org.opencontainers.image.description"] == "the site's base; the lab's layer"
    assert child.labels["org.opencontainers.image.licenses"] == "MIT AND Apache-2.0"
    assert child.base == parent.base
    assert {"layers mounted", "%test of tools", "%test of mine"} <= {test.name for test in child.tests}
    assert "%test of base" not in {test.name for test in child.tests}, "it has none"
    assert sif.object_bytes(lab.image, sif.SBOM), "the package list is of the whole image"
    assert "is up to date" in lab.build()[1]


def test_what_the_parent_tests_must_hold_in_the_image(lab: Lab) -> None:
    lab.release(1)
    definition = lab.root / "lab/definitions/mine/mine.def"
    whole = definition.read_text()
    definition.write_text(whole.replace("/opt/mine/round\n", "/opt/mine/round\n    : > /opt/tools/round\n"))
    code, _, err = lab.build()
    assert code == 78
    assert "test '%test of tools' of image lab 7 failed; first failing layer: mine" in err
    definition.write_text(whole)
    assert lab.build()[0] == 0


def test_a_new_release_of_the_parent_makes_the_image_stale_and_own_code_only_the_own_layer(lab: Lab) -> None:
    lab.release(1)
    assert lab.plan() == {"base": "new", "tools": "new", "mine": "new"}
    assert lab.build()[0] == 0
    assert lab.plan() == {"base": "ok", "tools": "ok", "mine": "ok"}
    (lab.root / "lab/program.sh").write_text("echo changed\n")
    assert lab.plan() == {"base": "ok", "tools": "ok", "mine": "stale"}
    out = lab.build()[1]
    assert [line.split()[1] for line in out.splitlines() if line.startswith("layer") and "built" in line] == ["mine"]
    assert lab.run("sh", "/opt/mine/program.sh") == "changed\n"
    lab.release(2)
    assert lab.plan() == {"base": "ok", "tools": "stale", "mine": "stale"}
    assert lab.build()[0] == 0
    assert lab.run("cat", "/opt/mine/round") == "2\n"


def test_the_image_needs_its_parent_no_more(lab: Lab) -> None:
    published = lab.release(1)
    assert lab.build()[0] == 0
    for path in (lab.root / "store/channels/small_prod.sif", published.with_suffix(".json"), published):
        path.unlink()
    assert lab.run("cat", "/opt/tools/round") == "1\n"
    code, _, err = lab.build()
    assert code == 68
    assert "image 'small:prod' not found" in err
    assert len(err.splitlines()) == 1


def test_a_flat_image_is_a_parent_too(lab: Lab) -> None:
    lab.release(1, "--flatten", build=("--flatten",))
    code, _, err = lab.build()
    assert code == 0, err
    assert [layer.definition for layer in lab.manifest.layers] == ["small", "mine"]
    assert lab.run("cat", "/opt/mine/round", "/opt/mine/program.sh") == "1\necho hello\n"


def test_an_image_of_an_image(lab: Lab) -> None:
    lab.release(1)
    assert lab.build()[0] == 0
    lab.image.rename(lab.root / "lab/first.sif")
    lab.image.with_suffix(".json").rename(lab.root / "lab/first.json")
    (lab.root / "lab/definitions/mine").rename(lab.root / "lab/definitions/more")
    more = (lab.root / "lab/definitions/more/mine.def").rename(lab.root / "lab/definitions/more/more.def")
    more.write_text(more.read_text().replace("cp /opt/tools/round /opt/mine/round", "echo 4 > /opt/mine/round"))
    lab.write("./first.sif")
    images = lab.root / "lab/definitions/images.yaml"
    images.write_text(images.read_text().replace("mine", "more"))
    places = ["--definitions", str(images.parent), "--cache", str(lab.root / "lab-cache")]
    code, _, err = lab.ctrain("build", "lab", *places)
    assert code == 0, err
    assert [layer.definition for layer in lab.manifest.layers] == ["base", "tools", "mine", "more"]
    assert lab.run("cat", "/opt/tools/round", "/opt/mine/round") == "1\n4\n"


def test_a_file_that_ctrain_did_not_make_is_a_parent_relative_to_the_project(lab: Lab, tiny_sif: Path) -> None:
    plain = lab.root / "lab/Debian 12_x.sif"
    plain.write_bytes(tiny_sif.read_bytes())
    mine = lab.root / "lab/definitions/mine/mine.def"
    mine.write_text(mine.read_text().replace("cp /opt/tools/round", "echo 3 >"))
    code, _, err = lab.build(f"'./{plain.name}'")
    assert code == 0, err
    assert [layer.definition for layer in lab.manifest.layers] == ["Debian-12-x", "mine"]
    assert lab.manifest.labels[PARENT_LABEL] == f"{plain.name}@{file_digest(plain)}"
    assert lab.run("cat", "/opt/mine/round") == "3\n"


def test_a_parent_that_the_site_would_not_run_is_refused(lab: Lab, keys: Callable[[str], Path]) -> None:
    trusted, other = keys("trusted"), keys("other")
    site_file = lab.root / "config/ctrain/sites/local.yaml"
    site_file.parent.mkdir(parents=True)
    site_file.write_text(f"require_signature: true\ntrusted_keys: [{trusted}.pub]\n")
    lab.release(1)
    code, _, err = lab.build()
    assert code == 69
    assert "is not signed by a key that site" in err
    lab.release(2, "--sign", str(other))
    assert lab.build()[0] == 69
    assert not list((lab.root / "lab-cache/layers").iterdir())
    lab.release(3, "--sign", str(trusted))
    code, _, err = lab.build()
    assert code == 0, err
    assert lab.run("cat", "/opt/mine/round") == "3\n"


def test_a_parent_that_was_modified_is_refused(lab: Lab) -> None:
    published = lab.release(1)
    _, upper = sif.partitions(published)
    published.chmod(0o644)
    with published.open("r+b") as file:
        file.seek(upper.offset + upper.size - 1)
        last = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last[0] ^ 1]))
    code, _, err = lab.build()
    assert code == 69
    assert "digest mismatch: layer tools in" in err
    assert not list((lab.root / "lab-cache/layers").glob("*.sqsh")), "only what was whole is in the cache"


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[str], Path]:
    """keys(NAME): a new PEM key pair NAME, NAME.pub; returns the private one."""

    def make(name: str) -> Path:
        private = tmp_path / f"{name}.pem"
        for argv in (
            ["genpkey", "-algorithm", "RSA", "-out", private],
            ["rsa", "-pubout", "-in", private, "-out", f"{private}.pub"],
        ):
            subprocess.run(["openssl", *argv], check=True, capture_output=True)
        return private

    return make
