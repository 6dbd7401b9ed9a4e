from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from ctrain_builder.definitions.definition import FileCopy, is_independent, parse, render
from ctrain_runtime.errors import ConfigError

PATH = Path("x/x.def")
TEXT = """\
Bootstrap: docker   # where from
From: host/name:{{ TAG }}

# About {{ NOTHING }}
%arguments
    # the version
    TAG=1.0
    EMPTY=
    NESTED={{ TAG }}-n

%files
    a/b /opt/b
    "with space" "/opt/w s"
    c

%labels
    org.x.tag {{ TAG }}
    org.x.flag

%post -c /bin/bash  # shell
    echo {{ NESTED }}{{EMPTY}} # {{ NOTHING }}
"""


def test_parse_reads_header_sections_and_arguments() -> None:
    found = parse("x", PATH, TEXT)
    assert found.header == {"bootstrap": "docker", "from": "host/name:{{ TAG }}"}
    assert found.defaults == {"TAG": "1.0", "EMPTY": "", "NESTED": "{{ TAG }}-n"}
    assert found.sections["post"].args == "-c /bin/bash"
    assert found.placeholders == {"TAG", "NESTED", "EMPTY"}  # not NOTHING, which is in comments
    assert found.is_base


def test_render_fills_defaults_and_values_one_level_deep() -> None:
    found = render(parse("x", PATH, TEXT), {"TAG": "2.0"})
    assert found.header["from"] == "host/name:2.0"
    assert found.body("post") == "    echo 2.0-n # {{ NOTHING }}\n"
    assert found.labels == {"org.x.tag": "2.0", "org.x.flag": ""}


def test_files_are_pairs_and_a_lone_source_keeps_its_path() -> None:
    copies = parse("x", PATH, TEXT).files
    assert copies == (
        FileCopy(PurePosixPath("a/b"), "/opt/b"),
        FileCopy(PurePosixPath("with space"), "/opt/w s"),
        FileCopy(PurePosixPath("c"), "/c"),
    )


@pytest.mark.parametrize("source", ["/etc/passwd", "../x", "a/../../x"])
def test_files_outside_the_project_are_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="outside the project"):
        _ = parse("x", PATH, f"Bootstrap: docker\n%files\n    {source} /x\n").files


def test_an_argument_without_value_names_file_and_option() -> None:
    with pytest.raises(ConfigError, match=r"x\.def: argument MIRROR has no value.*--build-arg MIRROR="):
        render(parse("x", PATH, "Bootstrap: docker\nMirrorURL: {{ MIRROR }}\n"), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Bootstrap: docker\n%psot\n", "line 2: unknown section %psot"),
        ("Bootstrap: docker\nnonsense\n", "line 2: expected `Key: value`"),
        ("%post\n", "no header line"),
        ("Bootstrap: docker\nStage: a\n%post\n\nBootstrap: docker\nStage: b\n", "several stages"),
        ("Bootstrap: docker\n%files from a\n    /x\n", "another stage"),
    ],
)
def test_what_a_layer_cannot_honour_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("x", PATH, text)


def test_a_definition_on_a_parent_is_no_base() -> None:
    assert not parse("x", PATH, "Bootstrap: localimage\nFrom: {{ PARENT }}\n").is_base


def test_a_test_can_declare_that_it_is_independent_of_upper_layers() -> None:
    head = "Bootstrap: docker\nFrom: debian\n%test\n    true\n"
    assert not is_independent(parse("x", Path("x.def"), head).body("test"))
    assert is_independent(parse("x", Path("x.def"), f"{head}    # ctrain: independent of upper layers\n").body("test"))
    with pytest.raises(
        ConfigError, match=r"x\.def: %test has an unknown directive 'independant'\. Known: independent of"
    ):
        parse("x", Path("x.def"), f"{head}    # ctrain: independant\n")
