from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.plan.launcher_choice import Imports
from ctrain_runtime.run.imports import read_imports
from samples.plans import a_job


def imports(folder: Path, text: str, *command: str, **parts: Any) -> Imports:
    (folder / "train.py").write_text(text)
    return read_imports(a_job(command=command or ("python", "train.py"), directory=folder, **parts))


@pytest.mark.parametrize(
    ("text", "libraries", "required"),
    [
        ("import horovod.torch as hvd\n", {"horovod"}, {"horovod"}),
        ("import os, torch.distributed as dist, numpy\n", {"torch"}, {"torch"}),
        ("from mpi4py import MPI\n", {"mpi4py"}, {"mpi4py"}),
        ("from deepspeed.ops import adam\nimport torch\n", {"deepspeed", "torch"}, {"deepspeed", "torch"}),
        ("try:\n    import horovod.torch as hvd\nexcept ImportError:\n    pass\n", {"horovod"}, set()),
        ("def main():\n\timport accelerate\n", {"accelerate"}, set()),
        ("from\ttorch import nn\r\nimport jax\r\n", {"torch", "jax"}, {"torch", "jax"}),
        ("# import horovod\nimport horovodish, mytorch.torch\nimportant = 1\n", set(), set()),
        ("from . import torch\nfrom .torch import x\n", set(), set()),
        ("import \n", set(), set()),
        ("print('import horovod')\n", set(), set()),
        ("", set(), set()),
    ],
)
def test_the_libraries_that_a_program_imports(
    text: str, libraries: set[str], required: set[str], tmp_path: Path
) -> None:
    assert imports(tmp_path, text) == Imports("train.py", frozenset(libraries), frozenset(required))


@pytest.mark.parametrize(
    "command",
    [("python", "-m", "train"), ("python", "-c", "import torch"), ("./train.py",), ("hostname",), ("bash", "run.sh")],
)
def test_other_commands_are_not_read(command: tuple[str, ...], tmp_path: Path) -> None:
    assert imports(tmp_path, "import torch\n", *command) == Imports()


def test_programs_of_the_image_are_not_read(tmp_path: Path) -> None:
    assert imports(tmp_path, "import torch\n", "python", "/opt/not/here.py") == Imports("here.py")
    assert read_imports(a_job(command=("python", "train.py"), directory=None)) == Imports()


def test_a_program_that_is_gone_imports_nothing(tmp_path: Path) -> None:
    assert read_imports(a_job(command=("python", "gone.py"), directory=tmp_path)) == Imports("gone.py")


def test_modules_beside_the_program_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").write_text("import horovod.torch as hvd\nfrom . import steps\n")
    (tmp_path / "data.py").write_text("import mpi4py\n")
    (tmp_path / "torch.py").write_text("import jax\n")  # a name of a library
    text = "import torch\nfrom trainer.steps import x\nif True:\n    import data\n"
    found = imports(tmp_path, text)
    required = {"torch", "horovod", "jax"}  # whatever happens; mpi4py perhaps
    assert found == Imports("train.py", frozenset({*required, "mpi4py"}), frozenset(required))


def test_an_import_that_a_module_beside_may_do_without_is_not_required(tmp_path: Path) -> None:
    (tmp_path / "comm.py").write_text("try:\n    import mpi4py\nexcept ImportError:\n    pass\nimport torch\n")
    found = imports(tmp_path, "import comm\n")
    assert (found.libraries, found.required) == ({"torch", "mpi4py"}, {"torch"})


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a" * 5000])
def test_names_that_are_no_modules(name: str, tmp_path: Path) -> None:
    assert imports(tmp_path, f"import {name}\n").libraries == set()


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"\xff\x00import torch\nimport horovod\n" + b"\n" * (1 << 20) + b"import jax\n")
    found = read_imports(a_job(command=("python", "train.py"), directory=tmp_path))
    assert found.libraries == {"horovod"}


@pytest.mark.parametrize(
    ("text", "needs_rank"),
    [
        ("dist.init_process_group('gloo')\n", True),
        ("def setup():\n    torch.distributed.init_process_group(backend)\n", True),
        ("rank = int(os.environ['RANK'])\n", True),
        ('local = os.environ["LOCAL_RANK"]\n', True),
        ("local = int(os.environ.get('LOCAL_RANK', 0))\ndist.init_process_group('nccl')\n", True),  # does not ask
        ("ddp = int(os.environ.get('RANK', -1)) != -1\nif ddp:\n    init_process_group(backend=backend)\n", False),
        ("if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:\n    rank = int(os.environ['RANK'])\n", False),
        ('if int(os.environ.get("WORLD_SIZE", "1")) > 1: dist.init_process_group()\n', False),
        ("if os.getenv('LOCAL_RANK'): dist.init_process_group()\n", False),
        ("if 'WORLD_SIZE' not in environ: os.environ['WORLD_SIZE'] = '1'\ndist.init_process_group()\n", False),
        ("os.environ['RANK'] = '0'\nmain()\n", False),
        ("import torch\n", False),
        ("", False),
    ],
)
def test_whether_a_program_needs_the_variables_of_a_world(text: str, needs_rank: bool, tmp_path: Path) -> None:
    assert imports(tmp_path, text).needs_rank is needs_rank


def test_modules_beside_the_program_may_form_its_group(tmp_path: Path) -> None:
    (tmp_path / "setup_ddp.py").write_text("def setup():\n    dist.init_process_group('gloo')\n")
    assert imports(tmp_path, "import setup_ddp\n").needs_rank
    assert not imports(tmp_path, "import setup_ddp, os\nif 'RANK' in os.environ:\n    setup_ddp.setup()\n").needs_rank
