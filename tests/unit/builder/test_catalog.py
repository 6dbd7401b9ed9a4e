from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder import catalog
from ctrain_runtime.errors import ConfigError, UsageError


def test_find_reads_the_chain(project: Path) -> None:
    spec = catalog.find(project / "definitions", "small")
    assert [part.name for part in spec.chain] == ["base", "upper"]
    assert (spec.store_name, spec.file_stem, spec.source_root) == ("small", "small_1.0-s", project)


def test_a_tag_replaces_that_of_the_catalog(project: Path) -> None:
    assert catalog.find(project / "definitions", "small", "2.0").file_stem == "small_2.0-s"


def test_every_image_at_every_tag(project: Path) -> None:
    images = project / "definitions/images.yaml"
    text = images.read_text()
    matrix = "    horovod: [PyTorch]\n    tags: {'1.0': {python: '3.11'}, '0.9': {arguments: {COLOUR: blue}}}\n"
    images.write_text(text + matrix + text.replace("images:\n", "").replace("small:", "other:"))
    found = catalog.every(project / "definitions")
    assert [spec.title for spec in found] == ["small 1.0", "small 0.9", "other 1.0"]
    assert [spec.variant.python for spec in found] == ["3.11", "", ""]
    assert [spec.arguments for spec in found] == [{}, {"COLOUR": "blue"}, {}]
    assert [spec.horovod for spec in found] == [("PyTorch",), ("PyTorch",), ()]
    assert catalog.find(project / "definitions", "small", "3.0").variant == catalog.Variant()


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("{22.10: {}}", "22.1 is a number. Write it in quotes"),
        ("{'2.0': {}}", "tag '1.0' is not one of its tags. They are 2.0"),
        ("{'1.0': {}, '../x': {}}", "can't be part of a file name"),
        ("{'1.0': {phyton: '3.11'}}", "unknown key 'phyton'"),
        ("{'1.0': {arguments: {COLOR: blue}}}", "uses argument COLOR. Known: COLOUR, MIRROR"),
        ("{'1.0': {arguments: {COLOUR: 1.0}}}", "must be a string"),
        ("['1.0']", "must be a mapping"),
    ],
)
def test_mistakes_in_a_matrix_are_named(project: Path, tags: str, message: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text() + f"    tags: {tags}\n")
    with pytest.raises(ConfigError, match=message):
        catalog.every(project / "definitions")


def test_an_unknown_image_lists_those_that_exist(project: Path) -> None:
    with pytest.raises(UsageError, match=r"no image 'smal'\. It has: small"):
        catalog.find(project / "definitions", "smal")


@pytest.mark.parametrize("tag", ["../x", "a/b", "a_b", ""])
def test_names_that_could_leave_the_folder_are_refused(project: Path, tag: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace('"1.0"', f'"{tag}"'))
    with pytest.raises(ConfigError, match="can't be part of a file name"):
        catalog.find(project / "definitions", "small")
    if tag:
        with pytest.raises(UsageError, match="is not a tag"):
            catalog.find(project / "definitions", "small", tag)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stack:", "stak:", "unknown key 'stak'"),
        ("[base, upper]", "[]", "chain is empty"),
        ("[base, upper]", "[upper, base]", "upper is at place 1"),
        ("[base, upper]", "[base, nowhere]", "nowhere.def can't be read"),
        ("VERSION", "VERSOIN", "'VERSOIN' is not used by"),
    ],
)
def test_mistakes_in_the_catalog_are_named(project: Path, old: str, new: str, message: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        catalog.find(project / "definitions", "small")


def test_a_layer_can_not_run_scripts_on_the_host(project: Path) -> None:
    path = project / "definitions/upper/upper.def"
    path.write_text(path.read_text() + "%setup\n    touch /tmp/x\n")
    with pytest.raises(ConfigError, match="%setup runs on the building machine"):
        catalog.find(project / "definitions", "small")
