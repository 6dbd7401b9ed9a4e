"""The life of runs on PBS, with a stand-in for its commands that runs jobs here (samples/pbs_stand_in.py)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.run.events import read_job_events
from samples import pbs_stand_in
from samples.plans import a_manifest
from samples.runs import Bench, ended, wait_for
from samples.sample_images import write_image

# The preflight would notice that both hosts are this machine.
FOUR = ("--nodes", "2", "--ranks-per-node", "2", "--gpus-per-node", "0", "--preflight", "off", "--launcher", "env")
STAGED = ("stage-in", "ended")
FOREVER = ("--", "bash", "-c", 'touch "$CTRAIN_RUN_DIR/up$RANK"; sleep 600')


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "pbs")
    yield bench
    bench.end()


def where(bench: Bench) -> tuple[str, ...]:
    return "--site", bench.site, "--runs", str(bench.runs)


def all_up(bench: Bench) -> None:
    for rank in range(4):
        wait_for(bench.one / f"up{rank}")


def outcome(bench: Bench) -> tuple[str, str]:
    (attempt,) = bench.record()["attempts"]
    return attempt["outcome"], attempt["word"]


def test_a_job_of_the_right_size_in_a_clean_environment(bench: Bench) -> None:
    """Two hosts, ranks in the order of the node file, output of the job live in job.log; nothing of an outer job."""
    show = 'echo "$RANK $LOCAL_RANK $NODE_RANK $MASTER_ADDR $PBS_JOBID ${PBS_QUEUE-} ${SECRET-} ${OTHER-}"; pwd'
    outer = {"SECRET": "it's", "OTHER": "x", "PBS_JOBNAME": "outer"}
    run = bench.run(*FOUR, "--env", "SECRET", "--", "bash", "-c", show, **outer)
    code, out, error = ended(run)
    assert (code, error) == (0, "")
    assert "job 1 started" in out.splitlines()
    for rank in range(4):
        assert bench.log(rank).splitlines()[0] == f"{rank} {rank % 2} {rank // 2} 127.0.0.1 1.login01  it's "
    assert outcome(bench)[0] == "completed"  # PBS may be asked, or not: the job says it, too
    assert not (bench.one / ".environment").exists()
    assert (bench.one / "hosts").read_text() == "127.0.0.1\n127.0.0.2\n"
    assert "it's" not in (bench.one / "plan.json").read_text()


def test_files_of_a_job_have_the_modes_of_the_users_umask(bench: Bench) -> None:
    """PBS's own is 077 for what jobs and tasks write, whatever the user's is."""
    code, _, error = ended(bench.run(*FOUR, "--", "touch", str(bench.folder / "out"), streams={"umask": 0o027}))
    assert (code, error) == (0, "")
    log = bench.one / "logs/scheduler.log"
    wait_for(log)
    wait_for(lambda: log.stat().st_mode & 0o777 == 0o640)
    assert [(bench.folder / "out").stat().st_mode & 0o777, (bench.one / "hosts").stat().st_mode & 0o777] == [0o640] * 2


def test_a_run_directory_with_letters_that_are_not_ascii(bench: Bench) -> None:
    """qsub refuses them in the path of its log."""
    runs = bench.folder / "Läufe"
    code, _, error = ended(bench.run(*FOUR, "--runs", str(runs), "--", "true"))
    assert (code, error) == (0, "")
    wait_for(runs / "one/logs/scheduler.log")


def test_commands_of_nodes_and_independent_tasks(bench: Bench) -> None:
    show = (
        'echo "${RANK-none} ${NODE_RANK-none} ${CTRAIN_HOSTS-none} ${PET_NNODES-none} ${CTRAIN_TASK-none} $PBS_JOBID"'
    )
    code, _, error = ended(bench.run(*FOUR[:-2], "--launcher", "node", "--", "bash", "-c", show))
    assert (code, error) == (0, "")
    assert [bench.log(node) for node in range(2)] == [
        f"none {node} 127.0.0.1,127.0.0.2 2 none 1.login01\n" for node in range(2)
    ]
    bench.one.rename(bench.runs / "before")
    code, _, error = ended(bench.run(*FOUR[:-2], "--independent", "--", "bash", "-c", show))
    assert (code, error) == (0, "")
    assert [bench.log(task) for task in range(4)] == [f"none none none none {task} 2.login01\n" for task in range(4)]


def test_image_and_data_are_copied_to_the_nodes(bench: Bench) -> None:
    """By TM, too, each node learns who is before it; here both are this machine, and one waits for the other."""
    digest = hashlib.sha256(bench.image.read_bytes()).hexdigest()
    write_image(bench.folder, layers=a_manifest().layers[:1], software={}, digest=f"sha256:{digest}")
    (bench.folder / "disk").mkdir()
    with (bench.folder / "pbs.yaml").open("a") as site:
        site.write(f"staging: {bench.folder}/disk\n")
    data = bench.folder / "data.sqfs"
    data.write_bytes(b"hsqs" * 1000)
    stage = ("--stage", "always", "--data", str(data), "--stage-data")
    code, out, error = ended(bench.run(*FOUR, *stage, "--", "sh", "-c", 'echo "$APPTAINER_CONTAINER"'))
    assert (code, error) == (0, f"ctrain: reading {data} ...\n")
    assert f"staging   copied to {bench.folder}/disk on each node" in out
    copies = sorted((bench.folder / "disk").glob("*/*"), key=lambda path: path.suffix)
    assert [copy.read_bytes() for copy in copies] == [bench.image.read_bytes(), data.read_bytes()]
    assert [event.code for event in read_job_events(bench.one) if (event.stage, event.what) == STAGED] == [0, 0]
    assert "not copied" not in (bench.one / "logs/job.log").read_text()


def test_a_job_ended_at_its_time_limit(bench: Bench) -> None:
    run = bench.run(*FOUR, *FOREVER)
    all_up(bench)
    (bench.folder / "pbs/walltime").write_text("0")
    code, out, _ = ended(run)
    assert code == 143
    assert "time limit reached (exceeded resource walltime)" in out
    assert bench.record()["exit"]["by"] == "scheduler"
    assert outcome(bench) == ("time limit reached", "exceeded resource walltime")
    assert "=>> PBS: job killed: walltime" in (bench.one / "logs/scheduler.log").read_text()
    assert not bench.orphans()


def test_a_job_that_others_delete(bench: Bench) -> None:
    assert ended(bench.run(*FOUR, *FOREVER, verb="submit"))[0] == 0
    all_up(bench)
    (bench.folder / "pbs/1/delete").write_text("operator@login01")
    code, out, _ = ended(bench.attach())
    assert code == 143
    assert "cancelled by an administrator (terminated by operator@login01)" in out
    assert not bench.orphans()


# Saves when it is told to end, and exits 0.
SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
open(os.environ["CTRAIN_RUN_DIR"] + "/up" + os.environ["RANK"], "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "ending"), [("cancel", (130, "cancelled")), ("qdel", (143, "cancelled")), ("limit", (143, "time limit"))]
)
def test_a_program_that_saves_and_exits_0_when_its_job_is_ended_is_not_completed(
    bench: Bench, how: str, ending: tuple[int, str]
) -> None:
    assert ended(bench.run(*FOUR, "--", "python3", "-c", SAVES, verb="submit"))[0] == 0
    all_up(bench)
    if how == "limit":
        (bench.folder / "pbs/walltime").write_text("0")
    elif how == "qdel":
        (bench.folder / "pbs/1/delete").write_text("operator@login01")
    code, out, _ = ended(bench.attach(verb="cancel" if how == "cancel" else "attach"))
    assert code == (0 if how == "cancel" else 143), out
    assert (bench.record()["exit"]["code"], bench.record()["exit"]["ending"]) == ending
    assert not bench.orphans()


def test_a_program_that_ignores_the_end_of_its_job(bench: Bench) -> None:
    stubborn = ("--", "bash", "-c", 'trap "" TERM; touch "$CTRAIN_RUN_DIR/up$RANK"; while :; do sleep 1; done')
    bench.environment["GRACE"] = "1"
    assert ended(bench.run(*FOUR, *stubborn, verb="submit"))[0] == 0
    all_up(bench)
    code, _, error = ended(bench.attach(verb="cancel"))
    assert (code, error) == (0, "")
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert outcome(bench)[0] == "cancelled by its user"
    assert not bench.orphans()


def test_a_killed_client_loses_nothing(bench: Bench) -> None:
    go = bench.folder / "go"
    wait = f'touch "$CTRAIN_RUN_DIR/up$RANK"; while ! [ -e {go} ]; do sleep 0.05; done; echo went'
    run = bench.run(*FOUR, "--", "bash", "-c", wait)
    all_up(bench)
    run.kill()
    ended(run)
    go.touch()
    code, _, error = ended(bench.attach())
    assert (code, error, bench.log(3)) == (0, "", "went\n")
    assert outcome(bench)[0] == "completed"


def test_a_server_that_is_stopped_for_a_while(bench: Bench) -> None:
    go, stopped = bench.folder / "go", bench.folder / "pbs/stopped"
    wait = f'touch "$CTRAIN_RUN_DIR/up$RANK"; while ! [ -e {go} ]; do sleep 0.05; done; exit 3'
    run = bench.run(*FOUR, "--", "bash", "-c", wait)
    all_up(bench)
    stopped.touch()
    code, out, error = ended(bench.ctrain("runs", *where(bench)))
    assert (code, out.splitlines()[1].split()[1]) == (0, "unknown")
    assert "PBS does not answer" in error
    error = ended(bench.run("--name", "two", "--launcher", "env", "--", "true"))[2]
    why = "Connection refused; cannot connect to server login01 (errno=15010)"
    assert error == f"ctrain: PBS does not answer: {why}. Retry later, or run here with --site local\n"
    stopped.unlink()
    go.touch()
    assert ended(run)[0] == 3
    assert outcome(bench) == ("failed", "failed")


def test_a_cancellation_that_the_server_does_not_take_is_tried_again(bench: Bench) -> None:
    run = bench.run(*FOUR, *FOREVER)
    all_up(bench)
    (bench.folder / "pbs/refused").touch()
    (bench.folder / "pbs/stopped").touch()
    os.kill(run.pid, signal.SIGINT)
    complaint = "cannot cancel job 1.login01; it may still be running"
    assert run.stdout
    assert any(complaint in line for line in iter(run.stdout.readline, ""))
    (bench.folder / "pbs/stopped").unlink()
    code, out, error = ended(run)
    assert (code, error) == (130, "")
    assert complaint not in out  # each problem is shown once
    assert not bench.orphans()


def test_output_that_is_delivered_late_does_not_delay_the_end(bench: Bench) -> None:
    late = bench.folder / "pbs/late"
    late.touch()
    code, _, error = ended(bench.run(*FOUR, "--", "bash", "-c", "exit 5"))
    assert (code, error) == (5, "")
    assert bench.record()["exit"]["by"] == "program"
    assert not (bench.one / "logs/scheduler.log").exists()
    late.unlink()
    wait_for(bench.one / "logs/scheduler.log")


def test_the_users_options_reach_the_job(bench: Bench) -> None:
    """Of options that are given twice PBS takes the first, and a user's come after those of ctrain and of the site."""
    with (bench.folder / "pbs.yaml").open("a") as site:
        site.write("submit: ['-l filesystems=home:eagle']\n")
    given = ("--scheduler-option=-lplace=scatter:excl", "--scheduler-option=-l filesystems=home")
    code, _, error = ended(bench.run(*FOUR, *given, "--", "true"))
    assert (code, error) == (0, "")
    resources = json.loads((bench.folder / "pbs/1/job.json").read_text())["Resource_List"]
    assert (resources["place"], resources["filesystems"]) == ("scatter:excl", "home")


