from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.build_host import secrets
from ctrain_builder.files.tree import Tree
from ctrain_runtime.errors import BuildError, UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://proxy.example:3128", ()),
        ("http://kim:pass@word@proxy:3128", ("kim:pass@word@", "pass@word")),
        ("https://ghp_token@pypi.example/simple /path", ("ghp_token",)),
        ("http://kim:abc@proxy", ("kim:abc@",)),
        ("http://kim@proxy", ()),
        ("https://a:long1@one/ https://b:long2@two/", ("a:long1@", "b:long2@", "long1", "long2")),
    ],
)
def test_secrets_of_addresses(text: str, found: tuple[str, ...]) -> None:
    assert sorted(secrets.find([text])) == sorted(found)


words = st.text(st.characters(exclude_characters="/@:%*", exclude_categories=("C", "Z")), min_size=4, max_size=30)


@given(words, words, st.text())
def test_no_secret_is_left_in_what_is_masked(user: str, password: str, text: str) -> None:
    address = f"http://{user}:{password}@proxy:3128"
    masked = secrets.mask(f"{text}{address}{text}".encode(errors="replace"), secrets.find([address]))
    assert password.encode() not in masked.replace(b"****", b"")


def test_what_was_logged_before_stays(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one s3cret\ntwo s3cret\n")
    secrets.mask_file(log, ("s3cret",), len("one s3cret\n"))
    assert log.read_text() == "one s3cret\ntwo ****\n"


@pytest.mark.parametrize("at", [0, 5, (1 << 20) - 3, (1 << 20) + 1])
def test_a_file_with_a_secret_gets_into_no_layer(tmp_path: Path, at: int) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/apt.conf").write_bytes(b"x" * at + b"s3cret" + b"x" * 10)
    tree, name = Tree(tmp_path), PurePosixPath("etc/apt.conf")
    with pytest.raises(BuildError, match=r"/etc/apt.conf of the layer holds a password") as caught:
        secrets.refuse(tree, [name], ("s3cret",))
    assert "s3cret" not in str(caught.value)
    secrets.refuse(tree, [name], ("another",))
    secrets.refuse(tree, [name], ())


def test_a_build_secret_is_its_lines(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\nshort\n-----END PRIVATE KEY-----\n")
    assert secrets.read_secret("key", key) == secrets.BuildSecret("key", key, ("MC4CAQAwBQYDK2Vw",))


@pytest.mark.parametrize(
    ("name", "file", "text", "complaint"),
    [
        ("../x", "f", "long enough", "'../x' is not a name"),
        ("x", "a,b", "long enough", "has a ':' or ',' in its path"),
        ("x", "f", "1234567", "has no line that could be told from other text"),
        ("x", "f", "x" * 70_000, "has more than 65536 bytes"),
        ("x", "f", None, "cannot read .*: No such file"),
    ],
)
def test_what_cannot_be_a_build_secret(
    tmp_path: Path, name: str, file: str, text: Optional[str], complaint: str
) -> None:
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=complaint):
        secrets.read_secret(name, tmp_path / file)
