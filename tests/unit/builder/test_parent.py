"""Parent images, by SIF files of a few bytes: what becomes of their file systems, and what is refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache import estimate
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec, parent
from ctrain_builder.definitions.parent import Parent
from ctrain_builder.files.digests import Region
from ctrain_builder.image import describe, licenses
from ctrain_builder.layers import inherit
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError, ImageNotFound, ImageUnusable
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Base, Layer, Requires
from ctrain_runtime.store.store import Store
from samples import sample_images
from samples.plans import a_manifest

SYSTEM, UPPER = b"hsqs the lowest", b"hsqs what lies above"


def forget(_: str, ask: Callable[[], dict[str, str]]) -> dict[str, str]:
    return ask()


def never(*_: object) -> Any:
    raise AssertionError("nothing needs to be read")


def find(reference: str, facts: parent.Facts = forget, stores: Callable[[], list[Store]] = never) -> Parent:
    return parent.find(reference, stores, "x86_64", facts)


def written(path: Path, *systems: bytes) -> Path:
    first, *more = systems
    path.write_bytes(sample_images.sif(data=first, more=[(sif.PARTITION, content) for content in more]))
    return path


def described(path: Path, *names: str, **changes: Any) -> Path:
    """An image of the file systems SYSTEM and UPPER, with a manifest that names its layers."""
    written(path, SYSTEM, UPPER)
    found = sif.partitions(path)
    layers = tuple(
        Layer(name, f"claimed-{name}", entry.size, file_digest(path, entry.offset, entry.size))
        for name, entry in zip(names, found)
    )
    values = {"size": path.stat().st_size, "digest": file_digest(path), "layers": layers, **changes}
    sample_images.write_manifest(path.with_suffix(".json"), a_manifest(**values))
    return path


@pytest.mark.parametrize(
    "reference",
    ["store:pytorch", "store:pytorch:prod", "store:pytorch:24.12-hd-r3", "store:pytorch@sha256:12", "./x.sif", "/a/b",
     "x.sif", "../x.sif"],
)  # fmt: skip  # rows, as they are read
def test_published_images_and_files_can_be_parents(reference: str) -> None:
    parent.check(reference)


@pytest.mark.parametrize(
    "reference",
    ["pytorch", "pytorch:prod", "store:", "store:a/b", "docker://debian", "oras://host/x.sif", "store:x.sif"],
)
def test_other_references_are_refused_with_the_way_to_write_them(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"is neither a published image nor a SIF file\. Write it as store:NAME"):
        parent.check(reference)


def test_layers_of_a_manifest_are_taken_over_without_reading(tmp_path: Path) -> None:
    path = described(tmp_path / "x.sif", "pytorch-ngc", "horovod")
    found = find(str(path), never)
    assert (found.title, found.digest) == ("pytorch:24.12-hd-r3", file_digest(path))
    assert [name for name, _ in found.layers] == ["pytorch-ngc", "horovod"]
    for (_, region), content in zip(found.layers, (SYSTEM, UPPER)):
        assert path.read_bytes()[region.offset :][: region.size] == content
        assert region.digest == file_digest(path, region.offset, region.size)


def test_a_file_without_a_manifest_is_read_once(tmp_path: Path) -> None:
    path = written(tmp_path / "Debian 12.sif", SYSTEM, UPPER)
    kept: dict[str, dict[str, str]] = {}

    def facts(name: str, ask: Callable[[], dict[str, str]]) -> dict[str, str]:
        assert "/" not in name
        kept[name] = kept.get(name) or ask()
        return kept[name]

    first = find(str(path), facts)
    assert [name for name, _ in first.layers] == ["Debian-12", "Debian-12-2"]
    assert first.digest == file_digest(path)
    names = set(kept)
    assert find(str(path), facts) == first
    assert set(kept) == names, "nothing new was read"
    written(path, SYSTEM, UPPER + b"!")
    assert find(str(path), facts).layers[1] != first.layers[1]


def test_names_of_a_manifest_stay_names(tmp_path: Path) -> None:
    """They become parts of file names, and two of one name would be taken for one layer."""
    path = described(tmp_path / "x.sif", "../../etc", "../../etc")
    assert [name for name, _ in find(str(path)).layers] == ["etc", "etc-2"]
    path = described(tmp_path / "y.sif", "{{ X }}", "%post")
    assert [name for name, _ in find(str(path)).layers] == ["X", "post"]


def test_a_flat_image_is_one_layer(tmp_path: Path) -> None:
    path = written(tmp_path / "x.sif", SYSTEM)
    layers = (Layer("a", "k0", 3), Layer("b", "k1", 2))
    manifest = a_manifest(size=path.stat().st_size, flat=True, layers=layers)
    sample_images.write_manifest(path.with_suffix(".json"), manifest)
    [(name, region)] = find(str(path)).layers
    assert (name, region.digest) == ("pytorch", file_digest(path, region.offset, region.size))


@pytest.mark.parametrize("content", [b"hsqX", b"\x53\xef ext3", b""])
def test_another_file_system_is_refused(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "x.sif", SYSTEM, content)
    with pytest.raises(ImageUnusable, match=f"cannot build on {path}: its file system 2 is encrypted or not a squash"):
        find(str(path))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.sif").write_text("#!/bin/sh\n")
    with pytest.raises(ImageUnusable, match="is not a SIF image"):
        find(str(tmp_path / "x.sif"))
    with pytest.raises(ImageNotFound, match=r"y\.sif not found"):
        find(str(tmp_path / "y.sif"))
    with pytest.raises(ImageUnusable, match="architecture mismatch"):
        parent.find(str(written(tmp_path / "z.sif", SYSTEM)), never, "aarch64", forget)


def test_a_manifest_of_other_layers_is_refused(tmp_path: Path) -> None:
    layers = (Layer("a", "k", 1, "sha256:1"), Layer("b", "k", 2, "sha256:2"))
    path = described(tmp_path / "x.sif", "a", "b", layers=layers)
    with pytest.raises(ImageUnusable, match="does not consist of the layers in its manifest"):
        find(str(path))


def test_without_a_manifest_no_signature_policy_can_be_met(tmp_path: Path) -> None:
    found = find(str(written(tmp_path / "x.sif", SYSTEM)))
    parent.require_trust(found, Site(name="s", scheduler="local"))
    with pytest.raises(
        ImageUnusable, match=r"x.sif has no manifest, and site s requires .* Build on a published version"
    ):
        parent.require_trust(found, Site(name="s", scheduler="local", require_signature=True))


def a_parent(**digests: str) -> Parent:
    """A parent of layers with these digests."""
    layers = tuple((name, Region(Path("/x.sif"), 0, 3, digest)) for name, digest in digests.items())
    return Parent("pytorch:24.12-hd-r3", "sha256:abc", layers)


def planned(project: Path, found: Parent, source: str = "store:pytorch:prod") -> build_plan.BuildPlan:
    images = project / "definitions/images.yaml"
    images.write_text(
        f"images:\n  lab:\n    from: {source}\n    chain: [upper]\n    stack: lab\n    tag: '1'\n"
        "  small: {chain: [base, upper], stack: s, tag: '1', tag_argument: VERSION}\n"
    )
    spec = image_spec.find_spec(project / "definitions", "lab")
    return build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, str, find_parent=lambda _: found)


def test_what_the_parent_contains_is_part_of_the_keys(project: Path) -> None:
    first = planned(project, a_parent(base="sha256:1", horovod="sha256:2"))
    assert [layer.name for layer in first.layers] == ["base", "horovod", "upper"]
    assert [layer.definition.is_base for layer in first.layers] == [True, False, False]
    assert first.layers[2].arguments["PARENT"] == "horovod"
    other = planned(project, a_parent(base="sha256:1", horovod="sha256:3"))
    assert [one == two for one, two in zip(first.keys, other.keys)] == [True, False, False]
    assert keys_of_claims(project) == keys_of_claims(project, key="another key that it claims")


def test_copying_a_parent_takes_its_size_not_that_of_its_files(project: Path, tmp_path: Path) -> None:
    gigabyte = 10**9
    layers = (("base", Region(Path("/x.sif"), 0, 10 * gigabyte, "sha256:1")),)
    made = planned(project, Parent("pytorch:24.12-hd-r3", "sha256:abc", layers))
    cache = open_cache(tmp_path / "cache")
    above = 300_000_000  # the guess for an upper layer
    assert estimate.space(cache, made, flat=False) == (2 * (10 * gigabyte + above), 0), "nothing is unpacked"
    cache.layers.path(made.keys[0], True).touch()
    assert estimate.space(cache, made, flat=False) == (2 * above, 2 * above), "then the own layer is the largest step"


def keys_of_claims(project: Path, key: str = "k") -> tuple[str, ...]:
    """The keys on a parent whose manifest claims that its layers have the key `key`."""
    folder = project / key
    folder.mkdir()
    path = written(folder / "x.sif", SYSTEM, UPPER)
    layers = tuple(
        Layer(name, key, entry.size, file_digest(path, entry.offset, entry.size))
        for name, entry in zip(("a", "b"), sif.partitions(path))
    )
    return planned(project, find(str(described(path, layers=layers)))).keys


def test_keys_of_bases_are_no_keys_of_parents(project: Path) -> None:
    """A parent must not pass off its content as a layer that a definition makes."""
    own = image_spec.find_spec(project / "definitions", "small")
    made = build_plan.plan_image(own, {}, {}, "amd64", lambda _key, _is_base: False, str)
    assert made.layers[0].inputs.definition
    assert not planned(project, a_parent(base="sha256:1")).layers[0].inputs.definition


def test_a_missing_parent_is_a_problem_of_its_image_alone(project: Path) -> None:
    planned(project, a_parent())
    spec = image_spec.find_spec(project / "definitions", "lab")

    def missing(reference: str) -> Parent:
        raise ImageNotFound(f"image {reference} not found")

    made = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, str, find_parent=missing)
    assert made.keys == ("",)
    [status] = build_plan.status(made, lambda _: None)
    assert (status.state, status.why) == (build_plan.UNKNOWN, ("image store:pytorch:prod not found",))


def test_two_layers_of_one_name_are_refused(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"has a layer upper, which is also in the chain\. Rename your definition"):
        planned(project, a_parent(upper="sha256:1"))


def test_a_base_does_not_lose_the_layers_of_a_local_image(project: Path, tmp_path: Path) -> None:
    """Seen with Apptainer 1.4: `Bootstrap: localimage` unpacks the lowest file system only, without a word."""
    path = written(tmp_path / "x.sif", SYSTEM, UPPER)
    (project / "definitions/base/base.def").write_text(
        f"Bootstrap: localimage\nFrom: {path}\n%labels\n    version {{{{ VERSION }}}}\n"
    )
    spec = image_spec.find_spec(project / "definitions", "small")
    problem = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, str).problem
    assert re.search(f"x.sif has layers, .* Build on it in images.yaml: from: {path}", str(problem))
    written(path, SYSTEM)
    assert build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, str).layers[0].inputs.base == file_digest(
        path
    )


def test_a_path_is_relative_to_the_directory_that_holds_the_definitions(project: Path) -> None:
    assert planned(project, a_parent(), "./site.sif").spec.parent == str(project / "site.sif")
    assert planned(project, a_parent(), "/apps/site.sif").spec.parent == "/apps/site.sif"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("from: pytorch:prod, chain: [upper], stack: s, tag: '1'", "images.lab: from 'pytorch:prod' is neither"),
        ("parent: x.sif, chain: [upper], stack: s, tag: '1'", "unknown key 'parent'. Did you mean 'from'"),
        (
            "from: x.sif, chain: [base, upper], stack: s, tag: '1'",
            "base is a base, but the base of an image with `from`",
        ),
        ("from: x.sif, chain: [], stack: s, tag: '1'", "chain is empty"),
        (
            "from: x.sif, chain: [upper], stack: s, tag: '1', tag_argument: COLOR",
            "'COLOR' is not used by any definition",
        ),
        ("chain: [base, upper], stack: s, tag: '1'", "tag_argument '' is not used by"),
    ],
)
def test_mistakes_are_named(project: Path, entry: str, message: str) -> None:
    (project / "definitions/images.yaml").write_text(f"images:\n  lab: {{{entry}}}\n")
    with pytest.raises(ConfigError, match=message):
        image_spec.find_spec(project / "definitions", "lab")


def test_any_definition_can_take_the_tag(project: Path) -> None:
    entry = "from: store:x, chain: [upper], stack: s, tag: '7', tag_argument: COLOUR"
    (project / "definitions/images.yaml").write_text(f"images:\n  lab: {{{entry}}}\n")
    spec = image_spec.find_spec(project / "definitions", "lab")
    made = build_plan.plan_image(
        spec, {}, {}, "amd64", lambda *_: False, str, find_parent=lambda _: a_parent(base="sha256:1")
    )
    assert made.layers[1].arguments["COLOUR"] == "7"


def test_an_image_is_labelled_with_its_parent_and_has_its_requirements(project: Path, tmp_path: Path) -> None:
    base = Base("nvcr.io/nvidia/pytorch:24.12-py3", "sha256:9f")
    labels = {"org.opencontainers.image.licenses": "BSD-3-Clause"}
    needs = Requires("560", gpus=("A100",))
    path = described(tmp_path / "x.sif", "ngc", "horovod", base=base, labels=labels, requires=needs)
    found = find(str(path))
    made = planned(project, found)
    told = describe.labels(made, False, licenses.by_layer(made, {}), {})
    assert told["org.ctrain.parent"] == f"pytorch:24.12-hd-r3@{found.digest}"
    assert told["org.opencontainers.image.base.digest"] == found.digest
    assert told["org.opencontainers.image.licenses"] == "BSD-3-Clause"
    assert told["org.ctrain.licenses"] == "pytorch:24.12-hd-r3: BSD-3-Clause"
    assert told["org.ctrain.layers"] == "ngc horovod upper"
    assert describe._base(made) == base
    assert describe._requires(made, "8.0") == needs


def test_a_layer_that_is_not_what_was_planned_is_not_copied(tmp_path: Path) -> None:
    path = described(tmp_path / "x.sif", "a", "b")
    name, region = find(str(path)).layers[1]
    work = tmp_path / "work"
    work.mkdir()
    container = Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), work, lambda: None)
    made = inherit.copy(container, name, region, tmp_path / "log", arch="amd64", is_base=False)
    assert made.read_bytes() == UPPER
    with pytest.raises(ImageUnusable, match=r"cannot read .*gone\.sif: No such file"):
        gone = dataclasses.replace(region, path=tmp_path / "gone.sif")
        inherit.copy(container, name, gone, tmp_path / "log", arch="amd64", is_base=False)
    wrong = dataclasses.replace(region, digest="sha256:0")
    with pytest.raises(ImageUnusable, match="digest mismatch: layer b in"):
        inherit.copy(container, name, wrong, tmp_path / "log", arch="amd64", is_base=False)
