from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime import job
from ctrain_runtime.base import paths
from ctrain_runtime.errors import JobError, UsageError
from ctrain_runtime.job import Dataset, Job, Resources, Training

MINIMAL = "command: [python, train.py]\nimage: pytorch\n"
FULL = """\
description: digits
command: [python, train.py, --epochs, "3", --lr, 1.0e-4, --beta, 0.90, --at, 1:30]
image: [pytorch, pytorch-cpu]
launcher: env
resources: {nodes: 2, gpus_per_node: 4, ranks_per_node: auto, time: "2:00:00"}
data: {dataset: imagenet, mount: /images}
env: {A: b, N: 3, LR: 0.1, MASK: 0x0F, "YES": "on"}
layers: [mine.sqsh, ~/other.sqsh]
parameters: {lr: 1.0e-3, opt.name: adam, 1: 2}
parameter_style: key=value
training:
  model: {layers: layers=4, hidden: 128}
  layout: {batch: 64}
  steps: steps=100
  when: {offload=cpu: {offload: true}}
"""


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packaged jobs: digits and gpt, and a folder that is none."""
    folder = tmp_path / "examples"
    for name in ("digits", "gpt", "_lib"):
        (folder / name).mkdir(parents=True)
        if name != "_lib":
            (folder / name / "job.yaml").write_text(MINIMAL)
    monkeypatch.setattr(paths, "data_dir", lambda name: tmp_path / name)
    return folder


def write(folder: Path, text: str, *scripts: str) -> str:
    folder.mkdir()
    (folder / "job.yaml").write_text(text)
    for script in scripts or ("train.py",):
        (folder / script).touch()
    return str(folder)


@pytest.mark.usefixtures("examples")
def test_a_packaged_job_runs_where_the_image_has_it() -> None:
    found = job.find("digits")
    assert (found.name, found.workdir, found.directory) == ("digits", "/opt/ctrain/examples/digits", None)
    assert job.names() == ["digits", "gpt"]


def test_a_folder_with_every_key(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert job.find(write(folder, FULL)) == Job(
        name="mine",
        command=("python", "train.py", "--epochs", "3", "--lr", "1.0e-4", "--beta", "0.90", "--at", "1:30"),
        images=("pytorch", "pytorch-cpu"),
        launcher="env",
        resources=Resources(2, 4, "auto", "2:00:00"),
        data=Dataset("imagenet", "/images"),
        env={"A": "b", "N": "3", "LR": "0.1", "MASK": "0x0F", "YES": "on"},
        workdir=str(folder),
        directory=folder,
        layers=(folder / "mine.sqsh", Path("~/other.sqsh").expanduser()),
        training=Training(
            {"layers": "layers=4", "hidden": 128}, {"batch": 64}, "steps=100", {"offload=cpu": {"offload": True}}
        ),
        file=folder / "job.yaml",
        parameters={"lr": "1.0e-3", "opt.name": "adam", "1": "2"},
        parameter_style="key=value",
    )


def test_the_folder_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "my job", MINIMAL))
    for reference in (".", "./", "../my job"):
        assert (job.find(reference).name, job.find(reference).directory) == ("my-job", tmp_path / "my job")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("reference", "question"),
    [
        ("_lib", ""),
        ("", ""),
        ("digit", " Did you mean 'digits'?"),
        ("gtp", " Did you mean 'gpt'?"),
        ("ddp", r" Did you mean ./ddp\?"),
    ],
)
def test_a_job_that_is_not_packaged(reference: str, question: str, tmp_path: Path) -> None:
    write(tmp_path / "ddp", MINIMAL)
    complaint = rf"^unknown job '{reference}'.{question} Jobs: digits, gpt; or ./DIRECTORY with a job.yaml$"
    with pytest.raises(JobError, match=complaint.replace("'?", r"'\?")):
        job.find(reference)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("reference", "question"),
    [
        ("./x", ""),
        ("./dpd", "Did you mean ./ddp? "),
        ("./dpd/", "Did you mean ./ddp? "),
        ("{}/dpd", "Did you mean {}/ddp? "),
        ("./ddp/job.yaml", "Did you mean ./ddp? "),
        ("./gpt", "Did you mean gpt? "),
        ("./no/where", ""),
        ("./old", "Rename old/job.yml to job.yaml. "),
        ("{}/old/", "Rename {}/old/job.yml to job.yaml. "),
    ],
)
def test_a_folder_without_a_job(reference: str, question: str, tmp_path: Path) -> None:
    write(tmp_path / "ddp", MINIMAL)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/job.yml").touch()
    with pytest.raises(JobError) as caught:
        job.find(reference.format(tmp_path))
    path = Path(reference.format(tmp_path)).resolve() / "job.yaml"
    hint = f"{question.format(tmp_path)}A job is a directory with a job.yaml; see: ctrain help jobs"
    assert str(caught.value) == f"{path} not found. {hint}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("command: []\nimage: x\n", "command is empty. Name the program, as in"),
        ("command: python train.py\nimage: x\n", "command must be a list, not a string"),
        ("image: x\n", "key 'command' is missing"),
        (
            MINIMAL + "launcher: mpirun\n",
            "launcher must be auto or mpi or env or torchrun or gloo or node, not 'mpirun'",
        ),
        (
            "command: [python, yes]\nimage: x\n",
            "command must be a string or a number, not a boolean (True). If it is",
        ),
        ("command: [python, null]\nimage: x\n", "command must be a string or a number, not null (None)"),
        ("command: [x]\nimage: []\n", "image is empty. Name one, as in: image: pytorch"),
        (MINIMAL + "env: {A: no}\n", "env.A must be a string or a number, not a boolean (False). If it is"),
        (MINIMAL + "resources: {nodes: 0}\n", "resources.nodes must be an integer of at least 1, not 0"),
        (
            MINIMAL + "resources: {gpus_per_node: -1}\n",
            "gpus_per_node must be an integer of at least 0 or auto, not -1",
        ),
        (
            MINIMAL + "resources: {gpus_per_node: all}\n",
            "gpus_per_node must be an integer of at least 0 or auto, not 'all'",
        ),
        (
            MINIMAL + "resources: {ranks_per_node: 0}\n",
            "ranks_per_node must be an integer of at least 1 or auto, not 0",
        ),
        (
            MINIMAL + "resources: {ranks_per_node: ''}\n",
            "ranks_per_node must be an integer of at least 1 or auto, not ''",
        ),
        (MINIMAL + "training: {model: {}, layout: {}}\n", "training: key 'steps' is missing"),
        (
            MINIMAL + "training: {model: {layers: [1]}, layout: {}, steps: 1}\n",
            "training: model.layers must be a string or",
        ),
        (MINIMAL + "resources: {time: '1:99:00'}\n", "resources.time: invalid time limit '1:99:00'. Write it as"),
        (MINIMAL + "resources: {time: '0:00:00'}\n", "resources.time must be at least one minute, not '0:00:00'"),
        (MINIMAL + "data: {dataset: x, mount: data}\n", "data.mount must be an absolute path, not 'data'"),
        (MINIMAL + "resources: {node: 2}\n", "unknown key 'node'. Did you mean 'nodes'?"),
        (
            MINIMAL + "resources: {time: 2:00:00}\n",
            "resources: time must be a string, not an integer (7200). If it is text, put it in quotes",
        ),
        (MINIMAL + "ranks: apart\n", "ranks must be world or independent, not 'apart'"),
        (MINIMAL + "ranks: independent\nlauncher: mpi\n", "independent ranks have no launcher mpi. Leave out"),
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
        (("hostname", "-s"), "hostname"),
        (("./a.out", "train.py"), "train"),
        (("python", "-u", "-m", "nanogpt.train", "x=1", "train.py"), "nanogpt.train"),
        (("..",), "job"),
        (("대전",), "job"),
    ],
)
def test_a_plain_command_is_named_after_its_file(tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    (tmp_path / "code").mkdir()
    for file in ("train.py", "code/my train.py"):
        (tmp_path / file).touch()
    assert job.from_command(command, tmp_path) == Job(
        name, command, (), "auto", Resources(), None, {}, str(tmp_path), tmp_path
    )


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (("python", "not_here.py"), "not_here.py"),
        (("/usr/bin/python3.12", "-u", "-W", "error", "code/gone.py", "--lr", "1"), "code/gone.py"),
        (("bash", "-x", "gone.sh"), "gone.sh"),
        (("python", "train.py", "gone.py"), None),
        (("python", "-m", "gone"), None),
        (("python", "-m", "gone", "gone.py"), None),
        (("python", "-c", "print(1)", "gone.py"), None),
        (("python", "/opt/image/gone.py"), None),
        (("python", "-um", "gone", "gone.py"), None),
        (("python", "-", "gone.py"), None),
        (("python",), None),
        (("python", "-W"), None),
        (("bash", "-c", "./gone.sh"), None),
        (("torchrun", "gone.py"), None),
        (("./gone.py",), None),
    ],
)
def test_a_script_that_is_missing(tmp_path: Path, command: tuple[str, ...], script: Optional[str]) -> None:
    (tmp_path / "train.py").touch()
    there = Job("x", command, (), "mpi", Resources(), None, {}, str(tmp_path), tmp_path)
    assert job.missing_script(there) == script
    assert job.missing_script(replace(there, directory=None)) is None


def test_a_command_without_its_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    complaint = (
        rf"^trian.py not found in {tmp_path}. Did you mean 'train.py'\? A script of the image needs its absolute"
    )
    with pytest.raises(UsageError, match=complaint):
        job.from_command(("python", "trian.py"), tmp_path)


def test_a_job_without_its_script(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", MINIMAL, "main.sh")
    with pytest.raises(JobError, match=rf"^{folder}/job.yaml: command: train.py not found in {folder}. A script"):
        job.find(folder)


def test_nothing_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no job or command given. Use: ctrain run JOB"):
        job.from_command((), tmp_path)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("accelerate launch --config_file F x.py --data y.py", "x"),
        ("horovodrun --host-discovery-script X.sh python x.py", "x"),
        ("bash X.sh y.py", "X"),
        ("tool F", "F"),
    ],
)
def test_a_file_that_an_option_names_is_not_the_program(command: str, name: str, tmp_path: Path) -> None:
    for file in ("F", "X.sh", "x.py", "y.py"):
        (tmp_path / file).touch()
    assert job.from_command(tuple(command.split()), tmp_path).name == name


def test_an_argument_may_be_longer_than_the_name_of_a_file(tmp_path: Path) -> None:
    assert job.from_command(("sh", "-c", "true; " * 1000), tmp_path).name == "sh"
