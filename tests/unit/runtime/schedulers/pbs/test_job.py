from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.schedulers.pbs import client, job, ownership, submit
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status
from samples.plans import a_plan, changed
from samples.programs import answer, write_program
from samples.recordings import pbs, pbs_errors, pbs_jobs

JOBS = pbs_jobs()
# The jobs that were recorded, as those of a run.
PLAN = changed(a_plan(run_directory=Path("/home/pbsuser/t")), cluster="login01")


def recorded(name: str) -> dict[str, Any]:
    (attributes,) = client.parse(JOBS[name], "Jobs").values()
    return attributes


@pytest.mark.parametrize(
    ("name", "outcome", "word"),
    [
        ("F-ok", Outcome.COMPLETED, "finished"),
        ("F-fail3", Outcome.FAILED, "failed"),
        ("F-segv", Outcome.FAILED, "failed"),
        ("F-badint", Outcome.FAILED, "failed"),
        ("F-badcmd", Outcome.FAILED, "failed"),
        ("F-killed", Outcome.FAILED, "failed"),
        ("F-walltime", Outcome.TIMEOUT, "exceeded resource walltime"),
        ("F-qdel-running", Outcome.CANCELLED_BY_USER, "terminated by pbsuser@login01"),
        ("F-trapdel", Outcome.CANCELLED_BY_USER, "terminated by pbsuser@login01"),
        ("after-qdel-node-down", Outcome.CANCELLED_BY_USER, "terminated by pbsuser@login01"),
        ("F-force", Outcome.CANCELLED, "terminated"),
        ("F-qdel-held", Outcome.CANCELLED, "deleted"),
    ],
)
def test_recorded_ends(name: str, outcome: Outcome, word: str) -> None:
    assert job.parse_status(recorded(name)) == Status("ended", word, outcome)


def test_a_job_whose_dependency_can_never_be_met() -> None:
    status = job.parse_status(recorded("F-depend-never"))
    assert (status.phase, status.outcome) == ("ended", Outcome.NEVER_STARTED)
    assert status.note == "PBS deleted it; a job that it depends on may have failed"


def test_a_job_that_an_operator_deleted() -> None:
    attributes = recorded("F-qdel-running")
    attributes["comment"] = attributes["comment"].replace("pbsuser@", "root@")
    assert job.parse_status(attributes).outcome is Outcome.CANCELLED_BY_ADMIN


def test_a_running_job_that_was_forced_out_has_the_exit_status_of_a_killed_script() -> None:
    """Seen on two hosts of OpenPBS 23.06: qdel -W force leaves 265, substate 91, and a comment without a name."""
    comment = "Job run at Sun Nov 22 at 03:00 on (pbs01:ncpus=1) and terminated"
    record = {"job_state": "F", "Exit_status": 265, "substate": 91, "comment": comment}
    assert job.parse_status(record) == Status("ended", "terminated", Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("x\n=>> PBS: job killed: mem 1048576kb exceeded limit 524288kb\n", OutOfMemory(limit=512 << 20)),
        ("=>> PBS: job killed: vmem 3gb exceeded limit 2gb\n", OutOfMemory(limit=2 << 30)),
        ("22.login01 Killed Cgroup mem limit exceeded\n", OutOfMemory()),
        ("=>> PBS: job killed: walltime 10 exceeded limit 5\n", None),
        ("", None),
    ],
)
def test_want_of_memory_in_the_logs(log: str, expected: Optional[OutOfMemory]) -> None:
    assert job.out_of_memory(log) == expected


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (-29, Outcome.TIMEOUT),
        (-28, Outcome.TIMEOUT),
        (-27, Outcome.OUT_OF_MEMORY),
        (-24, Outcome.FAILED),
        (-20, Outcome.NODE_FAILURE),
        (-14, Outcome.NODE_FAILURE),
        (-10, Outcome.NEVER_STARTED),
        (-1, Outcome.NEVER_STARTED),
        (271, Outcome.CANCELLED),
        (265, Outcome.FAILED),
    ],
)
def test_exit_statuses_without_a_comment(code: int, outcome: Outcome) -> None:
    status = job.parse_status({"job_state": "F", "Exit_status": code})
    assert (status.phase, status.word, status.outcome) == ("ended", f"exit status {code}", outcome)


