from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Optional

import pytest

from ctrain_runtime.errors import RemoteError
from ctrain_runtime.remote import results
from ctrain_runtime.remote.results import Fetched, RemoteFile
from ctrain_runtime.remote.ssh import Connection

NAMES = ("logs", "metrics.jsonl", "checkpoint")


class Link(Connection):
    """A connection to a run on this machine, which ends after some bytes."""

    def __init__(self, run: Path, ends_after: int = 1 << 30) -> None:
        super().__init__("login")
        self.run, self.ends_after, self.sent = run, ends_after, 0

    @contextlib.contextmanager
    def answer(self, request: Mapping[str, Any], data: Optional[IO[bytes]] = None) -> Iterator[IO[bytes]]:
        assert request == {"what": "send", "run": str(self.run)}
        assert data
        out = io.BytesIO()
        results.send(self.run, json.load(data), out)
        self.sent = len(out.getvalue())
        yield io.BytesIO(out.getvalue()[: self.ends_after])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "there/one"
    (run / "logs").mkdir(parents=True)
    (run / "logs/rank0.log").write_text("first line\n")
    (run / "metrics.jsonl").write_text('{"loss": 1}\n')
    (run / "task.sh").write_text("TOKEN=secret")
    return run


def fetch(link: Link, target: Path, *, overwrite: bool = False) -> Fetched:
    files, _ = results.listed(link.run, NAMES)
    how = {"overwrite": overwrite, "report": lambda *_: None}
    return results.fetch(link, str(link.run), files, target, NAMES, **how)


def test_what_is_asked_for_alone_and_once(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "here/one"
    assert fetch(Link(run), target) == Fetched(2, 23, 0, ())
    assert sorted(path.name for path in target.rglob("*")) == ["logs", "metrics.jsonl", "rank0.log"]
    assert (target / "logs/rank0.log").read_text() == "first line\n"
    assert fetch(Link(run), target) == Fetched(0, 0, 2, ())
    with (run / "logs/rank0.log").open("a") as log:
        log.write("second line\n")
    assert fetch(Link(run), target) == Fetched(1, 23, 1, ())
    assert (target / "logs/rank0.log").read_text() == "first line\nsecond line\n"


def test_it_goes_on_where_it_was_cut(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint").mkdir()
    (run / "checkpoint/model.pt").write_bytes(bytes(range(250)))
    link = Link(run, ends_after=123)
    with pytest.raises(EOFError):
        fetch(link, tmp_path / "one")
    assert not (tmp_path / "one/checkpoint/model.pt").exists()
    link = Link(run)
    assert fetch(link, tmp_path / "one").files == 1
    assert link.sent == 250 - 100
    assert (tmp_path / "one/checkpoint/model.pt").read_bytes() == bytes(range(250))
    assert not list((tmp_path / "one").rglob("*.part"))


def test_of_another_state_of_a_file_nothing_is_continued(run: Path, tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        fetch(Link(run, ends_after=4), tmp_path / "one")
    (run / "logs/rank0.log").write_text("quite other text\n")
    fetch(Link(run), tmp_path / "one")
    assert (tmp_path / "one/logs/rank0.log").read_text() == "quite other text\n"


def test_what_is_newer_here_is_kept_unless_it_is_to_be_replaced(run: Path, tmp_path: Path) -> None:
    fetch(Link(run), tmp_path / "one")
    mine = tmp_path / "one/metrics.jsonl"
    mine.write_text("my notes")
    later = (run / "metrics.jsonl").stat().st_mtime + 100
    os.utime(mine, (later, later))
    assert fetch(Link(run), tmp_path / "one").kept == ("metrics.jsonl",)
    assert mine.read_text() == "my notes"
    assert fetch(Link(run), tmp_path / "one", overwrite=True).files == 1
    assert mine.read_text() == '{"loss": 1}\n'


def test_links_are_named_and_not_sent(run: Path, tmp_path: Path) -> None:
    (run / "logs/latest").symlink_to("rank0.log")
    (run / "logs/all").symlink_to("/etc")
    (run / "checkpoint").symlink_to("/etc")
    files, links = results.listed(run, NAMES)
    assert [file.name for file in files] == ["logs/rank0.log", "metrics.jsonl"]
    assert sorted(links) == ["checkpoint", "logs/all", "logs/latest"]
    (tmp_path / "elsewhere").write_text("x")
    with pytest.raises(OSError):
        results.send(run, [["logs/latest", 0, 4]], io.BytesIO())


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "logs/../../x",
        "/etc/passwd",
        "logs//x",
        "logs/./x",
        "",
        "x",
        "logs/",
        "logs/a\0b",
        "task.sh",
        "code/x",
        "..",
    ],
)
def test_a_hostile_name_is_written_nowhere(name: str, run: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RemoteError, match=r"^login offers a file that no run has"):
        results.fetch(
            Link(run),
            str(run),
            [RemoteFile(name, 1, 1)],
            tmp_path / "one",
            NAMES,
            overwrite=True,
            report=lambda *_: None,
        )
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_written_through_a_link_here(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "one").mkdir()
    (tmp_path / "one/logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RemoteError, match="one/logs is a link"):
        fetch(Link(run), tmp_path / "one")
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "one/logs").unlink()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "one/metrics.jsonl").symlink_to(tmp_path / "mine")
    fetch(Link(run), tmp_path / "one", overwrite=True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "one/metrics.jsonl").is_symlink()


@pytest.mark.parametrize("data", [None, {}, [["x"]], [["x", -1, 0]], [["x", 1, True]], [[1, 1, 1]], ["abc"]])
def test_a_list_of_files_that_is_none(data: object) -> None:
    with pytest.raises(RemoteError, match=r"^login: cannot read the list of files"):
        results.read_list("login", data)
