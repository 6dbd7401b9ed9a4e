from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from ctrain_runtime.errors import JobError
from ctrain_runtime.remote.upload import pack, unpack


@pytest.fixture
def code(tmp_path: Path) -> Path:
    code = tmp_path / "my code"
    (code / "part").mkdir(parents=True)
    (code / "train.py").write_text("print(1)")
    (code / "part/run.sh").write_text("true")
    (code / "part/run.sh").chmod(0o755)
    (code / "latest").symlink_to("part")
    return code


def test_what_is_unpacked_is_what_was_packed(code: Path, tmp_path: Path) -> None:
    for left_out in (".git/config", "data/big", "part/__pycache__/x.pyc", ".env"):
        (code / left_out).parent.mkdir(exist_ok=True)
        (code / left_out).write_text("x")
    (code / ".ctrainignore").write_text("data/\n")
    os.mkfifo(code / "pipe")
    packed = pack(code)
    with packed.archive:
        unpack(packed.archive, tmp_path / "there" / packed.digest)
    assert (packed.name, packed.files) == ("my code", 4)
    copy = tmp_path / "there" / packed.digest / "my code"
    assert sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*")) == [
        ".ctrainignore",
        "latest",
        "part",
        "part/run.sh",
        "train.py",
    ]
    assert os.access(copy / "part/run.sh", os.X_OK)
    assert (copy / "latest").readlink() == Path("part")
    assert [path.name for path in (tmp_path / "there").iterdir()] == [packed.digest]


def digest(code: Path) -> str:
    packed = pack(code)
    packed.archive.close()
    return packed.digest


def test_the_digest_is_that_of_the_content(code: Path) -> None:
    first = digest(code)
    os.utime(code / "train.py", (1, 1))
    assert digest(code) == first
    (code / "train.py").write_text("print(2)")
    assert digest(code) != first


def test_an_archive_that_is_cut_short_leaves_nothing(code: Path, tmp_path: Path) -> None:
    with pack(code).archive as archive:
        whole = archive.read()
    for size in (0, 700, len(whole) // 2, len(whole) - 1):
        with pytest.raises(JobError, match=r"^the code has not arrived whole"):
            unpack(io.BytesIO(whole[:size]), tmp_path / "there/abc")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_home_is_not_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(JobError, match=r"is not copied as a whole\. Change to the directory of your program"):
        pack(tmp_path)


def test_too_much_for_a_copy(code: Path) -> None:
    (code / "big").touch()
    os.truncate(code / "big", 200_000_000)
    with pytest.raises(JobError, match=r"of files, more than 100 MB.*Name what stays here in .*\.ctrainignore"):
        pack(code)
