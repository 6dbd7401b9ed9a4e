"""Laws of the scripts: whatever text a user gives arrives in the program as it was, and never as shell code."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ctrain_runtime import payload
from ctrain_runtime.base import run_files
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import directory
from ctrain_runtime.schedulers.pbs import submit
from samples.long_mode import often
from samples.plans import GPU_PARTITION, LOCAL, a_job, a_launch, a_plan, a_site, some_facts
from samples.programs import SYSTEM, install, write_program
from samples.scripts import NO_LAYERS

TRICKY = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    "\\",
    "a\nb",
    "\n",
    "!",
    "*",
    "~",
    "#x",
    "-n",
    "é 대전",
    "\r",
    "\x01\x7f",
    "%s%n%%",
    "\udcff\udc80",
]
text = st.one_of(
    st.sampled_from(TRICKY), st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
)
in_path = st.text(st.characters(exclude_characters="\0/:,\n", exclude_categories=("Cs",)), min_size=1, max_size=20)
path = in_path.filter(lambda name: name not in (".", "..")).map("/{}".format)
name = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).map("X{}".format)
variables = st.dictionaries(name, text, max_size=3)

DUMP = f"""\
#!{sys.executable} -IS
import json, os, sys
show = lambda text: os.fsencode(text).decode("utf-8", "surrogateescape")
call = [list(map(show, sys.argv)), {{show(name): show(value) for name, value in os.environ.items()}}]
open(os.path.dirname(sys.argv[0]) + "/call", "w").write(json.dumps(call))
"""


class Bench:
    """A folder with a program that writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dump = str(write_program(folder / "dump", DUMP))

    def run(
        self, plan: LaunchPlan, script: str, before: Callable[[], object] = str, **environment: str
    ) -> tuple[list[str], dict[str, str]]:
        """Run a script of the plan; the argv and the environment of the program that it started. `before` is done once
        the run directory is there."""
        (self.folder / "call").unlink(missing_ok=True)
        run = Path(plan.run_directory)
        shutil.rmtree(run, ignore_errors=True)
        directory.create(a_launch(plan))
        before()
        subprocess.run(
            ["/bin/bash", "-p", str(run / script)],
            env={"PATH": SYSTEM, "TMPDIR": str(self.folder), **environment},
            check=True,
        )
        argv, seen = json.loads((self.folder / "call").read_text(encoding="utf-8"))
        events = (run / "nodes/0.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(event)["what"] for event in events] == ["started", "ended"]
        return argv, seen


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def run_path(bench: Bench, name: str) -> Path:
    return bench.folder / "runs" / name.replace(".", "x")


SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}


@settings(deadline=None, max_examples=often(60, 15))
@given(st.lists(text, max_size=3), variables, variables, path, path, st.lists(path, max_size=2), in_path)
@example(TRICKY, {f"X{number}": value for number, value in enumerate(TRICKY)}, {}, "/a b", "/it's $HOME", [], "`id` %j")
def test_all_text_survives_srun_and_the_engine(
    bench: Bench,
    arguments: list[str],
    of_job: dict[str, str],
    of_user: dict[str, str],
    workdir: str,
    folder: str,
    mounts: list[str],
    run: str,
) -> None:
    plan = a_plan(
        job=a_job(command=("python", *arguments), env=of_job, workdir=workdir, directory=Path(folder), launcher="env"),
        facts=some_facts(engine=Engine("apptainer", bench.dump, "1.4.5")),
        env=of_user,
        mounts=tuple(mounts),
        ranks_per_node=1,
        run_directory=run_path(bench, run),
    )
    argv, seen = bench.run(plan, "task.sh", **SLURM)
    assert_survived(plan, argv, ["python", *arguments])
    expected = {**plan.environment.variables, **of_job, **of_user, **SLURM, "RANK": "0", "MASTER_ADDR": "gpu01"}
    assert passed(seen).items() >= expected.items()


