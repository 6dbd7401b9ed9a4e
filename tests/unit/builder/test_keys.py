from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrain_builder import definition, files
from ctrain_builder.keys import layer_key, significant


def _key(project: Path, *, parent: str = "p", arch: str = "amd64", **values: str) -> str:
    read = definition.read("upper", project / "definitions/upper/upper.def")
    rendered = definition.render(read, {"PARENT": "base", **values})
    return layer_key(parent, rendered, files.listing(rendered, project), arch)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_comments_blank_lines_times_and_byte_code_do_not_change_the_key(project: Path) -> None:
    before = _key(project)
    _edit(project / "definitions/upper/upper.def", "%post\n", "%post\n\n    # a remark\n\n")
    (project / "examples/x/__pycache__").mkdir()
    (project / "examples/x/__pycache__/train.pyc").write_bytes(b"x")
    os.utime(project / "examples/x/train.py", (1, 1))
    (project / "examples/x/train.py").chmod(0o600)
    assert _key(project) == before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("definitions/upper/upper.def", "    echo", "    echo  more"),
        ("definitions/upper/upper.def", "/opt/x", "/opt/y"),
        ("examples/x/train.py", "print(1)", "print(2)"),
        ("examples/x/sub/data.txt", "data", "date"),
    ],
)
def test_whatever_can_change_the_layer_changes_the_key(project: Path, path: str, old: str, new: str) -> None:
    before = _key(project)
    _edit(project / path, old, new)
    assert _key(project) != before


def test_parent_architecture_arguments_names_and_executable_bits_count(project: Path) -> None:
    keys = {_key(project), _key(project, parent="q"), _key(project, arch="arm64"), _key(project, COLOUR="blue")}
    (project / "examples/x/train.py").chmod(0o755)
    keys.add(_key(project))
    (project / "examples/x/train.py").rename(project / "examples/x/trainer.py")
    keys.add(_key(project))
    assert len(keys) == 6


def test_every_line_of_a_here_document_counts() -> None:
    text = (
        "%post\n    # out\n    cat > x <<-'END'\n    # in\n\n    #include <a.h>\n    END\n    # out\n    wc <<< '# x'\n"
    )
    assert significant(text) == [
        "%post",
        "    cat > x <<-'END'",
        "    # in",
        "",
        "    #include <a.h>",
        "    END",
        "    wc <<< '# x'",
    ]


def test_a_shift_taken_for_a_here_document_ends_with_its_section() -> None:
    assert significant("%post\n  echo $((1 << N))\n# counts\n%test\n# does not\n") == [
        "%post",
        "  echo $((1 << N))",
        "# counts",
        "%test",
    ]
