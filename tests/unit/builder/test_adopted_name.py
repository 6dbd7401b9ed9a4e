from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ctrain_builder.store.adopted_name import FROM_LABEL, AdoptedName, parse, propose
from ctrain_runtime.errors import UsageError
from samples.plans import a_manifest

NOON = 1_770_000_000.0  # 2026-02-02


def proposed(file: str, software: Mapping[str, str] = {}, made_from: str = "") -> str:
    labels = {FROM_LABEL: made_from} if made_from else {}
    name = propose(Path(file), a_manifest(software=dict(software), labels=labels), NOON)
    return f"{name.name}:{name.tag}-{name.stack}"


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("pytorch_22.03-hd-py3.sif", "pytorch:22.03-hd"),  # this one and the next two: of KISTI
        ("pytorch_22.03-py3.sif", "pytorch:22.03-adopted"),
        ("genai-pytorch:22.09-py3.sif", "genai-pytorch:22.09-adopted"),
        ("tensorflow_22.03-tf1-keras-py3.sif", "tensorflow:22.03-tf1-keras"),
        ("pytorch_24.12-py3.sif", "pytorch:24.12-adopted"),  # as `apptainer pull` calls it
        ("pytorch_24.12-hd-py3-r7.sif", "pytorch:24.12-hd"),
        ("pytorch_2.0.1+cu118.SIF", "pytorch:2.0.1-cu118"),
        ("My PyTorch v2.1.sif", "my-pytorch:2.1-adopted"),
        ("h100-bench.sif", "h100-bench:2026.02.02-adopted"),
        ("py3.sif", "py3:2026.02.02-adopted"),
        ("2024.sif", "2024:2026.02.02-adopted"),
        ("___.sif", "image:2026.02.02-adopted"),
    ],
)
def test_names_come_from_file_names(file: str, version: str) -> None:
    assert proposed(file) == version


@pytest.mark.parametrize(
    ("software", "made_from", "version"),
    [
        ({"torch": "1.12.0a0+2c916ef"}, "nvcr.io/nvidia/pytorch:22.03-py3", "env:22.03-adopted"),
        ({"torch": "1.12.0a0+2c916ef"}, "/home/kim/rootfs", "env:1.12.0a0-adopted"),
        ({"tensorflow": "2.15.1"}, "lab/image:latest", "env:2.15.1-adopted"),
        ({"torch": "unknown"}, "", "env:2026.02.02-adopted"),
    ],
)
def test_a_tag_that_the_name_lacks_comes_from_inside(software: dict[str, str], made_from: str, version: str) -> None:
    assert proposed("env.sif", software, made_from) == version


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pytorch:22.03-hd", AdoptedName("pytorch", "22.03", "hd")),
        ("pytorch:22.03", AdoptedName("pytorch", "22.03", "adopted")),
        ("pytorch:22.03-tf1-keras-r2", AdoptedName("pytorch", "22.03", "tf1-keras")),
        ("pytorch:22.03-r2", AdoptedName("pytorch", "22.03", "adopted")),
    ],
)
def test_a_name_that_is_given(text: str, name: AdoptedName) -> None:
    assert parse(text) == name


@pytest.mark.parametrize("text", ["pytorch", "pytorch:", "", ":1.0", "PyTorch:1.0", "a/b:1.0", "a:../x", "a:1.0-../x"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not the name of a version\. Write it as in pytorch:22\.03-hd=FILE"):
        parse(text)
