"""The options of the verbs that start runs, and the Request that they make."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from typing import Any, get_args

from ctrain_runtime.cli.output import Activity
from ctrain_runtime.job import Launcher, OnHang, ParameterStyle
from ctrain_runtime.plan.options import Options, parse_env
from ctrain_runtime.plan.profile import DEFAULT_RANKS, DEFAULT_STEPS, TOOLS
from ctrain_runtime.run.parameters import parse_setting
from ctrain_runtime.run.request import Request, make_request
from ctrain_runtime.site.select import FALLBACK

IMAGE = (
    "NAME[:CHANNEL|:VERSION], NAME@DIGEST, the path of a .sif or a sandbox, or a reference as in"
    " docker://HOST/NAME:TAG (oras://, library://) (default: CTRAIN_IMAGE"
)
SETTINGS = {  # that every scheduler has
    "account": "account or project to charge",
    "qos": "quality of service",
    "constraint": "features that the nodes must have",
    "mem": "memory per node (default: the share of the requested GPUs, where memory is allocated)",
    "nodelist": "nodes to use",
    "exclude": "nodes not to use",
    "reservation": "reservation to use",
    "comment": "comment on the job, mandatory on some sites",
}


def add_arguments(parser: argparse.ArgumentParser, *, takes_job: bool = True) -> argparse._ArgumentGroup:
    """The options of a run: first those that most people need, then all others by subject. Returns the last group, for
    further options of a verb that few need."""
    parser.usage = f"%(prog)s [OPTIONS]{' [JOB] [-- ARGUMENTS]' if takes_job else ''}"
    add = parser.add_argument
    if takes_job:
        add("job", nargs="?", metavar="JOB", help="a packaged job, or ./DIRECTORY with a job.yaml")
    else:
        parser.set_defaults(job="", resume="", restarts=0, spare_nodes=0, retries=0, until_done=False)
    add("--nodes", type=int, metavar="N", help="number of nodes")
    _add_gpus(parser)
    add("--image", default="", metavar="IMAGE", help=f"{IMAGE}, then the job's)")
    _add_basics(parser)
    if takes_job:
        add("--resume", default="", metavar="RUN", help="run to resume; its checkpoint/ is mounted at /resume")
        _add_parameters(parser)
    _add_ranks(parser, takes_job=takes_job)
    _add_checks(parser, takes_job=takes_job)
    _add_profile(parser)
    image = _add_image(parser)
    image.add_argument(
        "--stage",
        choices=("auto", "always", "never"),
        default="",
        help="copy the image to the nodes' own disks before the ranks start (default: auto, where it pays)",
    )
    text = "copy the data set, a SquashFS image, to the nodes' own disks, too"
    image.add_argument("--stage-data", action="store_true", help=text)
    _add_scheduler(parser)
    others = _add_place(parser)
    if takes_job:
        text = "start once this earlier run has completed (afterok of the scheduler)"
        others.add_argument("--after", default="", metavar="RUN", help=text)
        text = "command that is told of start and end (default: `notify` of the site file)"
        others.add_argument("--notify", default="", metavar="COMMAND", help=text)
    return others


def add_plain(parser: argparse._ActionsContainer) -> None:
    """The option --plain, of verbs that watch a run."""
    parser.add_argument("--plain", action="store_true", help="print lines only, also on a terminal: no live view")


def add_single_rank(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verbs that start one rank in an image."""
    parser.usage = "%(prog)s [OPTIONS] [IMAGE] [-- ARGUMENTS]"
    add = parser.add_argument
    add("image", nargs="?", default="", metavar="IMAGE", help=f"{IMAGE})")
    add("--here", action="store_true", help="run on this machine, with the image and settings of the site")
    add("--dry-run", action="store_true", help="print the plan and the scripts, run nothing")
    parser.set_defaults(job="", resume="", preflight="off", stage="", nodes=1, ranks_per_node=1, launcher="env")
    parser.set_defaults(independent=False, restarts=0, spare_nodes=0, retries=0, until_done=False)
    _add_gpus(parser)
    _add_basics(parser)
    _add_image(parser)
    _add_scheduler(parser)
    _add_place(parser)


def _add_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs per node (default: all)")


def _add_basics(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", default="", metavar="PATH", help="data set, a directory or a SquashFS image, mounted read-only")
    add("--partition", default="", metavar="PARTITION", help="partition of the cluster")
    add("--time", default="", metavar="LIMIT", help="time limit, as in 2:00:00 or 90m")
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable for the program; NAME alone passes this shell's value on and writes it nowhere (repeatable)",
    )
    add(
        "--mount",
        dest="mounts",
        action="append",
        default=[],
        metavar="SRC[:DST[:ro]]",
        help="bind-mount SRC at DST (default: same path; `:ro` read-only; repeatable)",
    )


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("program").add_argument
    text = "parameter, added to the command (repeatable)"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    add("--live", action="store_true", help="run in the job's directory itself: an edit while it waits counts")
    text = "how parameters are written in the command (default: the job's, else --key value)"
    add("--parameter-style", choices=get_args(ParameterStyle), default="", help=text)


