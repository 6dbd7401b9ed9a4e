"""Make a definition, a requirements file for a user layer, or a job of what you already have.

  ctrain import Dockerfile                        # write definitions/NAME/NAME.def, on its own FROM
  ctrain import Dockerfile --on pytorch-cpu       # on an image of images.yaml, in place of FROM
  ctrain import Dockerfile --on store:pytorch:prod --target train    # on a published image; one of its stages
  ctrain import Singularity -o definitions/lab/lab.def               # a Singularity recipe, under another name
  ctrain import environment.yml --on pytorch      # conda's, as a requirements file; what pip has not is listed
  ctrain import uv.lock --on pytorch              # the locked versions
  ctrain import script job.sbatch                 # a script for sbatch or qsub: job.yaml, and the line that runs it
  ctrain import script job.pbs -o lab/job.yaml    # the job in another directory

Every line that is not carried over is listed, with the reason and what to do; then the exit code is 82.
In a job.yaml they are comments. Existing files are never overwritten. See: ctrain help import, ctrain help from-sbatch
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ctrain_builder.cli.import_script import import_script
from ctrain_builder.cli.options import find_image
from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions import parent as parents
from ctrain_builder.files import atomic
from ctrain_builder.imports.findings import Finding
from ctrain_builder.imports.kind import Kind, image_name, kind_of
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.errors import ConfigError, ImportIncomplete, UsageError
from ctrain_runtime.images.image import is_path
from ctrain_runtime.store.store import NAME_RE

if TYPE_CHECKING:
    from ctrain_builder.imports.entry import Below

_SHOWN_CHARACTERS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="+",
        metavar="[script] FILE",
        help="Dockerfile, Singularity recipe, requirements.txt, uv.lock, environment.yml; or script and a batch script",
    )
    parser.add_argument(
        "--on", metavar="IMAGE", help="what it is stacked on: an image of images.yaml, store:NAME, a .sif"
    )
    parser.add_argument("--target", default="", metavar="STAGE", help="stage of a Dockerfile (default: the last)")
    parser.add_argument("--context", type=Path, metavar="DIR", help="what COPY copies from (default: FILE's directory)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="file to create (default: definitions/NAME/NAME.def, job.yaml)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    *kinds, file = args.words
    args.file = Path(file)
    if kinds == ["script"]:
        if args.on or args.target or args.context or args.json:
            raise UsageError("ctrain import script takes no option but -o", "See: ctrain import --help")
        return import_script(args.file, args.output)
    if file == "script" and not args.file.exists():
        raise UsageError("ctrain import script needs a batch script", "As in: ctrain import script job.sbatch")
    if kinds:
        raise UsageError(f"ctrain import takes one file, not {len(args.words)}", "See: ctrain import --help")
    text = _read(args.file)
    kind = kind_of(args.file, text)
    if kind in (Kind.DOCKERFILE, Kind.RECIPE):
        return _definition(args, kind, text)
    return _layer(args, kind, text)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not a text file") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _definition(args: argparse.Namespace, kind: Kind, text: str) -> int:
    from ctrain_builder.imports import definitions  # with spython, which the other kinds do not need
    from ctrain_builder.imports.copies import Context

    if args.context and not args.context.is_dir():
        raise UsageError(f"--context {args.context} is not a directory", "Name the one that COPY copies from")
    output = _definition_path(args)
    context = Context((args.context or args.file.parent).resolve(), output.parents[2], output.parents[1])
    on = _below(args.on, output.parents[1]) if args.on else None
    name, where = output.stem, str(args.file)
    if kind is Kind.RECIPE:
        made = definitions.of_recipe(text, where, name, context, on)
    else:
        made = definitions.of_dockerfile(text, where, name, context, on, args.target)
    _create(output, made.text)
    catalog = output.parents[1] / image_spec.FILE
    add = [f"add to {_short(catalog)}, below `images:`{'' if catalog.is_file() else ' (a new file)'}:", made.entry]
    steps = [*add, f"then: ctrain build {name} --plan"]
    return _report(args, output, made.findings, steps, {"entry": made.entry})


def _definition_path(args: argparse.Namespace) -> Path:
    """Where the definition goes: below the directory of images.yaml, in one of its own name."""
    name = image_name(args.file)
    default = Path(os.environ.get("CTRAIN_DEFINITIONS", "definitions")) / name / f"{name}.def"
    path = (args.output or default).absolute()
    if path.suffix != ".def" or path.parent.name != path.stem or not NAME_RE.fullmatch(path.stem):
        raise UsageError(f"-o {args.output} is not the place of a definition", f"For example: -o {default}")
    return Path(os.path.realpath(path.parents[1])) / path.stem / path.name


def _below(reference: str, directory: Path) -> Below:
    """What --on names: an image of images.yaml, or one that exists."""
    if reference.startswith(parents.STORE) or is_path(reference):
        parents.check(reference)
        return reference
    has_catalog = (directory / image_spec.FILE).is_file()
    return find_image(directory if has_catalog else image_spec.packaged(), reference, "")


def _layer(args: argparse.Namespace, kind: Kind, text: str) -> int:
    if not args.on:
        raise UsageError(
            f"{args.file}: packages are added to a published image", "Name it: --on IMAGE (see: ctrain images)"
        )
    made: Path = args.file
    findings: Sequence[Finding] = ()
    if kind is not Kind.REQUIREMENTS:
        from ctrain_builder.imports import packages, uv_lock

        of = uv_lock.of_lock if kind is Kind.UV_LOCK else packages.of_environment
        needed = of(text, str(args.file))
        if not needed.lines:
            return _report(args, None, needed.findings, ["no packages are left: no layer is needed"], {"command": ""})
        made, findings = args.output or args.file.with_name(f"{args.file.stem}-requirements.txt"), needed.findings
        _create(made, packages.requirements_text(needed.lines, args.file.name))
    layer = f"{args.file.stem}.sqsh"
    command = shlex.join(["ctrain", "layer", "build", str(made), "--on", args.on, "-o", layer])
    run = shlex.join(["ctrain", "run", "--image", args.on, "--layer", layer])
    steps = [f"build the layer: {command}", f"run with it:     {run} ..."]
    return _report(args, made if made != args.file else None, findings, steps, {"command": command})


def _create(path: Path, text: str) -> None:
    other = "Name another file: -o OUT"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.create_text(path, text)
    except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", other) from error
    except FileExistsError as error:
        raise UsageError(f"{path} exists already, and is not overwritten", other) from error


def _report(
    args: argparse.Namespace,
    output: Optional[Path],
    findings: Sequence[Finding],
    steps: Sequence[str],
    more: Mapping[str, Any],
) -> int:
    """Say what was written and what was not. Raises ImportIncomplete if somebody must act on a line."""
    lost = [finding for finding in findings if finding.lost]
    if args.json:
        listed = [{**dataclasses.asdict(finding), "advice": finding.advice} for finding in findings]
        print(json.dumps({"output": output and str(output), "findings": listed, **more}, indent=2))
    else:
        if output:
            print(f"written: {_short(output)}")
        for title, some in (("not carried over", lost), ("to know", [one for one in findings if not one.lost])):
            print("\n".join([f"\n{title}:", *_as_lines(some)] if some else []), end="\n" if some else "")
        print("\n" + "\n".join(steps))
    if lost:
        what = f"{pluralize(len(lost), 'line')} of {args.file} not carried over"
        raise ImportIncomplete(what, "They are listed above, each with what to do")
    return 0


def _as_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Each line once, with all that is to be told of it; the same of several lines in a row is told after the last."""
    lines = [
        (f"  line {line}: {_cut(text)}", tuple(dict.fromkeys(f"    {finding.advice}" for finding in some)))
        for (line, text), some in itertools.groupby(findings, lambda finding: (finding.line, finding.text))
    ]
    for advice, alike in itertools.groupby(lines, lambda line: line[1]):
        yield from (line for line, _ in alike)
        yield from advice


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ..."


def _short(path: Path) -> str:
    """A path as it is typed here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
