"""A stand-in for OpenPBS on one machine: qsub, qstat, qselect, qdel, pbsnodes and pbs_tmrsh.

No PBS could be installed where these tests run. The stand-in really runs jobs, as processes of this machine, and does
what a real OpenPBS 23.06 did (tests/samples/pbs) or its source and manuals say: messages and exit codes; a login shell
in $HOME with PBS's environment; output that is delivered only after the job has ended; tasks of TM with neither the
environment nor the output of their caller.

A signal reaches all processes in the sessions of the script and of the tasks on the first host, and no others
(mom_main.c, kill_job; mom_mach.c, kill_session). So the login shell dies of it, which ends the job with SIGKILL on all
hosts; the engine's processes that serve an image die; and the demux of a job with several hosts dies, without which TM
starts no task.

    ROOT/stopped       exists: the server does not answer; ROOT/refused has the names of commands that asked
    ROOT/slow          exists: qsub waits, and the file is called slowly, until ROOT/go exists
    ROOT/walltime      its seconds are the time limit of all jobs
    ROOT/down          what pbsnodes -l prints
    ROOT/late          exists: no output is delivered, and jobs stay in state E
    ROOT/ID/signal     its number is sent to the job
    ROOT/ID/job.json   attributes of job ID, as qstat prints them; beside it, its script, environment, spool and tasks
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

HOSTS, NCPUS, NGPUS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"), 2, 2  # all are this machine, and resolve
QUEUES = {"workq": "01:00:00", "gpu": "02:00:00"}
COMMANDS = ("qsub", "qstat", "qselect", "qdel", "pbsnodes", "pbs_tmrsh")
SERVER = "login01"
KILL_DELAY_SECONDS = 2.0  # kill_delay of a queue; 10 s by default
POLL_SECONDS = 0.03
FLAGS = "fhGIVXz"  # options of qsub without a value
STOPPED = {"qsub": 162, "qdel": 162, "qstat": 255, "qselect": 255, "pbsnodes": 1}


def install(directory: Path, root: Path) -> None:
    """Put the commands into `directory`; `root` is that of their jobs."""
    root.mkdir(parents=True)
    (root / "pbs.conf").write_text(f"PBS_SERVER={SERVER}\nPBS_EXEC={directory.parent}\n")
    for name in COMMANDS:
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} {root} {name} "$@"\n', encoding="utf-8")
        path.chmod(0o755)


def end_all(root: Path) -> None:
    """End what a failed test may have left."""
    for job in Job.all(root):
        if not job.ended:
            (job.path / "delete").write_text("test")


def environment(job: Path) -> dict[str, str]:
    """PBS's variables in a running job."""
    variables: dict[str, str] = json.loads((job / "environment.json").read_text())
    return {name: value for name, value in variables.items() if name.startswith("PBS_")}


def fail(code: int, *lines: str) -> NoReturn:
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(code)


class Job:
    """A job, as its files have it."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, f"{path.name}.{SERVER}"
        self.attributes: dict[str, Any] = json.loads((path / "job.json").read_text())

    @staticmethod
    def all(root: Path) -> Iterator[Job]:
        for path in sorted(root.glob("[0-9]*/job.json"), key=lambda path: int(path.parent.name)):
            yield Job(path.parent)

    @staticmethod
    def find(root: Path, job_id: str, program: str) -> Job:
        path = root / job_id.partition(".")[0]
        if not (path / "job.json").exists():
            fail(153, f"{program}: Unknown Job Id {path.name}.{SERVER}")
        return Job(path)

    @property
    def ended(self) -> bool:
        return bool(self.attributes["job_state"] == "F")

    def set(self, **attributes: Any) -> None:
        self.attributes.update(attributes)
        new = self.path / "job.new"
        new.write_text(json.dumps(self.attributes))
        new.replace(self.path / "job.json")

    def processes(self, *, first_host: bool = False) -> list[int]:
        """The processes of the job: those of the sessions of its script and its tasks."""
        tasks = [line.split() for line in (self.path / "sessions").read_text().splitlines()]
        sessions = {session for session, host in tasks if not first_host or host == tasks[0][1]}
        return [int(line.split()[0]) for line in _sessions() if line.split()[1] in sessions]

    def kill(self, number: int, *, first_host: bool = False) -> None:
        for pid in self.processes(first_host=first_host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def has_demux(self) -> bool:
        """Whether the demux runs, or none is needed: output of tasks on one host goes to files."""
        demux = self.path / "demux"
        return not demux.exists() or int(demux.read_text()) in self.processes()

    def end(self) -> None:
        """Kill until none is left: a process may fork while the others are listed."""
        while self.processes():
            self.kill(signal.SIGKILL)


def _sessions() -> list[str]:
    """Lines of PID and session of all processes that are no zombies (proc(5), stat)."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                lines.append(f"{path.parent.name} {fields[3]}")
    return lines


