"""What a report shows of Nsight Systems: a stand-in for `nsys stats` writes the files that are documented."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrain_runtime.report import nsys
from samples.programs import SYSTEM, write_program

KERNELS = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.0,6000000,100,60000.0,60000,50000,70000,1000.0,"void at::native::vectorized_elementwise_kernel<(int)4, float>(int)"
33.3,4000000,20,200000.0,199000,150000,290000,9000.0,ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
16.7,2000000,64,31250.0,31000,30000,33000,900.0,ampere_sgemm_128x64_tn
"""
COPIES = """\
Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
95.0,7600000,48,158333.3,158000,120000,170000,3200.1,[CUDA memcpy Host-to-Device]
5.0,400000,24,16666.7,16600,16000,17000,290.7,[CUDA memset]
"""
CALLS = """\
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,900000000,13185,1.0,1.0,1,2,1.0,cudaStreamSynchronize
"""
STAND_IN = """\
#!/bin/bash
# nsys stats --report A,B --format csv --output . FILE: writes FILE without its ending, _A.csv and so on.
[[ "$1 $2 $4 $5 $6 $7" == "stats --report --format csv --output ." ]] || exit 1
for report in ${3//,/ }; do cp "$TABLES/$report" "${8%.nsys-rep}_$report.csv"; done
"""


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    folder = tmp_path / "run's/profiles"
    folder.mkdir(parents=True)
    (folder / "rank0.nsys-rep").touch()
    return folder


def test_the_line_that_it_names_makes_the_summary(profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "cuda_gpu_kern_sum").write_text(KERNELS)
    (tmp_path / "cuda_gpu_mem_time_sum").write_text(COPIES)
    write_program(tmp_path / "nsys", STAND_IN)
    ((rank, text),) = nsys.profiles(profiles.parent)
    first, line = text.splitlines()
    assert (rank, first) == (
        "rank0",
        f"Open {profiles}/rank0.nsys-rep in Nsight Systems. For a summary here, run this where nsys is:",
    )
    environment = {"PATH": f"{tmp_path}:{SYSTEM}", "TABLES": str(tmp_path)}
    subprocess.run(["bash", "-c", line], env=environment, check=True)
    ((rank, text),) = nsys.profiles(profiles.parent)
    assert text.splitlines() == [
        "communication 20%, data 40%, computation 40% of the GPU's time",
        "",
        " 38.0%    7.6 ms       48 x  [CUDA memcpy Host-to-Device]",
        " 30.0%      6 ms      100 x  void at::native::vectorized_elementwise_kernel<(int)4, float>(int)",
        " 20.0%      4 ms       20 x  ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        " 10.0%      2 ms       64 x  ampere_sgemm_128x64_tn",
        "  2.0%    0.4 ms       24 x  [CUDA memset]",
    ]


def test_each_rank_and_attempt_has_its_own(profiles: Path) -> None:
    for name in ("rank0.attempt1", "rank10", "rank1"):
        (profiles / f"{name}.nsys-rep").touch()
    (profiles / "rank10_cuda_gpu_kern_sum.csv").write_text("Generating SQLite file\n\n" + KERNELS)
    (profiles / "rank0.attempt1_cuda_gpu_kern_sum.csv").write_text(KERNELS)
    (profiles / "rank0.attempt1_cuda_api_sum.csv").write_text(CALLS)
    shown = {rank: text.partition(" ")[0] for rank, text in nsys.profiles(profiles.parent)}
    assert shown == {"rank0": "Open", "rank1": "Open", "rank10": "communication", "rank0.attempt1": "communication"}


DAMAGED = ("", "SKIPPED: no GPU trace data\n", CALLS, KERNELS.replace("6000000", "many"), KERNELS[:-30])


@pytest.mark.parametrize("text", DAMAGED)
def test_other_and_damaged_tables_do_no_harm(profiles: Path, text: str) -> None:
    (profiles / "rank0_x.csv").write_text(text)
    ((_, shown),) = nsys.profiles(profiles.parent)
    assert shown.startswith("Open ")
