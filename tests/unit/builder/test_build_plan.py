from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder import catalog, plan
from ctrain_builder.plan import BuildPlan
from ctrain_runtime.errors import ConfigError, UsageError


def _plan(
    project: Path, given: dict[str, str] | None = None, site: dict[str, str] | None = None, have: tuple[str, ...] = ()
) -> BuildPlan:
    spec = catalog.find(project / "definitions", "small")
    return plan.make(spec, given or {}, site or {}, "amd64", lambda key, _is_base: key in have)


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


def test_a_change_of_the_base_changes_all(project: Path) -> None:
    before = _plan(project).keys
    path = project / "definitions/base/base.def"
    path.write_text(path.read_text() + "    echo more\n")
    assert not set(before) & set(_plan(project).keys)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"SIZE": "1"}, "uses argument SIZE. Known: COLOUR, MIRROR"), ({"VERSION": "2"}, "Use --tag 2")],
)
def test_unknown_arguments_are_refused(project: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _plan(project, given)


def test_a_missing_source_of_files_is_named(project: Path) -> None:
    path = project / "definitions/upper/upper.def"
    path.write_text(path.read_text().replace("examples/x", "examples/y"))
    with pytest.raises(ConfigError, match="%files names examples/y"):
        _plan(project)