@pytest.mark.parametrize(
    ("name", "word", "stuck"),
    [
        ("Q-state", "Insufficient amount of resource: ncpus (R: 4 A: 3 T: 4)", False),
        ("Q-stopped-queue", "Queue not started.", False),
        ("Q-impossible", "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)", True),
        ("H-state", "state H", True),
        ("H-depend", "state H", False),  # it is released when the other job has ended
        ("W-state", "state W", False),
        ("rerun", "Job run at Sat Nov 21 at 03:14 on (pbs01:ncpus=1)", True),
    ],
)
def test_recorded_jobs_that_wait(name: str, word: str, stuck: bool) -> None:
    note = "the job does not start until it is changed or released" if stuck else ""
    assert job.parse_status(recorded(name)) == Status("waiting", word, None, note)


def test_recorded_jobs_that_run() -> None:
    assert job.parse_status(recorded("R-2nodes")) == Status("running")
    assert job.parse_status(recorded("R-node-down")) == Status("running")  # PBS does not say more
    assert job.parse_status(recorded("S")) == Status("running", "state S")
    assert job.parse_status({"job_state": "new in PBS 31"}) == Status("running", "state new in PBS 31")


def test_output_that_is_still_being_delivered_does_not_keep_a_job_alive() -> None:
    attributes = recorded("E-f") if "{" in JOBS["E-f"] else {"job_state": "E", "Exit_status": 0}
    assert job.parse_status(attributes).outcome is Outcome.COMPLETED
    assert job.parse_status({"job_state": "E"}).phase == "running"


@pytest.mark.parametrize("code", [271, -24, -29])
def test_who_ended_a_job_is_known_once_it_has_left_state_e(code: int) -> None:
    attributes = {"Exit_status": code, "comment": "Job run at Sun Nov 22 at 03:00 on (n1:ncpus=2)"}
    assert job.parse_status({"job_state": "E", **attributes}).provisional
    assert not job.parse_status({"job_state": "F", **attributes}).provisional


@pytest.mark.parametrize("name", ["F-ok", "F-fail3", "F-killed"])
def test_a_job_that_ended_by_itself_has_its_final_status_already_in_state_e(name: str) -> None:
    final = recorded(name)
    before = {**final, "job_state": "E", "comment": final["comment"].rpartition(" and ")[0]}
    assert job.parse_status(before) == job.parse_status(final)


def test_names_and_environments_of_users_change_nothing() -> None:
    assert job.parse_status(recorded("odd-newline")).phase == "waiting"
    (attributes,) = client.parse(pbs("bad-utf8.out"), "Jobs").values()
    assert job.parse_status(attributes).phase == "waiting"


@given(st.dictionaries(st.sampled_from(["job_state", "comment", "Hold_Types", "substate"]), st.text() | st.none()))
def test_anything_is_a_status(attributes: dict[str, Any]) -> None:
    status = job.parse_status(attributes)
    assert (status.phase == "ended") == (status.outcome is not None)


# --- asking


def test_the_status_of_a_job(programs: Path) -> None:
    calls = answer(programs, "qstat", JOBS["F-walltime"])
    assert job.read_status("18.login01", PLAN).outcome is Outcome.TIMEOUT
    assert calls.read_text() == "-x -f -F json 18.login01\n"


DOWN = "pbs02                down,job-busy node down: communication closed\n"  # pbsnodes -l, recorded


