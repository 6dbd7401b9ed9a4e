from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from ctrain_builder.definitions import image_spec
from ctrain_builder.layers import base, metadata
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import PUBLIC_MIRROR, PlannedLayer

MIRROR = "http://mirror.example/debian"


def _planned(project: Path, site: Mapping[str, str] = {}) -> PlannedLayer:  # read
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, {}, site, "amd64", lambda _key, _is_base: False, lambda _reference: "").layers[0]


def test_the_engine_gets_the_header_alone_and_the_image_shows_no_mirror(project: Path) -> None:
    planned = _planned(project, {"MIRROR": MIRROR})
    assert base.header(planned) == f"Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: {MIRROR}\n\n"
    shown = base.shown(planned)
    assert shown.header["mirrorurl"] == PUBLIC_MIRROR
    assert "echo 1.0\n" in shown.text
    assert MIRROR not in shown.text and "{{" not in shown.text


def test_a_docker_base_is_named_by_its_digest(project: Path) -> None:
    path = project / "definitions/base/base.def"
    path.write_text(
        "Bootstrap: docker\nFrom: nvcr.io/small:{{ VERSION }}-py3 # the tag\n\n%post\n    echo From: here\n"
    )
    planned = dataclasses.replace(_planned(project), base="nvcr.io/small@sha256:a1")
    assert base.header(planned) == "Bootstrap: docker\nFrom: nvcr.io/small@sha256:a1\n\n"
    assert base.shown(planned).text == f"{base.header(planned)}%post\n    echo From: here\n"


def test_the_engine_gets_the_whole_path_of_a_file_and_the_image_shows_it_as_written(project: Path) -> None:
    path = project / "definitions/base/base.def"
    path.write_text("Bootstrap: localimage\nFrom: ../{{ VERSION }}.sif\n")
    planned = _planned(project)
    assert base.header(planned) == f"Bootstrap: localimage\nFrom: {project}/definitions/1.0.sif\n"
    assert base.shown(planned).text == "Bootstrap: localimage\nFrom: ../1.0.sif\n"


def test_a_base_has_the_metadata_of_a_plain_build(project: Path) -> None:
    planned = _planned(project, {"MIRROR": MIRROR})
    mirror = "org.label-schema.usage.singularity.deffile.mirrorurl"
    unpacked = {"Singularity": base.header(planned), "labels.json": json.dumps({"org.x": "y", mirror: MIRROR})}
    files = metadata.for_base(unpacked, base.shown(planned), planned)
    assert set(files) == {"Singularity", "labels.json"}
    labels = json.loads(files["labels.json"])
    assert (labels["org.x"], labels[mirror]) == ("y", PUBLIC_MIRROR)


def test_an_upper_definition_shows_no_mirror_either(project: Path) -> None:
    path = project / "definitions/upper/upper.def"
    path.write_text(path.read_text() + "\n%labels\n    org.mirror {{ MIRROR }}\n")
    spec = image_spec.find_spec(project / "definitions", "small")
    site = {"MIRROR": "http://kim:s3cret@mirror.example/debian"}
    upper = build_plan.plan_image(spec, {}, site, "amd64", lambda _key, _is_base: False, lambda _reference: "").layers[
        1
    ]
    shown = upper.public
    assert shown.labels == {"org.mirror": PUBLIC_MIRROR}
    assert "s3cret" not in str(metadata.for_layer({}, shown, upper.key, upper.epoch))
    assert "s3cret" not in str(upper.public.labels)
