"""The JSON Schemas of job.yaml, images.yaml, site files and ctrain.yaml: made from the dataclasses that read them."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from ctrain_builder.definitions.image_spec import ImageEntry
from ctrain_runtime.job import JobFile
from ctrain_runtime.site.files import NOT_IN_PROJECTS
from ctrain_runtime.site.model import Site

DOCS = Path(__file__).parents[2] / "docs"
Schema = dict[str, Any]
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \|", re.MULTILINE)
_COMMENTED = re.compile(r"^(\w+): .*? +# (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def schemas() -> dict[str, Schema]:
    """By the name of the file in docs/schemas."""
    return {
        "job.json": _titled("job.yaml of ctrain", _object(JobFile, meanings_of_job())),
        "images.json": _titled("images.yaml of ctrain", _images()),
        "site.json": _titled("a site file of ctrain", _site()),
        "project.json": _titled("ctrain.yaml of a project", _project()),
    }


def meanings_of_job() -> dict[str, str]:
    page = (DOCS / "jobs.md").read_text(encoding="utf-8")
    block = page.partition("## job.yaml")[2].partition("```yaml")[2].partition("```")[0]
    return {name: re.sub(r":? \S+\.md(#\S+)?$", "", text) for name, text in _COMMENTED.findall(block)}


def meanings_in(page: str, heading: str) -> dict[str, str]:
    """The second column of the table below a heading, by the first one."""
    section = re.split(r"^#+ ", (DOCS / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2], flags=re.M)[0]
    return {name: _LINK.sub(r"\1", text) for name, text in _ROW.findall(section)}


def _titled(title: str, schema: Schema) -> Schema:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _images() -> Schema:
    """`from` cannot be the name of a field in Python: image_spec renames it."""
    meanings = meanings_in("images.md", "### Keys of images.yaml")
    entry = _object(ImageEntry, {**meanings, "parent": meanings["from"]})
    entry["properties"]["from"] = entry["properties"].pop("parent")
    images = {"type": "object", "additionalProperties": entry}
    return {"type": "object", "properties": {"images": images}, "required": ["images"], "additionalProperties": False}


def _site() -> Schema:
    """A file holds only the keys that it changes, and null resets one."""
    schema = _object(Site, meanings_in("sites.md", "## Keys"), nullable=True)
    del schema["required"]
    return schema


def _project() -> Schema:
    """The name of a site, and what of its file a project may change."""
    schema = _site()
    name = {"description": "the site of its runs, unless --site or CTRAIN_SITE names one", "type": ["string", "null"]}
    allowed = {key: value for key, value in schema["properties"].items() if key not in NOT_IN_PROJECTS}
    return {**schema, "properties": {"site": {**name, "pattern": "^[^/]*$"}, **allowed}}


def _object(kind: type, meanings: Mapping[str, str], *, nullable: bool = False) -> Schema:
    hints = typing.get_type_hints(kind)
    properties, required = {}, []
    for field in dataclasses.fields(kind):
        is_required = field.default is field.default_factory is dataclasses.MISSING
        required += [field.name] if is_required else []
        value = _value(hints[field.name], nullable=nullable)
        properties[field.name] = _or_null(value) if nullable and not is_required else value
        if field.name in meanings:
            properties[field.name] = {"description": meanings[field.name], **properties[field.name]}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _value(hint: Any, *, nullable: bool) -> Schema:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast("type", hint), {}, nullable=nullable)
    if origin is Union:
        return _any_of([_value(part, nullable=nullable) for part in parts])
    if origin is tuple:
        return {"type": "array", "items": _value(parts[0], nullable=nullable)}
    if origin is dict:
        value = _value(parts[1], nullable=nullable)
        return {"type": "object", "additionalProperties": _or_null(value) if nullable else value}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    return {"type": _TYPES[hint]}


def _or_null(schema: Schema) -> Schema:
    return _any_of([schema, {"type": "null"}])


def _any_of(schemas: list[Schema]) -> Schema:
    """Types without further rules are joined."""
    if all(schema.keys() == {"type"} for schema in schemas):
        names = [name for schema in schemas for name in _as_list(schema["type"])]
        return {"type": list(dict.fromkeys(names))}
    return {"anyOf": schemas}


def _as_list(value: Union[str, list[str]]) -> list[str]:
    return [value] if isinstance(value, str) else value
