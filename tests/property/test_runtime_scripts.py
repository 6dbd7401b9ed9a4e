"""Laws of the scripts: whatever text a user gives arrives in the program as it was, and never as shell code."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctrain_runtime.engines import apptainer
from ctrain_runtime.errors import UsageError
from ctrain_runtime.facts import Cluster, Engine
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers import local_script, script, slurm_script
from samples.plans import LOCAL, a_job, a_plan, a_site, some_facts
from samples.programs import SYSTEM, write_program

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
show = lambda text: os.fsencode(text).decode()
said = [list(map(show, sys.argv)), {{show(name): show(value) for name, value in os.environ.items()}}]
open(os.path.dirname(sys.argv[0]) + "/said", "w").write(json.dumps(said))
"""


class Bench:
    """A folder with a program that writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dump = str(write_program(folder / "dump", DUMP))

    def run(self, plan: LaunchPlan, scripts: dict[str, str], **environment: str) -> tuple[list[str], dict[str, str]]:
        """Run the plan's rank.sh; the argv and the environment of the program that it started."""
        run = Path(plan.run_directory)
        for place in (script.RANKS, script.LOGS):
            (run / place).mkdir(parents=True, exist_ok=True)
        (run / "rank.sh").write_text(scripts["rank.sh"], encoding="utf-8")
        (self.folder / "said").unlink(missing_ok=True)
        subprocess.run(
            ["/bin/bash", str(run / "rank.sh")],
            env={"PATH": SYSTEM, "TMPDIR": str(self.folder), **environment},
            check=True,
        )
        argv, seen = json.loads((self.folder / "said").read_text(encoding="utf-8"))
        return argv, seen


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@settings(deadline=None, max_examples=60)
@given(st.lists(text, max_size=3), variables, variables, path, path, st.lists(path, max_size=2), in_path)
@example(TRICKY, {f"X{number}": value for number, value in enumerate(TRICKY)}, {}, "/a b", "/it's $HOME", [], "`id` 'x")
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
        job=a_job(command=("python", *arguments), env=of_job, workdir=workdir, folder=Path(folder), launcher="env"),
        facts=some_facts(engine=Engine("apptainer", bench.dump, "1.4.5")),
        env=tuple(f"{key}={value}" for key, value in of_user.items()),
        mounts=tuple(mounts),
        ranks_per_node=1,
        run_directory=bench.folder / "runs" / run.replace(".", "x"),
    )
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    argv, seen = bench.run(plan, slurm_script.launch(plan).scripts, **slurm)
    options = apptainer.exec_argv(plan)
    assert argv[: len(options)] == options
    home, *inside = argv[len(options) + 1 :]
    assert home.endswith(":/home/ctrain")
    assert inside == [plan.image.path, *script.layers_check(plan), "python", *arguments]
    passed = {key[len("APPTAINERENV_") :]: value for key, value in seen.items() if key.startswith("APPTAINERENV_")}
    assert passed.items() >= {**plan.environment, **of_job, **of_user, **slurm, "RANK": "0"}.items()


@settings(deadline=None, max_examples=30)
@given(st.lists(text, max_size=3), in_path)
@example(TRICKY, "`id` 'x $HOME")
def test_all_text_survives_mpirun(bench: Bench, arguments: list[str], run: str) -> None:
    plan = a_plan(
        **{**LOCAL, "facts": some_facts(cluster=Cluster())},
        job=a_job(command=(bench.dump, *arguments)),
        run_directory=bench.folder / "runs" / run.replace(".", "x"),
    )
    mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    argv, seen = bench.run(plan, local_script.launch(plan).scripts, **mpirun)
    assert argv == [bench.dump, *arguments]
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == ("0", "1", "0")


@given(st.lists(text.filter(lambda said: "\n" not in said), min_size=1, max_size=3))
def test_options_of_sbatch_stay_one_line_each(options: list[str]) -> None:
    """What sbatch reads ends at the end of the line; its quotes are the shell's."""
    plan = a_plan(site=a_site(submit=tuple(options)))
    job = slurm_script.launch(plan).scripts["job.sh"]
    lines = job.split("\n")
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
        slurm_script.launch(plan)


@settings(deadline=None, max_examples=25)
@given(st.lists(text, max_size=2), variables, st.booleans())
@example(TRICKY, {f"X{number}": value for number, value in enumerate(TRICKY)}, True)
def test_every_script_is_bash(arguments: list[str], environment: dict[str, str], local: bool) -> None:
    parts: dict[str, Any] = LOCAL if local else {}
    plan = a_plan(**parts, job=a_job(command=("x", *arguments), env=environment))
    launch = (local_script if local else slurm_script).launch(dataclasses.replace(plan, run="digits-1"))
    for text_of_script in launch.scripts.values():
        subprocess.run(["/bin/bash", "-n"], input=text_of_script.encode(), check=True)
