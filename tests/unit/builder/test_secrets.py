from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.layers import secrets
from ctrain_builder.tree import Tree
from ctrain_runtime.errors import BuildError


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