def test_options_that_contradict_the_plan_queue_nothing(bench: Bench) -> None:
    code, _, error = ended(bench.run(*FOUR, "--scheduler-option=-l walltime=9:00:00", "--", "true"))
    problem = "qsub option '-l walltime=9:00:00' is not supported: it contradicts the plan"
    assert (code, error) == (64, f"ctrain: {problem}. Use --time\n")
    assert not (bench.folder / "pbs/1").exists()


def test_a_job_that_waits_and_is_deleted(bench: Bench) -> None:
    assert ended(bench.run(*FOUR, "--scheduler-option=-Wdepend=afterok:7", *FOREVER, verb="submit"))[0] == 0
    out = ended(bench.ctrain("runs", *where(bench)))[1]
    assert out.splitlines()[1].split()[1] == "waiting"
    code, _, _ = ended(bench.attach(verb="cancel"))
    assert code == 0
    assert bench.record()["exit"]["reason"] == "cancelled"
    assert outcome(bench) == ("cancelled", "deleted")


def test_a_job_that_can_never_run_says_so(bench: Bench) -> None:
    log = bench.folder / "out"
    with log.open("w") as out:
        run = bench.run(*FOUR, "--constraint", "nowhere=yes", *FOREVER, streams={"stdout": out})
    wait_for(lambda: "Can Never Run: Insufficient amount of resource: ncpus" in log.read_text())
    assert "the job does not start until it is changed or released" in log.read_text()
    os.kill(run.pid, signal.SIGINT)
    assert ended(run)[0] == 130
    assert outcome(bench) == ("cancelled", "deleted")


