"""The static files of run directories, and the two scripts of docs/scripts.md, which call them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ctrain_runtime import payload
from ctrain_runtime.errors import DataError, EngineError, SchedulerError, WorldError

CODES = {error.exit_code for error in (SchedulerError, EngineError, WorldError)} | {127}  # 127: as shells, of a command
FUNCTION = re.compile(r"(?m)^(?:  )?([a-z_]+)\(\) \{")


def golden(checkout: Path, name: str) -> str:
    return (checkout / "tests/golden/slurm-mpi" / name).read_text(encoding="utf-8")


def test_the_scripts_of_a_job_on_two_nodes_are_short(checkout: Path) -> None:
    assert len(golden(checkout, "job.sh").splitlines()) <= 35
    assert len(golden(checkout, "task.sh").splitlines()) <= 40


def test_the_documentation_shows_them_as_they_are(checkout: Path) -> None:
    shown = re.findall(r"(?ms)^```bash\n(.*?)^```$", (checkout / "docs/scripts.md").read_text(encoding="utf-8"))
    assert shown == [golden(checkout, "job.sh"), golden(checkout, "task.sh")]


def test_no_function_of_the_library_is_defined_twice() -> None:
    """But those of use_tm, which replace others."""
    text = payload.text("ctrain.bash")
    names = [name for name in FUNCTION.findall(text) if f"\n{name}() {{" in text]
    assert len(names) > 60
    replaced = {"run_task", "signal_step", "signal_tasks", "catch_signals", "look_for_signals"}
    assert {name for name in names if names.count(name) > 1} == replaced


def test_what_the_scripts_of_all_golden_runs_call_is_in_the_library(checkout: Path) -> None:
    known = set(FUNCTION.findall(payload.text("ctrain.bash")))
    called = set()
    for script in (checkout / "tests/golden").glob("*/*.sh"):
        called |= set(re.findall(r"(?m)^([a-z]+(?:_[a-z]+)+)(?= |$)", script.read_text(encoding="utf-8")))
    assert {"run_job", "run_rank", "use_home"} <= called
    assert called <= known


def test_refusals_have_the_exit_codes_of_ctrain() -> None:
    texts = [payload.text(name) for name in ("ctrain.bash", "inside.sh")]
    assert {int(code) for text in texts for code in re.findall(r"\brefuse ([0-9]+) ", text)} <= CODES
    assert f"code={WorldError.exit_code}\n" in payload.text("ctrain.bash")
    assert DataError.exit_code == 71  # in job.sh, of a run directory that is not there


def test_the_library_does_nothing_by_itself(tmp_path: Path) -> None:
    """But to open a pipe, and to ask for the node's name."""
    script = f"run={tmp_path}\n{payload.text('ctrain.bash')}"
    done = subprocess.run(["/bin/bash", "-pu", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("", "", [])


def test_the_library_takes_no_name_that_a_program_may_have(tmp_path: Path) -> None:
    """In a container bash exports what it sets if the program's environment has the name: `stage`, `rank` ..."""
    names = "compgen -v | grep -vE '^(BASH|PIPESTATUS|_$)' | sort"
    library = payload.text("ctrain.bash")
    script = f'run={tmp_path}\nbefore=$({names})\n{library}\ncomm -13 <(echo "$before") <({names})'
    done = subprocess.run(["/bin/bash", "-p", "-c", script], capture_output=True, text=True, check=True)
    taken = {name for name in done.stdout.split() if not name.lower().startswith("ct_")}
    signals = {"child", "ending", "passed", "begun", "to_all"}
    programs = {"READERS", "WRAPPERS", "STARTERS", "TRACKER", "OTHERS_PATIENCE", "TRAP_PATIENCE", "START_PATIENCE"}
    assert taken == {"before", "node", *signals, *programs}
