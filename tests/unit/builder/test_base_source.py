"""Every base has a digest, comes from package mirrors, or is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.definitions import base_source, image_spec
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.errors import BuildError, ConfigError, RegistryError

Plan = Callable[..., BuildPlan]


@pytest.fixture
def plan(project: Path) -> Plan:
    """plan(header, tags): of an image whose base has this header; `tags` are the digests that registries tell."""

    def make(header: str, **tags: str) -> BuildPlan:
        text = f"{header}\n%labels\n    version {{{{ VERSION }}}}\n"
        (project / "definitions/base/base.def").write_text(text)
        spec = image_spec.find_spec(project / "definitions", "small")

        def resolve(reference: str) -> str:
            name = reference.rpartition("/")[2].partition(":")[0]
            if name not in tags:
                raise RegistryError(f"the digest of {reference} is not known")
            assert reference == tags["reference"]
            return tags[name]

        return build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: True, resolve)

    return make


@pytest.mark.parametrize(
    ("bootstrap", "tag"),
    [
        ("docker-archive", ""),
        ("docker-archive", ":v1"),
        ("oci-archive", ""),
        ("oci-archive", ":v1"),
        ("localimage", ""),
    ],
)
def test_a_file_counts_by_its_content(plan: Plan, tmp_path: Path, bootstrap: str, tag: str) -> None:
    file = tmp_path / "image.tar"
    header = f"Bootstrap: {bootstrap}\nFrom: {file}{tag}"
    file.write_text("one")
    before = plan(header)
    file.write_text("two")
    after = plan(header)
    assert not set(before.keys) & set(after.keys)
    file.write_text("one")
    assert plan(header).keys == before.keys
    told = build_plan.status(after, {layer.name: layer.inputs for layer in before.layers}.get)
    assert told[0].why == (f"base {before.layers[0].inputs.base[:15]} -> {after.layers[0].inputs.base[:15]}",)
    assert not before.layers[0].is_from_mirror, "its age does not matter"


@pytest.mark.parametrize("tag", ["", ":v1"])
def test_a_layout_counts_by_its_index(plan: Plan, tmp_path: Path, tag: str) -> None:
    (tmp_path / "layout").mkdir()
    header = f"Bootstrap: oci\nFrom: {tmp_path}/layout{tag}"
    keys = []
    for digest in ("1", "2"):
        (tmp_path / "layout/index.json").write_text(digest)
        keys += plan(header).keys
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("header", "reference"),
    [
        ("Bootstrap: oras\nFrom: ghcr.example/lab/base:v1", "oras://ghcr.example/lab/base:v1"),
        ("Bootstrap: ORAS\nFrom: oras://ghcr.example/lab/base:v1", "oras://ghcr.example/lab/base:v1"),
        (
            "Bootstrap: library\nLibrary: https://lib.example\nFrom: lab/x/base:v1",
            "library://lib.example/lab/x/base:v1",
        ),
    ],
)
def test_a_tag_counts_by_what_it_means(plan: Plan, header: str, reference: str) -> None:
    one, two = (plan(header, base=f"sha256:{digit * 64}", reference=reference) for digit in "12")
    assert not set(one.keys) & set(two.keys)
    assert one.layers[0].inputs.base == f"sha256:{'1' * 64}"
    unknown = plan(header)
    assert unknown.keys == ("", "")
    assert str(unknown.problem) == f"the digest of {reference} is not known"


@pytest.mark.parametrize("what", ["file.sif", "file.tar:v1", "layout"])
def test_a_missing_file_is_a_problem_of_its_image_alone(plan: Plan, tmp_path: Path, what: str) -> None:
    kind = {"file.sif": "localimage", "file.tar:v1": "oci-archive", "layout": "oci"}[what]
    made = plan(f"Bootstrap: {kind}\nFrom: {tmp_path}/{what}")
    assert made.keys == ("", "")
    assert "there is no file" in str(made.problem)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("Bootstrap: docker-daemon\nFrom: base:v1", "can change unseen. Save it, docker save"),
        ("Bootstrap: shub\nFrom: lab/base", "can change unseen. Singularity Hub is closed"),
        ("Bootstrap: new-agent\nFrom: base", "can change unseen. Use an image of a registry, or a file"),
        ("Bootstrap: localimage\nFrom: /usr", "/usr is a directory, which can change unseen. Make a file of it"),
        ("Bootstrap: oci-archive", "needs a line `From:`"),
        ("Bootstrap: library\nFrom: lab/x/base:v1", "does not name its library. Add the line `Library: https://HOST`"),
    ],
)
def test_what_has_no_identity_is_refused_for_its_image_alone(plan: Plan, header: str, complaint: str) -> None:
    """Others of the same plan are built."""
    made = plan(header)
    assert made.keys == ("", "")
    assert not any(layer.exists for layer in made.layers)
    assert isinstance(made.problem, ConfigError)
    assert complaint in str(made.problem)
    assert "\n" not in str(made.problem)


@pytest.mark.parametrize("name", ["base.tar", "../base.tar", "base.tar:v1"])
def test_a_relative_file_is_one_in_the_directory_of_its_definition(
    plan: Plan, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Wherever the build is started; plain builds look there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.tar").write_text("that of a plain build")
    header, file = f"Bootstrap: docker-archive\nFrom: {name}", project / "definitions/base" / name.removesuffix(":v1")
    missing = plan(header).problem
    assert f"there is no file {file.resolve()}" in str(missing)
    assert "a relative path starts at the definition's directory" in str(missing)
    file.write_text("one")
    before = plan(header)
    assert before.problem is None
    assert before.layers[0].inputs.base == f"sha256:{hashlib.sha256(b'one').hexdigest()}"
    file.write_text("two")
    assert not set(before.keys) & set(plan(header).keys)


@pytest.mark.parametrize("header", ["Bootstrap: yum\nMirrorURL: http://x.example", "Bootstrap: scratch"])
def test_packages_count_by_their_age(plan: Plan, header: str) -> None:
    made = plan(header)
    assert made.layers[0].is_from_mirror
    assert made.problem is None


def test_what_changes_while_it_is_built_is_refused(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    file.write_text("one")
    base = plan(f"Bootstrap: docker-archive\nFrom: {file}").layers[0]
    base_source.require_unchanged(base.definition, base.inputs.base, str)
    file.write_text("two")
    with pytest.raises(BuildError, match=f"{file} has changed since the build began"):
        base_source.require_unchanged(base.definition, base.inputs.base, str)
