"""Laws of imports: any text becomes a definition that a build reads, or one line of error; nothing is lost."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.imports.copies import Context
from ctrain_builder.imports.definitions import of_dockerfile, of_recipe
from ctrain_builder.imports.instructions import read
from ctrain_builder.imports.packages import of_environment
from ctrain_builder.imports.uv_lock import of_lock
from ctrain_runtime.errors import CtrainError

EMPTY = Path(tempfile.gettempdir()) / "ctrain-no-such-directory"
CONTEXT = Context(EMPTY, EMPTY, EMPTY / "definitions")
WORDS = (
    *(
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
    ),
    *("SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR", "FROM", "from", "run", "FROM a:1 AS b", "FROM b"),
)
PIECES = (
    *(
        " ",
        "\\\n",
        "\n",
        "'",
        '"',
        "\\",
        "$A",
        "${A:-b}",
        "${A",
        "{{ A }}",
        "%post",
        "%",
        "#",
        "# c",
        "=",
        "A=",
        "A=1",
        "USER",
    ),
    *(
        "<<EOF",
        "\nEOF\n",
        "[",
        '["a"]',
        "--from=b",
        "--mount=type=cache,target=/x",
        "/x",
        "x",
        "Bootstrap: y",
        "*",
        "\0",
        "é",
    ),
)
pieces = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)
instructions = st.tuples(st.sampled_from(WORDS), pieces).map(" ".join)
dockerfiles = st.lists(instructions, max_size=6).map(lambda lines: "\n".join(["FROM x:1", *lines]))


@given(dockerfiles | st.text())
def test_any_text_is_a_definition_or_one_line(text: str) -> None:
    """The definition is parsed and rendered as a build does, before it is returned."""
    try:
        made = of_dockerfile(text, "Dockerfile", "lab", CONTEXT, None, "")
    except CtrainError as error:
        assert error.message and "\n" not in str(error)
        return
    lines = text.count("\n") + text.count("\r") + 1
    assert all(1 <= finding.line <= lines and "\n" not in finding.text for finding in made.findings)


CARRIED_OVER = {
    "ARG",
    "CMD",
    "ENTRYPOINT",
    "ENV",
    "FROM",
    "LABEL",
    "MAINTAINER",
    "RUN",
    "SHELL",
    "USER",
    "VOLUME",
    "WORKDIR",
}


@given(dockerfiles)
def test_what_a_definition_has_no_place_for_is_listed(text: str) -> None:
    """Files are among it: there are none. What is not known is listed, too."""
    found, _ = read(text)
    if sum(one.word == "FROM" for one in found) != 1:
        return  # the instructions of other stages are listed as one
    with contextlib.suppress(CtrainError):
        listed = {one.line for one in of_dockerfile(text, "Dockerfile", "lab", CONTEXT, "store:x", "").findings}
        assert all(one.line in listed or one.word in CARRIED_OVER or one.heredocs for one in found)


@given(st.text() | pieces)
def test_other_files_are_read_or_refused_in_one_line(text: str) -> None:
    for make in (
        lambda: of_recipe(text, "x", "lab", CONTEXT, None),
        lambda: of_recipe(f"Bootstrap: docker\nFrom: {text}\n", "x", "lab", CONTEXT, None),
        lambda: of_environment(text, "x"),
        lambda: of_environment(f"dependencies:\n  - {text}\n", "x"),
        lambda: of_lock(text, "x"),
    ):
        try:
            make()
        except CtrainError as error:
            assert error.message
