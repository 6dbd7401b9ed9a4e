"""A scheduler that exists only here: a folder of jobs, two nodes of two slots, words of its own (Q, R, X). It is the
proof that a back end is one file: nothing else in ctrain knows of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.cluster.model import Cluster, Partition
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status
from ctrain_runtime.schedulers.script import directives, job_script, start_script
from ctrain_runtime.site.model import Site

NODES, SLOTS = 2, 2
OUTCOMES = {"0": Outcome.COMPLETED, "killed": Outcome.CANCELLED_BY_USER}

# What the toy's own launch command would be: starts each task with its number, and fails with the first that fails.
TOYRUN = """\
toyrun() {
  local task pids=() code=0
  for ((task = 0; task < TOY_TASKS; task++)); do
    TOY_TASK=$task "$@" &
    pids+=($!)
  done
  trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM
  for task in "${pids[@]}"; do wait "$task" || code=$?; done
  return "$code"
}
"""


class Toy:
    """Implements Scheduler. TOY_ROOT is the folder of its jobs: ID.pid, and ID.end with the exit code or `killed`.

    Options of its own: --refuse the job, --slow to take it (until ID.go exists), --mute when asked, --clumsy in
    cancelling the first time.
    """

    programs: tuple[str, ...] = ()
    short_options: Mapping[str, str] = {}

    @property
    def root(self) -> Path:
        return Path(os.environ["TOY_ROOT"])

    def facts(self, site: Site) -> Cluster:
        return Cluster((Partition("toys", True, NODES, cpus=SLOTS, gpus=0, time_limit=10),))

    def gpus(self, site: Site) -> tuple[str, ...]:
        return ()

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        return ()

    def identity(self, plan: LaunchPlan) -> TaskIdentity:
        per_node = plan.tasks_per_node
        return TaskIdentity(
            "toyrun",
            f"""\
task=${{TOY_TASK:?}} tasks=$TOY_TASKS local_task=$((TOY_TASK % {per_node})) NODE_RANK=$((TOY_TASK / {per_node}))
export MASTER_ADDR=127.0.0.1 MASTER_PORT=61234""",
            passed_prefixes=("TOY_",),
        )

    def render(self, plan: LaunchPlan, task: Task) -> Launch:
        text = job_script(
            plan,
            header=directives("#TOY", [f"-n {plan.tasks}", *plan.placement.options]),
            job_id="$TOY_JOB",
            before=[f"export TOY_TASKS={plan.tasks}", TOYRUN],
            start=quote_argv(["toyrun", *start_script(plan, task.script)]),
        )
        return Launch(plan, ("toysub", "job.sh"), {"job.sh": text, **task.scripts}, task.files)

    def check(self, launch: Launch) -> None:
        """Nothing: the toy takes all jobs."""

    def submit(self, launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
        if "--refuse" in launch.plan.placement.options:
            raise SchedulerError("the toy rejected the job", "Leave out --refuse")
        job_id = str(len(list(self.root.glob("*.pid"))) + 1)
        wait = ': >"$0.slow"; until [ -e "$0.go" ] || ((SECONDS > 120)); do sleep 0.02; done;'
        slow = wait if "--slow" in launch.plan.placement.options else ""
        held = "".join(f" {descriptor}>&-" for descriptor in pass_fds)
        start = f'setsid bash -c "$1" "$0" >logs/job.log 2>&1{held} &'
        toysub = f'{slow} {start} until [ -s "$0.pid" ]; do sleep 0.02; done'
        job = 'echo "$$ $PWD" >"$0.pid"; bash -p job.sh; code=$?; [ -e "$0.end" ] || echo "$code" >"$0.end"'
        subprocess.run(
            ["bash", "-c", toysub, str(self.root / job_id), job],
            cwd=launch.plan.run_directory,
            env={**os.environ, "TOY_JOB": job_id},
            pass_fds=pass_fds,
            start_new_session=True,
            check=True,
        )
        return job_id

    def interact(self, launch: Launch) -> int:
        raise SchedulerError("the toy has no terminals", "Use another scheduler")

    def find(self, plan: LaunchPlan) -> Optional[str]:
        texts = {path.stem: path.read_text() for path in self.root.glob("*.pid")}
        return next((job for job, text in texts.items() if text.rstrip().endswith(f" {plan.run_directory}")), None)

    def status(self, job_id: str, plan: LaunchPlan) -> Status:
        if "--mute" in plan.placement.options:
            return Status("running", note="the toy does not answer")
        end = self.root / f"{job_id}.end"
        outcomes = [OUTCOMES.get(end.read_text().strip(), Outcome.FAILED)] if end.exists() else []
        return Status("ended", "X", outcomes[0]) if outcomes else Status("running", "R")

    def cancel(self, job_id: str, plan: LaunchPlan) -> None:
        if "--clumsy" in plan.placement.options and not (self.root / "asked").exists():
            (self.root / "asked").touch()
            raise SchedulerError("the toy dropped the request")
        end = self.root / f"{job_id}.end"
        if not end.exists():
            end.write_text("killed")
        pid = int((self.root / f"{job_id}.pid").read_text().split()[0])
        try:
            os.killpg(pid, signal.SIGTERM)
            time.sleep(0.2)
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def name(self, job_id: str) -> str:
        return f"toy {job_id}"

    def failed_task(self, job_log: str) -> Optional[FailedTask]:
        return None

    def is_aftermath(self, line: str) -> bool:
        return False

    def out_of_memory(self, log: str) -> Optional[OutOfMemory]:
        return None


SCHEDULER = Toy()
