from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.errors import JobError
from ctrain_runtime.plan.model import CodeCopy
from ctrain_runtime.run import code_copy
from samples.run_requests import make_machine, plan_of
from samples.runs import Bench, ended, wait_for


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with code, data, litter, a history, links, a socket, and an earlier run."""
    project = tmp_path / "project"
    for name in ("src/data", "data", ".git", "__pycache__", "ctrain-runs/old"):
        (project / name).mkdir(parents=True)
    for name in (
        "train.py",
        "src/model.py",
        "src/data/x",
        "data/big",
        ".git/HEAD",
        "__pycache__/a.pyc",
        "run.log",
        ".env",
    ):
        (project / name).write_text(name)
    (project / "ctrain-runs/old/.submit").touch()
    (project / "ctrain-runs/old/big").write_text("x")
    (project / "link").symlink_to("../beside")
    (project / ".ctrainignore").write_text("# what is no code\n/data/\nsrc/data\n*.log\n\n")
    (project / "train.py").chmod(0o755)
    return project


def names(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_code_is_copied_and_the_rest_stays_where_it_is(project: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(project)  # a socket's path is short
        server.bind("s")
        code = code_copy.survey(project)
        (tmp_path / "run").mkdir()
        code_copy.copy(code, tmp_path / "run")
    assert code == CodeCopy(str(project), (".env", ".git", "data", "run.log", "src/data"))
    copied = tmp_path / "run/code"
    assert names(copied) == {".ctrainignore", ".env", "link", "run.log", "src/model.py", "train.py"}
    assert (copied / "train.py").read_text() == "train.py"
    assert os.access(copied / "train.py", os.X_OK)
    assert str((copied / "link").readlink()) == "../beside"
    for point in (".env", "run.log"):  # where they are mounted
        assert (copied / point).read_text() == ""
    assert (copied / "src/data").is_dir()
    assert (copied / "data").is_dir()


def test_a_run_below_its_job_has_a_place_in_the_copy_and_is_no_part_of_it(project: Path) -> None:
    run = project / "ctrain-runs/new"
    run.mkdir()
    (run / ".submit").touch()
    code_copy.copy(code_copy.survey(project), run)
    assert [path.name for path in (run / "code/ctrain-runs").iterdir()] == ["new"]
    assert list((run / "code/ctrain-runs/new").iterdir()) == []


def test_what_is_too_large_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_copy, "MAX_BYTES", 20)
    hint = f"Name it in {project}/.ctrainignore: then it is used where it is; or pass --live: then nothing is copied"
    with pytest.raises(JobError) as error:
        code_copy.survey(project)
    start = f"the code in {project} cannot be copied"
    assert error.value.message.startswith(f"{start}: 61 B of files, more than 20 B (largest: .ctrainignore, ")
    assert error.value.hint == hint
    monkeypatch.setattr(code_copy, "MAX_FILES", 2)
    with pytest.raises(JobError, match=f"{start}: more than 2 files"):
        code_copy.survey(project)
    monkeypatch.setattr(code_copy, "MAX_MOUNTS", 1)
    monkeypatch.setattr(code_copy, "MAX_FILES", 20)
    monkeypatch.setattr(code_copy, "MAX_BYTES", 2000)
    with pytest.raises(JobError, match="keeps 5 paths out of the copy of the code, more than 1"):
        code_copy.survey(project)


@pytest.mark.parametrize(("text", "complaint"), [(b"!train.py\n", "patterns with '!'"), (b"\xff\n", "cannot read")])
def test_an_ignore_file_that_cannot_be_followed(project: Path, text: bytes, complaint: str) -> None:
    (project / ".ctrainignore").write_bytes(text)
    with pytest.raises(JobError, match=complaint):
        code_copy.survey(project)


def test_the_plan_shows_the_copy_in_place_of_the_directory(programs: Path, tmp_path: Path) -> None:
    job = make_machine(programs, tmp_path) / "job"
    (job / "data").mkdir()
    (job / ".ctrainignore").write_text("data\n")
    plan = plan_of(name="one")
    mounts = [(mount.source, mount.target) for mount in plan.mounts.paths]
    copied = (f"{plan.run_directory}/code", str(job))
    assert mounts[mounts.index(copied) + 1] == (f"{job}/data", f"{job}/data")
    assert (plan.program.workdir, plan.mounts.code) == (str(job), CodeCopy(str(job), ("data",)))
    live = plan_of(name="two", live=True)
    assert (str(job), str(job)) in [(mount.source, mount.target) for mount in live.mounts.paths]
    assert live.mounts.code is None
    Path("x.py").touch()
    assert plan_of(command=("python", "x.py"), image="pytorch").mounts.code is None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    (tmp_path / "job").mkdir()
    (tmp_path / "job/job.yaml").write_text(f"command: [bash, train.sh]\nimage: {bench.image}\nlauncher: env\n")
    (tmp_path / "job/train.sh").write_text(f"read -r _ <{tmp_path}/gate\n. ./settings.sh\necho wrote >out\n")
    (tmp_path / "job/settings.sh").write_text("echo before\n")
    yield bench
    bench.end()


def submit(bench: Bench, *words: str) -> None:
    where = ("--site", "local", "--runs", str(bench.runs), "--name", "one", "--ranks-per-node", "1")
    code, _, error = ended(bench.ctrain("submit", *where, *words, "./job"))
    assert (code, error) == (0, "")


@pytest.mark.parametrize(("words", "printed"), [((), "before"), (("--live",), "after")])
def test_an_edit_while_a_run_waits_changes_nothing_unless_it_is_live(
    bench: Bench, words: tuple[str, ...], printed: str
) -> None:
    job, gate = bench.folder / "job", bench.folder / "gate"
    os.mkfifo(gate)
    submit(bench, *words)
    where = job if words else bench.one / "code"
    (job / "settings.sh").write_text("echo after\n")
    wait_for(lambda: _opened(gate))
    assert ended(bench.attach())[0] == 0
    assert bench.log(0) == f"{printed}\n"
    assert (where / "out").read_text() == "wrote\n"
    assert (job / "out").exists() == bool(words)
    assert (bench.one / "code").exists() == (not words)


def _opened(gate: Path) -> bool:
    """Whether the program waits at the gate; if so, it goes on."""
    try:
        descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads yet
        return False
    os.write(descriptor, b"\n")
    os.close(descriptor)
    return True


def test_what_differs_from_the_commit_is_kept(bench: Bench) -> None:
    job = bench.folder / "job"
    (job / "train.sh").write_text("true\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(job))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run((*git, *words), check=True)
    (job / "settings.sh").write_text("echo changed\n")
    submit(bench)
    assert ended(bench.attach())[0] == 0
    record = json.loads((bench.one / "record.json").read_text(encoding="utf-8"))
    assert (len(record["revision"]), record["uncommitted"]) == (40, True)
    assert "+echo changed\n" in (bench.one / "code.diff").read_text(encoding="utf-8")