def _add_ranks(parser: argparse.ArgumentParser, *, takes_job: bool) -> None:
    add = parser.add_argument_group("ranks").add_argument
    add("--ranks-per-node", type=int, metavar="N", help="ranks per node (default: one per GPU, or 1 without GPUs)")
    add(
        "--launcher",
        choices=get_args(Launcher),
        default="",
        help="how ranks start (default: the job's; auto: as program and image need; node: the command, once per node, "
        "starts the node's ranks)",
    )
    add("--independent", action="store_true", help="ranks form no world: each gets CTRAIN_TASK and GPUs of its own")
    if takes_job:
        text = "restart the program in its job, from its last checkpoint, if a rank fails (default: the job's, else 0)"
        add("--restarts", type=int, metavar="N", help=text)
        text = (
            "what is done if the run hangs: restart it (with --restarts), or stop it (default: the job's, else report)"
        )
        add("--on-hang", choices=get_args(OnHang), default="", help=text)
        text = (
            "silence of all ranks after which the run counts as hung, as in 90s, 10m (default: the job's, else learned)"
        )
        add("--hang-after", default="", metavar="DURATION", help=text)
        text = "nodes of the job that stand by, so that a restart can leave out bad ones, where jobs outlive these"
        add("--spare-nodes", type=int, default=0, metavar="N", help=text)
        text = "queue the job again, up to N times, if its time limit, a preemption or a lost node ends it (default: 0)"
        add("--retries", type=int, metavar="N", help=text)
        text = "the same as often as it takes, until the program ends with exit code 0 or gets no further"
        add("--until-done", action="store_true", help=text)


def _add_checks(parser: argparse.ArgumentParser, *, takes_job: bool) -> None:
    add = parser.add_argument_group("checks before the start").add_argument
    add(
        "--preflight",
        choices=("off", "warn", "strict"),
        default="",
        help="check nodes, network and ranks before the program starts: not at all, only to warn, or to stop the job "
        "(default: strict, where something is not proven yet)",
    )
    if takes_job:
        add("--estimate", action="store_true", help="estimate memory and time of the training; refuse what cannot fit")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("profile, of a program that shows its steps (ctrain help contract)").add_argument
    add("--profile", choices=TOOLS, default="", help="profile some steps of rank 0 by this package of the image")
    text = f"the ranks that are profiled, as in 0,4 (default: {DEFAULT_RANKS})"
    add("--profile-ranks", default="", metavar="RANKS", help=text)
    text = f"which of the steps that each makes after its start (default: {DEFAULT_STEPS})"
    add("--profile-steps", default="", metavar="FIRST-LAST", help=text)


def _add_image(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("image")
    add = group.add_argument
    text = "user layer over the image (repeatable)"
    add("--layer", dest="layers", action="append", default=[], metavar="FILE", help=text)
    add("--store", metavar="DIR", help="store of the image (default: CTRAIN_STORE, then the site's)")
    add("--pull", action="store_true", help="pull the image of a reference again, even if it is cached")
    return group


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("scheduler").add_argument
    for name, text in SETTINGS.items():
        add(f"--{name}", default="", metavar=name.upper(), help=text)
    add("--cpu-bind", default="", metavar="BINDING", help="binding of ranks (default: cores, if the site allows)")
    add(
        "--scheduler-option",
        dest="scheduler_options",
        action="append",
        default=[],
        metavar="OPTION",
        help="any other option of the scheduler, as in --scheduler-option=--licenses=x (repeatable)",
    )


def _add_place(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("site, record and output")
    add_site(group)
    add_on(group)
    add_runs(group)
    group.add_argument("--name", default="", help="name of the run (default: the job's and the time)")
    return group


def add_site(parser: argparse._ActionsContainer) -> None:
    """The option --site."""
    parser.add_argument("--site", metavar="SITE", help="name or file of a site (default: CTRAIN_SITE, then detected)")


def add_on(
    parser: argparse._ActionsContainer,
    dest: str = "login_node",
    default: str = "`login` of the site of --site or CTRAIN_SITE",
) -> None:
    """The option --on: `main` runs verbs that have it as `login_node` there; `--on IMAGE` of others is another one."""
    text = f"login node, HOST or USER@HOST, reached by your ssh (default: {default})"
    parser.add_argument("--on", default="", dest=dest, metavar="HOST", help=text)


def add_runs(parser: argparse._ActionsContainer) -> None:
    """The option --runs, of all verbs on runs."""
    parser.add_argument(
        "--runs", default="", metavar="DIR", help="parent directory of runs (default: CTRAIN_RUNS, then the site's)"
    )


def request_of(args: argparse.Namespace) -> Request:
    """The request of a command line. Raises UsageError, SiteError, ConfigError."""
    dry_run = bool(vars(args).get("dry_run"))
    request = make_request(options_of(args), dry_run=dry_run, report=Activity(sys.stderr).report)
    if vars(args).get("here"):
        site = replace(request.site.site, scheduler=FALLBACK)
        return replace(request, site=replace(request.site, site=site))
    return request


def options_of(args: argparse.Namespace) -> Options:
    """The options of a command line. Raises UsageError."""
    given: dict[str, Any] = {
        **{name: tuple(value) if isinstance(value, list) else value for name, value in vars(args).items()},
        "command": tuple(args.rest),
        "parameters": dict(map(parse_setting, vars(args).get("set", ()))),
        "env": parse_env(args.env),
        "settings": {name: value for name in SETTINGS if (value := getattr(args, name))},
    }
    return Options(**{each.name: given[each.name] for each in fields(Options) if given.get(each.name) is not None})
