"""What ctrain does on a login node for the ctrain of a user's own machine (--on, ctrain fetch)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ctrain_runtime.base.version import ctrain_version
from ctrain_runtime.cli import report
from ctrain_runtime.cli.main import Parser, Verb, main
from ctrain_runtime.cli.runs import chosen_runs
from ctrain_runtime.remote import copies, results, upload
from ctrain_runtime.remote.ssh import LETTERS
from ctrain_runtime.remote.words import MARK, from_word
from ctrain_runtime.run import parent_directories
from ctrain_runtime.run.pick_up import pick_up, refresh
from ctrain_runtime.site.select import select_site


def serve(verbs: Sequence[Verb], word: str) -> int:
    """Do what a request asks for; the exit code."""
    request = from_word(word)
    if request["what"] == "run":
        return _run(verbs, request)
    if request["what"] == "send":
        wanted = json.load(sys.stdin)
        _begin_answer()
        results.send(Path(request["run"]), wanted, sys.stdout.buffer)
        return 0
    answer = {"hello": _hello, "code": _code, "list": _list, "page": _page}[request["what"]](request)
    _begin_answer()
    sys.stdout.write(json.dumps(answer))
    return 0


def _begin_answer() -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\n" + MARK)
    sys.stdout.buffer.flush()


def _run(verbs: Sequence[Verb], request: Mapping[str, Any]) -> int:
    if request["piped"]:
        _listen()
    with ExitStack() as stack:
        if request["directory"]:
            stack.enter_context(copies.in_use(Path(request["directory"])))
            os.chdir(request["directory"])
        return main(verbs, request["argv"], is_there=True)


def _listen() -> None:
    """Make signals of the letters on standard input. Its end is that of the connection: as with a terminal that is
    closed, the run goes on."""
    private, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    numbers = {letter: number for number, letter in LETTERS.items()}

    def listen() -> None:
        while letter := os.read(private, 1):
            os.kill(os.getpid(), numbers.get(letter, signal.SIGHUP))
        os.kill(os.getpid(), signal.SIGHUP)

    threading.Thread(target=listen, daemon=True).start()


def _hello(request: Mapping[str, Any]) -> dict[str, Any]:
    """The version of ctrain, and the directory of the code with this digest, if the request has one."""
    place = _place_of_code(request) if request["digest"] else None
    return {"version": ctrain_version(), "code": str(place or ""), "has_code": bool(place and copies.touch(place))}


def _code(request: Mapping[str, Any]) -> dict[str, Any]:
    upload.unpack(sys.stdin.buffer, _place_of_code(request))
    return {}


def _place_of_code(request: Mapping[str, Any]) -> Path:
    return _parent(request) / upload.CODE / str(request["digest"])


def _parent(request: Mapping[str, Any]) -> Path:
    """The parent directory of runs, by the options --site and --runs."""
    return parent_directories.of_site(select_site(request["site"], {"runs": request["runs"]}).site)


def _list(request: Mapping[str, Any]) -> dict[str, Any]:
    """The runs that are named, with their files."""
    answer = []
    for path in chosen_runs(request["wanted"], parent_directories.searched(request["site"], request["runs"])):
        _, conclusion = refresh(pick_up(path))  # completes its record
        files, links = results.listed(path, request["names"])
        listed = {"files": [astuple(file) for file in files], "links": links}
        answer.append({"run": str(path), "ended": bool(conclusion), **listed})
    return {"runs": answer}


def _page(request: Mapping[str, Any]) -> dict[str, Any]:
    """The page of `ctrain report` with these arguments."""
    parser = Parser(prog="ctrain report", allow_abbrev=False)
    report.add_arguments(parser)
    name, page = report.made(parser.parse_args(request["argv"]))
    return {"name": name, "page": page}