@pytest.mark.parametrize(
    ("listed", "note"),
    [
        (DOWN, "pbs02 down, and PBS may keep the job all the same. To end it: ctrain cancel t"),
        ("pbs02 offline,job-busy for tests\npbs03 down\n", ""),  # no new jobs there; of another job
        (
            "pbs01 state-unknown,down\n" + DOWN,
            "pbs01, pbs02 down, and PBS may keep the job all the same. To end it: ctrain cancel t",
        ),
        ("", ""),
    ],
)
def test_hosts_of_a_running_job_that_are_down(programs: Path, listed: str, note: str) -> None:
    """PBS leaves the job in state R; pbsnodes knows."""
    answer(programs, "qstat", JOBS["R-node-down"])
    answer(programs, "pbsnodes", listed)
    assert job.read_status("60.login01", PLAN) == Status("running", note=note)


def test_a_job_that_pbs_has_forgotten(programs: Path) -> None:
    for name in ("qstat-unknown-id-xf-json", "qstat-finished-no-x-f-json"):
        code, error = pbs_errors()[name]
        calls = answer(programs, "qstat", "{}", error=error, code=code)
        of_server = """[ "$1" != -B ] || { echo '{"pbs_server": "login01"}'; exit; }\n"""
        write_program(
            calls.with_name("qstat"), calls.with_name("qstat").read_text().replace("case", f"{of_server}case")
        )
        assert job.read_status("99999", PLAN) == Status("ended", outcome=Outcome.UNKNOWN)


def test_a_server_that_does_not_answer(programs: Path) -> None:
    code, error = pbs_errors()["qstat-server-stopped"]
    answer(programs, "qstat", "{}", error=error, code=code)
    why = "Connection refused; cannot connect to server login01 (errno=15010)"
    assert job.read_status("1", PLAN) == Status("running", note=f"PBS does not answer ({why}); retrying")
    answer(programs, "qstat", "<html>")
    assert job.read_status("1", PLAN).note.startswith("PBS does not answer (PBS's answer is not JSON: ")
    (programs / "qstat").unlink()
    assert (
        job.read_status("1", PLAN).note
        == "PBS does not answer (qstat cannot be started: No such file or directory); retrying"
    )


def test_a_server_without_a_history_of_jobs(programs: Path) -> None:
    text = json.dumps({"Jobs": {"7.s": {"job_state": "R", "Output_Path": "login01:/home/pbsuser/t/logs/x"}}})
    complaint = "qstat: PBS is not configured to maintain job history 7.s"
    script = f"[ \"$1\" != -x ] || {{ echo '{complaint}' >&2; exit 1; }}; printf '%s\\n' '{text}'"
    write_program(programs / "qstat", f"#!/bin/bash\n{script}\n")
    assert job.read_status("7.s", PLAN) == Status("running")


def two_servers(programs: Path, here: str = "", there: str = "", unknown: str = '{"pbs_server": "login01"}') -> Path:
    """qstat on a host whose server is login01, where a job is as in `here` ("": unknown); `there` is the same of server
    `other`, which is not reached without it. The file that logs its calls."""
    for name, text in (("here", here), ("there", there)):
        (programs / f"qstat.{name}").write_text(text)
    script = f"""\
#!/bin/bash
cd {programs}
echo "$*" >>qstat.calls
case "$*" in
  "-B "*) echo '{{"pbs_server": "login01"}}' ;;
  *@other) [ -s qstat.there ] || {{ echo "Unknown Host." >&2; exit 150; }}; echo "$(<qstat.there)" ;;
  *) [ -s qstat.here ] || {{ echo '{unknown}'; echo "qstat: Unknown Job Id" >&2; exit 153; }}; echo "$(<qstat.here)" ;;
esac
"""
    write_program(programs / "qstat", script)
    return programs / "qstat.calls"


STRANGER = JOBS["F-walltime"].replace("/home/pbsuser/t", "/home/pbsuser/other")


def test_an_answer_without_the_name_of_a_server_is_not_taken_for_that_of_the_jobs(programs: Path) -> None:
    """qstat was recorded with an unknown job: what it prints beside the error was not."""
    two_servers(programs, unknown="")
    assert job.read_status("18.other", changed(PLAN, cluster="other")).phase == "unknown"
    assert job.read_status("18.login01", PLAN) == Status("ended", outcome=Outcome.UNKNOWN)


