"""Laws of package lists: what is found in an image is what the run-time reads from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrain_builder.definitions.definition import parse
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.image.sbom import document
from ctrain_builder.plan.build_plan import BuildPlan, PlannedLayer
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_runtime.images.report import changes
from ctrain_runtime.store.sbom import packages
from ctrain_runtime.store.sif import SBOM
from samples.long_mode import often
from samples.sample_images import sif

BASE = parse("base", Path("base.def"), "Bootstrap: docker\nFrom: example\n")
INPUTS = LayerInputs(parent="", base="", arch="amd64", arguments={}, definition=(), files={})
names = st.from_regex(r"[a-z0-9]([a-z0-9+.-]*[a-z0-9])?", fullmatch=True)
versions = st.from_regex(r"[0-9][A-Za-z0-9.+:~!_-]*", fullmatch=True)
listed = st.dictionaries(st.tuples(st.sampled_from(["pypi", "deb"]), names), versions, max_size=8)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images") / "x.sif"


def found(content: dict[tuple[str, str], str]) -> dict[str, Any]:
    """As inside/examine.py would print it."""
    deb = [(name, version) for (kind, name), version in content.items() if kind == "deb"]
    return {
        "system": {"ID": "debian", "VERSION_CODENAME": "bookworm"},
        "pypi": {name: version for (kind, name), version in content.items() if kind == "pypi"},
        "deb": [{"package": name, "version": version, "architecture": "amd64"} for name, version in deb],
    }


@settings(max_examples=often(100, 10))  # names that match a pattern take a second to find
@given(listed)
def test_packages_read_back(file: Path, content: dict[tuple[str, str], str]) -> None:
    spec = ImageSpec("x", "x", "s", "1", "TAG", (BASE,), Path())
    plan = BuildPlan(spec, "amd64", (PlannedLayer(BASE, {}, (), INPUTS, "key", exists=True),))
    file.write_bytes(sif(more=[(SBOM, document(plan, found(content), {}).encode())]))
    assert packages(file) == content


@given(listed, listed)
def test_changes_lead_from_the_old_to_the_new(old: dict[tuple[str, str], str], new: dict[tuple[str, str], str]) -> None:
    told = changes(old, new)
    assert all(old.get((change.kind, change.name)) == change.old != change.new for change in told)
    after = {**old, **{(change.kind, change.name): change.new for change in told}}
    assert {key: version for key, version in after.items() if version is not None} == new
