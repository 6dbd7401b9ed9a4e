from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.plan import build_plan
from ctrain_runtime.errors import ConfigError, UsageError


def test_find_reads_the_chain(project: Path) -> None:
    spec = image_spec.find_spec(project / "definitions", "small")
    assert [part.name for part in spec.chain] == ["base", "upper"]
    assert (spec.store_name, spec.file_stem, spec.source_root) == ("small", "small_1.0-s", project)


def test_a_tag_replaces_that_of_the_catalog(project: Path) -> None:
    assert image_spec.find_spec(project / "definitions", "small", "2.0").file_stem == "small_2.0-s"


def test_every_image_at_every_tag(project: Path) -> None:
    images = project / "definitions/images.yaml"
    text = images.read_text()
    matrix = "    horovod: [PyTorch]\n    tags: {'1.0': {python: '3.11'}, '0.9': {arguments: {COLOUR: blue}}}\n"
    images.write_text(text + matrix + text.replace("images:\n", "").replace("small:", "other:"))
    found = image_spec.all_specs(project / "definitions")
    assert [spec.title for spec in found] == ["small 1.0", "small 0.9", "other 1.0"]
    assert [spec.variant.python for spec in found] == ["3.11", "", ""]
    assert [spec.arguments for spec in found] == [{}, {"COLOUR": "blue"}, {}]
    assert [spec.horovod for spec in found] == [("PyTorch",), ("PyTorch",), ()]
    assert image_spec.find_spec(project / "definitions", "small", "3.0").variant == image_spec.TagSpec()


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("{22.10: {}}", "22.1 is a number. Write it in quotes"),
        ("{'2.0': {}}", "tag '1.0' is not one of its tags. They are 2.0"),
        ("{'1.0': {}, '../x': {}}", "tag '../x': tags and stacks have letters, digits, '.' and '-'"),
        ("{'1.0': {phyton: '3.11'}}", "unknown key 'phyton'"),
        ("{'1.0': {arguments: {COLOR: blue}}}", "uses argument COLOR. Did you mean 'COLOUR'. Known: COLOUR, MIRROR"),
        ("{'1.0': {arguments: {COLOUR: 1.0}}}", "must be a string"),
        ("['1.0']", "must be a mapping"),
    ],
)
def test_mistakes_in_a_matrix_are_named(project: Path, tags: str, message: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text() + f"    tags: {tags}\n")
    with pytest.raises(ConfigError, match=message):
        image_spec.all_specs(project / "definitions")


def test_an_unknown_image_lists_those_that_exist(project: Path) -> None:
    with pytest.raises(UsageError, match=r"no image 'smal'\. Did you mean 'small'\? It has: pytorch-cpu, .*small"):
        image_spec.find_spec(project / "definitions", "smal")


def test_an_image_asked_for_by_its_name_in_stores_is_named(project: Path) -> None:
    """Not pytorch-cpu, whose name is more like it."""
    with pytest.raises(
        UsageError, match=r"no image 'pytorch'\. pytorch-ngc is published as pytorch\. It has: pytorch-cpu, "
    ):
        image_spec.find_spec(project / "definitions", "pytorch")


@pytest.mark.parametrize("name", ["UP", "a.b", "a_b", "-a"])
def test_what_image_names_have(project: Path, name: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace("small:", f"{name}:"))
    told = f"images.{name}: image '{name}': image names have lowercase letters, digits and '-'"
    with pytest.raises(ConfigError, match=f"{re.escape(told)}$"):
        image_spec.all_specs(project / "definitions")


@pytest.mark.parametrize("tag", ["../x", "a/b", "a_b", ""])
def test_names_that_could_leave_the_folder_are_refused(project: Path, tag: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace('"1.0"', f'"{tag}"'))
    with pytest.raises(ConfigError, match=r"tags and stacks have letters, digits, '[.]' and '-'$"):
        image_spec.find_spec(project / "definitions", "small")
    if tag:
        with pytest.raises(UsageError, match="is not a tag"):
            image_spec.find_spec(project / "definitions", "small", tag)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stack:", "stak:", "unknown key 'stak'"),
        ("[base, upper]", "[]", "chain is empty"),
        ("[base, upper]", "[upper, base]", "upper is at position 1"),
        ("[base, upper]", "[base, uper]", r"chain: definition uper not found: .*/uper.def\. Did you mean 'upper'"),
        ("[base, upper]", "[base, ../upper]", "chain: '../upper' is not the name of a definition"),
        ("[base, upper]", "[base, '']", "chain: '' is not the name of a definition"),
        ("VERSION", "VERSOIN", "'VERSOIN' is not used by"),
    ],
)
def test_mistakes_in_the_catalog_are_named(project: Path, old: str, new: str, message: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        image_spec.find_spec(project / "definitions", "small")


def test_own_definitions_extend_the_packaged_ones(project: Path) -> None:
    """Packaged definitions bring their %files along; an own one of the same name comes first."""
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace("[base, upper]", "[base, horovod, train]"))
    (project / "definitions/train").mkdir()
    (project / "definitions/train/train.def").write_text((project / "definitions/upper/upper.def").read_text())
    spec = image_spec.find_spec(project / "definitions", "small")
    packaged = image_spec.packaged()
    assert [part.path.parents[1] for part in spec.chain] == [project / "definitions", packaged, project / "definitions"]
    assert [part.source_root for part in spec.chain] == [project, packaged.parent, project]
    assert build_plan.sources(spec, {}) == {PurePosixPath("examples/x")}, (
        "those of packaged definitions are not the project's"
    )
    made = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, str)
    roots = [{file.path.parents[len(file.relative.parents) - 1] for file in layer.files} for layer in made.layers]
    assert roots == [set(), {packaged.parent}, {project}]


