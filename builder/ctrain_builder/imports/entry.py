"""The entry of images.yaml for an imported definition."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Union

import yaml

from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.imports.stages import Base

Below = Union[ImageSpec, str, Base]  # an image of images.yaml; a published one, or a file; what it starts from itself


def entry(name: str, below: Below) -> str:
    """The lines to add below `images:`."""
    if isinstance(below, ImageSpec):
        image = _stacked(name, below)
    elif isinstance(below, str):
        image = {"from": below, "chain": [name], "stack": "own", "tag": "1"}
    else:
        image = {"chain": [name], "stack": "own", "tag": below.tag, "tag_argument": below.tag_argument}
    text = yaml.safe_dump({name: image}, sort_keys=False, default_flow_style=None, width=1000)
    return "".join(f"  {line}\n" for line in text.splitlines())


def _stacked(name: str, spec: ImageSpec) -> dict[str, Any]:
    """As the image below, with what its tests expect at this tag."""
    chain = [*(definition.name for definition in spec.chain), name]
    below: dict[str, Any] = {"from": spec.parent} if spec.parent else {}
    image = {**below, "chain": chain, "stack": spec.stack, "tag": spec.tag}
    if spec.tag_argument:
        image["tag_argument"] = spec.tag_argument
    if spec.horovod:
        image["horovod"] = list(spec.horovod)
    declared = {key: value for key, value in _filled(asdict(spec.variant)).items() if value != ""}
    return {**image, "tags": {spec.tag: declared}} if declared else image


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    """Without what is not set. On an architecture, "" is: nothing, where the tag has something."""
    inner = {key: _filled(one) if isinstance(one, dict) else one for key, one in value.items()}
    return {key: one for key, one in inner.items() if one not in (None, {})}
