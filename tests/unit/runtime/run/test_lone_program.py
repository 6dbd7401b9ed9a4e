from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.run.lone_program import MAX_FILES, trains_alone

# As of a tutorial: a network, data, an optimizer, a loop.
PLAIN = '''\
"""Trains on several ranks? It says so, but does not."""
from __future__ import print_function
import argparse, os
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, transforms

class Net(nn.Module):
    def forward(self, x):
        return F.relu(x)

def main():
    parser = argparse.ArgumentParser(description="the rank of a matrix")
    parser.add_argument("--lr", type=float, default=1.0)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = torch.compile(Net().to(device))
    model.eval()
    torch.save(model.state_dict(), os.environ.get("OUT", "mnist_cnn.pt"))

if __name__ == "__main__":
    main()
'''


def alone(folder: Path, text: str = PLAIN, **files: str) -> bool:
    """Whether train.py, with this text, trains alone beside other files."""
    for name, content in {**files, "train.py": text}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return trains_alone(folder / "train.py")


def test_a_plain_program_trains_alone(tmp_path: Path) -> None:
    assert alone(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel",
        "model = torch.nn.parallel.DistributedDataParallel(model)",
        "torch.distributed.init_process_group('gloo')",
        "from torch.utils.data.distributed import DistributedSampler",
        "model = nn.DataParallel(model)",
        "import horovod.torch as hvd",
        "from mpi4py import MPI",
        "import deepspeed",
        "import pytorch_lightning as pl",
        "from accelerate import Accelerator",
        "from transformers import Trainer",
        "import ray",
        "import jax",
        "import a_library_that_nobody_knows",
        "import torch.multiprocessing as mp",
        "import multiprocessing",
        "import subprocess",
        "import socket",
        "import importlib",
        "m = __import__('x')",
        "exec(open('x').read())",
        "os.system('torchrun x.py')",
        "torch.hub.load('a', 'b')",
        "torch.ops.load_library('x.so')",
        "seed = int(os.environ['RANK'])",
        "shard = os.getenv('SLURM_PROCID')",
        "parser.add_argument('--local_rank', type=int)",
        "def train(world_size): pass",
        "import sys; sys.path.append('..'); import common",
        "from .. import engine",
        "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    pass",
        "def f():\n    import deepspeed",
        "match x:\n    case = 1 1",  # no Python
    ],
)
def test_whatever_leaves_a_doubt_does(line: str, tmp_path: Path) -> None:
    assert not alone(tmp_path, f"{PLAIN}\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "number = [os.environ[name] for name in ('A', 'B')]",
        "number = os.environ.get(args.variable)",
        "number = os.getenv('A' + 'B')",
        "for name, value in os.environ.items(): print(name)",
        "settings = dict(os.environ)",
        "from os import environ as variables",
    ],
)
def test_variables_by_names_that_only_the_run_knows_are_a_doubt(line: str, tmp_path: Path) -> None:
    """One of them may tell the ranks apart."""
    assert not alone(tmp_path, PLAIN.replace("class Net", f"{line}\n\nclass Net"))


def test_variables_by_plain_names_are_none(tmp_path: Path) -> None:
    line = "os.environ['OMP_NUM_THREADS'] = os.getenv('A') or os.environ.get('B', '') if 'C' in os.environ else ''"
    assert alone(tmp_path, PLAIN.replace("class Net", f"{line}\n\nclass Net"))


def test_local_modules_are_followed(tmp_path: Path) -> None:
    text = f"import model.net\nfrom tools import seeds\n{PLAIN}"
    net = {"model/net.py": "from . import parts\n", "model/parts.py": "import torch\n", "tools.py": "seeds = [1]\n"}
    package = {**net, "model/__init__.py": ""}
    assert alone(tmp_path, text, **package)
    for name, line in (("model/parts.py", "from torch import distributed"), ("model/__init__.py", "import deepspeed")):
        assert not alone(tmp_path, text, **{**package, name: line})


def test_modules_in_a_circle_end(tmp_path: Path) -> None:
    assert alone(tmp_path, f"import a\n{PLAIN}", **{"a.py": "import b\n", "b.py": "import a\n"})


def test_too_many_modules_are_a_doubt(tmp_path: Path) -> None:
    modules = {f"m{number}.py": f"import m{number + 1}\n" for number in range(MAX_FILES)}
    assert not alone(tmp_path, f"import m0\n{PLAIN}", **{**modules, f"m{MAX_FILES}.py": ""})


@pytest.mark.parametrize(
    "text", ["import numpy\n", "", "print('torch')\n", "\0", "import torch\n" + "x = 1\n" * 200_000]
)
def test_other_programs_are_no_trainings(text: str, tmp_path: Path) -> None:
    assert not alone(tmp_path, text)


def test_a_module_named_torch_is_not_torch(tmp_path: Path) -> None:
    assert not alone(tmp_path, "import torch\n", **{"torch.py": "x = 1\n"})


def test_a_program_that_cannot_be_read_is_a_doubt(tmp_path: Path) -> None:
    assert not trains_alone(tmp_path / "gone.py")
    assert not trains_alone(tmp_path)
