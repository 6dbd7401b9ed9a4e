"""Laws of files that ctrain reads: what it wrote reads back, and anything else is an error with a name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.errors import ConfigError, ImageUnusable
from ctrain_runtime.images.user_layer import read as read_layer
from ctrain_runtime.job import JobFile
from ctrain_runtime.run import events, ranks
from ctrain_runtime.run.follow import Metrics
from ctrain_runtime.store.manifest import SCHEMA, Manifest, read_manifest
from ctrain_runtime.store.sif import DESCRIPTOR, HEADER, PARTITION, SBOM, check, object_bytes
from samples.layers import write_layer
from samples.plans import a_manifest
from samples.sample_images import sif, write_manifest

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "file"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folder")


@given(st.builds(Manifest, schema=st.just(SCHEMA)))
def test_a_manifest_reads_back(file: Path, manifest: Manifest) -> None:
    write_manifest(file, manifest)
    assert read_manifest(file) == manifest


@given(st.dictionaries(st.sampled_from([field.name for field in dataclasses.fields(JobFile)]) | words, plain))
def test_any_other_data_loads_or_is_named(data: dict[str, Any]) -> None:
    try:
        config.load(JobFile, data, "job.yaml")
    except ConfigError as error:
        assert error.message.startswith("job.yaml: ")  # most data is wrong, but not all


@given(st.binary(max_size=60) | words.map(str.encode))
@example(b"a: &x [*x]")
@example(b"? {a: b}\n: c")
@example(b"a: 2026-13-45")
def test_any_bytes_are_a_mapping_or_an_error_of_one_line(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        assert isinstance(strict_yaml.read(file), dict)
    except ConfigError as error:
        assert "\n" not in str(error).replace(str(file), "")  # see above


WHOLE = sif()


@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_image_is_damaged(file: Path, length: int) -> None:
    file.write_bytes(WHOLE[:length])
    with pytest.raises(ImageUnusable):
        check(file)


@given(st.binary(max_size=2 * HEADER.size))
def test_random_bytes_are_no_image(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ImageUnusable):
        check(file)


@given(st.integers(0, HEADER.size + 2 * DESCRIPTOR.size - 1), st.binary(min_size=1, max_size=8))
def test_a_garbled_image_is_checked_without_a_crash(file: Path, offset: int, noise: bytes) -> None:
    file.write_bytes(WHOLE[:offset] + noise + WHOLE[offset + len(noise) :])
    try:
        assert isinstance(check(file), str)
    except ImageUnusable as error:
        assert str(file) in str(error)  # noise in an unused field does no harm


@given(st.data())
def test_a_layer_with_any_other_byte_is_refused(file: Path, data: st.DataObject) -> None:
    whole = write_layer(file, a_manifest(), einops="0.8.2").read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    changed = whole[:start] + data.draw(st.binary(max_size=8)) + whole[data.draw(st.integers(start, len(whole))) :]
    assume(changed != whole)
    file.write_bytes(changed)
    with pytest.raises(ImageUnusable):
        read_layer(file)


@given(st.integers(0, HEADER.size + 3 * DESCRIPTOR.size - 1), st.binary(min_size=1, max_size=8))
def test_a_garbled_image_yields_its_objects_or_an_error(file: Path, offset: int, noise: bytes) -> None:
    whole = sif(more=[(SBOM, b"{}"), (PARTITION, b"layer")])
    file.write_bytes(whole[:offset] + noise + whole[offset + len(noise) :])
    try:
        assert object_bytes(file, SBOM) in (None, *(whole[at : at + n] for at in range(len(whole)) for n in range(9)))
    except ImageUnusable as error:
        assert str(file) in str(error)


@given(st.lists(st.dictionaries(words, plain, max_size=3), max_size=4), st.data())
def test_metrics_are_the_same_however_they_grow(file: Path, records: list[dict[str, Any]], data: st.DataObject) -> None:
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    file.unlink(missing_ok=True)
    metrics, found = Metrics(file), []
    for cut in [*cuts, len(content)]:
        file.write_bytes(content[:cut])
        found += metrics.read()
    assert found == records


@given(st.lists(st.binary(max_size=40) | plain.map(lambda data: json.dumps(data).encode()), max_size=6))
def test_any_events_are_read_without_an_error(folder: Path, lines: list[bytes]) -> None:
    (folder / "events.jsonl").write_bytes(b"\n".join(lines))
    found = events.read_job_events(folder)
    assert ranks.started(ranks.from_events(found)) <= len(found)


@given(st.data())
def test_events_that_are_cut_off_anywhere_are_those_of_the_whole_lines(folder: Path, data: st.DataObject) -> None:
    whole = "".join(
        json.dumps({"what": "ended", "rank": rank, "code": 130 + rank, "time": 1.5, "node": "n"}) + "\n"
        for rank in range(4)
    )
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    (folder / "events.jsonl").write_text(cut)
    found = ranks.from_events(events.read_job_events(folder))
    assert [(rank.number, rank.exit_code) for rank in found] == [(n, 130 + n) for n in range(cut.count("\n"))]