def assert_survived(plan: LaunchPlan, argv: list[str], command: list[str]) -> None:
    """The engine was called for the plan, with each word as it was given."""
    assert argv[:7] == [plan.image.engine.path, "--quiet", "exec", "--cleanenv", "--no-mount", "cwd", "--pwd"]
    assert argv[7] == plan.program.workdir
    binds = [argv[at + 1] for at, word in enumerate(argv) if word == "--bind"]
    assert binds[: len(plan.mounts.paths)] == list(map(str, plan.mounts.paths))
    home = argv.index("--home", argv.index("--pwd") + 2)
    assert argv[home + 1].endswith(f"{plan.run_key}:/home/ctrain")
    assert argv[home + 2 :] == [
        *(plan.image.path, "/bin/sh", f"{plan.run_directory}/{run_files.INSIDE_SCRIPT}", "0", "0"),
        *("driver", str(plan.image.native_driver), "marker", plan.image.marker),
        *("need", command[0], "run", *command),
    ]


def passed(seen: dict[str, str]) -> dict[str, str]:
    """What the engine passes to the program."""
    return {key[len("APPTAINERENV_") :]: value for key, value in seen.items() if key.startswith("APPTAINERENV_")}


# srun and pbs_tmrsh start one task here: with the environment of job.sh and Slurm's, or with none (man pages of both).
SLURM_TASK = " ".join(f"{name}={value!r}" for name, value in SLURM.items())
STARTERS = {
    "srun": f'while [[ $1 == --* ]]; do shift; done\n{SLURM_TASK} exec "$@"',
    "pbs_tmrsh": 'shift\ncd /\nexec env -i PATH=/bin:/usr/bin "$@"',
}
QUEUED = {"SLURM_JOB_ID": "7", "PBS_JOBID": "7.login01", "PBS_JOBNAME": "x"}


@pytest.mark.parametrize(("scheduler", "mpi"), [("slurm", ()), ("pbs", ()), ("pbs", ("pals",))])
@settings(deadline=None, max_examples=often(10, 4))
@given(st.lists(text, max_size=3), variables, variables, in_path)
@example(
    TRICKY,
    {f"X{number}": value for number, value in enumerate(TRICKY)},
    {f"Y{number}": value for number, value in enumerate(TRICKY)},
    "`id` 'x $HOME \"",
)
def test_all_text_survives_whole_jobs(
    bench: Bench,
    scheduler: str,
    mpi: tuple[str, ...],
    arguments: list[str],
    of_job: dict[str, str],
    of_caller: dict[str, str],
    run: str,
) -> None:
    """job.sh, as sbatch and qsub run it, to the engine; values of the caller's environment, too."""
    assume(scheduler != "pbs" or "\\" not in run)  # which is refused: PBS cannot tell of such jobs
    programs = bench.folder / "programs"
    install(programs, "mpiexec")
    for program, script in STARTERS.items():
        write_program(programs / program, f"#!/bin/bash -p\n{script}\n")
    nodes = bench.folder / "node file"
    nodes.write_text("127.0.0.1\n")
    cluster = Cluster((dataclasses.replace(GPU_PARTITION, cpu_bind=""),), mpi)
    plan = a_plan(
        site=a_site(scheduler=scheduler, mpi=mpi),
        job=a_job(command=("python", *arguments), env=of_job, workdir="/a b", launcher="env"),
        facts=some_facts(cluster=cluster, engine=Engine("apptainer", bench.dump, "1.4.5")),
        env=dict.fromkeys(of_caller.keys() - of_job.keys()),
        ranks_per_node=1,
        run_directory=run_path(bench, run),
    )
    environment = {**QUEUED, "PATH": f"{programs}:{SYSTEM}", "PBS_NODEFILE": str(nodes)}
    if scheduler == "slurm":
        argv, seen = bench.run(plan, "job.sh", **{**of_caller, **environment})
    else:
        with mock.patch.dict(os.environ, of_caller):
            argv, seen = bench.run(plan, "job.sh", lambda: submit.write_environment(plan), **environment)
    assert_survived(plan, argv, ["python", *arguments])
    assert passed(seen).items() >= {**of_caller, **plan.environment.variables, **of_job, "RANK": "0"}.items()
    assert not Path(plan.run_directory, run_files.ENVIRONMENT).exists()