def test_an_output_of_a_task_that_no_rank_has_is_in_the_log_of_the_job(bench: Bench) -> None:
    """TM delivers it only with the job's; so it is collected node by node."""
    (bench.folder / "bin/python").write_text(
        '#!/bin/bash\necho "torchrun of node $NODE_RANK: no such option"\nexit 2\n'
    )
    code, _, _ = ended(bench.run(*FOUR[:-1], "torchrun", "--", "bash", "-c", "true"))
    assert code != 0
    assert "no such option" in (bench.one / "logs/job.log").read_text()


# --- signals: PBS sends them to whole sessions, and on the first host only

# As the real one, it serves the image by a process of the task's session that has a process group and an environment of
# its own, and may outlive it.
ENGINE = """\
#!/bin/bash
if [[ " $* " == *" exec "* ]]; then
  set -m
  env -i sleep 600 &
  set +m
  export APPTAINERENV_SERVER=$!
fi
exec {engine} "$@"
"""
# What it got, and whether its image was there. It needs a moment to save.
SIGNALLED = """\
import os, signal, sys, time

def note(number, frame):
    try:
        with open("/proc/" + os.environ["SERVER"] + "/stat") as stat:
            image = "with" if stat.read().split()[2] != "Z" else "without"
    except FileNotFoundError:
        image = "without"
    print(signal.Signals(number).name, image, "its image", flush=True)
    if number == signal.SIGTERM:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:  # a second signal would interrupt a longer pause
            time.sleep(0.1)
        print("saved", flush=True)
        sys.exit()

signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGUSR1, note)
with open(os.environ["CTRAIN_RUN_DIR"] + "/up" + os.environ["RANK"], "w") as up:
    up.write(os.environ["SERVER"])
while True:
    time.sleep(0.1)
"""
SAVED = "SIGTERM with its image\nsaved\n"


