from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count
from ctrain_runtime.launchers.spawner_options import SPAWNERS
from ctrain_runtime.launchers.starters import MODULES
from ctrain_runtime.launchers.translate import NODE, TranslatedCommand, check, keep, translate_command
from samples.programs import write_program

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
        ("/usr/bin/python3 -u -m torch.distributed.run --nnodes=2 train.py", "python train.py", 2, None),
        ("python -W ignore -X dev -m torch.distributed.run --nproc_per_node=2 train.py", "python train.py", None, 2),
        ("python -Wignore -mtorch.distributed.run --nproc_per_node=2 train.py", "python train.py", None, 2),
        ("python -u /opt/conda/bin/torchrun --nproc_per_node=2 train.py", "python train.py", None, 2),
        ("env torchrun --nnodes=2 train.py", "python train.py", 2, None),
    ],
)
def test_torchrun(line: str, command: str, nodes: Optional[int], ranks: Optional[Count]) -> None:
    expected = TranslatedCommand(tuple(command.split()), "torchrun", "torchrun", nodes=nodes, ranks_per_node=ranks)
    assert translate_command(tuple(line.split())) == expected


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python -m torch.distributed.checkpoint",
        "python -m",
        "python -W",
        "python -W ignore train.py",
        "python -mtorchrun.py x",
        "python",
        "python -c x -m torch.distributed.run",
        "python train.py -m torch.distributed.run",
        "./setup.sh -m torch.distributed.run train.py",
        "mytorchrun train.py",
        "bash torchrun",
        "bash train.sh torchrun x.py",
        "bash -x",
        "bash -c",
        "accelerate config",
        "accelerate",
        "env A=1 python train.py",
        "env",
        "",
    ],
)
def test_other_commands(line: str) -> None:
    assert translate_command(tuple(line.split())) == TranslatedCommand(tuple(line.split()))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mpirun -np 8 python train.py", {"ranks": 8}),
        (
            "mpiexec -n 8 -ppn 4 -f hosts ./app",
            {"ranks": 8, "ranks_per_node": 4, "nodes": 2, "command": ("./app",), "hostfile": "mpiexec -f"},
        ),
        ("orterun -np 8 python train.py", {"ranks": 8}),
        ("prterun -np 8 python train.py", {"ranks": 8}),
        ("mpiexec.hydra -np 8 python train.py", {"ranks": 8}),
        ("mpirun.openmpi -np 8 python train.py", {"ranks": 8}),
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
    assert translate_command(tuple(line.split())) == TranslatedCommand(**{**plain, **expected})


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
    assert translate_command(tuple(line.split())) == TranslatedCommand(**{**plain, **expected})


LOCAL_RANK = ("/bin/sh", "-c", 'exec "$@" --local_rank="$LOCAL_RANK"', "deepspeed")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deepspeed train.py", {}),
        ("deepspeed --num_gpus=4 --num_nodes 2 train.py", {"ranks_per_node": 4, "nodes": 2}),
        ("deepspeed --hostfile h --master_port 1 --launcher slurm train.py", {"hostfile": "deepspeed --hostfile"}),
        ("ds --num_gpus=4 train.py", {"ranks_per_node": 4, "by": "ds"}),
        ("env X=1 DS_LOG=a=b deepspeed train.py", {"env": ("X=1", "DS_LOG=a=b")}),
        ("deepspeed --no_local_rank train.py", {"prefix": ()}),
        ("deepspeed --module package.train", {"command": ("python", "-m", "package.train")}),
        ("deepspeed --no_python ./train", {"command": ("./train",)}),
        ("python -m deepspeed.launcher.runner train.py", {}),
        ("deepspeed train.py --deepspeed ds.json", {"command": ("python", "train.py", "--deepspeed", "ds.json")}),
    ],
)
def test_deepspeed_passes_the_local_rank_as_an_argument(line: str, expected: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"command": ("python", "train.py"), "by": "deepspeed", "launcher": "env"}
    assert translate_command(tuple(line.split())) == TranslatedCommand(**{**plain, "prefix": LOCAL_RANK, **expected})


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
        ("python -m accelerate.commands.launch --num_processes 2 train.py", {"ranks": 2, "by": "accelerate-launch"}),
        ("accelerate-launch --num_processes 2 train.py", {"ranks": 2, "by": "accelerate-launch"}),
    ],
)
def test_accelerate(line: str, expected: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"command": ("python", "train.py"), "by": "accelerate", "launcher": "env"}
    assert translate_command(tuple(line.split())) == TranslatedCommand(**{**plain, **expected})


