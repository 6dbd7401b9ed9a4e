from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime import job, share
from ctrain_runtime.errors import JobError, UsageError
from ctrain_runtime.job import Dataset, Job, Resources

MINIMAL = "command: [python, train.py]\nimage: pytorch\n"
FULL = """\
description: digits
command: [python, train.py, --epochs, "3"]
image: [pytorch, pytorch-cpu]
launcher: env
resources: {nodes: 2, gpus_per_node: 4, ranks_per_node: auto, time: "2:00:00"}
data: {dataset: imagenet, mount: /images}
env: {A: b, N: 3}
layers: [mine.sqsh, ~/other.sqsh]
"""


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packaged jobs: digits and gpt, and a folder that is none."""
    folder = tmp_path / "examples"
    for name in ("digits", "gpt", "_lib"):
        (folder / name).mkdir(parents=True)
        if name != "_lib":
            (folder / name / "job.yaml").write_text(MINIMAL)
    monkeypatch.setattr(share, "data_dir", lambda name: tmp_path / name)
    return folder


def write(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "job.yaml").write_text(text)
    return str(folder)


@pytest.mark.usefixtures("examples")
def test_a_packaged_job_runs_where_the_image_has_it() -> None:
    found = job.find("digits")
    assert (found.name, found.workdir, found.folder) == ("digits", "/opt/ctrain/examples/digits", None)
    assert job.names() == ["digits", "gpt"]


def test_a_folder_with_every_key(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert job.find(write(folder, FULL)) == Job(
        name="mine",
        command=("python", "train.py", "--epochs", "3"),
        images=("pytorch", "pytorch-cpu"),
        launcher="env",
        resources=Resources(2, 4, "auto", "2:00:00"),
        data=Dataset("imagenet", "/images"),
        env={"A": "b", "N": "3"},
        workdir=str(folder),
        folder=folder,
        layers=(folder / "mine.sqsh", Path("~/other.sqsh").expanduser()),
    )


def test_the_folder_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "my job", MINIMAL))
    for reference in (".", "./", "../my job"):
        assert (job.find(reference).name, job.find(reference).folder) == ("my-job", tmp_path / "my job")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("reference", ["digit", "_lib", "DIGITS", ""])
def test_a_job_that_is_not_packaged(reference: str) -> None:
    with pytest.raises(JobError, match=rf"^unknown job '{reference}'. Jobs: digits, gpt; or ./FOLDER with a job.yaml$"):
        job.find(reference)


def test_a_folder_without_a_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=rf"^there is no {tmp_path}/x/job.yaml. A job is a folder with a job.yaml"):
        job.find("./x")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("command: []\nimage: x\n", "command is empty. Name the program, as in"),
        ("command: python train.py\nimage: x\n", "command must be a list, not a string"),
        ("image: x\n", "key 'command' is missing"),
        (MINIMAL + "launcher: mpirun\n", "launcher must be mpi or env, not 'mpirun'"),
        (MINIMAL + "resources: {gpus_per_node: all}\n", "gpus_per_node is 'all'. It can be a number or auto"),
        (MINIMAL + "resources: {ranks_per_node: ''}\n", "ranks_per_node is ''. It can be a number or auto"),
        (MINIMAL + "resources: {node: 2}\n", "unknown key 'node'. Did you mean 'nodes'?"),
        (MINIMAL + "resources: {time: 2:00:00}\n", "resources: time must be a string, not an integer (7200)"),
        (MINIMAL + "nodes: 2\n", "unknown key 'nodes'"),
        (MINIMAL + "command: [x]\n", "line 3: duplicate key 'command'"),
    ],
)
def test_a_job_file_that_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(JobError) as caught:
        job.find(write(tmp_path / "x", text))
    assert str(caught.value).startswith(str(tmp_path / "x/job.yaml"))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py"), "train"),
        (("python", "-u", "code/my train.py", "--lr", "0.1"), "my-train"),
        (("python", "not_here.py"), "python"),
        (("hostname", "-s"), "hostname"),
        (("./a.out", "train.py"), "train"),
        (("python", "-m", "nanogpt.train", "x=1"), "python"),
        (("..",), "job"),
        (("대전",), "job"),
    ],
)
def test_a_plain_command_is_named_after_its_file(tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    (tmp_path / "code").mkdir()
    for file in ("train.py", "code/my train.py"):
        (tmp_path / file).touch()
    assert job.from_command(command, tmp_path) == Job(
        name, command, (), "mpi", Resources(), None, {}, str(tmp_path), tmp_path
    )


def test_nothing_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is nothing to run. Give a job"):
        job.from_command((), tmp_path)
