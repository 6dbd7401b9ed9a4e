"""Lists of packages as requirements files."""

from __future__ import annotations

import pytest

from ctrain_builder.imports.packages import of_environment
from ctrain_builder.imports.uv_lock import of_lock
from ctrain_runtime.errors import ConfigError

ENVIRONMENT = """\
name: x
channels: [conda-forge]
dependencies:
  - python=3.10
  - pip>=20.1
  - numpy=1.26
  - conda-forge::scipy==1.11.4
  - pandas=2.1.4=py310h1
  - tqdm
  - einops>=0.6,<1
  - ruamel.yaml
  - opencv 4.8.*
  - pytorch=2.1
  - cudatoolkit=11.8
  - libgcc-ng
  - tzdata=2022f
  - foo[version='>=1']
  - pip:
      - torch==2.1
      - rich
"""


def test_packages_of_conda_that_pip_has_and_those_it_has_not() -> None:
    found = of_environment(ENVIRONMENT, "environment.yml")
    assert found.lines == (
        *("numpy==1.26.*", "scipy==1.11.4", "pandas==2.1.4", "tqdm", "einops>=0.6,<1", "ruamel.yaml"),
        *("opencv-python-headless==4.8.*", "foo", "rich"),
    )
    assert [(one.line, one.text, one.lost) for one in found.findings] == [
        (4, "python=3.10", False),
        (5, "pip>=20.1", False),
        (13, "pytorch=2.1", False),
        (14, "cudatoolkit=11.8", True),
        (15, "libgcc-ng", True),
        (16, "tzdata=2022f", True),
        (19, "torch==2.1", False),
    ]


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("rich", "rich", ()),
        ("./x.whl", "./x.whl", ()),
        (
            "-e git+https://h/x.git@main#egg=x",
            "git+https://h/x.git@main#egg=x",
            ("it is installed, not linked to its",),
        ),
        ("-e .", None, ("builds of layers see no directories of yours. Build a wheel of it",)),
        ("..[docs,cpu]", None, ("builds of layers see no directories",)),
        ("../lib", None, ("builds of layers see no directories",)),
    ],
)
def test_what_conda_gives_to_pip(text: str, line: str | None, advice: tuple[str, ...]) -> None:
    found = of_environment(f"dependencies: [pip: ['{text}']]", "environment.yml")
    assert found.lines == ((line,) if line else ())
    assert len(found.findings) == len(advice)
    assert all(one.advice.startswith(start) for one, start in zip(found.findings, advice))


@pytest.mark.parametrize("text", ["- a", "a: 1", "dependencies: x", "a: [", "", "\t"])
def test_what_is_no_environment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.yml"):
        of_environment(text, "environment.yml")


def package(
    name: str, *needs: str, version: str = "1", source: str = 'registry = "https://a/simple"', more: str = ""
) -> str:
    head = f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ {source} }}\n'
    return f"{head}dependencies = [{', '.join(needs)}]\n{more}\n"


LOCK = "\n".join(
    [
        package(
            "mine",
            '{ name = "a", extra = ["x"] }',
            '{ name = "torch" }',
            '{ name = "w", marker = "sys_platform == \'win32\'" }',
            '{ name = "g" }',
            '{ name = "local" }',
            source='virtual = "."',
            more='[package.optional-dependencies]\ndev = [{ name = "unused" }]\n',
        ),
        package(
            "a",
            '{ name = "c", marker = "python_version < \'3.11\'" }',
            more='[package.optional-dependencies]\nx = [{ name = "d" }]\n',
        ),
        package("c", '{ name = "a" }', '{ name = "e" }', version="2"),
        package("d", '{ name = "e", version = "2" }'),
        package("e", version="1"),
        package("e", version="2"),
        package("g", source='git = "https://h/g.git?rev=main#abc"'),
        package("local", source='directory = "local"'),
        package("torch", '{ name = "nvidia-nccl" }', version="2.4"),
        package("nvidia-nccl"),
        package("unused"),
        package("w", source='registry = "https://b/simple"'),
    ]
)


def test_a_lock_is_its_pins_under_the_conditions_of_the_way_there() -> None:
    found = of_lock(LOCK, "uv.lock")
    assert found.lines == (
        "a==1",
        "c==2 ; (python_version < '3.11')",
        "d==1",
        "e==1 ; (python_version < '3.11')",
        "e==2",
        "g @ git+https://h/g.git@abc",
        "w==1 ; (sys_platform == 'win32')",
    )
    assert [(one.text, one.lost) for one in found.findings] == [("local", True), ("torch 2.4", False), ("w", True)]
    assert [LOCK.splitlines()[one.line - 1] for one in found.findings] == [
        f'name = "{name}"' for name in ("local", "torch", "w")
    ]


@pytest.mark.parametrize("text", ["x", "a = 1", "package = 1", "[[package]]\nname = 'a'", package("a")])
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"uv\.lock"):
        of_lock(text, "uv.lock")
