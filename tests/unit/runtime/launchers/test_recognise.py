from __future__ import annotations

import contextlib
import shlex
import subprocess
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count
from ctrain_runtime.launchers.recognise import MODULES, Recognised, recognise, refuse_spawner
from ctrain_runtime.launchers.spawner_options import SPAWNERS

M_T = ("python", "-m", "t")
OPTIONS = ["-np", "-x", "--mca", "--num_gpus=2", "--gloo", "-m", "--no_python", "--nnodes", "--cpu", "--unknown", "4"]


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
    expected = Recognised(tuple(command.split()), "torchrun", "torchrun", nodes=nodes, ranks_per_node=ranks)
    assert recognise(tuple(line.split())) == expected


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
        "accelerate config",
        "accelerate",
        "srun -n 4 ./app",
        "",
    ],
)
def test_other_commands(line: str) -> None:
    assert recognise(tuple(line.split())) == Recognised(tuple(line.split()))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mpirun -np 8 python train.py", {"ranks": 8}),
        ("mpiexec -n 8 -ppn 4 -f hosts ./app", {"ranks": 8, "ranks_per_node": 4, "nodes": 2, "command": ("./app",)}),
        ("mpirun --np 8 -N 4 -H a:4,b:4 python train.py", {"ranks": 8, "ranks_per_node": 4, "nodes": 2}),
        ("mpirun -np 4 -H a,a,b,b -N 2 python train.py", {"ranks": 4, "ranks_per_node": 2, "nodes": 2}),
        ("mpirun -np 2 -x A -x B=1=2 --allow-run-as-root python train.py", {"ranks": 2, "env": ("A", "B=1=2")}),
        (
            "mpirun -np 2 --mca btl ^vader -mca pml ob1 -bind-to none python train.py",
            {"ranks": 2, "env": ("OMPI_MCA_btl=^vader", "OMPI_MCA_pml=ob1")},
        ),
        ("mpiexec -genv A 1 -env B 2 python train.py", {"env": ("A=1", "B=2")}),
        (
            "mpirun --map-by node -np 2 python train.py",
            {"ranks": 2, "notes": ("--map-by of mpirun has no effect here",)},
        ),
        ("mpirun -x MASTER_ADDR -x MASTER_PORT=1 -x A python train.py", {"env": ("A",)}),  # the plan's
        (
            "mpirun -x LD_LIBRARY_PATH -x PATH=/x python train.py",
            {"env": ("PATH=/x",), "notes": ("-x LD_LIBRARY_PATH of mpirun has no effect here",)},
        ),
        ("mpirun python train.py -np 4 -x", {"command": ("python", "train.py", "-np", "4", "-x")}),
    ],
)
def test_mpirun(line: str, expected: dict[str, Any]) -> None:
    name = line.split()[0]
    plain: dict[str, Any] = {"command": ("python", "train.py"), "by": name, "launcher": "mpi"}
    assert recognise(tuple(line.split())) == Recognised(**{**plain, **expected})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("horovodrun -np 4 -H a:2,b:2 python train.py", {"ranks": 4, "nodes": 2}),
        ("horovodrun -np 4 -H localhost:4 python train.py", {"ranks": 4, "nodes": 1}),
        ("horovodrun --num-proc=4 --gloo python train.py", {"ranks": 4, "launcher": "gloo"}),
        ("horovodrun --mpi python train.py", {"launcher": "mpi"}),
        (
            "horovodrun --cycle-time-ms 3.5 --autotune --verbose python train.py",
            {
                "env": ("HOROVOD_CYCLE_TIME=3.5", "HOROVOD_AUTOTUNE=1"),
                "notes": ("--verbose of horovodrun has no effect here",),
            },
        ),
        ("python3 -m horovod.runner.launch -np 2 python train.py", {"ranks": 2}),
    ],
)
def test_horovodrun(line: str, expected: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"command": ("python", "train.py"), "by": "horovodrun", "launcher": "auto"}
    assert recognise(tuple(line.split())) == Recognised(**{**plain, **expected})


LOCAL_RANK = ("/bin/sh", "-c", 'exec "$@" --local_rank="$LOCAL_RANK"', "deepspeed")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deepspeed train.py", {}),
        ("deepspeed --num_gpus=4 --num_nodes 2 train.py", {"ranks_per_node": 4, "nodes": 2}),
        ("deepspeed --hostfile h --master_port 1 --launcher slurm train.py", {}),
        ("deepspeed --no_local_rank train.py", {"prefix": ()}),
        ("deepspeed --module package.train", {"command": ("python", "-m", "package.train")}),
        ("deepspeed --no_python ./train", {"command": ("./train",)}),
        ("python -m deepspeed.launcher.runner train.py", {}),
        ("deepspeed train.py --deepspeed ds.json", {"command": ("python", "train.py", "--deepspeed", "ds.json")}),
    ],
)
def test_deepspeed_passes_the_local_rank_as_an_argument(line: str, expected: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"command": ("python", "train.py"), "by": "deepspeed", "launcher": "env"}
    assert recognise(tuple(line.split())) == Recognised(**{**plain, "prefix": LOCAL_RANK, **expected})