@pytest.mark.parametrize(
    ("line", "name", "option"),
    [
        ("deepspeed --include=h:1,2 train.py", "deepspeed", "--include"),
        ("horovodrun -np 2 --min-np 1 --host-discovery-script d.sh python train.py", "horovodrun", "--min-np"),
        ("mpirun --app file", "mpirun", "--app"),
    ],
)
def test_an_option_without_an_equivalent_is_refused_unless_there_is_one_node(line: str, name: str, option: str) -> None:
    translated = translate_command(tuple(line.split()))
    assert (translated.command, translated.by, translated.untranslated) == (tuple(line.split()), name, option)
    assert translated.launcher == NODE
    check(translated, "env", 1, 1)
    check(translated, NODE, 1, 8)
    for launcher in (NODE, "env"):  # whoever chose it
        with pytest.raises(UsageError) as caught:
            check(translated, launcher, 2, 8)
        assert caught.value.message == (
            f"{name} would run in each of the 8 ranks, and start its own: ctrain has no equivalent of {option}"
        )
        assert caught.value.hint
        assert caught.value.hint.startswith(f"Remove {name}: ctrain run ... -- ")
        assert caught.value.hint.endswith(f"; or let {name} start those of one node: --nodes 1")


ACCELERATE = (
    "--num_machines $CTRAIN_NODES --num_processes $((CTRAIN_NODES * CTRAIN_RANKS_PER_NODE)) --machine_rank $NODE_RANK"
    " --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            "accelerate launch --config_file c.yaml train.py",
            f"--launcher node -- bash -c 'accelerate launch {ACCELERATE} --config_file c.yaml train.py'",
        ),
        (
            "env A=1 python -m accelerate.commands.launch --use_fsdp train.py --lr 1",
            f"-- bash -c 'env A=1 python -m accelerate.commands.launch {ACCELERATE} --use_fsdp train.py --lr 1'",
        ),
        (
            "mpirun -np 1 ./server : -n 3 python train.py 'a b' : ./last",
            """[ "$RANK" -ge 1 ] || exec ./server; [ "$RANK" -ge 4 ] || exec python train.py '"'"'a b'"'"'; """,
        ),
        ("horovodrun --host-discovery-script d.sh python t.py", "Remove horovodrun: ctrain run ... -- python t.py; or"),
        ("deepspeed --enable train.py python to.py", "Remove deepspeed: ctrain run ... -- python to.py; or"),
        ("deepspeed --enable train.py to.py", "Remove deepspeed: ctrain run ... -- python train.py to.py; or"),
        ("deepspeed --autotuning run train.py to.py", "Remove deepspeed: ctrain run ... -- python train.py to.py; or"),
    ],
)
def test_the_line_to_type_does_the_same(line: str, hint: str) -> None:
    translated = translate_command(tuple(shlex.split(line)))
    assert translated.untranslated
    check(translated, NODE, 1, 8)
    with pytest.raises(UsageError) as caught:
        check(translated, NODE, 2, 8)
    assert hint in caught.value.hint
    proposed = shlex.split(caught.value.hint.partition(" -- ")[2].partition("; or let")[0])
    check(keep(tuple(proposed), requested=True), NODE, 2, 8)


