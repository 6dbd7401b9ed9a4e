"""What job.sh does, seen by running it; its text is in tests/golden."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import payload
from ctrain_runtime.plan.model import LaunchPlan, Preflight
from ctrain_runtime.plan.task import TaskIdentity
from ctrain_runtime.schedulers.script import directives, job_script, start_script
from golden import cases
from samples.plans import a_launch, changed, some_facts
from samples.scripts import Scripts, wait_until


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def write_job(scripts: Scripts, start: str, plan: Any = None, **parts: Any) -> LaunchPlan:
    """A run whose job.sh runs `start` instead of the scheduler's launch command."""
    made: LaunchPlan = plan or scripts.plan("true")
    scripts.create(made)
    (scripts.run / "job.sh").write_text(
        job_script(made, header="", job_id="7", start=start, **{"before": [], **parts}), encoding="utf-8"
    )
    return made


BEGIN = [{"stage": "before", "what": "started", "job": "7"}, {"stage": "run", "what": "started"}]


def test_a_job_writes_how_it_ended_and_ends_like_its_tasks(scripts: Scripts) -> None:
    write_job(scripts, "bash -c 'exit 3'", before=["echo first"])
    assert scripts.start("job.sh").wait() == 3
    assert scripts.job_events() == [*BEGIN, {"stage": "after", "what": "ended", "code": 3}]
    assert scripts.job_log() == "first\n"