def qsub(root: Path, words: list[str]) -> None:
    script = Path(words[-1])
    if words[0] != "-f" or words[1:-1][:1] not in ([], ["-W"]):
        fail(2, "qsub: the stand-in knows only -f [-W ATTRIBUTE=VALUE] SCRIPT")
    text = script.read_text(errors="surrogateescape")
    options: list[str] = words[1:-1]
    for line in text.split("\n"):
        if line.startswith("#PBS "):
            options += directive_words(line[5:])
        elif line and not line.startswith("#"):
            break
    if (root / "slow").exists():
        (root / "slow").rename(root / "slowly")
        deadline = time.monotonic() + 120
        while not (root / "go").exists() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    attributes = _attributes(options)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = max((int(path.name) for path in root.glob("[0-9]*")), default=0) + 1
        job = root / str(number)
        job.mkdir()
        (job / "script").write_text(text, errors="surrogateescape")
        (job / "script").chmod(0o700)
        (job / "job.new").write_text(json.dumps(attributes))
        (job / "job.new").rename(job / "job.json")
    subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(root), "run", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]},
    )
    print(f"{number}.{SERVER}")


def directive_words(line: str) -> list[str]:
    """The words of a directive, as qsub.c, make_argv takes them apart."""
    words, word, at = [], "", 0
    while at < len(line):
        if line[at] in "'\"":
            end = line.find(line[at], at + 1)
            if end < 0:
                fail(1, f"qsub: unmatched {line[at]}")
            word, at = word + line[at + 1 : end], end + 1
        elif line[at] == "\\":
            word, at = word + line[at + 1], at + 2
        elif line[at].isspace():
            words, word, at = [*words, word], "", at + len(line[at:]) - len(line[at:].lstrip())
        else:
            word, at = word + line[at], at + 1
    return [*words, word] if word else words