def test_several_programs_are_chosen_by_rank() -> None:
    command = ("mpirun", "-np", "1", "echo", "a", ":", "-np", "2", "echo", "b c", ":", "echo", "d")
    line = shlex.split(translate_command(command).instead.partition(" -- ")[2])
    said = [subprocess.check_output(line, env={"RANK": str(rank), "PATH": os.environ["PATH"]}) for rank in range(4)]
    assert said == [b"a\n", b"b c\n", b"b c\n", b"d\n"]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --virtual-local-rank x.py config.yaml",
        "torchrun --nproc 2 x.py",
        "torchrun --use-env x.py",  # which only torch.distributed.launch has
        "python -m torch.distributed.launch --new-in-2030 x.py config.yaml",
    ],
)
def test_an_unknown_option_of_torchrun_never_takes_the_program_for_its_value(line: str) -> None:
    words = tuple(line.split())
    translated = translate_command(words)
    assert (translated.command, translated.launcher) == (words, NODE)
    with pytest.raises(UsageError) as caught:
        check(translated, translated.launcher, 2, 4)
    line = f"ctrain run ... --launcher node -- {line}"
    assert caught.value.hint == f"Let {translated.by} start the ranks of each node: {line}"
    check(keep(words, requested=True), NODE, 2, 4)


@pytest.mark.parametrize("line", ["torchrun", "torchrun --standalone", "mpirun -np 4", "deepspeed --num_gpus"])
def test_a_spawner_without_a_program(line: str) -> None:
    with pytest.raises(UsageError, match=r"^(torchrun|mpirun|deepspeed) has no program. As in: \1 train.py"):
        translate_command(tuple(line.split()))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "torchrun --nnodes=1:4 train.py",
            "torchrun --nnodes 1:4 is elastic: the number of a run's nodes does not change",
        ),
        ("mpirun -np 0 ./app", "mpirun -np must be a positive integer, not '0'"),
        ("mpirun -np auto ./app", "mpirun -np must be a positive integer, not 'auto'"),
        ("deepspeed --num_gpus=-1 t.py", "deepspeed --num_gpus must be a positive integer, not '-1'"),
        (f"mpirun -np {'9' * 5000} ./app", "mpirun -np must be a positive integer"),
    ],
)
def test_numbers_must_be_numbers(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate_command(tuple(line.split()))
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
    translated = translate_command(command)
    assert translated.command == ("python", *(["-m"] if module else []), "program", *arguments)


@given(st.sampled_from([*SPAWNERS, *MODULES]), st.lists(st.one_of(words, st.sampled_from(OPTIONS)), max_size=6))
def test_every_command_is_recognised_or_not_without_a_traceback(name: str, command: list[str]) -> None:
    start = ["python", "-m", name] if name in MODULES else [name]
    with contextlib.suppress(UsageError):
        translated = translate_command((*start, *command))
        assert translated.command[-1] == [*start, *command][-1]


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("srun -n 4 ./run.sh", "--ranks-per-node 4 -- ./run.sh"),
        ("srun -n 4 train.py 'a b'", "--ranks-per-node 4 -- python train.py 'a b'"),
        ("srun -n 4 -N 2 python x.py", "--nodes 2 --ranks-per-node 2 -- python x.py"),
        ("srun --nodes=2 --ntasks-per-node 4 python x.py -n 7", "--nodes 2 --ranks-per-node 4 -- python x.py -n 7"),
        ("srun -N2 --ntasks=8 --gres gpu:4 python x.py", "--nodes 2 --ranks-per-node 4 -- python x.py"),
        ("srun -n $N -N '' python x.py", "-- python x.py"),
        ("srun -n 5 -N 2 python x.py", "--nodes 2 -- python x.py"),
        ("jsrun -n 4 ./app", "-- PROGRAM"),
        ("bash -c 'module load x && aprun -n 4 -N 2 ./x.sh'", "-- ./x.sh"),
        ("numactl -N 0 ibrun x.sh", "-- x.sh"),
    ],
)
def test_what_starts_steps_of_a_scheduler_is_refused_with_the_line_to_type(line: str, suggestion: str) -> None:
    translated = translate_command(tuple(shlex.split(line)))
    name = translated.by
    for launcher in ("env", NODE):
        with pytest.raises(UsageError) as caught:
            check(translated, launcher, 2, 8)
        assert caught.value.message == (
            f"{name} would run in each of the 8 ranks, and start its own: ctrain starts the ranks itself"
        )
        assert caught.value.hint == f"Remove {name}: ctrain run ... {suggestion}"