@pytest.fixture
def serving(bench: Bench) -> Bench:
    """Hosts whose engine serves images by FUSE."""
    engine = bench.folder / "bin/apptainer"
    engine.rename(bench.folder / "bin/without-fuse")
    engine.write_text(ENGINE.format(engine=bench.folder / "bin/without-fuse"))
    engine.chmod(0o755)
    return bench


def no_server_is_left(bench: Bench) -> bool:
    return not any(Path("/proc", (bench.one / f"up{rank}").read_text()).exists() for rank in range(4))


@pytest.mark.parametrize("how", ["walltime", "qdel", "cancel", "Ctrl-C"])
def test_each_rank_is_ended_once_and_has_its_image(serving: Bench, how: str) -> None:
    run = serving.run(*FOUR, "--", "python3", "-c", SIGNALLED)
    all_up(serving)
    if how == "walltime":
        (serving.folder / "pbs/walltime").write_text("0")
    elif how == "qdel":
        (serving.folder / "pbs/1/delete").write_text("operator@login01")
    elif how == "cancel":
        assert ended(serving.attach(verb="cancel"))[0] == 0
    else:
        run.send_signal(signal.SIGINT)
    ended(run)
    wait_for(lambda: [serving.log(rank) for rank in range(4)] == [SAVED] * 4)
    wait_for(lambda: no_server_is_left(serving))
    assert not serving.orphans()


def test_each_rank_is_warned_once_and_has_its_image(serving: Bench) -> None:
    """qsig -s USR1. The login shell, which PBS starts the script with, dies of it: that ends the job."""
    run = serving.run(*FOUR, "--", "python3", "-c", SIGNALLED)
    all_up(serving)
    (serving.folder / "pbs/1/signal").write_text(str(int(signal.SIGUSR1)))
    ended(run)
    warned = f"SIGUSR1 with its image\n{SAVED}"
    wait_for(lambda: [serving.log(rank) for rank in range(4)] == [warned] * 4)
    assert not serving.orphans()


