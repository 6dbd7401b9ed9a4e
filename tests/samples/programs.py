"""Fakes of the programs that ctrain calls, for tests that run without an engine, MPI or Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from ctrain_runtime.cluster.model import Partition

BIN = Path(__file__).parent / "bin"
SYSTEM = "/usr/bin:/bin"  # bash, date, mktemp ...: what the scripts of a run use


def install(folder: Path, *names: str) -> None:
    """Copy the fakes `names` (apptainer, mpirun) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(BIN / name, folder / name)


def answer(folder: Path, name: str, said: str = "", *, error: str = "", code: int = 0, **by_word: str) -> Path:
    """A program that says `said`, or by_word[FIRST ARGUMENT without dashes]; returns the file that logs its calls."""
    folder.mkdir(parents=True, exist_ok=True)
    calls = folder / f"{name}.calls"
    cases = "".join(f"  --{word}) printf %s {shlex.quote(text)}; exit ;;\n" for word, text in by_word.items())
    script = f"""\
#!/bin/bash
printf '%s\\n' "$*" >>{shlex.quote(str(calls))}
case ${{1-}} in
{cases}esac
printf %s {shlex.quote(said)}
printf %s {shlex.quote(error)} >&2
exit {code}
"""
    write_program(folder / name, script)
    return calls


def give_away(path: Path, user: int, group: int = -1) -> None:
    """Make another user the owner of a file; -1 leaves it, as in os.chown."""
    try:
        os.chown(path, user, group)
    except OSError:
        pytest.skip("only root can give files away, and only to users that its user namespace has")


def write_program(path: Path, script: str) -> Path:
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path


def scontrol(folder: Path, **by_subject: str) -> Path:
    """scontrol, which answers `show SUBJECT` with by_subject[SUBJECT]; returns the file that logs its calls."""
    calls = folder / "scontrol.calls"
    cases = "".join(f"  *' {word}'*) printf %s {shlex.quote(text)} ;;\n" for word, text in by_subject.items())
    script = f'#!/bin/bash\nprintf \'%s\\n\' "$*" >>{shlex.quote(str(calls))}\ncase " $*" in\n{cases}esac\n'
    write_program(folder / "scontrol", script)
    return calls


def slurm(
    folder: Path, *partitions: Partition, mpi: str = "MPI plugin types are...\n\tpmix\n\tnone\n"
) -> Mapping[str, Path]:
    """The programs of a cluster with idle `partitions`; it takes every job as number 7, and that fails at once."""
    return {
        "sinfo": answer(folder, "sinfo"),
        "srun": answer(folder, "srun", mpi),
        "sbatch": answer(folder, "sbatch", "7\n"),
        "scontrol": scontrol(
            folder,
            node="".join(_node_lines(part) for part in partitions),
            partition="".join(_partition_line(part) for part in partitions),
            config="SLURM_VERSION = 24.11.5\nSelectTypeParameters = CR_CORE\n",
            job="JobId=7 JobState=FAILED Reason=None\n",
        ),
        "scancel": answer(folder, "scancel"),
        "squeue": answer(folder, "squeue"),
    }


def _node_lines(part: Partition) -> str:
    gres = f"gpu:{part.gpu_type}:{part.gpus}" if part.gpus else "(null)"
    size = f"CPUTot={part.cpus} RealMemory={part.memory} ThreadsPerCore={part.threads_per_core} Gres={gres}"
    rest = f"Arch={part.arch} {size} State=IDLE Partitions={part.name}\n"
    return "".join(f"NodeName={part.name}{number} {rest}" for number in range(part.nodes))


def _partition_line(part: Partition) -> str:
    limit = "UNLIMITED" if part.time_limit is None else part.time_limit
    default = "YES" if part.default else "NO"
    return f"PartitionName={part.name} Default={default} MaxTime={limit} State=UP\n"
