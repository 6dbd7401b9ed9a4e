"""Finds the verb, passes it its arguments, and turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, Optional

from ctrain_runtime.cli import output
from ctrain_runtime.errors import CtrainError, DiskFullError, UsageError
from ctrain_runtime.remote import SERVE

RUN, LOOK, IMAGES, ADMIN, MACHINE = GROUPS = ("run", "look and plan", "images", "administration", "this machine")


@dataclass(frozen=True)
class Verb:
    """A word after `ctrain`. Its module has add_arguments(parser) and execute(args) -> exit code."""

    name: str
    group: str  # one of GROUPS
    help: str
    module: str  # imported only when the verb is used: start-up is measured
    takes_command: bool = False  # arguments after `--` go to the program that it starts
    default_action: str = ""  # of its actions, for a first argument that is none of them


RUNTIME_VERBS = (
    Verb("run", RUN, "run a job on a cluster or on this machine", "ctrain_runtime.cli.run", takes_command=True),
    Verb("submit", RUN, "submit a job and return once it is queued", "ctrain_runtime.cli.submit", takes_command=True),
    Verb("replay", RUN, "run again what a run was; tell what differs", "ctrain_runtime.cli.replay"),
    Verb("attach", RUN, "watch a run that was submitted earlier", "ctrain_runtime.cli.attach"),
    Verb("status", RUN, "show where a run stands", "ctrain_runtime.cli.status"),
    Verb("logs", RUN, "print or follow the output of ranks", "ctrain_runtime.cli.logs"),
    Verb("wait", RUN, "wait until runs have ended", "ctrain_runtime.cli.wait"),
    Verb("cancel", RUN, "cancel a run", "ctrain_runtime.cli.cancel"),
    Verb("fetch", RUN, "fetch the results of runs from a login node", "ctrain_runtime.cli.fetch"),
    Verb("shell", RUN, "open a shell in an image on a compute node", "ctrain_runtime.cli.shell", takes_command=True),
    Verb("jupyter", RUN, "start JupyterLab on a compute node", "ctrain_runtime.cli.jupyter", takes_command=True),
    Verb("init", RUN, "write a first job.yaml, definition, site file or layer", "ctrain_runtime.cli.init"),
    Verb("runs", LOOK, "list your runs, and remove old ones", "ctrain_runtime.cli.runs"),
    Verb(
        "report", LOOK, "make a page about runs: curves, timeline, failures; compare runs", "ctrain_runtime.cli.report"
    ),
    Verb("compare", LOOK, "tell in which settings, packages and results runs differ", "ctrain_runtime.cli.compare"),
    Verb("export", LOOK, "copy what runs measured to TensorBoard, MLflow or W&B", "ctrain_runtime.cli.export"),
    Verb("tensorboard", LOOK, "show the curves of runs in TensorBoard", "ctrain_runtime.cli.tensorboard"),
    Verb("estimate", LOOK, "estimate the memory, time and layout of a training", "ctrain_runtime.cli.estimate"),
    Verb("bench", LOOK, "measure the network as the ranks of a job see it", "ctrain_runtime.cli.bench"),
    Verb("images", IMAGES, "list the published images", "ctrain_runtime.cli.images", default_action="show"),
    Verb("doctor", MACHINE, "check this machine, its site and stores for problems", "ctrain_runtime.cli.doctor"),
    Verb("site", MACHINE, "list, show and check sites: the profiles of clusters", "ctrain_runtime.cli.site"),
    Verb("completion", MACHINE, "print the script for completion in bash or zsh", "ctrain_runtime.cli.completion"),
    Verb("help", MACHINE, "explain a command or a topic, such as exit-codes", "ctrain_runtime.cli.help"),
)
BROKEN_PIPE = 128 + 13  # as shells report SIGPIPE
GARBAGE_THRESHOLD = 50_000  # objects: what imports make stays, and to look for garbage in it took 5 % of a start
COMPLETE = "__complete"  # internal: called by the script of `ctrain completion`


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports errors as ctrain does: one line, exit code 64."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"See: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from ctrain_runtime.base.suggest import suggest

            near = suggest(str(value), map(str, action.choices or ()))
            raise UsageError(str(error), f"{near} See: {self.prog} --help".strip()) from error


def main(verbs: Sequence[Verb], argv: Sequence[str], *, is_there: bool = False) -> int:
    """Run `ctrain ARGV...` and return the exit code. `is_there`: on the login node that the user has chosen.

    SIGTERM and SIGHUP end it as Ctrl-C does: commands that it has started are ended, and temporary files removed.
    """
    output.prepare()
    gc.set_threshold(GARBAGE_THRESHOLD)
    as_json = "--json" in _split(argv)[0]
    # Signals that the caller ignores stay ignored, as SIGHUP under nohup.
    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ending:
            signal.signal(number, _interrupt)
        code = _dispatch(verbs, argv, is_there=is_there)
        sys.stdout.flush()  # here a reader that has gone is still handled
        return code
    except CtrainError as error:
        return _fail(error, as_json)
    except ModuleNotFoundError as error:
        return _fail(_missing_package(error), as_json)
    except BrokenPipeError:
        return BROKEN_PIPE  # the reader (head, less) has seen enough
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        output.print_line(f"ctrain: ended by {number.name}", sys.stderr)
        return 128 + number
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = DiskFullError(f"no space left for {error.filename or 'a file'}", "Free disk space and retry")
            return _fail(full, as_json)
        return _fail(CtrainError(f"{error.filename or 'system'}: {error.strerror or error}"), as_json)
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
        output.flush_all()


def _interrupt(number: int, _frame: Optional[FrameType]) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number))


def _missing_package(error: ModuleNotFoundError) -> CtrainError:
    """The error for a package that a command needs and `pip install` without extras does not bring."""
    package = (error.name or "").partition(".")[0]
    if package.startswith("ctrain"):
        raise error
    from ctrain_runtime.base.paths import missing_package_hint

    what = f"this command needs the Python package {package}, which is not installed"
    return CtrainError(what, missing_package_hint(package))


def _dispatch(verbs: Sequence[Verb], argv: Sequence[str], *, is_there: bool) -> int:
    known = {verb.name: verb for verb in verbs}
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview(verbs))
        return 0
    if argv[0] == "--version":
        from ctrain_runtime.cli import version

        print(*version.lines(), sep="\n")
        return 0
    if argv[0] == COMPLETE and len(argv) == 3:
        from ctrain_runtime.cli import complete

        sys.stdout.writelines(f"{word}\n" for word in complete.words(verbs, *argv[1:]))
        return 0
    if argv[0] == SERVE and len(argv) == 2:
        from ctrain_runtime.cli import login_node

        return login_node.serve(verbs, argv[1])
    if argv[0] not in known:
        from ctrain_runtime.cli import mistakes

        raise mistakes.unknown_command(argv[0], list(known))
    verb = known[argv[0]]
    own, rest = _split(argv[1:])
    if rest and not verb.takes_command:
        raise UsageError(f"ctrain {verb.name} takes no arguments after --", f"See: ctrain {verb.name} --help")
    parser = parser_of(verb)
    if verb.default_action and own and _is_no_action(own[0], parser):
        own.insert(0, verb.default_action)
    args, unknown = parser.parse_known_args(own, argparse.Namespace(rest=rest, verbs=verbs))
    if unknown or verb.takes_command:
        from ctrain_runtime.cli import mistakes

        mistakes.check(parser, own, args, unknown)
    if "login_node" in args and not is_there and (host := _login_node(args)):
        from ctrain_runtime.cli import on

        return on.forward(verb.name, own, parser, args, host)
    return int(importlib.import_module(verb.module).execute(args))


def _login_node(args: argparse.Namespace) -> str:
    """The login node on which a verb is to run; "": here. Raises SiteError, ConfigError."""
    if args.login_node or vars(args).get("stays_here") or not (args.site or os.environ.get("CTRAIN_SITE")):
        return str(args.login_node)
    from ctrain_runtime.site.select import login_of  # only here: start-up is measured

    return login_of(args.site or "")


def _is_no_action(word: str, parser: argparse.ArgumentParser) -> bool:
    """Whether a first argument is neither an option nor an action, nor looks like a mistyped one."""
    from ctrain_runtime.base.suggest import closest

    actions = next(action.choices or () for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return not word.startswith("-") and word not in actions and not closest(word, actions)


def parser_of(verb: Verb) -> Parser:
    """The parser of the verb's options and arguments."""
    module = importlib.import_module(verb.module)
    parser = Parser(
        prog=f"ctrain {verb.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first `--`; those after it are the program's."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def _overview(verbs: Sequence[Verb]) -> str:
    parts = ["usage: ctrain COMMAND [OPTIONS]", "Distributed deep learning in Apptainer containers on supercomputers."]
    for group in GROUPS:
        rows = [f"  {verb.name:<12}{verb.help}" for verb in verbs if verb.group == group]
        parts += ["\n".join((f"{group}:", *rows))] if rows else []
    parts.append("ctrain COMMAND --help explains a command; ctrain help lists further topics.")
    return "\n\n".join(parts)


def _fail(error: CtrainError, as_json: bool) -> int:
    """Print the error in one line; with --json, also the object that a reader of stdout expects."""
    if as_json:
        import json

        output.print_line(json.dumps({"error": str(error), "exit_code": error.exit_code}), sys.stdout)
    output.print_line(f"ctrain: {error}", sys.stderr)
    return error.exit_code
