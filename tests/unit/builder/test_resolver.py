from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.registry.resolver import DigestResolver
from ctrain_runtime.errors import ConfigError, RegistryError
from ctrain_runtime.images import remote
from ctrain_runtime.images.pull import ResolvedReference
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable

REFERENCE = "nvcr.io/nvidia/pytorch:24.12-py3"


class Answers(RegistryClient):
    """A registry that answers from a dictionary; a value may be an error. It counts the questions."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers, self.asked = dict(answers), list[str]()

    def digest(self, reference: str) -> str:
        self.asked.append(reference)
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


def test_a_digest_is_asked_for_once_and_remembered(tmp_path: Path) -> None:
    registry = Answers({REFERENCE: "sha256:1"})
    upstream = DigestResolver(tmp_path, registry=registry)
    assert [upstream.resolve(REFERENCE), upstream.resolve(REFERENCE)] == ["sha256:1", "sha256:1"]
    assert registry.asked == [REFERENCE]
    (name, seen), *others = json.loads((tmp_path / "upstream.json").read_text()).items()
    assert (name, seen["digest"], others) == (REFERENCE, "sha256:1", [])
    assert seen["seen"].startswith("20")


def test_the_same_image_by_another_spelling(tmp_path: Path) -> None:
    DigestResolver(tmp_path, registry=Answers({"debian": "sha256:1"})).resolve("debian")
    seen = DigestResolver(tmp_path, offline=True).remembered("docker://docker.io/library/debian:latest")
    assert seen
    assert seen.digest == "sha256:1"


def test_offline_asks_nobody(tmp_path: Path) -> None:
    registry = Answers({REFERENCE: "sha256:1"})
    with pytest.raises(RegistryError) as caught:
        DigestResolver(tmp_path, offline=True, registry=registry).resolve(REFERENCE)
    assert str(caught.value) == f"the digest of {REFERENCE} is not known here yet. Run once without --offline"
    assert registry.asked == []


def test_a_host_that_failed_is_asked_once(tmp_path: Path) -> None:
    old, new, other = (f"nvcr.io/x:{tag}" for tag in ("1", "2", "3"))
    DigestResolver(tmp_path, registry=Answers({old: "sha256:1", new: "sha256:2"})).resolve(old)
    registry = Answers({old: Unreachable("away"), new: Unreachable("away"), "quay.io/x": "sha256:3"})
    upstream = DigestResolver(tmp_path, registry=registry)
    assert upstream.resolve(old) == "sha256:1"
    for reference in (new, other):
        with pytest.raises(Unreachable, match=r"^away$"):
            upstream.resolve(reference)
    assert upstream.resolve("quay.io/x") == "sha256:3"
    assert registry.asked == [old, "quay.io/x"]
    assert list(upstream.troubles) == ["nvcr.io"]


def test_an_answer_that_is_wrong_is_not_papered_over(tmp_path: Path) -> None:
    DigestResolver(tmp_path, registry=Answers({REFERENCE: "sha256:1"})).resolve(REFERENCE)
    for error in (RegistryError("lies"), ConfigError("no login")):
        with pytest.raises(type(error)):
            DigestResolver(tmp_path, registry=Answers({REFERENCE: error})).resolve(REFERENCE)


def test_builders_at_once_forget_nothing(tmp_path: Path) -> None:
    names = [f"nvcr.io/x:{number}" for number in range(40)]

    def build(name: str) -> str:
        return DigestResolver(tmp_path, registry=Answers({name: f"sha256:{name[-1]}"})).resolve(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(build, names))
    assert sorted(json.loads((tmp_path / "upstream.json").read_text())) == sorted(names)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"x": {"digest": "d", "seen": "s", "more": 1}}'])
def test_a_damaged_memory_is_said_to_be_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "upstream.json").write_text(text)
    with pytest.raises(
        RegistryError, match=r"upstream\.json is damaged: .*Delete it: the digests are requested again$"
    ):
        DigestResolver(tmp_path, offline=True).resolve(REFERENCE)


@pytest.mark.parametrize("reference", ["oras://ghcr.example/lab/base:v1", "library://lib.example/lab/x/base:v1"])
def test_files_of_registries_and_libraries(tmp_path: Path, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = [ResolvedReference("sha256:1", "", ""), Unreachable("x does not answer")]

    def resolve(asked: str) -> ResolvedReference:
        assert asked == reference
        answer = told.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, ResolvedReference)
        return answer

    monkeypatch.setattr(remote, "resolve", resolve)
    for _ in range(2):
        upstream = DigestResolver(tmp_path, registry=Answers({}))
        assert upstream.resolve(reference) == "sha256:1", "the second time by memory"
    assert list(upstream.troubles) == [reference.split("/")[2]]
    assert DigestResolver(tmp_path, offline=True).resolve(reference) == "sha256:1"
