"""The templates of `ctrain init` that the builder reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ctrain_builder.definitions import definition, image_spec
from ctrain_builder.layers import user_source
from ctrain_runtime.starting_points import templates

LINES = templates.read("definition").splitlines()
# The entry of images.yaml in its first lines, by their comment sign alone.
ENTRY = [line[1:] for line in LINES[LINES.index("#images:") :] if re.match(r"#(images| {2,}\S)", line)]


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    folder = tmp_path / "definitions"
    (folder / "my-image").mkdir(parents=True)
    (folder / "my-image/my-image.def").write_text(templates.read("definition"))
    end = next(at for at, line in enumerate(ENTRY) if "tag:" in line)
    (folder / "images.yaml").write_text("\n".join(ENTRY[: end + 1]) + "\n")
    return folder


def test_a_definition_and_its_entry_make_an_image(definitions: Path) -> None:
    spec = image_spec.find_spec(definitions, "my-image")
    assert (spec.parent, spec.stack, spec.tag) == ("store:pytorch:prod", "mine", "1")
    (layer,) = spec.chain
    assert not layer.is_base
    assert set(layer.sections) == {"arguments", "post", "environment", "test", "labels", "help"}
    rendered = definition.render(layer, {"PARENT": "below.sif"})
    assert "pip install --no-deps einops==0.8.1\n" in rendered.body("post")


def test_its_files_can_be_switched_on(definitions: Path) -> None:
    path = definitions / "my-image/my-image.def"
    text = path.read_text().replace("#%files\n#    code", "%files\n    code")
    assert definition.parse("my-image", path, text).files[0].target == "/opt/my-image/code"


def test_it_can_become_a_base(definitions: Path) -> None:
    """As its comment says."""
    path, images = definitions / "my-image/my-image.def", definitions / "images.yaml"
    text = path.read_text().replace("Bootstrap: localimage\nFrom: {{ PARENT }}", "Bootstrap: docker\nFrom: debian:12")
    path.write_text(text)
    images.write_text(re.sub(r"from: \S+", "tag_argument: EINOPS", images.read_text()))
    spec = image_spec.find_spec(definitions, "my-image")
    assert (spec.parent, spec.tag_argument, spec.chain[0].is_base) == ("", "EINOPS", True)


def test_a_layer_is_a_file_of_requirements(tmp_path: Path) -> None:
    text, source = templates.read("layer"), tmp_path / "layer.txt"
    source.write_text(text)
    assert not user_source.is_script(source, text)
    assert [file.path for file in user_source.collect(source, (), ())] == [source]
    source.write_text(re.sub(r"(?m)^#(?=[-.])", "", text))
    for name in ("requirements.txt", "my_package-1.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    assert len(user_source.collect(source, (), ())) == 3
