"""Write a commented starting point: a job, a definition of an image, a site or a user layer. No file is overwritten.

  ctrain init job                                    # job.yaml
  ctrain init job --from train.py                    # ... with image, launcher and data that this program needs
  ctrain init definition -o definitions/lab/lab.def  # a layer on an image
  ctrain init site -o ourcluster.yaml                # to be filled in; ctrain site init writes what it detects
  ctrain init layer                                  # layer.txt: packages over an image

A program is read, not run: what it imports, and which arguments it declares.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import JOB_FILE
from ctrain_runtime.starting_points import templates
from ctrain_runtime.store.store import NAME_RE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=list(templates.KINDS), help="what to start")
    default = ", ".join(kind.output for kind in templates.KINDS.values())
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"file to write (default: {default})")
    parser.add_argument(
        "--from", dest="program", type=Path, metavar="PROGRAM", help="program of a job: a .py or .sh file"
    )


def execute(args: argparse.Namespace) -> int:
    if args.program and args.kind != "job":
        raise UsageError(f"--from is for jobs, not for a {args.kind}", "Use: ctrain init job --from PROGRAM")
    kind, text = templates.KINDS[args.kind], templates.read(args.kind)
    path = args.output or (args.program.parent / kind.output if args.program else Path(kind.output))
    _check_place(args.kind, path)
    if args.program:
        from ctrain_runtime.starting_points import job_proposal

        text = job_proposal.fill(text, job_proposal.propose(args.program, path.parent))
    if args.kind == "definition":
        text = text.replace(templates.MY_IMAGE, path.stem)
    templates.write_new(path, text, "Write another file: -o FILE")
    texts = {"directory": _typed(path.parent), "path": _typed(path), "name": shlex.quote(path.stem)}
    following = kind.following.format(**texts)
    print(f"wrote {path}\nread it and change it; then: {following}")
    return 0


def _check_place(kind: str, path: Path) -> None:
    """Raise UsageError for a file that no command would find."""
    directory = path if path.is_dir() else path.parent
    if kind == "job" and path.name != JOB_FILE:
        what = f"--output {path}: a job is a directory with a {JOB_FILE}"
        raise UsageError(what, f"As in: -o {shlex.quote(str(directory / JOB_FILE))}")
    if kind == "definition" and (
        path.suffix != ".def" or path.parent.name != path.stem or not NAME_RE.fullmatch(path.stem)
    ):
        what = f"--output {path}: a definition is NAME/NAME.def, of small letters, digits and -"
        raise UsageError(what, "As in: -o definitions/lab/lab.def")


def _typed(path: Path) -> str:
    """A path as a shell takes it, and ctrain not for a name."""
    return shlex.quote(str(path) if path.is_absolute() or str(path) == "." else f"./{path}")
