"""What an older ctrain has written is read by this one; what a newer one has written, or has more in, is refused in one
line and left as it is. Which schemas those are: docs/releases.md.

samples/formats has a file of each schema, as it was written then, and the first files of those that people write.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.definitions import image_spec, lock_file
from ctrain_builder.store import init
from ctrain_runtime import job
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.images import user_layer
from ctrain_runtime.run import directory, group, record
from ctrain_runtime.site.files import read_project_file, read_site_file
from ctrain_runtime.site.layers import Level
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import manifest, policy
from ctrain_runtime.store.store import LAYOUT_VERSION, STORE_MARKER, open_store
from samples.layers import write_layer
from samples.plans import a_manifest

FORMATS = Path(__file__).parents[1] / "samples/formats"


@dataclass(frozen=True)
class Format:
    """A file that ctrain writes: its name in its directory, the newest schema and the oldest that is read."""

    file: str
    read: Callable[[Path], Any]
    newest: int
    oldest: int = 1
    key: str = "schema"


WRITTEN = {
    "store": Format(STORE_MARKER, lambda path: open_store(path.parent), LAYOUT_VERSION, key="layout"),
    "manifest": Format("pytorch.json", manifest.read_manifest, manifest.SCHEMA),
    "record": Format("record.json", lambda path: record.load(path.parent), record.SCHEMA, record.WITHOUT_ENDING),
    "plan": Format("plan.json", lambda path: directory.load_launch(path.parent), directory.SCHEMA),
    "sweep": Format("lr.sweep.json", group.load, group.SCHEMA),
    "lock": Format(lock_file.FILE, lambda path: lock_file.read(path.parent), lock_file.SCHEMA),
}
BY_HAND: dict[str, Callable[[Path], Any]] = {
    "images.yaml": lambda path: image_spec.all_specs(path.parent),
    "job.yaml": lambda path: job.find(f"./{path.parent.name}"),
    "neuron.yaml": lambda path: read_site_file(path, Level.USER, Site),
    "ctrain.yaml": lambda _: read_project_file(Site),
    "policy.yaml": lambda path: policy.load(path.parent),
}
OLD = [(name, schema) for name, form in WRITTEN.items() for schema in range(form.oldest, form.newest + 1)]


def sample(name: str, schema: int, folder: Path) -> Path:
    return Path(shutil.copy(FORMATS / f"{name}-{schema}.json", folder / WRITTEN[name].file))


def change(path: Path, **keys: Any) -> bytes:
    """The file with other keys, as a ctrain would have written it; its bytes."""
    data = {**json.loads(path.read_text()), **keys}
    if data.pop(manifest.CHECKSUM, ""):
        data[manifest.CHECKSUM] = manifest.checksum(data)
    path.write_text(json.dumps(data, indent=2) + "\n")
    return path.read_bytes()


def refusal(read: Callable[[Path], Any], path: Path) -> CtrainError:
    """Why a file is not read: in one line that names it. It stays as it is."""
    before = path.read_bytes()
    with pytest.raises(CtrainError) as caught:
        read(path)
    assert "\n" not in str(caught.value) and str(path.parent) in caught.value.message
    assert [file.read_bytes() for file in path.parent.iterdir() if file == path] == [before]
    return caught.value


def test_each_schema_has_a_sample_and_no_other() -> None:
    kept = {path.name for path in FORMATS.iterdir()}
    assert kept == {*(f"{name}-{schema}.json" for name, schema in OLD), *BY_HAND}


@pytest.mark.parametrize(("name", "schema"), OLD)
def test_a_file_of_each_schema_is_read(name: str, schema: int, tmp_path: Path) -> None:
    path = sample(name, schema, tmp_path)
    before = path.read_bytes()
    WRITTEN[name].read(path)
    assert path.read_bytes() == before


def test_what_old_manifests_and_records_say(tmp_path: Path) -> None:
    for schema in range(1, manifest.SCHEMA + 1):
        old = manifest.read_manifest(sample("manifest", schema, tmp_path))
        assert (old.reference, old.tested, len(old.layers)) == ("pytorch:24.12-hd-r3", True, 2), schema
    for schema in (record.WITHOUT_ENDING, record.SCHEMA):
        sample("record", schema, tmp_path)
        run = record.load(tmp_path)
        assert run.exit is not None
        assert (run.run, run.world_size, run.exit.code, run.exit.ending.value) == ("digits-1", 2, 143, "time limit")


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("above", [1, 96])
def test_a_newer_schema_is_refused_by_its_number(name: str, above: int, tmp_path: Path) -> None:
    form, path = WRITTEN[name], sample(name, WRITTEN[name].newest, tmp_path)
    change(path, **{form.key: form.newest + above}, new_key=1)
    error = refusal(form.read, path)
    assert re.search(rf"(schema|layout) {form.newest + above}\b", error.message), error.message
    assert re.search(rf"\b{form.newest}\b", error.message.rpartition("supported")[2]), error.message
    assert re.search(r"Upgrade ctrain|[Uu]se .*ctrain", error.hint), error.hint


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - {"store"}))
def test_a_key_of_a_newer_ctrain_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    """Of the schema that this one knows: a store's marker alone may have more."""
    path = sample(name, WRITTEN[name].newest, tmp_path)
    change(path, colour="red")
    assert "unknown key 'colour'" in refusal(WRITTEN[name].read, path).message


@pytest.mark.parametrize("name", ["record", "plan", "sweep"])
def test_whoever_meets_such_a_key_in_a_run_is_told_what_to_use(name: str, tmp_path: Path) -> None:
    path = sample(name, WRITTEN[name].newest, tmp_path)
    change(path, colour="red")
    assert refusal(WRITTEN[name].read, path).hint == "If a newer ctrain wrote it, use that one; else it is damaged"


def test_a_store_of_a_newer_layout_is_not_made_anew(tmp_path: Path) -> None:
    path = sample("store", 1, tmp_path)
    change(path, layout=2)
    refusal(lambda marker: init.init_store(marker.parent), path)
    refusal(lambda marker: init.init_store(marker.parent, repair=True), path)


def by_hand(name: str, folder: Path) -> Path:
    """The first file of its kind, with what it names beside it."""
    path = Path(shutil.copy(FORMATS / name, folder / name))
    (folder / "train.py").touch()
    return path


@pytest.mark.parametrize("name", BY_HAND)
def test_the_first_files_that_people_wrote_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path if name == "ctrain.yaml" else tmp_path.parent)
    assert BY_HAND[name](by_hand(name, tmp_path))


@pytest.mark.parametrize("name", BY_HAND)
def test_a_key_that_comes_later_is_refused_with_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if name == "ctrain.yaml" else tmp_path.parent)
    path = by_hand(name, tmp_path)
    path.write_text(f"{path.read_text()}\ncolour: red\n")
    assert "unknown key 'colour'" in refusal(BY_HAND[name], path).message


def test_a_user_layer_of_a_later_form(tmp_path: Path) -> None:
    path = write_layer(tmp_path / "my.sqsh", a_manifest(), einops="0.8.2")
    assert user_layer.read(path)
    path.write_bytes(path.read_bytes().replace(user_layer.MAGIC, b"ctrain layer v2\n"))
    error = refusal(user_layer.read, path)
    assert error.message.startswith("unsupported version 2 of layer ") and error.hint.startswith("Upgrade ctrain")