@settings(deadline=None, max_examples=often(30, 8))
@given(st.lists(text, max_size=3), in_path)
@example(TRICKY, "`id` 'x $HOME")
def test_all_text_survives_mpirun(bench: Bench, arguments: list[str], run: str) -> None:
    plan = a_plan(
        **LOCAL,
        job=a_job(command=(bench.dump, *arguments)),
        image=NO_LAYERS,
        run_directory=run_path(bench, run),
    )
    mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "CTRAIN_RUN_DIR": plan.run_directory}
    argv, seen = bench.run(plan, "rank.sh", **mpirun)
    assert argv == [bench.dump, *arguments]
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == ("0", "1", "0")


@settings(deadline=None, max_examples=often(40, 12))
@given(text)
@example("\udcff\udc80")  # bytes that are no text
def test_every_refusal_is_an_event(bench: Bench, program: str) -> None:
    """Whatever the command that is not found is called."""
    program = f"no-such-{program}"
    (bench.folder / "nodes").mkdir(exist_ok=True)
    events = bench.folder / "nodes/0.jsonl"
    events.unlink(missing_ok=True)
    environment = {"CTRAIN_RUN_DIR": str(bench.folder), "PATH": SYSTEM}
    argv = ["/bin/sh", payload.FOLDER / run_files.INSIDE_SCRIPT, "5", "0", "need", program, "run", program]
    done = subprocess.run(argv, env=environment, capture_output=True)
    assert done.returncode == 127
    (event,) = events.read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
    message = f"command not found in the image: {program}"
    assert json.loads(event) == {"what": "refused", "stage": "run", "rank": 5, "code": 127, "message": message}
    assert done.stderr == os.fsencode(f"ctrain: {message}\n")


in_one_line = text.filter(lambda option: "\n" not in option)


@given(
    st.lists(
        st.one_of(in_one_line.filter(lambda option: option[:1] != "-"), in_one_line.map("--licenses={}".format)),
        min_size=1,
        max_size=3,
    )
)
def test_options_of_sbatch_stay_one_line_each(options: list[str]) -> None:
    """What sbatch reads ends at the end of the line; its quotes are the shell's."""
    plan = a_plan(site=a_site(submit=tuple(options)))
    lines = a_launch(plan).scripts["job.sh"].split("\n")
    last = lines.index("#SBATCH --no-requeue") + len(options)
    assert lines[last + 1].startswith("# Run digits-1")
    assert all(line.startswith("#SBATCH ") for line in lines[1 : last + 1])
    assert [shlex.split(line[len("#SBATCH ") :]) for line in lines[last + 1 - len(options) : last + 1]] == [
        [option] for option in options
    ]


@given(text, text)
def test_a_line_break_in_an_option_of_sbatch_is_refused(before: str, after: str) -> None:
    plan = a_plan(site=a_site(submit=(f"{before}\n{after}",)))
    with pytest.raises(UsageError, match="holds a line break"):
        a_launch(plan)


@settings(deadline=None, max_examples=often(25, 8))
@given(st.lists(text, max_size=2), variables, st.booleans(), st.sampled_from(["mpi", "env", "torchrun"]))
@example(TRICKY, {f"X{number}": value for number, value in enumerate(TRICKY)}, True, "mpi")
@example(TRICKY, {f"X{number}": value for number, value in enumerate(TRICKY)}, False, "torchrun")
def test_every_script_is_bash(arguments: list[str], environment: dict[str, str], local: bool, launcher: str) -> None:
    parts: dict[str, Any] = LOCAL if local else {}
    plan = a_plan(**parts, job=a_job(command=("x", *arguments), env=environment, launcher=launcher))
    for name, script in a_launch(plan).scripts.items():
        if name.endswith(".py"):
            continue
        done = subprocess.run(["/bin/bash", "-n"], input=os.fsencode(script), check=True, capture_output=True)
        assert done.stderr == b""
