from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.layer_key import LayerInputs, compute_key, compute_recipe, differences, significant_lines


def _inputs(project: Path, **given: str) -> LayerInputs:
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, given, {}, "amd64", lambda _key, _is_base: False, str).layers[1].inputs


def _key(project: Path) -> str:
    return compute_key(_inputs(project))


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_comments_of_the_header_times_and_byte_code_do_not_change_the_key(project: Path) -> None:
    before = _key(project)
    _edit(project / "definitions/upper/upper.def", "Bootstrap:", "# a remark\n\nBootstrap:")
    _edit(project / "definitions/images.yaml", "images:", "# a remark\nimages:")
    (project / "examples/x/__pycache__").mkdir()
    (project / "examples/x/__pycache__/train.pyc").write_bytes(b"x")
    os.utime(project / "examples/x/train.py", (1, 1))
    (project / "examples/x/train.py").chmod(0o600)
    assert _key(project) == before


def test_an_argument_that_nothing_uses_does_not_change_the_key(project: Path) -> None:
    before = _key(project)
    _edit(project / "definitions/upper/upper.def", "    COLOUR=red\n", "    COLOUR=red\n    SIZE=1\n")
    assert _key(project) == before


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        ("definitions/upper/upper.def", "    echo", "    echo  more", "definition changed (%post)"),
        ("definitions/upper/upper.def", "%post\n", "%post\n    # a remark\n", "definition changed (%post)"),
        ("definitions/upper/upper.def", "/opt/x", "/opt/y", "definition changed (%files)"),
        ("definitions/upper/upper.def", "=red", "=blue", "argument COLOUR red -> blue"),
        ("definitions/base/base.def", "    echo", "    echo  more", "parent"),
        ("examples/x/train.py", "print(1)", "print(2)", "examples/x/train.py changed"),
        ("examples/x/sub/data.txt", "data", "date", "examples/x/sub/data.txt changed"),
    ],
)
def test_whatever_can_change_the_layer_changes_the_key_and_is_named(
    project: Path, path: str, old: str, new: str, why: str
) -> None:
    before = _inputs(project)
    _edit(project / path, old, new)
    after = _inputs(project)
    assert compute_key(after) != compute_key(before)
    assert differences(before, after) == (why,)


def test_parent_architecture_base_arguments_names_and_executable_bits_count(project: Path) -> None:
    plain = _inputs(project)
    others = [replace(plain, parent="q"), replace(plain, arch="arm64"), replace(plain, base=f"sha256:{'9c' * 32}")]
    others += [replace(plain, format=0), _inputs(project, COLOUR="blue")]
    (project / "examples/x/train.py").chmod(0o755)
    others.append(_inputs(project))
    (project / "examples/x/train.py").rename(project / "examples/x/trainer.py")
    others.append(_inputs(project))
    assert len({compute_key(inputs) for inputs in (plain, *others)}) == 8
    assert [differences(plain, other) for other in others] == [
        ("parent",),
        ("architecture amd64 -> arm64",),
        ("base none -> sha256:9c9c9c9c",),
        ("ctrain builds layers differently",),
        ("argument COLOUR red -> blue",),
        ("examples/x/train.py has mode 644 -> 755",),
        ("examples/x/train.py is gone", "examples/x/trainer.py is new"),
    ]


@pytest.mark.parametrize(
    "post",
    [
        "    cat > x <<'END'\n# remark\n\nEND\n",
        "    echo '\n# remark\n\n' > x\n",
        "    echo \\\n# remark\n",
        "    a=$((1 << N))\n    # remark\n",
    ],
)
def test_a_section_counts_verbatim_for_only_a_shell_knows_what_is_a_comment(post: str) -> None:
    lines = tuple(f"%post\n{post}".rstrip("\n").split("\n"))
    assert significant_lines(f"# header\n\nBootstrap: docker\n%post\n{post}") == ("Bootstrap: docker", *lines)


def test_arguments_count_by_their_values_only() -> None:
    assert significant_lines("Bootstrap: docker\n%arguments\n  A=1\n%post\n  echo {{ A }}\n") == (
        "Bootstrap: docker",
        "%post",
        "  echo {{ A }}",
    )


def _recipe(project: Path, arch: str = "amd64", **given: str) -> str:
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, given, {}, arch, lambda _key, _is_base: False, str).layers[-1].recipe


ABOUT = "%labels\n    a b\n\n%help\n    Help.\n\n%runscript\n    true\n\n%startscript\n    true\n\n"


@pytest.mark.parametrize("name", ["upper", "base"])
def test_tests_and_what_an_image_says_of_itself_are_in_the_key_but_not_in_the_recipe(project: Path, name: str) -> None:
    key, made = _key(project), _recipe(project)
    path = project / f"definitions/{name}/{name}.def"
    path.write_text(f"{path.read_text().partition('%test')[0]}\n{ABOUT}%test\n    test 1 = 1\n")
    assert _key(project) != key
    assert _recipe(project) == made


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("definitions/upper/upper.def", "    echo", "    echo  more"),
        ("definitions/upper/upper.def", "%post\n", "%post -c /bin/bash\n"),
        ("definitions/upper/upper.def", "%post\n", "%environment\n    export CXX=g++\n\n%post\n"),
        ("definitions/upper/upper.def", "/opt/x", "/opt/y"),
        ("definitions/upper/upper.def", "=red", "=blue"),
        ("definitions/base/base.def", "    echo", "    echo  more"),
        ("definitions/base/base.def", "bookworm", "trixie"),
        ("definitions/images.yaml", 'tag: "1.0"', 'tag: "1.1"'),
        ("examples/x/train.py", "print(1)", "print(2)"),
    ],
)
def test_all_that_runs_in_a_layer_or_below_is_in_the_recipe(project: Path, path: str, old: str, new: str) -> None:
    """Else a definition could put what it has compiled in the place of another one's."""
    before = _recipe(project)
    _edit(project / path, old, new)
    assert _recipe(project) != before


def test_the_architecture_and_arguments_are_in_the_recipe(project: Path) -> None:
    assert len({_recipe(project), _recipe(project, "arm64"), _recipe(project, COLOUR="blue")}) == 3


def test_how_layers_are_packed_is_not_in_the_recipe(project: Path) -> None:
    """What Horovod was compiled to need not be compiled again."""
    path = project / "definitions/base/base.def"
    path.write_text(f"{path.read_text()}\n%labels\n    packed {{{{ COMPRESSION }}}}\n")
    assert _recipe(project, COMPRESSION="gzip") == _recipe(project, COMPRESSION="lz4")


def test_the_recipe_stands_for_those_below_without_their_keys() -> None:
    inputs = LayerInputs("", "", "amd64", {}, ("%post",), {})
    assert len({compute_recipe(inputs, below) for below in ("", "a", "b")}) == 3
    assert compute_recipe(replace(inputs, parent="x", format=0), "a") == compute_recipe(inputs, "a")
    assert compute_recipe(replace(inputs, base="sha256:1"), "a") != compute_recipe(inputs, "a")
