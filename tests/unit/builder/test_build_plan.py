from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import FALLBACK_EPOCH, BuildPlan, PlannedLayer
from ctrain_builder.registry.stored_layer import StoredLayer
from ctrain_runtime.errors import ConfigError, RegistryError, UsageError

A, B = f"sha256:{'a1' * 32}", f"sha256:{'b2' * 32}"


def _plan(
    project: Path,
    given: Mapping[str, str] = {},  # read
    site: Mapping[str, str] = {},  # read
    have: Sequence[str] = (),
    digest: str = A,
    tag: str = "",
) -> BuildPlan:
    spec = image_spec.find_spec(project / "definitions", "small", tag)
    return build_plan.plan_image(
        spec, given, site, "amd64", lambda key, _is_base: key in have, lambda _reference: digest
    )


def _unreachable(reference: str) -> str:
    raise RegistryError(f"the digest of {reference} is not known")


@pytest.fixture
def ngc(project: Path) -> Path:
    """The project, with a base from a registry."""
    path = project / "definitions/base/base.def"
    path.write_text("Bootstrap: docker\nFrom: nvcr.io:443/nvidia/small:{{ VERSION }}-py3\n")
    return project


def test_what_is_in_the_cache_exists(project: Path) -> None:
    first = _plan(project)
    assert [layer.exists for layer in first.layers] == [False, False]
    assert [layer.exists for layer in _plan(project, have=first.keys[:1]).layers] == [True, False]


def test_the_mirror_is_passed_on_but_not_part_of_the_key(project: Path) -> None:
    one, other, none = (_plan(project, site=site) for site in ({"MIRROR": "http://a"}, {"MIRROR": "http://b"}, {}))
    assert one.keys == other.keys == none.keys
    assert one.layers[0].arguments == {"MIRROR": "http://a", "VERSION": "1.0"}
    assert one.layers[1].arguments == {"PARENT": "base"}


def test_an_argument_of_one_layer_changes_it_and_those_above(project: Path) -> None:
    plain, blue = _plan(project), _plan(project, {"COLOUR": "blue"})
    assert plain.keys[0] == blue.keys[0]
    assert plain.keys[1] != blue.keys[1]


def test_arguments_come_from_the_command_line_then_the_tag_then_the_definition(project: Path) -> None:
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text() + "    tags: {'1.0': {arguments: {COLOUR: green}}, '2.0': {}}\n")
    colours = [
        _plan(project, given, tag=tag).layers[1].inputs.arguments["COLOUR"]
        for given, tag in (({}, "1.0"), ({}, "2.0"), ({"COLOUR": "blue"}, "1.0"))
    ]
    assert colours == ["green", "red", "blue"]


def _compressions(project: Path, **given: str) -> tuple[str, ...]:
    return tuple(layer.compression for layer in _plan(project, given).layers)


def test_layers_are_packed_as_the_next_definition_below_says(project: Path) -> None:
    assert _compressions(project) == ("gzip", "gzip")
    base, upper = (project / f"definitions/{name}/{name}.def" for name in ("base", "upper"))
    label = "\n%labels\n    packed {{ COMPRESSION }}\n"
    base.write_text(base.read_text().replace("%arguments\n", "%arguments\n    COMPRESSION=lz4\n") + label)
    assert _compressions(project) == ("lz4", "lz4")
    assert _compressions(project, COMPRESSION="zstd") == ("zstd", "zstd")
    assert not set(_plan(project).keys) & set(_plan(project, {"COMPRESSION": "zstd"}).keys)
    upper.write_text(upper.read_text().replace("%arguments\n", "%arguments\n    COMPRESSION=gzip\n") + label)
    assert _compressions(project) == ("lz4", "gzip")


def test_another_compression_is_refused(project: Path) -> None:
    base = project / "definitions/base/base.def"
    base.write_text(f"{base.read_text()}\n%labels\n    packed {{{{ COMPRESSION }}}}\n")
    with pytest.raises(ConfigError, match=r"base.def: argument COMPRESSION must be gzip or zstd or lz4, not 'xz'"):
        _plan(project, {"COMPRESSION": "xz"})


def test_a_change_of_the_base_changes_all(project: Path) -> None:
    before = _plan(project).keys
    path = project / "definitions/base/base.def"
    path.write_text(path.read_text() + "    echo more\n")
    assert not set(before) & set(_plan(project).keys)


