"""What goes to a registry, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.definitions import image_spec
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.plan.redistribution import declared, reason_to_keep
from ctrain_builder.store import log
from ctrain_builder.store.init import init_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.manifest import Base, Layer, Manifest
from ctrain_runtime.store.store import open_store
from samples.plans import a_manifest
from samples.registry import Front, front
from samples.sample_images import write_image, write_store
from samples.shelf import Shelf

OCI, OWN, WORD = "org.opencontainers.image.licenses", "org.ctrain.licenses", "org.ctrain.redistribute"
NVIDIA = {OCI: "LicenseRef-NVIDIA AND MIT", OWN: "base: LicenseRef-NVIDIA; upper: MIT"}
FREE = {OCI: "(MIT OR BSD-2-Clause) AND MIT", OWN: "base: MIT OR BSD-2-Clause; upper: MIT"}
UPPER_ALONE = {OCI: "MIT", OWN: "upper: MIT"}
LIST = "not all of its licences are on SPDX's list:"
LAYERS = (Layer("base", "k0", 1), Layer("upper", "k1", 1))
FAR = Base("docker.io/lab/image:1", f"sha256:{'a' * 64}")


def planned(word: Optional[bool], parent: Any = None) -> BuildPlan:
    return cast(BuildPlan, SimpleNamespace(spec=SimpleNamespace(redistribute=word), parent=parent))


def parent(manifest: Optional[Manifest]) -> Any:
    return SimpleNamespace(image=SimpleNamespace(manifest=manifest) if manifest else None)


@pytest.mark.parametrize(
    ("labels", "base", "why"),
    [
        ({}, Base("debootstrap bookworm"), ""),
        (FREE, FAR, ""),
        (NVIDIA, FAR, "not all of its licences are on SPDX's list: LicenseRef-NVIDIA AND MIT"),
        ({OCI: "MIT AND (LicenseRef-Lab OR MIT)"}, Base(), f"{LIST} MIT AND (LicenseRef-Lab OR MIT)"),
        ({OCI: "MIT AND NVIDIA Deep Learning"}, Base(), f"{LIST} MIT AND NVIDIA Deep Learning"),
        ({OCI: "GPL-2.0+ WITH Classpath-exception-2.0"}, Base(), ""),
        ({**NVIDIA, WORD: "yes"}, FAR, ""),
        ({**FREE, WORD: "no"}, FAR, "images.yaml says `redistribute: no` of it or its parent"),
        ({**FREE, WORD: "unknown"}, FAR, "ctrain did not build all of it, and does not know its licences"),
        (UPPER_ALONE, FAR, "no licence is known of its base docker.io/lab/image:1"),
        ({}, FAR, "no licence is known of its base docker.io/lab/image:1"),
    ],
)
def test_why_an_image_stays(
    make_manifest: Callable[..., Manifest], labels: dict[str, str], base: Base, why: str
) -> None:
    assert reason_to_keep(replace(make_manifest(), labels=labels, base=base)) == why


def test_what_was_adopted_stays_unless_somebody_has_said_so(make_manifest: Callable[..., Manifest]) -> None:
    adopted = replace(make_manifest(), layers=(), tests=(), labels=FREE)
    assert reason_to_keep(adopted) == "ctrain did not build all of it, and does not know its licences"


@pytest.mark.parametrize(
    ("word", "of_parent", "told"),
    [
        (None, None, ""),
        (True, None, "yes"),
        (False, None, "no"),
        (None, {}, ""),
        (None, {WORD: "yes"}, ""),
        (None, {WORD: "no"}, "no"),
        (True, {WORD: "no"}, "no"),
        (None, {WORD: "unknown"}, "unknown"),
        (True, {WORD: "unknown"}, "yes"),
    ],
)
def test_what_is_declared(word: Optional[bool], of_parent: Optional[dict[str, str]], told: str) -> None:
    below = None if of_parent is None else parent(a_manifest(labels=of_parent))
    assert declared(planned(word, below)) == told


@pytest.mark.parametrize("below", [None, a_manifest(layers=())])
def test_what_is_built_on_an_image_of_others_is_unknown(below: Optional[Manifest]) -> None:
    assert declared(planned(None, parent(below))) == "unknown"
    assert declared(planned(True, parent(below))) == "yes"


@pytest.mark.parametrize(("line", "word"), [("", None), ("redistribute: no", False), ("redistribute: yes", True)])
def test_images_yaml(project: Path, line: str, word: Optional[bool]) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(f"{images.read_text()}    {line}\n")
    assert image_spec.find_spec(project / "definitions", "small").redistribute is word


def test_it_is_a_word_of_yes_or_no(project: Path) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(f"{images.read_text()}    redistribute: maybe\n")
    with pytest.raises(ConfigError, match="redistribute"):
        image_spec.find_spec(project / "definitions", "small")


@pytest.fixture
def registry() -> Any:
    with front() as made:
        made.stand = Shelf()
        yield made


class Places:
    """A store with two versions, of which one is under NVIDIA's licence; and where they are copied to."""

    def __init__(self, folder: Path, registry: Front, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.cache, self.capsys = folder / "store", folder / "cache", capsys
        self.registry = f"oras://{registry.host}/lab"
        write_store(self.root)
        for name, tag, labels in (("free", "1.0", FREE), ("ngc", "24.12", NVIDIA)):
            facts = {"name": name, "tag": tag, "labels": labels, "base": FAR, "layers": LAYERS}
            write_image(self.root, **facts, digest=file_digest(write_image(self.root, **facts)))

    def sync(self, *words: object, source: object = "", target: object = "", code: int = 0) -> str:
        places = (str(source or self.root), str(target or self.registry))
        argv = ["store", "sync", *places, *map(str, words), "--cache", str(self.cache)]
        assert main(BUILD_VERBS, argv) == code
        return "".join(self.capsys.readouterr())


@pytest.fixture
def places(tmp_path: Path, registry: Front, capsys: pytest.CaptureFixture[str]) -> Places:
    return Places(tmp_path, registry, capsys)


def test_what_its_licence_keeps_here_goes_to_no_registry(places: Places) -> None:
    for options in (["--dry-run"], []):
        said = places.sync("--channels", *options, code=76)
        assert "ctrain: left out: ngc:24.12-hd-r3 is not passed on to oras://" in said
        assert "LicenseRef-NVIDIA AND MIT. If you may pass it on: --redistribute REASON" in said
        assert "copied free 1.0-hd-r3" in said and "copied ngc" not in said
    assert not [entry for entry in log.read(places.root) if entry.action == "redistribute"]


def test_a_reason_is_logged_and_it_goes(places: Places) -> None:
    reason = "our own registry: its readers are users of this site"
    assert "copied ngc" in places.sync("--redistribute", reason, "--dry-run")
    assert not list(log.read(places.root))
    assert "2 versions copied" in places.sync("--redistribute", reason)
    entries = list(log.read(places.root))
    told = [(entry.action, entry.name, entry.version, entry.why) for entry in entries]
    assert told == [("redistribute", "ngc", "24.12-hd-r3", f"to {places.registry}: {reason}")]
    assert "0 versions copied (0 B), 2 there already" in places.sync(), "what is there is passed on already"
    assert main(BUILD_VERBS, ["store", "log", "--store", str(places.root)]) == 0
    assert reason in places.capsys.readouterr().out
    assert main(BUILD_VERBS, ["store", "list", "--all", "--store", str(places.root)]) == 0
    assert reason not in places.capsys.readouterr().out, "it says nothing of the version's state"


def test_another_directory_is_not_others(places: Places, tmp_path: Path) -> None:
    init_store(tmp_path / "other")
    assert "2 versions copied" in places.sync(target=tmp_path / "other")
    assert len(open_store(tmp_path / "other").images()) == 2


def test_a_reason_must_be_one_and_have_a_log(places: Places, tmp_path: Path) -> None:
    assert "--redistribute must not be empty. The log of SRC keeps" in places.sync("--redistribute", " ", code=64)
    said = places.sync("--redistribute", "x", source=places.registry, target=tmp_path / "other", code=64)
    assert "--redistribute is kept in the log of SRC, and oras://" in said