def test_one_rank_may_start_its_own() -> None:
    check(translate_command(("srun", "-n", "4", "./app")), "env", 1, 1)
    check(translate_command(("bash", "-c", "torchrun x.py")), "env", 1, 1)
    check(translate_command(("python", "train.py")), "env", 2, 8)
    check(translate_command(("mpirun", "-np", "8", "python", "train.py")), "mpi", 2, 8)


@pytest.mark.parametrize(
    ("line", "by", "nodes", "ranks_per_node"),
    [
        ("bash -c 'torchrun --nproc-per-node 2 x.py'", "torchrun", None, 2),
        ("sh -c 'torchrun --nnodes 2 --nproc-per-node=2 x.py --lr 1'", "torchrun", 2, 2),
        ("/bin/bash -lc 'python -m torch.distributed.run --nproc-per-node 2 w.py'", "torchrun", None, 2),
        ("bash -e -o pipefail -c 'torchrun --nproc_per_node=2 x.py 2>&1 | tee log'", "torchrun", None, 2),
        ("bash -c 'cd src && A=1 exec torchrun --nproc-per-node $N x.py'", "torchrun", None, None),
        ("bash -c 'set -e\nsource env.sh\ntime torchrun \\\n --nproc_per_node 2 x.py'", "torchrun", None, 2),
        ("bash -c 'if true; then torchrun --nproc_per_node 2 x.py; fi'", "torchrun", None, 2),
        ("bash -c 'bash -c \"torchrun --nproc_per_node 2 x.py\"'", "torchrun", None, 2),
        ("numactl --cpunodebind 0 -m 0 torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("env -u A B=1 torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("env --chdir src torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("timeout -s KILL -k 9 2h torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("time -o seconds -f %e torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("uv run --with einops torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("conda run -n train --no-capture-output torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("bash -c 'poetry run torchrun --nproc_per_node 2 x.py'", "torchrun", None, 2),
        ("nsys profile -t cuda,nvtx -o report torchrun --nproc_per_node 2 x.py", "torchrun", None, 2),
        ("bash -c 'command -v nvidia-smi; exec -a train torchrun --nproc_per_node 2 x.py'", "torchrun", None, 2),
        (
            "nice -n 10 timeout 2h python -m torch.distributed.launch --nproc_per_node=2 x.py",
            "torch.distributed.launch",
            None,
            2,
        ),
    ],
)
def test_torchrun_in_the_text_of_a_shell_is_started_once_per_node(
    line: str, by: str, nodes: Optional[int], ranks_per_node: Optional[int]
) -> None:
    command = tuple(shlex.split(line.replace("\\n", "\n").replace("\\\\", "\\")))
    translated = translate_command(command)
    assert (translated.command, translated.by, translated.launcher) == (command, by, NODE)
    assert (translated.nodes, translated.ranks_per_node) == (nodes, ranks_per_node)
    check(translated, NODE, 2, 4)
    with pytest.raises(UsageError) as caught:
        check(translated, "env", 2, 4)
    assert str(caught.value) == (
        f"{by} would run in each of the 4 ranks, and start its own. Let it start the ranks of each node:"
        f" ctrain run ... --launcher node -- {shlex.join(command)}"
    )


@pytest.mark.parametrize(
    ("line", "problem", "remedy"),
    [
        ("bash -c 'deepspeed --num_gpus 2 x.py'", "deepspeed", "ctrain run ... -- deepspeed --num_gpus 2 x.py"),
        ("bash -c 'mpirun -np 4 ./x'", "mpirun", "ctrain run ... -- mpirun -np 4 ./x"),
        ("time accelerate launch x.py", "accelerate", "ctrain run ... -- accelerate launch x.py"),
        ("bash -c 'torchrun --standalone x.py'", "torchrun --standalone", "Remove --standalone"),
        (
            "fabric run --devices 2 x.py",
            "fabric",
            "ctrain run ... --launcher node -- bash -c 'fabric run --num-nodes $CTRAIN_NODES --node-rank $NODE_RANK"
            " --main-address $MASTER_ADDR --main-port $MASTER_PORT ...'",
        ),
        (
            "colossalai run --nproc_per_node 2 x.py",
            "colossalai",
            "ctrain run ... -- torchrun --nproc-per-node N train.py",
        ),
    ],
)
def test_what_would_make_a_world_of_each_node_is_refused(line: str, problem: str, remedy: str) -> None:
    translated = translate_command(tuple(shlex.split(line)))
    assert translated.launcher == NODE
    check(translated, NODE, 1, 4)
    with pytest.raises(UsageError) as caught:
        check(translated, NODE, 2, 4)
    assert caught.value.message == f"{problem} would make a world of its own on each of 2 nodes"
    assert caught.value.hint == remedy


def test_worlds_of_another_number_of_nodes_are_refused() -> None:
    translated = keep(("bash", "-c", "torchrun --nnodes 1 x.py"), requested=True)
    with pytest.raises(UsageError, match=r"^torchrun would make worlds of 1 nodes on 2 nodes\. Pass --nodes 1"):
        check(translated, NODE, 2, 4)


@pytest.mark.parametrize(
    ("line", "inner", "rest"),
    [
        ("mpirun -np 2 torchrun --nproc-per-node 2 x.py", "torchrun", "torchrun --nproc-per-node 2 x.py"),
        ("mpiexec -n 4 env X=1 deepspeed x.py", "deepspeed", "env X=1 deepspeed x.py"),
        ("mpirun bash -c 'torchrun x.py'", "torchrun", "bash -c 'torchrun x.py'"),
        ("torchrun --no-python accelerate launch x.py", "accelerate", "accelerate launch x.py"),
    ],
)
def test_a_spawner_of_spawners_is_refused_with_the_line_to_type(line: str, inner: str, rest: str) -> None:
    """Each rank would have a world of its own."""
    name = line.split()[0]
    with pytest.raises(UsageError) as caught:
        translate_command(tuple(shlex.split(line)))
    assert caught.value.message == f"{name} would start {inner} in each rank, and that ranks of its own"
    assert caught.value.hint == f"Remove {name}: ctrain run ... -- {rest}"


@pytest.mark.parametrize(
    "line",
    [
        "mpirun -np 2 -npernode 1 torchrun --nnodes 2 --node-rank $RANK --master-addr $HOST --nproc-per-node 4 x.py",
        "mpirun -np 1 torchrun --nproc-per-node 2 x.py",
        "mpirun -np 2 torchrun --help",
        "mpirun -np 2 python x.py torchrun",
    ],
)
def test_a_spawner_of_one_or_of_parts_of_a_world_is_not(line: str) -> None:
    assert translate_command(tuple(shlex.split(line))).launcher == "mpi"


def test_who_chooses_launcher_node_is_believed() -> None:
    """A program of its own may know hosts and number of the node."""
    for line in ("bash -c 'deepspeed --hostfile h --no_ssh --node_rank $NODE_RANK x.py'", "fabric run x.py"):
        check(keep(tuple(shlex.split(line)), requested=True), NODE, 2, 4)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("singularity exec --nv -B /a:/b t.sif python x.py", "ctrain run ... --image t.sif -- python x.py"),
        ("apptainer exec -e t.sif python x.py", "ctrain run ... --image t.sif -- python x.py"),
        ("apptainer run docker://x/y:1", "ctrain run ... --image docker://x/y:1 -- PROGRAM"),
        ("mpirun -np 8 singularity exec --bind /a t.sif python x.py", "ctrain run ... --image t.sif -- python x.py"),
        ("bash -c 'cd a; singularity exec t.sif ./x'", "ctrain run ... --image t.sif -- ./x"),
        ("docker run", "ctrain run ... --image IMAGE -- PROGRAM"),
    ],
)
def test_a_container_in_the_container_is_refused_with_the_line_to_type(line: str, hint: str) -> None:
    with pytest.raises(UsageError, match="ctrain starts the container itself") as caught:
        translate_command(tuple(shlex.split(line)))
    assert caught.value.hint == hint


LAUNCH = ("python", "-m", "torch.distributed.launch")


@pytest.mark.parametrize(
    ("words", "command", "before"),
    [
        ("--nproc_per_node=2 t.py -x", "python t.py -x", "2"),
        ("-m package.t -x", "python -m package.t -x", "3"),
        ("--no_python ./t -x", "./t -x", "1"),
        ("--use_env t.py -x", "python t.py -x", ""),
        ("--use-env t.py -x", "python t.py -x", ""),
    ],
)
def test_torch_distributed_launch_passes_the_local_rank_unless_told_not_to(
    words: str, command: str, before: str
) -> None:
    translated = translate_command((*LAUNCH, *words.split()))
    assert (translated.command, translated.launcher) == (tuple(command.split()), "torchrun")
    assert translated.prefix[3:] == (("torch.distributed.launch", before) if before else ())


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("1.13.1+cu117", "--local_rank=3"),
        ("2.13.0+cpu", "--local-rank=3"),
        ("", "--local_rank=3"),
        ("10.0", "--local-rank=3"),
    ],
)
def test_the_local_rank_comes_first_by_the_name_that_torch_gives_it(tmp_path: Path, version: str, option: str) -> None:
    write_program(tmp_path / "python", f"#!/bin/sh\necho {version}\n")
    for arguments in (("$HOME", "a b", "--"), ()):
        translated = translate_command((*LAUNCH, "--no_python", "show", *arguments))
        words = [*translated.prefix, *translated.command]
        write_program(tmp_path / "show", "#!/bin/sh\nprintf '%s|' \"$@\"\n")
        environment = {"LOCAL_RANK": "3", "PATH": f"{tmp_path}:/usr/bin:/bin"}
        output = subprocess.check_output(words, env=environment, text=True)
        assert output == "|".join([option, *arguments, ""])


@pytest.mark.parametrize(
    "text",
    [
        *("command -v srun && nproc; python x.py", "command -V torchrun; python x.py"),
        *("mpirun --version; python x.py", "srun -V || torchrun -h; python x.py"),
    ],
)
def test_a_shell_that_asks_for_a_program_does_not_start_it(text: str) -> None:
    command = ("bash", "-c", text)
    assert translate_command(command) == TranslatedCommand(command)


def test_options_without_effect_are_named() -> None:
    words = ("torchrun", "--standalone", "--max-restarts", "3", "--rdzv-id=1", "--tee=3", "--nproc_per_node=2", "x.py")
    translated = translate_command(words)
    assert translated.notes == ("--max-restarts of torchrun has no effect here", "--tee of torchrun has no effect here")
    assert translated.command == ("python", "x.py")


@given(st.text(alphabet="ab'\"\\;&|()<>$`#\n =-", max_size=40), st.sampled_from(["-c", "-lc", "-ec", "-o"]))
def test_the_text_of_a_shell_is_split_without_a_traceback(text: str, option: str) -> None:
    command = ("bash", option, text)
    assert translate_command(command) == TranslatedCommand(command)