def test_a_base_from_a_registry_is_taken_by_its_digest(ngc: Path) -> None:
    one, other = _plan(ngc, digest=A), _plan(ngc, digest=B)
    assert one.layers[0].base == f"nvcr.io:443/nvidia/small@{A}"
    assert not set(one.keys) & set(other.keys)
    before = {layer.name: layer.inputs for layer in one.layers}
    assert [status.why for status in build_plan.status(other, before.get)] == [
        ("base sha256:a1a1a1a1 -> sha256:b2b2b2b2",),
        ("parent",),
    ]


def test_a_definition_that_names_a_digest_asks_no_registry(ngc: Path) -> None:
    path = ngc / "definitions/base/base.def"
    path.write_text(path.read_text().replace("-py3", f"-py3@{B}"))
    spec = image_spec.find_spec(ngc / "definitions", "small")
    made = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, _unreachable)
    assert (made.problem, made.layers[0].base) == (None, f"nvcr.io:443/nvidia/small@{B}")


def test_without_a_digest_nothing_is_known(ngc: Path) -> None:
    spec = image_spec.find_spec(ngc / "definitions", "small")
    made = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: True, _unreachable)
    assert made.keys == ("", "")
    assert not any(layer.exists for layer in made.layers)
    why = "the digest of nvcr.io:443/nvidia/small:1.0-py3 is not known"
    assert build_plan.status(made, {}.get) == (
        build_plan.BuildStatus("unknown", (why,)),
        build_plan.BuildStatus("unknown", ("parent",)),
    )


def test_a_local_base_counts_by_its_content(project: Path, tmp_path: Path) -> None:
    path, local = project / "definitions/base/base.def", tmp_path / "local.sif"
    path.write_text(f"Bootstrap: localimage\nFrom: {local}\n%labels\n    version {{{{ VERSION }}}}\n")
    local.write_text("one")
    before = _plan(project)
    local.write_text("two")
    assert not set(before.keys) & set(_plan(project).keys)
    assert before.layers[0].base == ""


def test_a_registry_in_the_header_is_refused(ngc: Path) -> None:
    path = ngc / "definitions/base/base.def"
    path.write_text("Registry: nvcr.io\n" + path.read_text())
    problem = _plan(ngc).problem
    assert isinstance(problem, ConfigError)
    assert "Registry and Namespace are not supported" in problem.message


def test_the_state_of_layers(project: Path) -> None:
    old, new = _plan(project), _plan(project, {"COLOUR": "blue"})
    before = {layer.name: layer.inputs for layer in old.layers}
    assert [status.state for status in build_plan.status(new, {}.get)] == ["new", "new"]
    gone, changed = build_plan.status(new, before.get)
    assert (gone.state, gone.why) == ("stale", ("not in the cache",))
    assert (changed.state, changed.why) == ("stale", ("argument COLOUR red -> blue",))
    have = _plan(project, have=old.keys)
    assert build_plan.status(have, before.get) == (build_plan.BuildStatus("ok"), build_plan.BuildStatus("ok"))


def test_the_epoch_is_that_of_the_definition_and_its_files_and_no_part_of_the_key(project: Path) -> None:
    spec = image_spec.find_spec(project / "definitions", "small")
    asked: list[Sequence[Path]] = []

    def epoch(paths: Sequence[Path]) -> int:
        asked.append(paths)
        return len(asked)

    made = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, str, epoch)
    assert [layer.epoch for layer in made.layers] == [1, 2]
    assert asked[1] == [project / "definitions/upper/upper.def", project / "examples/x"]
    assert made.keys == _plan(project).keys
    assert {layer.epoch for layer in _plan(project).layers} == {FALLBACK_EPOCH}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("SIZE", "uses argument SIZE. Known: COLOUR, MIRROR"),
        ("VERSION", "VERSION is the tag of image small. Use IMAGE:TAG"),
        ("PARENT", "uses argument PARENT"),
    ],
)
def test_unknown_arguments_are_refused(project: Path, given: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_plan.check_build_args([image_spec.find_spec(project / "definitions", "small")], [given])


def test_a_missing_source_of_files_is_named(project: Path) -> None:
    path = project / "definitions/upper/upper.def"
    path.write_text(path.read_text().replace("examples/x", "examples/y"))
    with pytest.raises(ConfigError, match="%files names examples/y"):
        _plan(project)


def test_a_broken_link_among_the_files_is_named(project: Path) -> None:
    (project / "examples/x/latest").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"examples/x/latest is not a regular file"):
        _plan(project)


TIMES = {"base": "2026-11-01T00:00:00Z", "upper": "2026-11-02T00:00:00Z"}


