from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.batch_script.job import make_job
from ctrain_runtime.batch_script.model import BatchJob
from ctrain_runtime.batch_script.script import read_script
from ctrain_runtime.errors import JobError

HERE = "/scratch/kim/job"
SLURM = "#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\n#SBATCH -t 2:00:00\n"
EXEC = "singularity exec --nv /apps/p.sif"


def read(text: str, **environ: str) -> BatchJob:
    return make_job(read_script(f"#!/bin/bash\n{text}\n", HERE, {"HOME": "/home/kim", "USER": "kim", **environ}))


def lost(job: BatchJob) -> list[tuple[int, str]]:
    return [(remark.line, remark.text) for remark in job.remarks if remark.lost]


def shape(job: BatchJob) -> tuple[Any, ...]:
    return job.nodes, job.gpus_per_node, job.ranks_per_node, job.launcher, " ".join(job.command)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SLURM}srun {EXEC} python t.py", (2, 4, 4, "auto", "python t.py")),
        (f"{SLURM}srun --mpi=pmix {EXEC} python t.py", (2, 4, 4, "mpi", "python t.py")),
        (f"{SLURM}srun -n 2 {EXEC} python t.py", (2, 4, 1, "auto", "python t.py")),
        (f"{SLURM}srun -N1 -n4 {EXEC} python t.py", (1, 4, 4, "auto", "python t.py")),
        (f"{SLURM}time srun -l --cpu-bind=cores {EXEC} python t.py", (2, 4, 4, "auto", "python t.py")),
        (f"{SLURM}mpirun {EXEC} python t.py", (2, 4, 4, "mpi", "python t.py")),
        (f"{SLURM}mpirun -np 8 -npernode 4 -bind-to none {EXEC} python t.py", (2, 4, 4, "mpi", "python t.py")),
        (
            f"{SLURM}srun --ntasks-per-node=1 {EXEC} torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 t.py",
            (2, 4, 4, "torchrun", "python t.py"),
        ),
        (
            f"#SBATCH -N 2 -G 8\nsrun {EXEC} torchrun --nproc_per_node=gpu --rdzv_endpoint=$(hostname):1 t.py",
            (2, 4, "auto", "torchrun", "python t.py"),
        ),
        (
            f"#SBATCH -N 2 --gpus-per-task=4\nsrun {EXEC} bash -c 'cd src && torchrun --nproc-per-node 4 t.py'",
            (2, 4, 4, "auto", "bash -c cd src && torchrun --nproc-per-node 4 t.py"),
        ),
        (f"#SBATCH -n 8 --ntasks-per-node 4 --gres=gpu:4\nsrun {EXEC} python t.py", (2, 4, 4, "auto", "python t.py")),
        (f"#SBATCH -n 9 --ntasks-per-node 4 --gres=gpu:4\nsrun {EXEC} python t.py", (3, 4, 4, "auto", "python t.py")),
        (f"#SBATCH -N 2 --gres=gpu:4\n{EXEC} horovodrun -np 4 python t.py", (1, 4, 4, "auto", "python t.py")),
        ("#SBATCH -N 1\nsrun singularity exec p.sif python t.py", (1, 0, 1, "auto", "python t.py")),
        (
            f"#PBS -l select=2:ngpus=4\nNODES=$(wc -l <$PBS_NODEFILE)\nP=4\n"
            f"mpiexec -n $((NODES * P)) --ppn $P --depth 8 --cpu-bind depth ./bind.sh {EXEC} python t.py",
            (2, 4, 4, "mpi", "python t.py"),
        ),
        (f"#PBS -l select=2:mpiprocs=4\nmpiexec {EXEC} python t.py", (2, "auto", 4, "mpi", "python t.py")),
        (f"#PBS -l nodes=2:ppn=4\naprun -n 8 -N 4 {EXEC} python t.py", (2, "auto", 4, "mpi", "python t.py")),
        (f"{SLURM}srun python t.py", (2, 4, 4, "auto", "python t.py")),
    ],
)
def test_a_launch_becomes_nodes_ranks_and_a_command(text: str, expected: tuple[Any, ...]) -> None:
    assert shape(read(text)) == expected


