"""What of a user's files the build of a user layer sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ctrain_builder.layers import user_source
from ctrain_runtime.errors import UsageError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with keys, wheels, and a project."""
    for name in (
        *(".ssh/id_ed25519", "kit-1.0.whl", "wheels/a-1.whl", "wheels/b-2.tar.gz", "wheels/notes.txt"),
        *("project/pyproject.toml", "project/kit/__init__.py", "project/__pycache__/x.pyc", "reqs/base.txt"),
        *("a b.whl", "tool.conf"),
    ):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text("")
    return (tmp_path / "home").resolve()


def seen(home: Path, text: str, named: Sequence[str] = (), name: str = "requirements.txt") -> list[str]:
    (home / name).write_text(text)
    files = user_source.collect(home / name, [home / one for one in named], [home])
    assert files[0].path == home / name
    return sorted(str(file.relative) for file in files)[: len(files)]


def others(home: Path, text: str, *named: str) -> list[str]:
    found = seen(home, text, named)
    found.remove("requirements.txt")
    return found


def test_nothing_but_the_file_itself(home: Path) -> None:
    assert others(home, "einops==0.8\nrich # no ./path.whl\nkit @ https://x.example/kit-1.0.whl\n") == []
    assert seen(home, "cat ~/.ssh/*\n", name="s.sh") == ["s.sh"]
    assert seen(home, "#!/bin/sh\n-r reqs/base.txt\n", name="prepare") == ["prepare"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("./kit-1.0.whl\n", ["kit-1.0.whl"]),
        ("kit-1.0.whl --hash=sha256:00\n", ["kit-1.0.whl"]),
        ("./kit-1.0.whl[extra] ; python_version > '3'\n", ["kit-1.0.whl"]),
        ("wheels/../kit-1.0.whl\n", ["kit-1.0.whl"]),
        ("-r reqs/base.txt\n", ["reqs/base.txt"]),
        ("-rreqs/base.txt\n", ["reqs/base.txt"]),
        ("--requirement=reqs/base.txt\n", ["reqs/base.txt"]),
        ("--constraint \\\n  reqs/base.txt # ours\n", ["reqs/base.txt"]),
        ("-f wheels\n", ["wheels/a-1.whl", "wheels/b-2.tar.gz"]),
        ("--find-links ./wheels/\nb\n", ["wheels/a-1.whl", "wheels/b-2.tar.gz"]),
        ("-f https://x.example/links\n--index-url https://x.example/simple\n", []),
        ("--index-url=https://x.example/simple\n--extra-index-url=https://x.example/cu121\nrich\n", []),
        ("-r 'a b.whl'\n", ["a b.whl"]),
        ("git+https://x.example/kit.git@v1\n-e git+https://x.example/kit.git#egg=kit\n", []),
        ("-r requirements.txt\n", []),
    ],
)
def test_what_a_requirements_file_names(home: Path, text: str, found: list[str]) -> None:
    assert others(home, text) == found


def test_files_that_name_others(home: Path) -> None:
    """As pip: -r and -c are relative to the file, packages to the directory of the build."""
    (home / "reqs/base.txt").write_text("-r more.txt\n-c ../tool.conf\n./kit-1.0.whl\n")
    (home / "reqs/more.txt").write_text("-r base.txt\n")
    expected = ["kit-1.0.whl", "reqs/base.txt", "reqs/more.txt", "tool.conf"]
    assert others(home, "-r reqs/base.txt\n") == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-r ../other.txt\n", "names ../other.txt, which is not below {home}"),
        ("-r /etc/passwd\n", "names /etc/passwd, which is not below {home}"),
        ("-r reqs/../../other.txt\n", "names reqs/../../other.txt, which is not below"),
        ("-c reqs/link.txt\n", "names reqs/link.txt, which is not below"),
        ("./wheels/none.whl\n", "names ./wheels/none.whl, but there is no file {home}/wheels/none.whl"),
        ("./project\n", "names the directory ./project, which the build does not see. Build a wheel of it"),
        (".\n", "names the directory ., which the build does not see"),
        ("-e project\n", "or add: --with {home}/project"),
        ("kit @ file:///home/kim/kit.whl\n", "names file:///home/kim/kit.whl. Write it as a path"),
    ],
)
def test_what_it_must_not_name(home: Path, text: str, complaint: str) -> None:
    (home.parent / "other.txt").write_text("")
    (home / "reqs/link.txt").symlink_to(home.parent / "other.txt")
    with pytest.raises(UsageError) as raised:
        others(home, text)
    assert complaint.format(home=home) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("named", [".config/token", "./.config/token", ".config/../.config/token"])
def test_hidden_files_of_a_home_are_not_named_by_a_requirements_file(home: Path, named: str) -> None:
    """Who wrote the file, and a package in it, would get what programs keep there; elsewhere such names are usual."""
    project = home / "project"
    for place in (home, project):
        (place / ".config").mkdir(exist_ok=True)
        (place / ".config/token").write_text("abc\n")
        (place / "requirements.txt").write_text(f"-c {named}\n")
    with pytest.raises(UsageError, match=r"names \S+config/token, a hidden file of your home"):
        user_source.collect(home / "requirements.txt", [], [home])
    by_hand = user_source.collect(home / "requirements.txt", [home / ".config/token"], [home])
    for sources in (by_hand, user_source.collect(project / "requirements.txt", [], [home])):
        assert [str(one.relative) for one in sources] == ["requirements.txt", ".config/token"]


def test_what_the_command_line_adds(home: Path) -> None:
    files = ["project/kit/__init__.py", "project/pyproject.toml"]
    assert others(home, "./project\n", "project") == files
    assert others(home, "-e project\n", "project", "tool.conf") == [*files, "tool.conf"]
    assert seen(home, "cp tool.conf /opt\n", ["tool.conf"], "s.sh") == ["s.sh", "tool.conf"]
    (home.parent / "shared/data").mkdir(parents=True)
    (home.parent / "shared/data/x").write_text("")
    assert others(home, "rich\n", "../shared/data") == ["data/x"], "it lies elsewhere, so it has its own name"


@pytest.mark.parametrize("named", [".", "..", "/", "project/.."])
def test_a_home_is_never_shown(home: Path, named: str) -> None:
    with pytest.raises(UsageError, match=f"would show the whole home {home} to every program of the build"):
        others(home, "rich\n", named)


@pytest.mark.parametrize(
    ("named", "complaint"),
    [("none", "no such file or directory"), ("links", "link out of the project"), ("../x/tool.conf", "is already")],
)
def test_what_cannot_be_added(home: Path, named: str, complaint: str) -> None:
    (home / "links").mkdir()
    (home / "links/out").symlink_to("/etc/passwd")
    (home.parent / "x").mkdir()
    (home.parent / "x/tool.conf").write_text("")
    with pytest.raises(UsageError, match=complaint):
        others(home, "rich\n", "tool.conf", named)
