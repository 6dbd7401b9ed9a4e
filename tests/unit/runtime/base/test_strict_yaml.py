from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.base import strict_yaml
from ctrain_runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"a: 1\nb: 2\na: 3\n", ", line 3: duplicate key 'a'"),
        (b"a:\n  b: 1\n  b: 2\n", ", line 3: duplicate key 'b'"),
        (b"a: 1\nb: [1, 2\nc: 3\n", ", line 3: expected ',' or ']', but got ':'"),
        (b"a: 1\n\tb: 2\n", ", line 2: found character '\\t' that cannot start any token"),
        (b"a: !!python/object:os.system 1\n", ", line 1: could not determine a constructor for the tag"),
        (b"", " must be a mapping, not null"),
        (b"# only a comment\n", " must be a mapping, not null"),
        (b"- a\n- b\n", " must be a mapping, not a list"),
        (b"text\n", " must be a mapping, not a string"),
        (b"a: \377\n", " is not a text file"),
        (b"a: \x00\n", ": unacceptable character"),
        (b"? [a]\n: 1\n", ", line 1: found unhashable key"),
        (b"a: 2026-13-45\n", ": month must be in 1..12"),
        (b"a: " + b"[\n" * 2000, ": nested too deeply"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_line(tmp_path: Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        strict_yaml.read(path)
    assert str(caught.value).startswith(f"{path}{complaint}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read .*x.yaml: No such file or directory$"):
        strict_yaml.read(tmp_path / "x.yaml")


def test_a_file_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes("description: 대전\n".encode())
    assert strict_yaml.read(tmp_path / "job.yaml") == {"description": "대전"}


def test_the_lines_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("# comment\na: 1\n\n'b':\n  c: 2\nd: 3\n")
    assert strict_yaml.key_lines(path) == {"a": 2, "b": 4, "d": 6}
    path.write_text("")
    assert strict_yaml.key_lines(path) == {}