@pytest.mark.parametrize("here", ["", STRANGER])
def test_a_job_of_another_server_is_looked_up_there(programs: Path, here: str) -> None:
    """Also if this one has a job with its number."""
    plan = changed(PLAN, cluster="other")
    calls = two_servers(programs, here, there=JOBS["F-walltime"])
    assert job.read_status("18.other", plan).outcome is Outcome.TIMEOUT
    assert calls.read_text().splitlines()[-1] == "-x -f -F json 18.other@other"
    two_servers(programs, here)
    note = "its job belongs to PBS server other. Look from a login node of that cluster"
    for known in (plan, changed(PLAN, cluster="")):  # an older ctrain's has the server in the job's id
        assert job.read_status("18.other", known) == Status("unknown", note=note)
        with pytest.raises(SchedulerError, match=r"^cannot cancel job 18.other; .*: its job belongs to PBS server"):
            submit.cancel("18.other", known)


def test_the_job_of_a_stranger_is_never_cancelled(programs: Path) -> None:
    two_servers(programs, STRANGER)
    calls = answer(programs, "qdel")
    submit.cancel("18.login01", PLAN)
    assert job.read_status("18.login01", PLAN) == Status("ended", outcome=Outcome.UNKNOWN)
    assert not calls.exists()
    two_servers(programs, JOBS["F-walltime"])
    submit.cancel("18.login01", PLAN)
    assert calls.read_text() == "18.login01\n"


def test_a_server_with_its_domain_is_the_same() -> None:
    assert ownership.is_same_server("login01", "login01.cluster.example")
    assert ownership.is_same_server("login01.cluster.example", "login01")
    assert not ownership.is_same_server("login01.a.example", "login01.b.example")
    assert not ownership.is_same_server("login01", "login011")


def test_a_run_of_another_server_is_not_taken_for_never_submitted(programs: Path) -> None:
    answer(programs, "qstat", '{"pbs_server": "login01"}')
    answer(programs, "qselect", "")
    assert submit.find(PLAN) is None
    with pytest.raises(SchedulerError, match=r"^cannot look up the job of run t: its job belongs to PBS server other"):
        submit.find(changed(PLAN, cluster="other"))


# --- the log


def test_the_task_that_failed_first_in_the_log_of_pals() -> None:
    log = """\
a line of the program: rank 3 died from signal 9
x4213c4s7b0n0.hsn.cm.aurora.alcf.anl.gov: rank 27421 died from signal 6
x4417c3s5b0n0.hsn.cm.aurora.alcf.anl.gov: rank 48109 died from signal 15
"""
    host = "x4213c4s7b0n0.hsn.cm.aurora.alcf.anl.gov"
    assert job.first_failed_task(log) == FailedTask(27421, host, "died from signal 6")
    assert job.first_failed_task("x1: rank 0 exited with code 0\nx1: rank 1 exited with code 3\n") == FailedTask(
        1, "x1", "exited with code 3"
    )
    assert job.first_failed_task("") is None


@pytest.mark.parametrize(
    ("estimated", "starts_at"),
    [
        ({"start_time": "Sat Nov 21 02:59:11 2026"}, "2026-11-21T02:59:11"),
        ({"start_time": "Sun Nov  1 02:59:11 2026", "exec_vnode": "(a:ncpus=1)"}, "2026-11-01T02:59:11"),
        ({"start_time": "UNKNOWN"}, ""),
        ({"start_time": 0}, ""),
        ({}, ""),
        ("soon", ""),
        (None, ""),
    ],
)
def test_the_expected_start_of_a_waiting_job(estimated: object, starts_at: str) -> None:
    """As qstat.c prints it; the recorded server had no scheduler that estimates."""
    assert job.parse_status({"job_state": "Q", "estimated": estimated}).starts_at == starts_at
