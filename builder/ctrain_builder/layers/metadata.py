"""What an image says of itself: /.singularity.d as `apptainer build` from a local image would leave it.

Pure functions over file contents, so that a layer carries the same metadata as a plainly built image.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ctrain_builder.definitions.definition import Definition, Section
from ctrain_builder.plan.build_plan import PlannedLayer
from ctrain_runtime.errors import BuildError

DIRECTORY = ".singularity.d"
MARKER = "ctrain-layer"  # holds the key of the topmost layer: a run sees whether the engine mounted the layers
BUILD_LABELS = "build-labels"  # what %post wrote to $APPTAINER_LABELS
_ENVIRONMENT = "env/90-environment.sh"
_HELP = "runscript.help"
_EXECUTABLE = (_ENVIRONMENT, "runscript", "startscript", "test")
_SCHEMA = "org.label-schema."
_CREATED = "org.opencontainers.image.created"


def for_layer(parent: Mapping[str, str], definition: Definition, key: str, epoch: int) -> dict[str, str]:
    """The files of /.singularity.d, name -> content, that a layer adds or replaces.

    `parent` holds those that the layer was made on, `definition` is rendered; `epoch`, in seconds since 1970, is what
    the labels tell as the time of the build.
    """
    files = {MARKER: f"{key}\n", "Singularity": definition.text}
    if "Singularity" in parent:
        number = sum(name.startswith("bootstrap_history/") for name in parent)
        files[f"bootstrap_history/Apptainer{number}"] = parent["Singularity"]
    if definition.body("environment").strip():
        before = parent.get(_ENVIRONMENT, "#!/bin/sh\n")
        files[_ENVIRONMENT] = f"{before}\n{definition.body('environment')}\n"
    for name in ("runscript", "startscript", "test"):
        if definition.body(name).strip():
            files[name] = script(definition.sections[name])
    if definition.body("help").strip() and _HELP not in parent:
        files[_HELP] = f"{definition.body('help')}\n"
    files["labels.json"] = _json(_labels(parent, definition, epoch))
    return files


def for_base(unpacked: Mapping[str, str], definition: Definition, planned: PlannedLayer) -> dict[str, str]:
    """The same of a base; `unpacked` holds what the engine has written for its header alone."""
    parent = {name: text for name, text in unpacked.items() if name != "Singularity"}
    files = for_layer(parent, definition, "", planned.epoch)
    return {name: text for name, text in files.items() if name != MARKER}


def mode(name: str) -> int:
    return 0o755 if name in _EXECUTABLE else 0o644


def script(section: Section) -> str:
    """A script with its first line: the body's own, else sh; the section's arguments go to the interpreter."""
    shebang, body = "#!/bin/sh", section.body
    if body.lstrip().startswith("#!"):
        shebang, _, body = body.lstrip().partition("\n")
    return f"{' '.join([shebang.strip(), section.args]).strip()}\n\n{body}\n"


def _labels(parent: Mapping[str, str], definition: Definition, epoch: int) -> dict[str, str]:
    """As in Apptainer without --force: what the build knows replaces the parent's labels, %labels only adds to them."""
    labels = _read(parent.get("labels.json", "{}"))
    written = (line.split(None, 1) for line in parent.get(BUILD_LABELS, "").splitlines() if line.strip())
    labels.update({name: "".join(value) for name, *value in written})
    labels[f"{_SCHEMA}schema-version"] = "1.0"
    labels.update(_dates(labels, epoch))
    if definition.body("help").strip():
        labels[f"{_SCHEMA}usage"] = labels[f"{_SCHEMA}usage.apptainer.{_HELP}"] = f"/{DIRECTORY}/{_HELP}"
    for name, value in definition.header.items():
        labels[f"{_SCHEMA}usage.singularity.deffile.{name}"] = value
    return {**definition.labels, **labels}


def _read(text: str) -> dict[str, str]:
    """The labels in labels.json, which %post may have overwritten. Raises BuildError."""
    with contextlib.suppress(ValueError, RecursionError):
        labels = json.loads(text)
        if isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values()):
            return labels
    raise BuildError(f"/{DIRECTORY}/labels.json of the image is damaged", "Set labels by %labels or $APPTAINER_LABELS")


def _dates(labels: Mapping[str, str], epoch: int) -> dict[str, str]:
    """The labels that tell the time of a build. Engines before Apptainer 1.5 write only the first."""
    time = datetime.fromtimestamp(epoch, timezone.utc)
    dates = {f"{_SCHEMA}build-date": f"{time:%A_%-d_%B_%Y_%-H:%-M:%-S_UTC}", _CREATED: f"{time:%Y-%m-%dT%H:%M:%SZ}"}
    return {name: date for name, date in dates.items() if name != _CREATED or name in labels}


def _json(labels: Mapping[str, str]) -> str:
    return json.dumps(labels, indent="\t", sort_keys=True)


def inspection(files: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of an image in the form that the engine keeps in a SIF for `inspect`.

    `labels` are the image's own, over those in its `files`.
    """
    texts = {name: text.rstrip() for name, text in files.items()}
    scripts = (name for name in (_ENVIRONMENT, "env/91-environment.sh") if name in texts)
    attributes: dict[str, Any] = {
        "environment": {f"/{DIRECTORY}/{name}": texts[name] for name in scripts},
        "labels": {**_read(files.get("labels.json", "{}")), **labels},
    }
    named = {"deffile": "Singularity", "runscript": "runscript", "startscript": "startscript"}
    named |= {"test": "test", "helpfile": _HELP}
    attributes |= {key: texts[name] for key, name in named.items() if name in texts}
    return {"type": "container", "data": {"attributes": attributes}}