def test_a_signal_to_the_script_alone_warns_each_rank_once(serving: Bench) -> None:
    """As sites do it whose login shells outlive signals."""
    run = serving.run(*FOUR, "--", "python3", "-c", SIGNALLED)
    all_up(serving)
    script = int((serving.folder / "pbs/1/sessions").read_text().split()[0])
    children = Path(f"/proc/{script}/task/{script}/children").read_text().split()
    (job,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() != "sleep\n"]  # not the demux
    os.kill(int(job), signal.SIGUSR1)
    wait_for(lambda: [serving.log(rank) for rank in range(4)] == ["SIGUSR1 with its image\n"] * 4)
    os.kill(int(job), signal.SIGTERM)
    assert ended(run)[0] == 143
    assert serving.record()["exit"]["ending"] == "saved and left"
    assert [serving.log(rank) for rank in range(4)] == [f"SIGUSR1 with its image\n{SAVED}"] * 4


def test_what_serves_an_image_does_not_outlive_a_stubborn_program(serving: Bench) -> None:
    stubborn = 'trap "" TERM; echo "$SERVER" >"$CTRAIN_RUN_DIR/up$RANK"; while :; do sleep 1; done'
    serving.environment["GRACE"] = "1"
    assert ended(serving.run(*FOUR, "--", "bash", "-c", stubborn, verb="submit"))[0] == 0
    all_up(serving)
    wait_for(lambda: all((serving.one / f"up{rank}").read_text() for rank in range(4)))
    assert ended(serving.attach(verb="cancel"))[0] == 0
    wait_for(lambda: no_server_is_left(serving))
    assert not serving.orphans()


# --- inside an allocation


def test_inside_an_allocation_a_run_starts_at_once(bench: Bench) -> None:
    """A job script that calls ctrain: its two runs use their own nodes of it, and the second job is no job of PBS."""
    assert ended(bench.run(*FOUR, *FOREVER, verb="submit"))[0] == 0  # the job around
    all_up(bench)
    environment = pbs_stand_in.environment(bench.folder / "pbs/1")
    code, out, error = ended(
        bench.run("--name", "two", *FOUR, "--", "bash", "-c", 'echo "$RANK $MASTER_ADDR"', **environment)
    )
    assert (code, error) == (0, "")
    assert (bench.runs / "two/logs/rank3.log").read_text() == "3 127.0.0.1\n"
    assert not (bench.folder / "pbs/2").exists()
    assert "allocation 1.login01" in out
    assert ended(bench.attach(verb="cancel"))[0] == 0


LEAVES = """
import os, sys
run, attempt = os.environ["CTRAIN_RUN_DIR"], os.environ["CTRAIN_ATTEMPT"]
print(attempt, os.environ.get("CTRAIN_RESUME", "anew"), os.environ["PBS_JOBID"], flush=True)
if os.environ["RANK"] == "0":
    open(run + "/checkpoint/step-" + attempt, "w").close()
sys.exit(0 if attempt == "2" else 85)
"""


def test_a_job_that_is_to_go_on_submits_itself_again(bench: Bench) -> None:
    code, out, error = ended(bench.run("--launcher", "env", "--until-done", "--", "python3", "-c", LEAVES))
    assert (code, error) == (0, ""), out
    own = bench.one / "checkpoint"
    shown = [line for line in bench.log(0).splitlines() if line and not line.startswith("---")]
    assert shown == ["0 anew 1.login01", f"1 {own} 2.login01", f"2 {own} 3.login01"]
    went_on = [line for line in out.splitlines() if "; going on from " in line]
    assert went_on == [
        f"job {number} was queued again: saved and left; going on from the last checkpoint" for number in (1, 2)
    ], out
    record = bench.record()
    assert [(made["job_id"], made["outcome"]) for made in record["attempts"]] == [
        *(("1.login01", "requeued"), ("2.login01", "requeued"), ("3.login01", "completed")),
    ]
    assert not bench.orphans()


def test_a_run_whose_next_job_waits_is_cancelled_with_it(bench: Bench) -> None:
    (bench.folder / "pbs/late").touch()  # the first job stays in state E
    assert ended(bench.run("--launcher", "env", "--retries", "2", "--", "python3", "-c", LEAVES, verb="submit"))[0] == 0
    wait_for(lambda: '"what": "queued"' in (bench.one / "events.jsonl").read_text())
    status = ended(bench.ctrain("status", "one", "--runs", str(bench.runs), "--site", bench.site))[1]
    assert "state     waiting" in status and "job       job 2" in status
    code, _, error = ended(bench.attach(verb="cancel"))
    assert (code, error) == (0, "")
    (bench.folder / "pbs/late").unlink()
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert not (bench.folder / "pbs/3").exists()