def test_binds_variables_directories_and_images() -> None:
    job = read(
        f"{SLURM}export NCCL_DEBUG=INFO SINGULARITYENV_LR=0.1 SINGULARITY_BIND=/b:/c:ro\n"
        "cd src\nSIF=../p.sif\n"
        "OMP_NUM_THREADS=8 srun singularity exec -B $PWD,/data --bind=/d:/e --env A=1 $SIF python t.py"
    )
    assert job.image == "/scratch/kim/job/p.sif"
    assert job.directory == "/scratch/kim/job/src"
    assert job.env == {"NCCL_DEBUG": "INFO", "LR": "0.1", "OMP_NUM_THREADS": "8", "A": "1"}
    assert job.options == ("--mount", "/b:/c:ro", "--mount", "/data:/data", "--mount", "/d:/e")
    assert job.time == "2:00:00"
    assert not lost(job)


def test_a_directory_of_the_container_is_the_one_that_is_mounted_there() -> None:
    job = read("srun apptainer exec --pwd /w/src -B $HOME/x:/w /apps/p.sif python t.py")
    assert job.directory == "/home/kim/x/src"


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ("export FOO=$(hostname)", "export FOO=$(hostname)"),
        ("trap cleanup EXIT", "trap cleanup EXIT"),
        ("source env.sh", "source env.sh"),
        ("conda activate x", "conda activate x"),
        ("export PATH=/x:$PATH", "export PATH=/x:$PATH"),
        ("for i in 1 2", "for i in 1 2"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(line: str, remark: str) -> None:
    assert (2, remark) in lost(read(f"{line}\nsrun {EXEC} python t.py"))


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (f"srun {EXEC} python t.py --lr $LR", "$LR"),
        ("srun singularity exec --overlay x.img /apps/p.sif python t.py", "--overlay x.img"),
        ("srun singularity exec -B a.sqsh:/x:image-src=/ /apps/p.sif python t.py", "bind a.sqsh:/x:image-src=/"),
        ("srun singularity exec $SIF python t.py", "$SIF"),
        (f"mpiexec -n $N {EXEC} python t.py", "$N"),
        (f"srun ./wrap.sh {EXEC} python t.py", "./wrap.sh"),
        (f"srun --het-group=1 {EXEC} python t.py", "--het-group 1"),
        (f"srun {EXEC} python - <<E\nx\nE", f"srun {EXEC} python - <<E"),
    ],
)
def test_what_a_launch_loses_is_named(launch: str, text: str) -> None:
    assert (3, text) in lost(read(f"#SBATCH -t 5\n{launch}"))


def test_secrets_do_not_reach_the_job() -> None:
    job = read("export HF_TOKEN=hf_abc\nsrun apptainer exec --env API_KEY=abc /apps/p.sif python t.py")
    assert job.env == {}
    assert [remark.reason for remark in job.remarks if "secret" in remark.reason] == [
        "a secret: export it in your shell and pass --env HF_TOKEN",
        "a secret: export it in your shell and pass --env API_KEY",
    ]


def test_of_several_launches_the_last_with_tasks_is_the_job() -> None:
    job = read(f"{EXEC} pip install x\nsrun {EXEC} python a.py\nsrun {EXEC} python b.py\n{EXEC} python plot.py")
    assert job.command == ("python", "b.py")
    assert [line for line, _ in lost(job)] == [2, 3, 4, 5]  # 4 has no time limit


def test_a_value_that_depends_on_a_condition_is_not_known() -> None:
    job = read(f"LR=1\nif x; then\n  LR=2\nfi\nsrun {EXEC} python t.py $LR")
    assert (6, "$LR") in lost(job)


@pytest.mark.parametrize("text", ["", "python t.py", "srun", "singularity exec", "#SBATCH -N 2"])
def test_without_a_launch_there_is_no_job(text: str) -> None:
    with pytest.raises(JobError, match="no line starts"):
        read(text)
