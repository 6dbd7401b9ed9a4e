"""The option --on: verbs run on a login node, by ssh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

from ctrain_runtime import job
from ctrain_runtime.base.text import format_size, pluralize
from ctrain_runtime.base.version import ctrain_version
from ctrain_runtime.cli import mistakes
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.errors import RemoteError
from ctrain_runtime.job import NAME
from ctrain_runtime.remote import upload
from ctrain_runtime.remote.ssh import Connection, NoCtrainError


def forward(verb: str, own: Sequence[str], parser: argparse.ArgumentParser, args: argparse.Namespace, host: str) -> int:
    """Run the verb on a login node, with its arguments; of a run, its code is copied first. Returns its exit code."""
    words = _without(own, "--on") if args.login_node else _without(own, "--site")
    directory = _directory(verb, args)
    with ExitStack() as stack:
        code = upload.pack(directory) if directory else None
        if code:
            stack.enter_context(code.archive)
        link = stack.enter_context(Connection(host))
        asked = {"digest": code.digest if code else "", **where(args, is_named=bool(args.login_node))}
        answer = greet(link, **asked)
        if verb in ("run", "submit"):
            print_line(f"on        {host}; lines to type here need --on {host}", sys.stderr)
        place = ""
        if code:
            place = f"{answer['code']}/{code.name}"
            if not answer["has_code"]:
                link.call({"what": "code", **asked}, code.archive)
            files = f"{pluralize(code.files, 'file')}, {format_size(code.size)}"
            print_line(f"code      {code.directory} ({files}) -> {place}", sys.stderr)
        if code and args.job:
            at = mistakes.position(parser, words, args.job)
            words[at], place = f"./{code.name}", str(answer["code"])
        if verb == "report" and not args.text:
            return _report(link, words, args.output)
        return link.follow([verb, *words, *(["--", *args.rest] if args.rest else [])], place)


def where(args: argparse.Namespace, *, is_named: bool) -> dict[str, str]:
    """Where runs are there, by the options; the site's name counts there if the login node `is_named`."""
    return {"site": (args.site or "") if is_named else "", "runs": vars(args).get("runs", "")}


def greet(link: Connection, **request: str) -> dict[str, object]:
    """The answer of the ctrain there to the first request. Without one, this ctrain is put there. A note tells that, or
    that it is another version."""
    hello = {"what": "hello", "digest": "", **request}
    try:
        answer = link.call(hello)
    except NoCtrainError:
        print_line(f"note      no ctrain on {link.host}: this one is now there, in {link.install()}", sys.stderr)
        answer = link.call(hello)
    own, remote = ctrain_version(), answer.get("version")
    if own != remote:
        print_line(f"note      ctrain is {own or 'unknown'} here and {remote or 'unknown'} on {link.host}", sys.stderr)
    return answer


def _report(link: Connection, words: Sequence[str], output: str) -> int:
    """Write the page that the ctrain there makes. Raises CtrainError."""
    from ctrain_runtime.cli import report  # only here: of no other verb

    answer = link.call({"what": "page", "argv": list(words)})
    name = str(answer.get("name"))
    if not NAME.fullmatch(name):
        raise RemoteError(f"{link.host} offers a report of the name {name!r}", "Nothing was written")
    return report.write(output, name, str(answer.get("page")))


def _directory(verb: str, args: argparse.Namespace) -> Optional[Path]:
    """The directory that the run needs, as ctrain would find it here. Raises JobError, UsageError."""
    if verb not in ("run", "submit"):
        return None
    planned = job.find(args.job) if args.job else job.from_command(tuple(args.rest), Path.cwd())
    return planned.directory


def _without(own: Sequence[str], option: str) -> list[str]:
    """The words without an option and its value."""
    words, skip = list[str](), False
    for word in own:
        if not skip and word != option and not word.startswith(f"{option}="):
            words.append(word)
        skip = word == option and not skip
    return words