# Signals may come while a handler runs: print would then fail.
HANDLER = """\
import os, signal, sys, time
count = 0
def handle(number, frame):
    global count
    count += 1
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_IGN)
        time.sleep(0.3)
        os.write(1, b"saved\\n")
        sys.exit(5)
for name in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), handle)
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


def start_handler(scripts: Scripts) -> subprocess.Popen[bytes]:
    (scripts.folder / "handler.py").write_text(HANDLER)
    write_job(scripts, f"python3 {scripts.folder}/handler.py")
    job = scripts.start("job.sh")
    wait_until(lambda: scripts.job_log() == "ready\n")
    return job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_outlives_signals_and_writes_its_childs_code(scripts: Scripts, number: signal.Signals) -> None:
    job = start_handler(scripts)
    job.send_signal(number)
    assert job.wait() == 5
    assert scripts.job_log() == "ready\nsaved\n"
    assert scripts.job_events()[-1] == {"stage": "after", "what": "ended", "code": 5}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_job_records_that_it_was_signalled(scripts: Scripts, number: signal.Signals) -> None:
    job = start_handler(scripts)
    job.send_signal(number)
    name = "TERM" if number == signal.SIGINT else number.name[3:]
    wait_until(lambda: {"stage": "run", "what": "signalled", "signal": name} in scripts.job_events())
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 5


def test_a_signal_after_the_tasks_have_ended_is_no_evidence(scripts: Scripts) -> None:
    write_job(scripts, "true")
    text = (scripts.run / "job.sh").read_text()
    (scripts.run / "job.sh").write_text(text.replace("\nfinish\n", "\nkill -TERM $$\nfinish\n"))
    assert scripts.start("job.sh").wait() == 0
    assert [event["what"] for event in scripts.job_events()] == ["started", "started", "ended"]


def test_a_burst_of_signals(scripts: Scripts) -> None:
    job = start_handler(scripts)
    for _ in range(50):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            job.send_signal(number)
    assert job.poll() is None
    for _ in range(20):
        job.send_signal(signal.SIGTERM)
    assert job.wait() == 5
    events = scripts.job_events()
    assert [event["what"] for event in events if event["what"] != "signalled"] == ["started", "started", "ended"]
    # Of signals that wait, bash takes the one with the lowest number first: TERM need not be the last.
    assert sum(event.get("signal") == "TERM" for event in events) == 1


def test_a_signal_before_the_tasks_start_ends_the_job(scripts: Scripts) -> None:
    """No task is there yet to pass it on to."""
    made = write_job(scripts, "echo started")
    text = (scripts.run / "job.sh").read_text()
    (scripts.run / "job.sh").write_text(text.replace("\nrun_job ", "\nkill -TERM $$\nrun_job "))
    assert made.tasks == 1
    assert scripts.start("job.sh").wait() == 143
    assert scripts.job_log() == ""
    assert scripts.job_events()[-1] == {"stage": "after", "what": "ended", "code": 143}


def test_the_step_before_the_ranks_must_succeed(scripts: Scripts) -> None:
    mpi = scripts.plan("true", launcher="mpi")
    write_job(scripts, "echo ranks", mpi, preflight="bash -c 'echo two worlds; exit 1'")
    assert scripts.start("job.sh").wait() == 80
    assert scripts.job_log() == (
        "two worlds\nctrain: preflight failed; messages are in logs/job.log. If the image's MPI does not form one world"
        " here, pass --launcher gloo for Horovod, or env for programs without MPI\n"
    )
    assert [(event["stage"], event["what"]) for event in scripts.job_events()[1:]] == [
        ("preflight", "started"),
        ("preflight", "failed"),
        ("after", "ended"),
    ]


def test_what_the_step_before_the_ranks_has_named_is_the_last_word(scripts: Scripts) -> None:
    named = "ctrain: preflight: gpu2: its image is not that of gpu1"
    write_job(scripts, "echo ranks", preflight=f"bash -c 'echo {named}; exit 1'")
    assert scripts.start("job.sh").wait() == 80
    assert scripts.job_log() == f"{named}\n"


def test_a_preflight_that_only_warns(scripts: Scripts) -> None:
    plan = changed(scripts.plan("true"), preflight=Preflight(False, "requested"))
    write_job(scripts, "bash -c 'echo ranks; exit 3'", plan, preflight="bash -c 'echo slow; exit 1'")
    assert scripts.start("job.sh").wait() == 3
    assert scripts.job_log().splitlines()[::2] == ["slow", "ranks"]
    assert [event["what"] for event in scripts.job_events()[1:]] == ["started", "failed", "started", "ended"]


def test_after_the_step_before_the_ranks_they_start(scripts: Scripts) -> None:
    write_job(scripts, "bash -c 'echo ranks; exit 3'", preflight="echo one world")
    assert scripts.start("job.sh").wait() == 3
    assert scripts.job_log() == "one world\nranks\n"
    assert [event["what"] for event in scripts.job_events()[1:]] == ["started", "passed", "started", "ended"]


@pytest.mark.parametrize(
    "preflight", ["sleep 60", "bash -c 'trap \"\" TERM; touch up; until [ -e go ]; do sleep 0.02; done'"]
)
def test_a_signal_during_that_step_ends_the_job_and_does_not_blame_mpi(scripts: Scripts, preflight: str) -> None:
    """Whether it ends the step, too, or the step succeeds."""
    write_job(scripts, "sleep 60", preflight=preflight)
    job = scripts.start("job.sh")
    wait_until(lambda: len(scripts.job_events()) == 2 and ("trap" not in preflight or (scripts.run / "up").exists()))
    job.terminate()
    (scripts.run / "go").touch()
    assert job.wait() == 143
    assert scripts.job_log() == ""
    assert scripts.job_events()[-1] == {"stage": "after", "what": "ended", "code": 143}


def test_a_child_killed_outright(scripts: Scripts) -> None:
    write_job(scripts, "bash -c 'kill -KILL $$'")
    assert scripts.start("job.sh").wait() == 137
    assert scripts.job_events()[-1]["code"] == 137


def test_a_signal_to_all_before_a_step_has_begun_is_no_kill(tmp_path: Path) -> None:
    """As torchrun signals the group of a rank that it has just started: the subshell has no trap yet."""
    early = 'trap() {\n  [ "$BASHPID" = "$$" ] || kill -TERM "$BASHPID"\n  builtin trap "$@"\n}'
    text = f'run=/\n{payload.text("ctrain.bash")}\nexec 6<> <(:)\n{early}\nrun_step touch "$0.begun"\necho "$code"\n'
    done = subprocess.run(["bash", "-pc", text, str(tmp_path / "step")], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "143\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", ["5", "6", "7"])
def test_the_lock_of_a_submission_may_be_any_descriptor(scripts: Scripts, number: str) -> None:
    """One of them carries exit codes, once the lock is closed."""
    write_job(scripts, "bash -c 'exit 3'")
    inherit = f'exec {number}</dev/null; exec /bin/bash -p "$0"'
    environment = {**os.environ, "CTRAIN_LOCK_FD": number}
    done = subprocess.run(["/bin/bash", "-c", inherit, str(scripts.run / "job.sh")], env=environment)
    assert done.returncode == 3
    assert scripts.job_events()[-1]["code"] == 3


def test_the_lease_ends_with_the_job(scripts: Scripts) -> None:
    leases = scripts.folder / "in use"
    leases.mkdir()
    plan = scripts.plan("true", facts=some_facts(engine=scripts.engine, lease_dir=str(leases)))
    Path(plan.image.lease).touch()
    write_job(scripts, "false", plan)
    assert scripts.start("job.sh").wait() == 1
    assert not list(leases.iterdir())


def test_the_submissions_lock_is_free_once_the_job_has_started(scripts: Scripts) -> None:
    write_job(scripts, "bash -c 'ls -l /proc/$$/fd'")
    with (scripts.run / "lock").open("w") as lock:
        argv = ["/bin/bash", "-p", str(scripts.run / "job.sh")]
        environment = {**os.environ, "CTRAIN_LOCK_FD": str(lock.fileno())}
        done = subprocess.run(argv, env=environment, pass_fds=(lock.fileno(),), capture_output=True, text=True)
    assert done.returncode == 0
    assert "lock" not in done.stdout


def test_a_hostile_callers_shell_changes_nothing(scripts: Scripts) -> None:
    trap = scripts.folder / "trap"
    trap.write_text("echo hijacked; exit 1\n")
    write_job(scripts, "bash -p -c 'exit 4'")
    hostile = {
        "BASH_ENV": str(trap),
        "ENV": str(trap),
        "BASH_FUNC_date%%": "() { echo hijacked; }",
        "BASH_FUNC_printf%%": "() { echo hijacked; }",
        "BASH_FUNC_wait%%": "() { echo hijacked; }",
        "SHELLOPTS": "errexit:nounset:noexec:xtrace",
        "IFS": "abc",
        "CDPATH": "/etc",
        "GLOBIGNORE": "*",
        "child": "1",
        "code": "9",
        "signalled": "yes",
        "ending": "yes",
    }
    assert scripts.start("job.sh", **hostile).wait() == 4
    assert scripts.job_log() == ""
    assert scripts.job_events() == [*BEGIN, {"stage": "after", "what": "ended", "code": 4}]


def test_a_run_directory_that_a_node_does_not_have_is_named(scripts: Scripts) -> None:
    plan = scripts.plan("true", run_directory=Path("/no/such $(x) 'run'"))
    done = subprocess.run(start_script(plan, "task.sh"), capture_output=True, text=True)
    assert done.returncode == 71
    assert done.stderr.startswith("ctrain: run directory /no/such $(x) 'run' is not visible on ")
    assert done.stderr.endswith(". Choose one that all nodes share: --runs DIR\n")


def test_a_task_starts_where_the_run_directory_is_visible(scripts: Scripts) -> None:
    plan = scripts.plan("true")
    scripts.create(plan)
    (scripts.run / "task.sh").write_text("echo task $#; exit 6")
    done = subprocess.run(start_script(plan, "task.sh"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (6, "task 0\n")


def test_directives_are_quoted_lines() -> None:
    assert directives("#PBS", ["-l a=b", "-q x"]) == "#PBS '-l a=b'\n#PBS '-q x'\n"
    assert directives("#PBS", []) == ""


def test_an_identity_with_more_or_less_to_pass() -> None:
    identity = TaskIdentity("srun", "", passed=("A",), passed_prefixes=("S_",))
    assert identity.passing("B").passed == ("A", "B")
    assert identity.passing("B").passed_prefixes == ("S_",)
    assert (identity.passing_only().passed, identity.passing_only().passed_prefixes) == ((), ())


def bash_scripts(case: str) -> dict[str, str]:
    return {name: text for name, text in a_launch(cases.PLANS[case]).scripts.items() if name.endswith(".sh")}


@pytest.mark.parametrize("case", cases.PLANS)
def test_every_script_is_bash(case: str) -> None:
    for text in bash_scripts(case).values():
        done = subprocess.run(["/bin/bash", "-n"], input=text, text=True, capture_output=True, check=True)
        assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not on PATH")
@pytest.mark.parametrize("case", cases.PLANS)
def test_shellcheck_has_nothing_to_say(case: str, tmp_path: Path) -> None:
    for name, text in bash_scripts(case).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        # SC2016: text in single quotes is meant for the shell in the container. SC2034: who a task is has four parts,
        # not all of which every launcher uses. SC2317: functions that traps call. SC2013: paths in /proc are one word.
        # SC1091: values of the caller's environment. SC2154: what functions of the library set.
        ignored = "--exclude=SC1091,SC2013,SC2016,SC2034,SC2154,SC2317"
        done = subprocess.run(["shellcheck", ignored, name], capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout == ""
