"""Output of real Slurm clusters and of a real OpenPBS (tests/samples/slurm, pbs), and programs that repeat it."""

from __future__ import annotations

from pathlib import Path

from samples.programs import answer, scontrol, write_program

FOLDER = Path(__file__).parent / "slurm"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")


def record(version: str, name: str) -> str:
    return (FOLDER / version / name).read_text(encoding="utf-8")


def recorded(name: str) -> list[str]:
    """The versions that have the record."""
    return [version for version in VERSIONS if (FOLDER / version / name).exists()]


def collection(version: str, name: str) -> dict[str, str]:
    """The records in a file of several (jobs.txt, srun.txt) by name: each follows a line `# NAME`."""
    return _parts(record(version, name))


def _parts(text: str) -> dict[str, str]:
    parts = text.removeprefix("# ").split("\n# ")
    return {title: body for title, _, body in (part.partition("\n") for part in parts)}


def jobs(version: str) -> dict[str, str]:
    """What had happened to a job -> what `scontrol --oneliner show job` printed."""
    return collection(version, "jobs.txt")


def install_cluster(folder: Path, version: str, *, job: str = "", config: str = "") -> dict[str, Path]:
    """Slurm's programs, which answer as the recorded cluster did; the files that log their calls.

    `scontrol show job` prints `job`; `config` replaces what `scontrol show config` prints.
    """
    return {
        "scontrol": scontrol(
            folder,
            node=record(version, "show-node-oneline.out"),
            partition=record(version, "show-partition.out"),
            config=config or record(version, "config-lines.out"),
            job=job,
        ),
        "srun": answer(folder, "srun", record(version, "mpi-list.out")),
        "sbatch": answer(folder, "sbatch", record(version, "sbatch-parsable.out")),
        "scancel": answer(folder, "scancel"),
        "squeue": answer(folder, "squeue"),
    }


def two_clusters(folder: Path, version: str, here: str = "", there: str = "") -> Path:
    """scontrol on a login node of cluster `lab`, where a job is as in `here`; `there` is the same of cluster `other`,
    which is not reached without it. "": unknown to `lab`. The file that logs its calls."""
    calls = folder / "scontrol.calls"
    for name, text in (("here", here), ("there", there), ("config", record(version, "config-lines.out"))):
        (folder / f"scontrol.{name}").write_text(text)
    (folder / "scontrol.unknown").write_text(record(version, "show-job-unknown.err"))
    script = f"""\
#!/bin/bash
cd {folder}
printf '%s\\n' "$*" >>{calls.name}
show() {{ while IFS= read -r line || [ -n "$line" ]; do printf '%s\\n' "$line"; done <"scontrol.$1"; }}
case "$*" in
  *config*) show config ;;
  "-M other "*) [ ! -s scontrol.there ] || {{ show there; exit; }}
    echo "scontrol: error: No cluster 'other' known by database." >&2; exit 1 ;;
  *" job "*) [ -s scontrol.here ] || {{ show unknown >&2; exit 1; }}; show here ;;
esac
"""
    calls.unlink(missing_ok=True)
    write_program(folder / "scontrol", script)
    return calls


PBS = Path(__file__).parent / "pbs"


def pbs(name: str) -> str:
    """A record of OpenPBS (tests/samples/pbs)."""
    return (PBS / name).read_text(encoding="utf-8", errors="replace")


def pbs_jobs() -> dict[str, str]:
    """What had happened to a job -> what `qstat -x -f -F json` printed."""
    return _parts(pbs("jobs.txt"))


def pbs_errors() -> dict[str, tuple[int, str]]:
    """A command -> its exit code, and its errors."""
    return {title.split()[0]: (int(title.split()[1]), body) for title, body in _parts(pbs("errors.txt")).items()}


def install_pbs(programs: Path) -> Path:
    """The commands of the recorded PBS that ask for its nodes, queues and jobs."""
    subjects = "".join(
        f"  *' {option} '*) cat <<'END'\n{pbs(name)}\nEND\n  ;;\n"
        for option, name in (("-B", "server.out"), ("-Q", "queues.out"))
    )
    jobs = f"  *) cat <<'END'\n{pbs_jobs()['R-2nodes']}\nEND\n  ;;\n"
    write_program(
        programs / "qstat",
        f'#!/bin/bash\ncat() {{ printf "%s\\n" "$(</dev/stdin)"; }}\ncase " $* " in\n{subjects}{jobs}esac\n',
    )
    answer(programs, "pbsnodes", pbs("nodes.out"))
    return programs
