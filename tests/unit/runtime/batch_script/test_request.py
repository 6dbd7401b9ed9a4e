from __future__ import annotations

import pytest

from ctrain_runtime.batch_script.request import read_request


@pytest.mark.parametrize(
    ("lines", "sizes", "options"),
    [
        ("#SBATCH -N 2 -n16", {"nodes": "2", "ntasks": "16"}, []),
        ("#SBATCH --nodes=2 # the nodes\n#SBATCH --tasks-per-node 8", {"nodes": "2", "ntasks-per-node": "8"}, []),
        ("#SBATCH --gres=gpu:4", {"gpus-per-node": "4"}, []),
        ("#SBATCH --gres=gpu:a100:4,nvme", {"gpus-per-node": "4"}, ["--scheduler-option=--gres=gpu:a100:4,nvme"]),
        ("#SBATCH --gpus-per-node=a100:4", {"gpus-per-node": "4"}, ["--scheduler-option=--gres=gpu:a100:4"]),
        ("#SBATCH -G 16 -t 1-0", {"gpus": "16", "time": "1-0"}, []),
        (
            "#SBATCH -p gpu -A ai -q low -C 'a&b'",
            {},
            ["--partition", "gpu", "--account", "ai", "--qos", "low", "--constraint", "a&b"],
        ),
        (
            "#SBATCH --exclusive --mail-type=END",
            {},
            ["--scheduler-option=--exclusive", "--scheduler-option=--mail-type=END"],
        ),
        ("##SBATCH -N 9", {}, []),
        (
            "#PBS -l select=2:system=polaris:ngpus=4:mpiprocs=4,walltime=1:00:00\n#PBS -q debug -A ai",
            {"nodes": "2", "gpus-per-node": "4", "ntasks-per-node": "4", "time": "1:00:00"},
            ["--constraint", "system=polaris", "--partition", "debug", "--account", "ai"],
        ),
        ("#PBS -l nodes=3:ppn=4\n#PBS -l walltime=90", {"nodes": "3", "ntasks-per-node": "4", "time": "00:02:00"}, []),
        (
            "#PBS -l select=1:mem=10gb\n#PBS -l filesystems=home",
            {"nodes": "1"},
            ["--mem", "10gb", "--scheduler-option=-l filesystems=home"],
        ),
        ("#PBS -l place=scatter:excl", {}, ["--scheduler-option=-l place=scatter:excl"]),
    ],
)
def test_what_a_script_requests(lines: str, sizes: dict[str, str], options: list[str]) -> None:
    request = read_request(f"#!/bin/bash\n{lines}\n\necho\n")
    assert (request.sizes, request.options) == (sizes, options)
    assert not request.remarks


@pytest.mark.parametrize(
    ("line", "reason", "lost"),
    [
        (
            "#SBATCH --array=0-9",
            "all tasks of an array would write to one run directory. Submit one run per element",
            True,
        ),
        ("#SBATCH --mem-per-gpu=60G", "Use --mem, which is per node", True),
        ("#SBATCH -o x.out", "the output is in the run directory", False),
        ("#SBATCH --export=A=1", "pass variables with --env NAME", True),
        ("#SBATCH -J 'open", "its quotes do not match", True),
        ("#SBATCH nodes", "nodes is not an option", True),
        ("#PBS -J 0-9", "all subjobs of an array would write to one run directory. Submit one run per element", True),
        ("#PBS -l select=1:ncpus=8+2", "all nodes are alike: 2 is left out", True),
        ("#PBS -j oe", "the output is in the run directory", False),
    ],
)
def test_what_is_not_carried_over_is_named(line: str, reason: str, lost: bool) -> None:
    remarks = read_request(f"#!/bin/sh\n{line}\n").remarks
    assert (2, line, reason, lost) in [(each.line, each.text, each.reason, each.lost) for each in remarks]


def test_directives_after_a_command_are_not_read() -> None:
    request = read_request("#SBATCH -N 2\nmodule load x\n#SBATCH -n 4\n")
    assert request.sizes == {"nodes": "2"}
    assert [remark.line for remark in request.remarks] == [3]
