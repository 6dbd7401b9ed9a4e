"""The names of all files of a run directory: scripts write them, run/ reads them. Format: docs/run-directory.md."""

from __future__ import annotations

PLAN = "plan.json"
RECORD = "record.json"
JOB_SCRIPT, TASK_SCRIPT, RANK_SCRIPT = "job.sh", "task.sh", "rank.sh"
STAGE_SCRIPT, STAGE_DATA_SCRIPT, RELAY = "stage.sh", "stage_data.sh", "relay.py"
STAGE_KEY = ".stage"  # the secret of the nodes that copy files, for their owner only, until they have
LIBRARY = "ctrain.bash"  # the functions of all these scripts
INSIDE_SCRIPT = "inside.sh"  # the first that the container of a rank runs
PREFLIGHT_SCRIPT = "preflight.sh"
NODE_SCRIPT = "node.sh"  # starts the tasks of a node, where the scheduler starts one process per node
GUARD_SCRIPT = "guard.sh"  # starts a task, where what the scheduler starts is killed without a warning

PROGRAM_MODULE = "python/ctrain_program.py"  # what a program may import; alone in a directory that it adds to its path
RENDEZVOUS = "rendezvous.py"
SCAN = "scan.py"  # looks who joins the world of the run, one process per node
WATCH = "watch.py"  # looks for signs of life of the ranks of a node
JUDGE = "judge.py"  # whether the run hangs, beside job.sh
STACKS_PREPARER = "stacks.py"  # a sitecustomize, which makes Pythons of ranks write their stacks when they are asked
WATCHED = "watch"  # a file per node, by its watch
PREFLIGHT_PROGRAMS = "inside"
BENCH_PROGRAM, BENCH = "collectives.py", "bench.jsonl"

EVENTS = "events.jsonl"  # of the job, written on one host only: appends from several hosts get lost on NFS
NODES = "nodes"  # a file of events per node, written by its tasks and ranks
LOGS = "logs"
JOB_LOG = f"{LOGS}/job.log"
SCHEDULER_LOG = f"{LOGS}/scheduler.log"  # of schedulers that deliver a job's output only when it has ended
HOSTS = "hosts"  # of the run, one per line
ENVIRONMENT = ".environment"  # values of the caller's variables, for its owner only, until the job ends
SIGNALS = "signals"  # names of files are the signals that a job has got, where the scheduler passes none to all nodes
CODE, CODE_DIFF = "code", "code.diff"  # a copy of the job's directory; what differs there from its commit
MANIFEST = "manifest.json"  # of code and data, as they were at the submission
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint"
STACKS = "stacks"  # of ranks that hung: files of text
PROFILES = "profiles"  # of ranks: what the profiler has written, and rankN.txt in short
COLLECTIVES = "collectives"  # the last ones of torch's ranks, where one timed out
NOTIFIED = "notified"  # exists once the user's command is told of the end
CANCELLED = "cancelled"  # exists once ctrain was asked to cancel the run; not empty: on a host that cannot signal it
SUBMIT_LOCK = ".submit"  # locked while the submission is under way, by ctrain and by what it starts
PREPARING, SUBMITTING = b"preparing\n", b"submitting\n"  # in it: until the scheduler is asked, and from then on

# What tells of a run afterwards; scripts are none of them, since task.sh holds values of secrets.
RESULTS = (
    *(PLAN, RECORD, EVENTS, NODES, LOGS, HOSTS, METRICS, MANIFEST, CODE_DIFF),
    *(WATCHED, STACKS, PROFILES, COLLECTIVES, BENCH, NOTIFIED, CANCELLED),
)

SWEEP_SUFFIX = ".sweep.json"  # of the file of a sweep, beside the directories of its runs

MAX_RANK_LOGS = 256  # above this many ranks, those of a node share a log: files grow with nodes, not with ranks


def rank_log(rank: int, node_rank: int, world_size: int) -> str:
    """The log of a rank. Rank 0 always has its own: it is what users watch."""
    own = rank == 0 or world_size <= MAX_RANK_LOGS
    return f"{LOGS}/rank{rank}.log" if own else f"{LOGS}/node{node_rank}.log"
