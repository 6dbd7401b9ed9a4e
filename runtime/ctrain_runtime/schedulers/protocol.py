"""The interface of schedulers. One directory per scheduler (slurm/, local/); no code above depends on which it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Optional, Protocol

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.site.model import Site


class Outcome(str, Enum):
    """How a job ended: each scheduler translates its own states to these."""

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
    """The state of a job. `word` is the scheduler's own state or reason; `note` is a line about anything unusual.

    "unknown" is the phase of a job of which nothing can be known here, as of another cluster's; `note` says why. Its
    run is neither concluded nor cancelled.

    `outcome` is set if and only if the phase is "ended"; while it is `provisional`, who ended the job is not yet known.
    `starts_at` is the expected start of a waiting job (ISO 8601, the cluster's local time), "" if unknown.
    """

    phase: Literal["waiting", "running", "ended", "unknown"]
    word: str = ""
    outcome: Optional[Outcome] = None
    note: str = ""
    starts_at: str = ""
    provisional: bool = False


@dataclass(frozen=True)
class FailedTask:
    """A task that the scheduler's log reports as failed: its number, its host, and `how` it ended, as logged."""

    task: int
    host: str
    how: str


@dataclass(frozen=True)
class OutOfMemory:
    """What a scheduler's log says of a want of memory: the task and its host, if it names them, and the limit in bytes
    (0: not logged)."""

    task: Optional[int] = None
    host: str = ""
    limit: int = 0


class Scheduler(Protocol):
    """A back end. It builds commands and scripts and parses answers; it holds no policy and no state."""

    programs: tuple[str, ...]  # must be on PATH where runs are submitted; (): runs start on that machine itself
    short_options: Mapping[str, str]  # of its own, by the name of the long one, of those that a choice depends on

    def facts(self, site: Site) -> Cluster:
        """The cluster as it is now. Raises SchedulerError if the scheduler does not answer."""

    def gpus(self, site: Site) -> tuple[str, ...]:
        """Names of the site's GPUs: a100, NVIDIA A30 ... Raises CtrainError if the scheduler does not answer."""

    def hosts(self, nodelist: str) -> tuple[str, ...]:
        """The names of the nodes that an option of the scheduler lists; () if they are not known. Pure."""

    def identity(self, plan: LaunchPlan) -> TaskIdentity:
        """How a task of the plan gets its number, node and rendezvous. Pure."""

    def render(self, plan: LaunchPlan, task: Task) -> Launch:
        """The scripts of a job that runs `task`, and the command that submits it, after the plan's `after`. Pure."""

    def check(self, launch: Launch) -> None:
        """Raise SchedulerError if the scheduler would never start the job, without queueing it."""

    def submit(self, launch: Launch, pass_fds: tuple[int, ...] = ()) -> str:
        """Start or queue the job; its id. Raises SchedulerError.

        The submitting process inherits the locked descriptor `pass_fds`: while it is locked, the submission must not
        be taken for failed.
        """

    def interact(self, launch: Launch) -> int:
        """Run an interactive plan on the terminal of this process to its end; its exit code. Raises SchedulerError."""

    def find(self, plan: LaunchPlan) -> Optional[str]:
        """The id of the job of a run whose submission was interrupted, if it was accepted."""

    def status(self, job_id: str, plan: LaunchPlan) -> Status:
        """The state of a job. Never raises: without an answer the phase is "running"."""

    def cancel(self, job_id: str, plan: LaunchPlan) -> None:
        """Cancel the plan's job, and no other with its number; returns before it has ended. Raises SchedulerError if it
        may still be running."""

    def name(self, job_id: str) -> str:
        """The job's name for users, as in "job 41873"."""

    def failed_task(self, job_log: str) -> Optional[FailedTask]:
        """The first task that job.log reports as killed or failed, for a rank that could not record its end."""

    def is_aftermath(self, line: str) -> bool:
        """Whether a line of job.log only tells that tasks have ended, or are being ended, and not why."""

    def out_of_memory(self, log: str) -> Optional[OutOfMemory]:
        """The first want of memory that the job's logs report; None if they report none."""
