"""Singularity recipes as definitions: their text stays, and what a layer cannot honour is a comment and listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.imports.copies import Context
from ctrain_builder.imports.definitions import Imported, of_recipe
from ctrain_runtime.errors import ConfigError

RECIPE = """\
BootStrap: docker
From: Ubuntu:20.04  # old

%setup
    touch ${SINGULARITY_ROOTFS}/x
%files
    data/a /opt/a
    /etc/hosts /opt/hosts
%post -c /bin/bash
    echo one

    echo two
%appinstall foo
    make
%runscript
    exec python "$@"
"""


@pytest.fixture(autouse=True)
def _data() -> None:
    Path("lab/data").mkdir(parents=True)
    Path("lab/data/a").write_text("")


def imported(text: str, on: str | None = None) -> Imported:
    root = Path.cwd()
    return of_recipe(text, "Singularity", "lab", Context(root / "lab", root, root / "definitions"), on)


def test_the_text_stays_but_for_what_a_layer_cannot_honour() -> None:
    made = imported(RECIPE)
    assert (
        made.text
        == """\
Bootstrap: docker
From: Ubuntu:{{ TAG }}

# From Singularity, by ctrain import.

%arguments
    TAG=20.04

# %setup
#     touch ${SINGULARITY_ROOTFS}/x

%files
    lab/data/a /opt/a
    # /etc/hosts /opt/hosts

%post -c /bin/bash
    if [ -f /mnt/build-env.sh ]; then . /mnt/build-env.sh; fi
    echo one

    echo two

# %appinstall foo
#     make

%runscript
    exec python "$@"
"""
    )
    assert [(one.line, one.lost, one.text) for one in made.findings] == [
        (4, True, "%setup"),
        (8, True, "/etc/hosts /opt/hosts"),
        (13, True, "%appinstall foo"),
    ]


def test_the_last_stage_is_the_image_and_other_bases_stay() -> None:
    first = "Bootstrap: docker\nFrom: a:1\nStage: x\n%post\n  b\n"
    made = imported(f"{first}Bootstrap: debootstrap\nOSVersion: bookworm\n%files from x\n  /a /b\n")
    assert made.text.startswith("Bootstrap: debootstrap\nOSVersion: bookworm\n\n")
    assert "version {{ RELEASE }}" in made.text and "# %files from x\n#   /a /b\n" in made.text
    assert [(one.line, one.why) for one in made.findings] == [
        (1, "a stage before the last one"),
        (8, "it copies from another stage"),
    ]


def test_an_argument_of_its_own_is_the_tag() -> None:
    made = imported("Bootstrap: docker\nFrom: a:{{ V }}\n%arguments\n  V=2\n")
    assert made.entry.endswith("tag: '2'\n    tag_argument: V\n")
    assert made.text.count("%arguments") == 1


def test_stacked_it_has_no_header_of_its_own() -> None:
    made = imported("# mine\nBootstrap: docker\nFrom: a:1\nIncludeCmd: yes\n%post\n  b\n", on="store:pytorch")
    assert made.text.startswith("Bootstrap: localimage\nFrom: {{ PARENT }}\n\n# From")
    assert [(one.line, one.text, one.lost) for one in made.findings] == [(3, "From: a:1", False)]


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="Singularity has no line `Bootstrap:`"):
        imported("%post\n  a\n")
