"""Laws of layers: what rendering keeps, what a key depends on, and that portable deletions hide what opaque ones do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.definitions.definition import parse, render
from ctrain_builder.layers.overlay import Upper, whiteouts
from ctrain_builder.plan.layer_key import LayerInputs, compute_key, differences, significant_lines
from ctrain_runtime.base import config

HEADER = "Bootstrap: docker\n%post\n"
plain = st.text(st.characters(exclude_characters="{}%#\n\r", exclude_categories=("C", "Z")), min_size=1, max_size=20)
lines = st.lists(plain.map(lambda text: f"    echo {text}"), max_size=8)


@given(lines, plain)
def test_rendering_replaces_placeholders_and_nothing_else(body: list[str], value: str) -> None:
    text = HEADER + "".join(f"{line} {{{{ X }}}}\n" for line in body)
    assert render(parse("x", Path("x"), text), {"X": value}).text == text.replace("{{ X }}", value)


@given(lines, st.lists(st.sampled_from(["", "   ", "#", "    # remark", "#\tx"]), max_size=4))
def test_lines_of_sections_count_verbatim_and_comments_of_the_header_do_not(body: list[str], noise: list[str]) -> None:
    section = "\n".join(["%post", *body, *noise])
    header = "\n".join([*noise, "Bootstrap: docker"])
    assert significant_lines(f"{header}\n{section}") == ("Bootstrap: docker", *section.rstrip("\n").split("\n"))


words = st.text("ab", max_size=2)
inputs = st.builds(
    LayerInputs,
    parent=words,
    base=words,
    arch=words,
    arguments=st.dictionaries(words, words, max_size=2),
    definition=st.lists(st.sampled_from(("%post", "%test", "  a", "  b")), max_size=3).map(tuple),
    files=st.dictionaries(words, st.sampled_from(("644 0a", "755 0a", "644 0b")), max_size=2),
    format=st.sampled_from((1, 2)),
)


@given(inputs, inputs)
def test_keys_differ_exactly_when_a_difference_can_be_named(one: LayerInputs, other: LayerInputs) -> None:
    assert (compute_key(one) != compute_key(other)) == (one != other) == bool(differences(one, other))


@given(inputs)
def test_inputs_survive_being_written_down(one: LayerInputs) -> None:
    again = config.load(LayerInputs, json.loads(json.dumps(asdict(one))), "a file")
    assert (again, compute_key(again)) == (one, compute_key(one))


names = st.sampled_from("abc")
trees = st.sets(st.lists(names, min_size=1, max_size=3).map(lambda parts: PurePosixPath("d", *parts)), max_size=12)


def _closed(leaves: set[PurePosixPath]) -> tuple[set[PurePosixPath], set[PurePosixPath]]:
    """Folders and files of a tree with these paths: what has something below it is a folder."""
    everything = leaves | {parent for leaf in leaves for parent in leaf.parents if parent != PurePosixPath(".")}
    folders = {path for path in everything if any(path in other.parents for other in everything)} | {PurePosixPath("d")}
    return folders, everything - folders


def _merged(
    lower: set[PurePosixPath], folders: set[PurePosixPath], files: set[PurePosixPath], gone: set[PurePosixPath]
) -> set[PurePosixPath]:
    """What a plain overlay without opaque folders shows."""
    hidden = {path for path in lower if gone & {path, *path.parents} or files & {path, *path.parents}}
    return (lower - hidden) | folders | files


@given(trees, trees)
def test_portable_deletions_show_what_an_opaque_folder_shows(
    below: set[PurePosixPath], above: set[PurePosixPath]
) -> None:
    lower = set().union(*_closed(below))
    folders, files = _closed(above)
    opaque = Upper(frozenset(folders), frozenset(files), frozenset({PurePosixPath("d")}), frozenset())
    gone = whiteouts(opaque, lower - {PurePosixPath("d")})
    assert _merged(lower, folders, files, set(gone)) == folders | files