def renewed(project: Path, times: dict[str, str], wanted: dict[str, tuple[str, str]]) -> list[tuple[bool, str]]:
    found = build_plan.plan_image(
        image_spec.find_spec(project / "definitions", "small"), {}, {}, "amd64", lambda *_: True, lambda _: ""
    )
    again = build_plan.renew(found, lambda part: times[part.name], lambda part: wanted.get(part.name, ("", "")))
    return [(part.exists, part.renewal) for part in again.layers]


def test_layers_that_are_new_enough_stay(project: Path) -> None:
    assert renewed(project, TIMES, {}) == [(True, ""), (True, "")]
    assert renewed(project, TIMES, {"base": (TIMES["base"], "old")}) == [(True, ""), (True, "")]
    assert renewed(project, {"base": "", "upper": ""}, {}) == [(True, ""), (True, "")], "nothing is known"


def test_a_layer_is_built_again_with_those_above_it(project: Path) -> None:
    now = "2026-11-22T00:00:00Z"
    again = [(False, "--rebuild"), (False, "parent was built again")]
    assert renewed(project, TIMES, {"base": (now, "--rebuild")}) == again
    assert renewed(project, TIMES, {"upper": (now, "--rebuild")}) == [(True, ""), (False, "--rebuild")]


def test_a_layer_on_an_older_build_of_its_parent_is_built_again(project: Path) -> None:
    times = {**TIMES, "base": "2026-11-03T00:00:00Z"}
    assert renewed(project, times, {}) == [(True, ""), (False, "parent was built again")]
    assert renewed(project, {**times, "upper": ""}, {}) == [(True, ""), (False, "parent was built again")]


def test_only_bases_from_mirrors_get_newer_packages(project: Path) -> None:
    found = build_plan.plan_image(
        image_spec.find_spec(project / "definitions", "small"), {}, {}, "amd64", lambda *_: True, lambda _: ""
    )
    assert [part.is_from_mirror for part in found.layers] == [True, False]


def offer(part: PlannedLayer, digest: str, parent: str, built: str = "2026-11-02T00:00:00Z") -> StoredLayer:
    return StoredLayer(part.key, part.name, "amd64", parent, LayerContent(digest, 5, built, "oras://r/x"))


def offered(plan: BuildPlan, *offers: StoredLayer, digest: str = "") -> list[tuple[bool, bool]]:
    """Whether there is an offer for each layer, and whether it certainly will do."""

    def find(part: PlannedLayer, below: Optional[str]) -> Optional[StoredLayer]:
        return next((one for one in offers if one.key == part.key and build_plan.fits(part, one, below)), None)

    found = build_plan.with_offers(plan, lambda _: digest, find).layers
    return [(part.offer is not None, part.downloads) for part in found]


def test_an_offer_must_have_been_built_on_the_layer_below(project: Path) -> None:
    plan = _plan(project)
    base, upper = plan.layers
    assert offered(plan, offer(base, A, ""), offer(upper, B, A)) == [(True, True), (True, True)]
    assert offered(plan, offer(base, A, ""), offer(upper, B, B)) == [(True, True), (False, False)]
    assert offered(plan, offer(base, A, B), offer(upper, B, A)) == [(False, False), (True, False)]
    # A base that is built here may turn out to be the one that the offer was built on.
    assert offered(plan, offer(upper, B, A)) == [(False, False), (True, False)]
    here = _plan(project, have=plan.keys[:1])
    assert offered(here, offer(base, A, ""), offer(upper, B, A), digest=A) == [(False, False), (True, True)]
    assert offered(here, offer(upper, B, A), digest=B) == [(False, False), (False, False)]
    assert offered(here, offer(upper, B, A), digest="") == [(False, False), (True, False)], "its digest is not recorded"


def test_an_offer_must_be_as_new_as_asked_for(project: Path) -> None:
    plan = build_plan.renew(_plan(project), lambda _: "", lambda _: ("2026-11-02T00:00:00Z", "older than 30 days"))
    base, upper = plan.layers
    assert offered(plan, offer(base, A, ""), offer(upper, B, A)) == [(True, True), (True, True)]
    old = offer(base, A, "", "2026-11-01T23:59:59Z")
    assert offered(plan, old, offer(upper, B, A)) == [(False, False), (True, False)]


def test_nothing_is_asked_for_what_exists_or_cannot_be_known(ngc: Path) -> None:
    plan = _plan(ngc)
    asked = []
    build_plan.with_offers(_plan(ngc, have=plan.keys), lambda _: A, lambda part, _: asked.append(part))
    spec = image_spec.find_spec(ngc / "definitions", "small")
    unknown = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, _unreachable)
    build_plan.with_offers(unknown, lambda _: A, lambda part, _: asked.append(part))
    assert asked == []
