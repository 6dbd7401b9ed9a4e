"""The options of the verbs that start runs, each declared once: for the command line, for programs and for the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class Options:
    """What is to run, and where. None and "" mean what they mean on the command line when an option is left out: the
    job's value, then the site's.

    `job` is a packaged job or the path of a directory with a job.yaml, `command` what follows `--`: without a job the
    command, else further arguments. `settings` are options that every scheduler has (account, qos, mem, exclude ...).
    """

    job: str = ""
    command: Sequence[str] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    parameter_style: str = ""  # "--key value" or "key=value"
    image: str = ""
    pull: bool = False  # again, even if it is cached
    layers: Sequence[str] = ()
    nodes: Optional[int] = None
    gpus_per_node: Optional[int] = None
    ranks_per_node: Optional[int] = None
    launcher: str = ""
    independent: bool = False
    partition: str = ""
    time: str = ""
    data: str = ""
    env: Mapping[str, Optional[str]] = field(default_factory=dict)  # None: this process's value, written nowhere
    mounts: Sequence[str] = ()  # SRC[:DST[:ro]]
    preflight: str = ""  # off, warn or strict
    estimate: bool = False  # refuse what cannot fit
    stage: str = ""  # auto, always or never
    stage_data: bool = False
    resume: str = ""  # a run
    after: str = ""  # a run
    restarts: Optional[int] = None
    on_hang: str = ""  # report, restart or stop
    hang_after: str = ""  # as in 90s, 10m
    spare_nodes: int = 0
    retries: Optional[int] = None
    until_done: bool = False
    profile: str = ""  # torch, pyinstrument or nsys
    profile_ranks: str = ""
    profile_steps: str = ""
    cpu_bind: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    scheduler_options: Sequence[str] = ()
    notify: str = ""  # a command that is told of start and end
    live: bool = False  # in the job's directory itself, not in a copy
    name: str = ""  # of the run
    site: str = ""
    store: str = ""
    runs: str = ""  # the parent directory of runs


def parse_env(texts: Iterable[str]) -> dict[str, Optional[str]]:
    """The variables of --env NAME[=VALUE]; None for a name alone."""
    pairs = (text.partition("=") for text in texts)
    return {name: value if equals else None for name, equals, value in pairs}
