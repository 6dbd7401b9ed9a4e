from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.typed_command import check
from samples.run_requests import asked, make_machine


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """A folder with programs that can be executed and others, a job's folder and another."""
    for name in ("env.py", "my run.sh", "tool", "python"):
        (tmp_path / name).touch(0o644)
    for name in ("ready.py", "ready too"):
        (tmp_path / name).touch(0o755)
    for name in ("f", "ddp"):
        (tmp_path / name).mkdir()
    (tmp_path / "ddp/job.yaml").touch()
    return tmp_path


LINE = "Use: ctrain run ..."


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("A=1 B='2 3' python x.py", f"'A=1' sets a variable: it is not a program. {LINE} --env A=1 --env 'B=2 3' -- "),
        ("OMP_NUM_THREADS=1 torchrun x.py", f"{LINE} --env OMP_NUM_THREADS=1 -- torchrun x.py"),
        ("A=1", f"{LINE} --env A=1 -- PROGRAM"),
        ("./env.py --lr 1", f"./env.py is not executable. {LINE} -- python ./env.py --lr 1"),
        ("'./my run.sh'", f"./my run.sh is not executable. {LINE} -- bash './my run.sh'"),
        ("./tool", "./tool is not executable. Use: chmod +x ./tool"),
        ("env.py", f"env.py is a file here, not a program of the image. {LINE} -- python env.py"),
        ("./gone.py", "./gone.py not found in "),
        ("./f", "./f is a directory. Name a program"),
        ("./ddp", "./ddp is a directory. Use: ctrain run ./ddp"),
        ("cd f", f"'cd' is a command of shells, not a program. {LINE} -- bash -c 'cd f && PROGRAM'"),
        (
            "'python env.py' --lr 1",
            f"'python env.py' is one word, not a program and its arguments. {LINE} -- python env",
        ),
        ("'cd f && python x.py'", f"{LINE} -- bash -c 'cd f && python x.py'"),
    ],
)
def test_what_can_be_seen_to_fail(command: str, complaint: str, folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check(tuple(shlex.split(command)), folder)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "./ready.py",
        "'./ready too' 1",
        "'ready too'",
        "python env.py",
        "tool",  # on the image's PATH
        "gone.py",
        "/opt/image/gone.py",
        "../gone.py",  # of another mount
        "f/../../gone.py",
        "bash -c 'cd f && A=1 python env.py'",
        "env A=1 python env.py",
        f"{'x' * 5000}",
    ],
)
def test_what_may_run(command: str, folder: Path) -> None:
    check(tuple(shlex.split(command)), folder)


@pytest.mark.parametrize("command", ["./env.py", "mpirun -np 2 ./env.py", "A=1 torchrun env.py"])
def test_it_is_refused_before_anything_is_planned(command: str, folder: Path, programs: Path) -> None:
    make_machine(programs, folder)
    with pytest.raises(UsageError, match="env"):
        prepare(asked(command=tuple(shlex.split(command)), image="pytorch"))
