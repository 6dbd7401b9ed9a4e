"""A first job.yaml for a program, by its text: what it imports, which arguments it declares. Nothing is executed."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import strict_yaml
from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import from_command
from ctrain_runtime.launchers import translate
from ctrain_runtime.plan.launcher_choice import COUNTED_BY_MPI, HOROVOD, LIBRARIES, Imports
from ctrain_runtime.run.imports import read_imports
from ctrain_runtime.run.lone_program import imported_modules, parse

PYTORCH, TENSORFLOW = (
    ["pytorch", "pytorch-cpu"],
    ["tensorflow", "tensorflow-cpu"],
)  # the names of definitions/images.yaml
DATA = "/data"
NAMED = 6  # at most, of a program's arguments
# Arguments that name a directory of data; --dataset alone may as well be a name.
_DATA = re.compile(r"(--?|)(data|data[_-]?(set)?[_-]?(dir|path|root|folder|directory))")
_IS_KERAS = re.compile(r"(tensorflow|keras|horovod\.tensorflow|horovod\.keras)\b")
_COMMENTS = re.compile(r"(?m)^\s*#.*$")

Keys = dict[str, tuple[Any, str]]  # of job.yaml: each with its value, and the reason


def propose(program: Path, directory: Path) -> Keys:
    """The keys of a job.yaml in `directory` for a program. Raises UsageError for one that no job there can start."""
    path, top = Path(os.path.abspath(program)), Path(os.path.abspath(directory))  # noqa: PTH100  # links stay links
    if not path.is_file():
        raise UsageError(f"program not found: {program}", "As in: ctrain init job --from train.py")
    if not path.is_relative_to(top):
        hint = f"Write it to a directory that holds the program: -o {path.parent}/job.yaml"
        raise UsageError(f"a job in {top} does not see {path}", hint)
    relative = str(path.relative_to(top))
    if path.suffix == ".sh":
        return _of_script(path, relative)
    tree = parse(path)
    if tree is None or path.suffix != ".py":
        hint = "Without --from, ctrain init job writes a job to be filled in"
        this = ".".join(map(str, sys.version_info[:2]))
        why = (
            f"Python {this} cannot parse it"
            if path.suffix == ".py"
            else "neither Python (.py) nor a shell script (.sh)"
        )
        raise UsageError(f"cannot read {program}: {why}", hint)
    imports = read_imports(from_command(("python", relative), top))
    return _of_python(relative, path.name, tree, imports)


def fill(template: str, keys: Keys) -> str:
    """A template of job.yaml with these keys, each in the place of the template's own."""
    for key, (value, reason) in keys.items():
        line = strict_yaml.entry(key, value, reason).replace("\\", r"\\")  # which re.sub reads as escapes
        template = re.sub(rf"(?m)^#?{key}:.*$", line, template, count=1)
    return template


def _of_script(path: Path, relative: str) -> Keys:
    """A script is run as it is: once per node if it starts ranks, else in each rank."""
    text = _COMMENTS.sub("", path.read_text(encoding="utf-8", errors="replace"))
    translated = translate.keep(("bash", "-c", text), requested=True)
    if translated.by and translated.launcher != translate.NODE:
        problem = f"{path.name} starts its program by {translated.by}, which would run in each rank"
        raise UsageError(problem, "Name that program, or remove it from the script")
    starts = f"{path.name} starts ranks by {translated.by}" if translated.by else f"{path.name} starts no ranks"
    return {
        "command": (["bash", relative], "once per node" if translated.by else "in each rank"),
        "launcher": (translated.launcher or "auto", starts),
    }


def _of_python(relative: str, name: str, tree: ast.AST, imports: Imports) -> Keys:
    arguments = list(_arguments(tree))
    command, data = ["python", relative], _data_argument(arguments)
    keys: Keys = {"image": _image(name, tree, imports), "launcher": _launcher(name, imports)}
    if data is not None:
        command += [data, DATA] if data.startswith("-") else [DATA]
        keys["data"] = (
            {"dataset": "my-data", "mount": DATA},
            f"for {data or 'DATA'} of {name}: change my-data to the site's name for it, or pass --data PATH",
        )
    options = [argument for argument, _ in arguments if argument.startswith("-") and argument != data]
    named = ", ".join([*options[:NAMED], *(["..."] if len(options) > NAMED else [])])
    keys["command"] = (command, f"it also takes {named}" if named else "")
    if imports.alone:
        resources = {"nodes": 1, "gpus_per_node": "auto", "ranks_per_node": 1, "time": "1:00:00"}
        keys["resources"] = (resources, f"one rank: {name} imports torch, but nothing that connects ranks")
    return keys


def _image(name: str, tree: ast.AST, imports: Imports) -> tuple[list[str], str]:
    """Images with what the program imports."""
    modules = set(imported_modules(tree))
    keras = next((module.partition(".")[0] for module in sorted(modules) if _IS_KERAS.match(module)), "")
    library = next((library for library in LIBRARIES if library in imports.libraries), "")
    if keras and "torch" not in imports.libraries:
        return TENSORFLOW, f"{name} imports {keras}"
    return PYTORCH, f"{name} imports {library}" if library else f"a guess: {name} imports no library of training"


def _launcher(name: str, imports: Imports) -> tuple[str, str]:
    """The launcher that auto would choose, or auto itself where that depends on image and cluster."""
    library = next((library for library in LIBRARIES if library in imports.libraries), "")
    if not library:
        return "auto", f"{name} imports nothing that connects ranks"
    if library == HOROVOD:
        return "auto", f"{name} imports horovod: mpi, or gloo where image or cluster have no MPI for it"
    return "mpi" if library in COUNTED_BY_MPI else "env", f"{name} imports {library}"


def _arguments(tree: ast.AST) -> Iterator[tuple[str, Mapping[str, ast.expr]]]:
    """The arguments that the program declares for argparse: the longest name of each, and its settings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            if words:
                yield max(words, key=len), {setting.arg: setting.value for setting in node.keywords if setting.arg}


def _data_argument(arguments: list[tuple[str, Mapping[str, ast.expr]]]) -> Optional[str]:
    """The argument that takes the directory of the data: an option, or the first of the others; None without."""
    positional = [name for name, _ in arguments if not name.startswith("-")]
    for name, settings in arguments:
        takes_path = not {"action", "choices"} & settings.keys() and _type(settings) in ("", "str", "Path")
        is_reachable = name.startswith("-") or positional.index(name) == 0
        if _DATA.fullmatch(name) and takes_path and is_reachable:
            return name
    return None


def _type(settings: Mapping[str, ast.expr]) -> str:
    kind = settings.get("type")
    return "" if kind is None else str(getattr(kind, "id", None) or getattr(kind, "attr", None) or "other")
