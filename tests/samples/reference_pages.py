"""The pages of docs/reference, and the schemas beside them, as they follow from the code."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.definitions.image_spec import ImageEntry
from ctrain_runtime.cli.main import GROUPS, RUNTIME_VERBS, parser_of
from ctrain_runtime.errors import exit_codes
from ctrain_runtime.job import JobFile
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run.group import Group
from ctrain_runtime.run.record import Record
from ctrain_runtime.site.files import NOT_IN_PROJECTS, PROJECT_FILE
from ctrain_runtime.site.model import Site
from ctrain_runtime.store.manifest import Manifest
from samples.schemas import schemas

DOCS = Path(__file__).parents[2] / "docs"
_MADE = "Made from the code by `tests/golden/regenerate.py`; a test compares it."
_TYPES = {str: "string", bool: "true or false", int: "integer", float: "number", type(None): "null"}
_FIELDS = f"""# Fields of the files that ctrain writes

{_MADE} A dot stands for an object in an object, `[]` for each one of a list, `*` for any name. Which version of ctrain
reads which schema: [releases](../releases.md).
"""
_KEYS = f"""# Keys of job.yaml, images.yaml, site files and ctrain.yaml

{_MADE} A dot stands for a mapping: `resources.nodes` is
`resources: {{nodes: 2}}`; `*` is any name. Editors that know JSON Schemas check these files while you write them:
[editors](editors.md).
"""


def files() -> dict[str, str]:
    """By the path below docs/."""
    return {
        "reference/commands.md": commands(),
        "reference/exit-codes.md": codes(),
        "reference/keys.md": keys(),
        "reference/files.md": written(),
        **{f"schemas/{name}": json.dumps(schema, indent=1) + "\n" for name, schema in schemas().items()},
    }


def write() -> None:
    for name, text in files().items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def commands() -> str:
    parts = [f"# All commands and options\n\n{_MADE}\n"]
    for group in GROUPS:
        for verb in (*RUNTIME_VERBS, *BUILD_VERBS):
            if verb.group == group:
                parts += _command(parser_of(verb), 2)
    return "\n".join(parts)


def codes() -> str:
    rows = [f"| {code} | {_cell(meaning)} |" for code, meaning in exit_codes()]
    text = "`ctrain run` ends with the program's own exit code or one of these; other commands with 0 or one of these."
    return "\n".join([f"# Exit codes\n\n{_MADE}\n\n{text}\n", "| code | meaning |", "|---|---|", *rows, ""])


def keys() -> str:
    return "\n".join(
        [
            _KEYS,
            "## job.yaml\n\nWhat they mean: [jobs.md](../jobs.md#jobyaml).\n",
            *_key_table(JobFile),
            "\n## images.yaml\n\nWhat they mean: [images.md](../images.md#keys-of-imagesyaml).\n",
            *_key_table(ImageEntry, "images.*."),
            "\n## Site files\n\nA file holds only the keys it changes. What they mean: [sites.md](../sites.md#keys).\n",
            *_key_table(Site),
            f"\n## {PROJECT_FILE}\n\nOf a [project](../sites.md#projects). It holds `site`, the name of a site, and"
            f" keys of site files, but for {', '.join(f'`{key}`' for key in NOT_IN_PROJECTS)}.\n",
        ]
    )


def written() -> str:
    return "\n".join(
        [
            _FIELDS,
            "## record.json\n\nOf each run. What they mean: [the run directory](../run-directory.md#recordjson).\n",
            *_field_table(Record),
            "\n## plan.json\n\nOf each run: [the run directory](../run-directory.md). `schema` is beside `plan`.\n",
            *_field_table(Launch),
            "\n## SWEEP.sweep.json\n\nOf each [sweep](../runs.md#sweeps), beside its runs.\n",
            *_field_table(Group, leaves_out=("file",)),
            "\n## The manifest of an image\n\nWhat they mean: [store format](../store-format.md#the-manifest).\n",
            *_field_table(Manifest),
            "| `checksum` | string |",
            "",
        ]
    )


def _field_table(kind: type, leaves_out: tuple[str, ...] = ()) -> list[str]:
    rows = [f"| `{key}` | {_cell(name)} |" for key, name, _ in _keys_of(kind, "") if key not in leaves_out]
    return ["| field | type |", "|---|---|", *rows]


def _command(parser: argparse.ArgumentParser, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {parser.prog}\n"
    yield _description(parser.description or "")
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS and not _is_help(action)]
        rows = [_row(parser, action) for action in shown if not isinstance(action, argparse._SubParsersAction)]
        if rows:
            yield "\n".join([f"| {_cell(group.title or '')} | |", "|---|---|", *rows, ""])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from _command(below, depth + 1)


def _description(text: str) -> str:
    """Lines that are indented are examples, and tables."""
    lines: list[str] = []
    fenced = False
    for line in text.strip().splitlines():
        if line.startswith("  ") != fenced and line.strip():
            fenced = not fenced
            lines = lines[:-1] if lines and not lines[-1] else lines
            lines += ["", "```"] if fenced else ["```", ""]
        lines.append(line[2:] if fenced else line)
    return "\n".join([*lines, *(["```"] if fenced else []), ""])


def _is_help(action: argparse.Action) -> bool:
    return isinstance(action, argparse._HelpAction)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    value = "" if action.nargs == 0 or not action.option_strings else f" {_value_name(action)}"
    return f"| `{_cell(names + value)}` | {_cell(formatter._expand_help(action) if action.help else '')} |"


def _value_name(action: argparse.Action) -> str:
    if action.metavar:
        return str(action.metavar)
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _key_table(kind: type, above: str = "") -> list[str]:
    rows = [f"| `{key}` | {_cell(name)} | {_cell(default)} |" for key, name, default in _keys_of(kind, above)]
    return ["| key | type | default |", "|---|---|---|", *rows]


def _keys_of(kind: type, above: str) -> Iterator[tuple[str, str, str]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], "from" if (kind, field.name) == (ImageEntry, "parent") else field.name
        inner, suffix = _dataclass_in(hint)
        yield f"{above}{name}", _type_name(hint), _default(field)
        if inner:
            yield from _keys_of(inner, f"{above}{name}{suffix}.")


def _dataclass_in(hint: Any) -> tuple[Any, str]:
    """The dataclass of a value, or of the entries of a mapping; None without one."""
    if dataclasses.is_dataclass(hint):
        return hint, ""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    for part in parts if origin in (Union, dict, tuple) else ():
        inner, suffix = _dataclass_in(part)
        if inner:
            return inner, {dict: ".*", tuple: "[]"}.get(origin, suffix)
    return None, ""


def _type_name(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return "mapping"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in hint)
    if origin is Union:
        return " or ".join(dict.fromkeys(_type_name(part) for part in parts if not (part is int and float in parts)))
    if origin is tuple:
        return f"list of {_type_name(parts[0])}"
    if origin is dict:
        return f"mapping of {_type_name(parts[1])}"
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    return _TYPES[hint]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        is_shown = field.default not in (None, "", ()) and not dataclasses.is_dataclass(field.default)
        return f"`{json.dumps(field.default)}`" if is_shown else ""
    return "**required**" if field.default_factory is dataclasses.MISSING else ""