def test_the_local_rank_comes_last_and_nothing_is_expanded() -> None:
    words = [*LOCAL_RANK, "printf", "%s|", "$HOME", "a b", "--"]
    output = subprocess.check_output(words, env={"LOCAL_RANK": "3"}, text=True)
    assert output == "$HOME|a b|--|--local_rank=3|"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("accelerate launch train.py", {}),
        ("accelerate launch --num_processes 8 --num_machines=2 train.py", {"ranks": 8, "nodes": 2}),
        (
            "accelerate launch --mixed_precision bf16 --dynamo-backend inductor --cpu --multi_gpu train.py",
            {
                "env": (
                    "ACCELERATE_MIXED_PRECISION=bf16",
                    "ACCELERATE_DYNAMO_BACKEND=INDUCTOR",
                    "ACCELERATE_USE_CPU=true",
                )
            },
        ),
        ("accelerate launch --machine_rank 1 --main_process_ip h --main_process_port 1 -m t", {"command": M_T}),
        ("python -m accelerate.commands.launch --num_processes 2 train.py", {"ranks": 2}),
    ],
)
def test_accelerate(line: str, expected: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"command": ("python", "train.py"), "by": "accelerate", "launcher": "env"}
    assert recognise(tuple(line.split())) == Recognised(**{**plain, **expected})


@pytest.mark.parametrize(
    ("line", "name", "option"),
    [
        ("accelerate launch --config_file c.yaml train.py", "accelerate", "--config_file"),
        ("accelerate launch --mixed_precision bf16 --use_fsdp train.py", "accelerate", "--use_fsdp"),
        ("python -m accelerate.commands.launch --use_deepspeed train.py", "accelerate", "--use_deepspeed"),
        ("deepspeed --include=h:1,2 train.py", "deepspeed", "--include"),
        ("horovodrun -np 2 --min-np 1 --host-discovery-script d.sh python train.py", "horovodrun", "--min-np"),
        ("mpirun -np 1 ./server : -np 3 python train.py", "mpirun", ":"),
        ("mpirun --app file", "mpirun", "--app"),
    ],
)
def test_an_option_without_an_equivalent_is_refused_unless_there_is_one_rank(line: str, name: str, option: str) -> None:
    recognised = recognise(tuple(line.split()))
    assert (recognised.command, recognised.by, recognised.untranslated) == (tuple(line.split()), name, option)
    refuse_spawner(recognised, 1)
    with pytest.raises(UsageError) as caught:
        refuse_spawner(recognised, 8)
    assert caught.value.message == (
        f"{name} would run in each of the 8 ranks, and start its own: ctrain has no equivalent of {option}"
    )
    assert caught.value.hint
    assert caught.value.hint.startswith(f"Remove {name}: ctrain run ... -- ")
    assert caught.value.hint.endswith(f"; or let {name} start those of one node: --nodes 1 --ranks-per-node 1")


@pytest.mark.parametrize("line", ["torchrun", "torchrun --standalone", "mpirun -np 4", "deepspeed --num_gpus"])
def test_a_spawner_without_a_program(line: str) -> None:
    with pytest.raises(UsageError, match=r"^(torchrun|mpirun|deepspeed) has no program. As in: \1 train.py"):
        recognise(tuple(line.split()))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("torchrun --nnodes=1:4 train.py", "torchrun --nnodes must be a positive integer, not '1:4'"),
        ("mpirun -np 0 ./app", "mpirun -np must be a positive integer, not '0'"),
        ("mpirun -np auto ./app", "mpirun -np must be a positive integer, not 'auto'"),
        ("deepspeed --num_gpus=-1 t.py", "deepspeed --num_gpus must be a positive integer, not '-1'"),
        (f"mpirun -np {'9' * 5000} ./app", "mpirun -np must be a positive integer"),
    ],
)
def test_numbers_must_be_numbers(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        recognise(tuple(line.split()))
    assert caught.value.message.startswith(problem)


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
    assert recognised.command == ("python", *(["-m"] if module else []), "program", *arguments)


@given(st.sampled_from([*SPAWNERS, *MODULES]), st.lists(st.one_of(words, st.sampled_from(OPTIONS)), max_size=6))
def test_every_command_is_recognised_or_not_without_a_traceback(name: str, command: list[str]) -> None:
    start = ["python", "-m", name] if name in MODULES else [name]
    with contextlib.suppress(UsageError):
        recognised = recognise((*start, *command))
        assert recognised.command[-1] == [*start, *command][-1]


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("srun -n 4 ./run.sh", "./run.sh"),
        ("srun -n 4 train.py 'a b'", "python train.py 'a b'"),
        ("srun -n 4 ./app", "PROGRAM"),
        ("accelerate test", "PROGRAM"),
        ("mpirun -np 2 srun x.sh", "x.sh"),
    ],
)
def test_a_command_that_starts_ranks_itself_is_refused_with_the_line_to_type(line: str, suggestion: str) -> None:
    recognised = recognise(tuple(shlex.split(line)))
    with pytest.raises(UsageError) as caught:
        refuse_spawner(recognised, 8)
    name = recognised.command[0]
    assert caught.value.message == (
        f"{name} would run in each of the 8 ranks, and start its own: ctrain starts the ranks itself"
    )
    assert caught.value.hint == f"Remove {name}: ctrain run ... -- {suggestion}"


def test_one_rank_may_start_its_own() -> None:
    refuse_spawner(recognise(("srun", "-n", "4", "./app")), 1)
    refuse_spawner(recognise(("python", "train.py")), 8)
    refuse_spawner(recognise(("mpirun", "-np", "8", "python", "train.py")), 8)


def test_options_without_effect_are_named() -> None:
    words = ("torchrun", "--standalone", "--max-restarts", "3", "--rdzv-id=1", "--tee=3", "--nproc_per_node=2", "x.py")
    recognised = recognise(words)
    assert recognised.notes == ("--max-restarts of torchrun has no effect here", "--tee of torchrun has no effect here")
    assert recognised.command == ("python", "x.py")
