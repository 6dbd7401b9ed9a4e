"""What a scheduler is to the rest of ctrain. One folder per scheduler: slurm/, local/; no code above knows which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, Optional, Protocol

from ctrain_runtime.facts import Cluster
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.size import JobSize, SizeRequest
from ctrain_runtime.schedulers.script import Task, TaskIdentity
from ctrain_runtime.site import Site


class Outcome(str, Enum):
    """How a job ended, in words that every scheduler's own are translated to."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"  # the scheduler does not record by whom
    CANCELLED_BY_USER = "cancelled by its user"
    CANCELLED_BY_ADMIN = "cancelled by an administrator"
    PREEMPTED = "preempted"
    TIMEOUT = "time limit reached"
    NODE_FAILURE = "node failure"
    OUT_OF_MEMORY = "out of memory"
    NEVER_STARTED = "never started"
    UNKNOWN = "no longer known to the scheduler"


@dataclass(frozen=True)
class Status:
    """Where a job stands. `word` is the scheduler's own state or reason; `note` is one line about what is unusual.

    `outcome` is set when, and only when, the phase is "ended". `starts_at` is when a waiting job is expected to start
    (ISO 8601, the cluster's local time), "" when the scheduler does not say.
    """

    phase: Literal["waiting", "running", "ended"]
    word: str = ""
    outcome: Optional[Outcome] = None
    note: str = ""
    starts_at: str = ""


@dataclass(frozen=True)
class FailedTask:
    """A task that the scheduler's own log names: which one, on which host, and how it ended in the log's words."""

    task: int
    host: str
    how: str


class Scheduler(Protocol):
    """A back end. It builds commands and scripts and parses answers; it holds no policy and no state."""

    programs: tuple[str, ...]  # what must be on PATH where runs are submitted

    def facts(self, site: Site) -> Cluster:
        """What the cluster is and has now. Raises SchedulerError when the scheduler does not answer."""

    def gpus(self, site: Site) -> tuple[str, ...]:
        """What the site's GPUs are called: a100, NVIDIA A30 ... Raises CtrainError when the scheduler is silent."""

    def size(self, request: SizeRequest, cluster: Cluster, site: Site) -> JobSize:
        """The size of a job that fits. Pure. Raises UsageError, ResourceError or SchedulerError when none does."""

    def identity(self, plan: LaunchPlan) -> TaskIdentity:
        """How a task of the plan learns who it is. Pure."""

    def render(self, plan: LaunchPlan, task: Task) -> Launch:
        """The scripts of a job that runs `task`, and the command that submits it. Pure."""

    def check(self, launch: Launch) -> None:
        """Raise SchedulerError if the scheduler would never start the job, without queueing it."""

    def submit(self, launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
        """Start or queue the job; its id. Raises SchedulerError.

        `pass_fds` is a locked descriptor which what submits the job inherits: as long as it is locked, nobody may
        conclude that the submission failed.
        """

    def find(self, plan: LaunchPlan) -> Optional[str]:
        """The id of the job of a run whose submission was cut off, if it was accepted."""

    def status(self, job_id: str, plan: LaunchPlan) -> Status:
        """Ask where a job stands. Never raises: a scheduler that does not answer leaves the phase as "running"."""

    def cancel(self, job_id: str, plan: LaunchPlan) -> None:
        """End a job; returns before it has ended. Raises SchedulerError when the job may still run."""

    def name(self, job_id: str) -> str:
        """What users call a job, as in "job 41873"."""

    def failed_task(self, job_log: str) -> Optional[FailedTask]:
        """The first task that job.log says was killed or failed, for a rank that could not record it itself."""