def test_packaged_images_can_be_named_beside_own_ones(project: Path) -> None:
    own = project / "definitions"
    assert image_spec.find_spec(own, "pytorch-cpu") == image_spec.find_spec(image_spec.packaged(), "pytorch-cpu")
    assert [spec.name for spec in image_spec.all_specs(own)] == ["small"], "those that nobody named are left alone"
    images = own / "images.yaml"
    images.write_text(images.read_text().replace("small:", "pytorch-cpu:"))
    assert [part.name for part in image_spec.find_spec(own, "pytorch-cpu").chain] == ["base", "upper"]


def test_the_directory_is_the_named_one_the_variables_the_local_or_the_packaged_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CTRAIN_DEFINITIONS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "definitions").mkdir()
    assert image_spec.directory(None) == image_spec.packaged(), "a directory without images.yaml is somebody else's"
    monkeypatch.chdir(project)
    assert image_spec.directory(None) == project / "definitions"
    monkeypatch.setenv("CTRAIN_DEFINITIONS", str(tmp_path / "lab"))
    assert image_spec.directory(None) == tmp_path / "lab"
    assert image_spec.directory(Path("mine")) == project / "mine"
    with pytest.raises(ConfigError, match=f"{tmp_path}/lab/images.yaml"):
        image_spec.find_spec(image_spec.directory(None), "pytorch-cpu")


@pytest.mark.parametrize("name", ["base", "upper"])
@pytest.mark.parametrize("section", ["pre", "setup"])
def test_a_definition_can_not_run_scripts_on_the_host(project: Path, name: str, section: str) -> None:
    path = project / f"definitions/{name}/{name}.def"
    path.write_text(path.read_text() + f"%{section}\n    touch /tmp/x\n")
    with pytest.raises(ConfigError, match=f"%{section} would run on the build host"):
        image_spec.find_spec(project / "definitions", "small")


ARCHITECTURES = """\
    architectures:
      arm64: {arguments: {COLOUR: grey}}
    tags:
      "1.0":
        arguments: {COLOUR: green}
        python: "3.12"
        sm: "7.0 8.0"
        architectures:
          arm64: {sm: "8.0"}
      "2.0": {sm: "9.0", architectures: {arm64: {arguments: {COLOUR: black}, sm: ""}}}
"""


@pytest.mark.parametrize(
    ("tag", "arch", "colour", "declared"),
    [
        ("1.0", "amd64", "green", {"python": "3.12", "sm": "7.0 8.0"}),
        ("1.0", "arm64", "grey", {"python": "3.12", "sm": "8.0"}),
        ("2.0", "arm64", "black", {"python": "", "sm": ""}),
        ("3.0", "arm64", "grey", {"python": "", "sm": ""}),  # not in the matrix
        ("3.0", "amd64", "red", {"python": "", "sm": ""}),
    ],
)
def test_what_differs_on_another_architecture(
    project: Path, tag: str, arch: str, colour: str, declared: dict[str, str]
) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().rstrip("\n") + "\n" + ARCHITECTURES)
    spec = image_spec.find_spec(project / "definitions", "small", tag)
    plan = build_plan.plan_image(spec, {}, {}, arch, lambda *_: False, str)
    assert plan.layers[1].inputs.arguments["COLOUR"] == colour
    assert plan.spec.variant.declared.items() >= declared.items()
    given = build_plan.plan_image(spec, {"COLOUR": "mine"}, {}, arch, lambda *_: False, str)
    assert given.layers[1].inputs.arguments["COLOUR"] == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "      arm64:",
            "      aarch64:",
            "small: architectures: aarch64 is not an architecture .* Known: amd64, arm64",
        ),
        ("          arm64:", "          amr64:", r"tags.1.0.architectures: amr64 is .* Did you mean 'arm64'"),
        ("COLOUR: grey", "COLOR: grey", "architectures.arm64: no definition of the chain uses argument COLOR"),
        ("COLOUR: black", "COLOR: black", "tags.2.0.architectures.arm64: no definition of the chain uses argument"),
        ('sm: "8.0"}', 'smm: "8.0"}', "unknown key 'smm'"),
    ],
)
def test_mistakes_about_architectures_are_named(project: Path, old: str, new: str, message: str) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().rstrip("\n") + "\n" + ARCHITECTURES.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        image_spec.find_spec(project / "definitions", "small")
