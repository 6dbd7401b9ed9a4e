from __future__ import annotations

import shlex
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count
from ctrain_runtime.launchers.recognise import Recognised, recognise, refuse_spawner


@pytest.mark.parametrize(
    ("line", "command", "nodes", "ranks"),
    [
        ("torchrun train.py", "python train.py", None, None),
        ("torchrun --nproc_per_node=4 train.py --lr 0.1", "python train.py --lr 0.1", None, 4),
        ("torchrun --nproc-per-node 4 train.py", "python train.py", None, 4),
        ("torchrun --nproc_per_node gpu train.py", "python train.py", None, "auto"),
        ("torchrun --nproc_per_node=auto train.py", "python train.py", None, "auto"),
        ("torchrun --nnodes=2 --nproc_per_node=4 train.py", "python train.py", 2, 4),
        ("torchrun --nnodes 1 --node_rank 0 train.py", "python train.py", 1, None),
        ("torchrun --standalone --nproc_per_node=4 train.py", "python train.py", None, 4),
        ("torchrun -m package.train --lr 1", "python -m package.train --lr 1", None, None),
        ("torchrun --module package.train -m x", "python -m package.train -m x", None, None),
        ("torchrun --no-python ./train --lr 1", "./train --lr 1", None, None),
        ("torchrun --no_python ./train", "./train", None, None),
        ("torchrun --rdzv_backend c10d --rdzv-endpoint=h:1 --master-port 1 t.py", "python t.py", None, None),
        ("torchrun train.py --nproc_per_node 9 -m", "python train.py --nproc_per_node 9 -m", None, None),
        ("/opt/conda/bin/torchrun --nproc_per_node=2 train.py", "python train.py", None, 2),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py", "python train.py", None, 2),
        ("python3.10 -m torch.distributed.launch --use_env --nproc_per_node=2 t.py", "python t.py", None, 2),
        ("/usr/bin/python3 -u -m torch.distributed.run --nnodes=2 train.py", "python train.py", 2, None),
    ],
)
def test_torchrun(line: str, command: str, nodes: Optional[int], ranks: Optional[Count]) -> None:
    assert recognise(tuple(line.split())) == Recognised("torchrun", tuple(command.split()), nodes, ranks)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python -m torch.distributed.checkpoint",
        "python -m",
        "python",
        "python -c x -m torch.distributed.run",
        "python train.py -m torch.distributed.run",
        "./setup.sh -m torch.distributed.run train.py",
        "mytorchrun train.py",
        "bash -c torchrun",
    ],
)
def test_other_commands(line: str) -> None:
    assert recognise(tuple(line.split())) is None


@pytest.mark.parametrize("line", ["torchrun", "torchrun --standalone", "torchrun --nproc-per-node 4"])
def test_torchrun_without_a_program(line: str) -> None:
    with pytest.raises(UsageError, match=r"torchrun has no program. As in: torchrun --nproc-per-node 4 train.py"):
        recognise(tuple(line.split()))


def test_a_changing_number_of_nodes_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        recognise(("torchrun", "--nnodes=1:4", "train.py"))
    assert str(caught.value) == "torchrun --nnodes 1:4: the number of nodes must be fixed. As in: --nnodes 2"


words = st.text(max_size=12)
options = st.lists(
    st.sampled_from(
        [["--standalone"], ["--nproc-per-node", "2"], ["--nnodes=3"], ["--max_restarts", "-1"], ["-t", "3"]]
    )
)


@given(options, st.lists(words), st.booleans())
def test_what_follows_the_program_is_never_touched(
    given_options: list[list[str]], arguments: list[str], module: bool
) -> None:
    flat = [word for option in given_options for word in option]
    command = ("torchrun", *flat, *(["-m"] if module else []), "program", *arguments)
    recognised = recognise(command)
    assert recognised is not None
    assert recognised.command == ("python", *(["-m"] if module else []), "program", *arguments)


@given(st.lists(words, min_size=1))
def test_every_command_is_recognised_or_not_without_a_traceback(command: list[str]) -> None:
    for words_before in ((), ("torchrun",), ("torchrun", "--nnodes"), ("python", "-m", "torch.distributed.run")):
        try:
            recognise((*words_before, *command))
        except UsageError:
            assert words_before


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("mpirun -np 4 python train.py --lr 1", "python train.py --lr 1"),
        ("/usr/bin/mpiexec -n 4 python3.11 train.py", "python3.11 train.py"),
        ("horovodrun -np 4 -H h:4 python x.py 'a b'", "python x.py 'a b'"),
        ("deepspeed --num_gpus 4 train.py --deepspeed ds.json", "python train.py --deepspeed ds.json"),
        ("accelerate launch train.py", "python train.py"),
        ("srun -n 4 ./run.sh", "./run.sh"),
        ("srun -n 4 ./app", "PROGRAM"),
        ("mpirun", "PROGRAM"),
    ],
)
def test_a_command_that_starts_ranks_itself_is_refused_with_the_line_to_type(line: str, suggestion: str) -> None:
    command = tuple(shlex.split(line))
    with pytest.raises(UsageError) as caught:
        refuse_spawner(command, 8)
    name = command[0].rsplit("/", 1)[-1]
    assert caught.value.message == (
        f"{name} would run in each of the 8 ranks, and start its own: ctrain starts the ranks itself"
    )
    assert caught.value.hint == f"Remove {name}: ctrain run ... -- {suggestion}"


def test_one_rank_may_start_its_own() -> None:
    refuse_spawner(("mpirun", "-np", "4", "./app"), 1)
    refuse_spawner(("python", "train.py"), 8)


def test_options_without_effect_are_named() -> None:
    words = ("torchrun", "--standalone", "--max-restarts", "3", "--rdzv-id=1", "--tee=3", "--nproc_per_node=2", "x.py")
    recognised = recognise(words)
    assert recognised is not None
    assert recognised.ignored == ("--max-restarts", "--tee")
    assert recognised.command == ("python", "x.py")
