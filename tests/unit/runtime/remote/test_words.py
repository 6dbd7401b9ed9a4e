from __future__ import annotations

import base64
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import UsageError
from ctrain_runtime.remote.words import as_word, from_word

WORDS = st.lists(st.binary().map(os.fsdecode), max_size=5)  # as Python has what is typed: any bytes


@given(WORDS)
def test_a_request_arrives_as_it_was_and_means_nothing_to_a_shell(argv: list[str]) -> None:
    word = as_word({"what": "run", "argv": argv})
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", word)
    assert from_word(word)["argv"] == argv


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("x", "not a request of ctrain --on: 'x'"),
        ("", "not a request of ctrain --on: ''"),
        (base64.urlsafe_b64encode(b"\xff\xfe").decode(), "not a request of ctrain --on"),
        (base64.urlsafe_b64encode(b"[1]").decode(), "does not understand that of your machine"),
        (base64.urlsafe_b64encode(json.dumps({"protocol": 1}).encode()).decode(), "Install the same version on both"),
    ],
)
def test_what_is_no_request_of_this_version(word: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(complaint)):
        from_word(word)
