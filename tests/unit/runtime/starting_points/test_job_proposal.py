from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ctrain_runtime import job
from ctrain_runtime.base import strict_yaml
from ctrain_runtime.base.paths import data_dir
from ctrain_runtime.errors import UsageError
from ctrain_runtime.starting_points import templates
from ctrain_runtime.starting_points.job_proposal import Keys, fill, propose

DDP = """\
import argparse
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", "-e", type=int)
parser.add_argument("--data-dir", default="./data")
dist.init_process_group()
raise SystemExit("nothing is executed")
"""


def proposed(directory: Path, text: str, name: str = "train.py") -> Keys:
    (directory / name).write_text(textwrap.dedent(text))
    return propose(directory / name, directory)


def test_a_program_of_torch_with_a_data_set(tmp_path: Path) -> None:
    keys = proposed(tmp_path, DDP)
    (tmp_path / "job.yaml").write_text(fill(templates.read("job"), keys))
    found = job.find(str(tmp_path))
    assert found.command == ("python", "train.py", "--data-dir", "/data")
    assert (found.images, found.launcher) == (("pytorch", "pytorch-cpu"), "env")
    assert found.data == job.Dataset("my-data", "/data")
    text = (tmp_path / "job.yaml").read_text()
    assert "\ncommand: [python, train.py, --data-dir, /data]    # it also takes --epochs\n" in text
    assert "\nlauncher: env    # train.py imports torch\n" in text
    assert text.count("\ndata: ") == 1 and "#data:" not in text
    assert "\n#layers: [layer.sqsh]\n" in text, "what is not proposed stays as it was"


@pytest.mark.parametrize(
    ("text", "launcher", "image"),
    [
        ("import horovod.torch as hvd, torch", "auto", "pytorch"),
        ("import horovod.tensorflow.keras as hvd", "auto", "tensorflow"),
        ("import tensorflow as tf", "auto", "tensorflow"),
        ("import keras, torch", "env", "pytorch"),  # with torch below it
        ("from mpi4py import MPI\nimport torch", "mpi", "pytorch"),
        ("import deepspeed", "env", "pytorch"),
        ("def main():\n    from accelerate import Accelerator", "env", "pytorch"),
        ("import keras_nothing, numpy", "auto", "pytorch"),
        ("import helper", "mpi", "pytorch"),  # which imports mpi4py
    ],
)
def test_launcher_and_image_by_what_is_imported(text: str, launcher: str, image: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("from mpi4py import MPI\n")
    keys = proposed(tmp_path, text)
    assert (keys["launcher"][0], keys["image"][0][0]) == (launcher, image)


@pytest.mark.parametrize(
    ("argument", "added"),
    [
        ('"--data"', ["--data", "/data"]),
        ('"-d", "--dataset_path", type=str', ["--dataset_path", "/data"]),
        ('"--data-root", type=pathlib.Path', ["--data-root", "/data"]),
        ('"data", metavar="DIR", nargs="?"', ["/data"]),
        ('"--dataset", default="cifar10"', None),
        ('"--data", action="store_true"', None),
        ('"--data", choices=("a", "b")', None),
        ('"--data", type=int', None),
        ('"--database"', None),
        ("name", None),
    ],
)
def test_an_argument_that_takes_a_directory_of_data(argument: str, added: object, tmp_path: Path) -> None:
    keys = proposed(tmp_path, f"parser.add_argument({argument})\n")
    assert keys["command"][0] == ["python", "train.py", *(added if isinstance(added, list) else [])]
    assert ("data" in keys) == (added is not None)


def test_a_second_argument_without_a_name_is_not_guessed(tmp_path: Path) -> None:
    keys = proposed(tmp_path, 'add = parser\nadd.add_argument("model")\nadd.add_argument("data")\n')
    assert keys["command"][0] == ["python", "train.py"]


def test_only_some_arguments_are_named(tmp_path: Path) -> None:
    text = "".join(f'parser.add_argument("--option-{number}")\n' for number in range(9))
    assert proposed(tmp_path, text)["command"][1].endswith("--option-5, ...")


def test_a_program_that_connects_no_ranks_gets_one(tmp_path: Path) -> None:
    keys = proposed(tmp_path, "import torch\ntorch.ones(1)\n")
    assert keys["resources"][0]["ranks_per_node"] == 1
    (tmp_path / "job.yaml").write_text(fill(templates.read("job"), keys))
    assert job.find(str(tmp_path)).resources == job.Resources(ranks_per_node=1)
    assert "resources" not in proposed(tmp_path, DDP)


@pytest.mark.parametrize(
    ("text", "launcher", "reason"),
    [
        ("# isn't read\ntorchrun --nproc-per-node 4 train.py\n", "node", "run.sh starts ranks by torchrun"),
        ("set -e\npython train.py\n", "auto", "run.sh starts no ranks"),
    ],
)
def test_a_script(text: str, launcher: str, reason: str, tmp_path: Path) -> None:
    keys = proposed(tmp_path, text, "run.sh")
    assert keys["command"][0] == ["bash", "run.sh"]
    assert keys["launcher"] == (launcher, reason)
    (tmp_path / "job.yaml").write_text(fill(templates.read("job"), keys))
    assert job.find(str(tmp_path)).launcher == launcher


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("run.sh", "srun python train.py\n", "run.sh starts its program by srun, which would run in each rank"),
        ("run.sh", "singularity exec a.sif true\n", "singularity exec is not for commands of a run"),
        ("train.py", "print 'two'\n", r"cannot read .*/train.py: Python 3\.\d+ cannot parse it"),
        ("train", "#!/bin/sh\n", r"cannot read .*/train: neither Python \(.py\) nor a shell script"),
    ],
)
def test_a_program_that_no_job_is_made_of(name: str, text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=complaint):
        proposed(tmp_path, text, name)


def test_a_program_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    assert propose(tmp_path / "code/train.py", tmp_path)["command"][0] == ["python", "code/train.py"]
    with pytest.raises(
        UsageError, match=rf"does not see {tmp_path}/code/train.py. Write it to .*: -o {tmp_path}/code/job"
    ):
        propose(tmp_path / "code/train.py", tmp_path / "other")
    with pytest.raises(UsageError, match=r"^program not found: nowhere\.py"):
        propose(Path("nowhere.py"), tmp_path)


@pytest.mark.parametrize("example", job.names())
def test_of_the_examples_it_proposes_the_image_that_they_name_first(example: str) -> None:
    directory = data_dir("examples") / example
    program = next(word for word in job.find(example).command if word.endswith(".py"))
    expected = strict_yaml.read(directory / "job.yaml")["image"]
    assert propose(directory / program, directory)["image"][0][0] == expected[0]