def read_options(options: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options by letter, and resources. Of what is given twice the first counts, and the others are ignored without a
    word (qsub.c, process_opts and set_resources)."""
    given: dict[str, str] = {}
    resources: dict[str, str] = {}
    words = iter(options)
    for word in words:
        if not re.match(r"-[A-Za-z]", word):
            fail(2, f"qsub: illegal option {word}")
        letter, value = word[1], "" if word[1] in FLAGS else word[2:] or next(words)
        if letter == "l":
            for name, amount in re.findall(r"(\w+)=(.*?)(?:,\s*(?=\w+=)|$)", value):
                resources.setdefault(name.lower(), amount)
        elif letter == "W":  # attributes, each of its own
            given["W"] = f"{given['W']},{value}" if "W" in given else value
        else:
            given.setdefault(letter, value)
    return given, resources


def _attributes(options: list[str]) -> dict[str, Any]:
    """The attributes of a new job. Refuses what PBS refuses."""
    given, resources = read_options(options)
    if "ncpus" in resources:
        fail(5, 'qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus')
    if given.get("q", "workq") not in QUEUES:
        fail(170, "qsub: Unknown queue")
    if not given["o"].isascii():
        fail(2, "qsub: illegal -o value")
    if "nosuchres" in resources:
        fail(187, "qsub: Unknown resource Resource_List.nosuchres")
    if resources.get("walltime", "") > QUEUES[given.get("q", "workq")]:
        fail(188, "qsub: Job violates queue and/or server resource limits")
    user, now = getpass.getuser(), time.ctime()
    return {
        "Job_Name": given["N"],
        "Job_Owner": f"{user}@{SERVER}",
        "job_state": "H" if "depend=" in given.get("W", "") else "Q",
        "queue": given.get("q", "workq"),
        "ctime": now,
        "depend": re.sub(r".*depend=afterany:([^,]*).*|.*", r"\1", given.get("W", "")),
        "Hold_Types": "s" if "depend=" in given.get("W", "") else "n",
        "Output_Path": f"{SERVER}:{Path.cwd() / given['o']}",  # prepare_path.c
        "umask": _umask(given),
        "Resource_List": resources,
        "substate": 10,
        "Submit_arguments": "-f",
    }


def _umask(given: dict[str, str]) -> int:
    """077 unless -W says another (start_exec.c, finish_exec and start_process)."""
    found = re.search(r"umask=(\d+)", given.get("W", ""))
    return int(found[1] if found else "77", 8)


def run(root: Path, words: list[str]) -> None:
    """What server, scheduler and MOM do with a job, as a process in the background."""
    job = Job(root / words[0])
    chunk = job.attributes["Resource_List"]["select"].split(":")
    count, mpiprocs = int(chunk[0]), next(int(part[9:]) for part in chunk if part.startswith("mpiprocs="))
    while not _start(root, job, count):
        after = job.attributes["depend"]
        if after and Job.find(root, after, "run").ended:
            job.set(job_state="Q", depend="")
        if (job.path / "delete").exists():
            job.set(job_state="F", substate=91)
            return
        time.sleep(POLL_SECONDS)
    hosts = _hosts(job)
    nodefile = job.path / "nodefile"
    nodefile.write_text("".join(f"{host}\n" * mpiprocs for host in hosts))
    variables = _environment(job, nodefile)
    (job.path / "environment.json").write_text(json.dumps(variables))
    spool = (job.path / "spool").open("ab")
    started = time.monotonic()
    mom = subprocess.Popen(
        ["-bash"],
        executable="/bin/bash",
        preexec_fn=lambda: _begin_script(job.path, hosts),
        stdin=subprocess.PIPE,
        stdout=spool,
        stderr=spool,
        cwd=variables["HOME"],
        env={**variables, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        start_new_session=True,
    )
    assert mom.stdin
    mom.stdin.write(f"{job.path}/script\n".encode())
    mom.stdin.close()
    status, ending = _wait(job, mom, started)
    job.end()
    where = job.attributes["comment"]
    job.set(job_state="E", substate=51, Exit_status=status)
    job.end()  # tasks that began meanwhile
    while (root / "late").exists():
        time.sleep(POLL_SECONDS)
    output = Path(job.attributes["Output_Path"].partition(":")[2])
    with contextlib.suppress(OSError):
        shutil.copyfile(job.path / "spool", output)
        output.chmod(0o666 & ~job.attributes["umask"])
    substate = 92 if status == 0 else 91 if "terminated" in ending else 93
    job.set(job_state="F", substate=substate, comment=f"{where} and {ending}")


def _start(root: Path, job: Job, count: int) -> bool:
    """Give the job its hosts, if they are free."""
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used = {host for other in Job.all(root) if other.attributes["job_state"] in "RE" for host in _hosts(other)}
        free = [host for host in HOSTS if host not in used]
        impossible = ":nowhere=" in job.attributes["Resource_List"]["select"]
        if impossible or job.attributes["job_state"] == "H" or len(free) < count:
            never = "Can Never Run" if impossible else "Not Running"
            counts = f"R: {count * NCPUS} A: 0 T: {len(HOSTS) * NCPUS}"
            job.set(comment=f"{never}: Insufficient amount of resource: ncpus ({counts})")
            return False
        vnodes = "+".join(f"({host}:ncpus={NCPUS}:ngpus={NGPUS})" for host in free[:count])
        job.set(
            job_state="R",
            substate=42,
            exec_host="+".join(f"{host}/0*{NCPUS}" for host in free[:count]),
            exec_vnode=vnodes,
            comment=f"Job run at Sun Nov 22 at 03:00 on {vnodes}",
        )
        return True


def _hosts(job: Job) -> list[str]:
    return [part.split("/")[0] for part in job.attributes["exec_host"].split("+")]


def _environment(job: Job, nodefile: Path) -> dict[str, str]:
    """What tasks of TM get; the script has another PATH (tests/samples/pbs/task-environment.out)."""
    temporary = job.path / "tmp"
    temporary.mkdir()
    home = os.environ["HOME"]
    return {
        "ENVIRONMENT": "BATCH",
        "HOME": home,
        "NCPUS": str(NCPUS),
        "OMP_NUM_THREADS": str(NCPUS),
        "PATH": "/bin:/usr/bin",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBCOOKIE": "53359ECE1105329C553BDD3C2581245A",
        "PBS_JOBDIR": home,
        "PBS_JOBID": job.id,
        "PBS_JOBNAME": job.attributes["Job_Name"],
        "PBS_NODEFILE": str(nodefile),
        "PBS_NODENUM": "0",
        "PBS_O_HOME": home,
        "PBS_O_HOST": SERVER,
        "PBS_O_PATH": "/opt/pbs/bin:/usr/bin:/bin",
        "PBS_QUEUE": job.attributes["queue"],
        "PBS_CONF_FILE": str(job.path.parent / "pbs.conf"),
        "TMPDIR": str(temporary),
    }


def _wait(job: Job, mom: subprocess.Popen[bytes], started: float) -> tuple[int, str]:
    """How the job ended: its exit status, and what its comment says."""
    hours, minutes, seconds = map(int, job.attributes["Resource_List"].get("walltime", "00:10:00").split(":"))
    short = job.path.parent / "walltime"
    killed, status, ending = 0.0, 0, ""
    while mom.poll() is None:
        delete, now = job.path / "delete", time.monotonic()
        limit = float(short.read_text() or 0) if short.exists() else hours * 3600.0 + minutes * 60 + seconds
        if not killed and (delete.exists() or now - started > limit):
            killed = now
            status, ending = (271, "terminated by {}") if delete.exists() else (-29, "exceeded resource walltime")
            if delete.exists():
                ending = ending.format(delete.read_text())
            else:
                with (job.path / "spool").open("a") as spool:
                    spool.write(f"=>> PBS: job killed: walltime {now - started:.0f} exceeded limit {limit:.0f}\n")
            job.kill(signal.SIGTERM, first_host=True)
        with contextlib.suppress(FileNotFoundError):
            number = int((job.path / "signal").read_text())
            (job.path / "signal").unlink()
            job.kill(number, first_host=True)
        if killed and now - killed > KILL_DELAY_SECONDS:
            job.kill(signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    if killed:
        return status, ending
    code = mom.returncode if mom.returncode >= 0 else 256 - mom.returncode
    return code, "failed" if code else "finished"


def qdel(root: Path, words: list[str]) -> None:
    job = Job.find(root, words[0], "qdel")
    if job.ended:
        fail(35, f"qdel: Job has finished {job.id}")
    (job.path / "delete").write_text(job.attributes["Job_Owner"])
    while Job(job.path).attributes["job_state"] in "QH":
        time.sleep(POLL_SECONDS)


def qstat(root: Path, words: list[str]) -> None:
    if "-B" in words:
        _print("Server", {SERVER: {"server_state": "Active", "default_queue": "workq"}})
    elif "-Q" in words:
        _print("Queue", {name: _queue(limit) for name, limit in QUEUES.items()})
    else:
        job = Job.find(root, words[-1], "qstat")
        if job.ended and "-x" not in words:
            fail(35, f"qstat: {job.id} Job has finished, use -x or -H to obtain historical job information")
        _print("Jobs", {job.id: job.attributes})


def _queue(limit: str) -> dict[str, Any]:
    return {"queue_type": "Execution", "resources_max": {"walltime": limit}, "enabled": "True", "started": "True"}


def qselect(root: Path, words: list[str]) -> None:
    name = words[words.index("-N") + 1]
    for job in Job.all(root):
        if job.attributes["Job_Name"] == name and ("-x" in words or not job.ended):
            print(job.id)


def pbsnodes(root: Path, words: list[str]) -> None:
    if "-l" in words:
        print((root / "down").read_text() if (root / "down").exists() else "", end="")
        return
    available = {"arch": "linux", "mem": "24684084kb", "ncpus": NCPUS, "ngpus": NGPUS}
    _print("nodes", {host: {"state": "free", "resources_available": {**available, "host": host}} for host in HOSTS})


def _print(kind: str, objects: dict[str, Any]) -> None:
    print(json.dumps({"timestamp": int(time.time()), "pbs_version": "23.06.06", kind: objects}, indent="\t"))


def pbs_tmrsh(root: Path, words: list[str]) -> NoReturn:
    host, *command = words
    if not {"PBS_ENVIRONMENT", "PBS_JOBID", "PBS_NODEFILE"} <= set(os.environ):
        fail(255, "pbs_tmrsh: not executing under PBS")
    job = Job.find(root, os.environ["PBS_JOBID"], "pbs_tmrsh")
    if host not in Path(os.environ["PBS_NODEFILE"]).read_text().split():
        fail(255, f'pbs_tmrsh: host "{host}" is not a node in job <{job.id}>')
    if not job.has_demux:
        fail(254, "pbs_tmrsh: task not started")
    variables = json.loads((job.path / "environment.json").read_text())
    with (job.path / "spool").open("ab") as spool:
        try:
            task = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=spool,
                stderr=spool,
                cwd=variables["HOME"],
                env=variables,
                start_new_session=True,
                preexec_fn=lambda: _begin_task(job.path, host),
            )
        except OSError as error:
            fail(254, f"{command[0]}: {error.strerror}")
    code = task.wait()
    sys.exit(code if code >= 0 else -code)


def _begin_script(job: Path, hosts: list[str]) -> None:
    """MOM forks the demux from what becomes the login shell; it is in its session."""
    (job / "sessions").write_text(f"{os.getpid()} {hosts[0]}\n")
    os.umask(Job(job).attributes["umask"])
    if len(hosts) > 1:
        demux = os.fork()
        if not demux:
            os.execv("/bin/sleep", ["pbs_demux", "infinity"])  # noqa: S606  # a program and its words
        (job / "demux").write_text(str(demux))


def _begin_task(job: Path, host: str) -> None:
    """A task is MOM's child, not this command's. MOM knows it before it runs, and starts none in a job that ended."""
    with (job / "sessions").open("a") as sessions:
        sessions.write(f"{os.getpid()} {host}\n")
    os.umask(Job(job).attributes["umask"])
    if Job(job).attributes["job_state"] != "R":
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def main() -> None:
    root, name, *words = sys.argv[1:]
    if name in STOPPED and (Path(root) / "stopped").exists():
        with (Path(root) / "refused").open("a") as refused:
            refused.write(f"{name}\n")
        connect = f"cannot connect to server {SERVER}"
        fail(STOPPED[name], "Connection refused", f"{name}: {connect} (errno=15010)")
    globals()[name](Path(root), words)


if __name__ == "__main__":
    main()
