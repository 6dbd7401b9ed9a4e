"""Base layers: the first definition of a chain, by plain `apptainer build`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Optional

from ctrain_builder import files
from ctrain_builder.definition import render
from ctrain_builder.make.container import Container, Failed, SectionFailed, last_lines
from ctrain_builder.make.workspace import Workspace
from ctrain_builder.plan import MIRROR, PlannedLayer
from ctrain_runtime import command

PLACEHOLDER = "http://mirror.of.the.building.machine"


def make(container: Container, layer: PlannedLayer, workspace: Workspace, log: Path) -> Path:
    """Build the base of a chain. Returns the new SIF, in the work folder. Raises SectionFailed, ConfigError."""
    render(layer.definition, layer.arguments)  # for its error: the engine's does not name file and option
    sources = container.work / "sources"  # %files are relative to the folder that the engine runs in
    sources.mkdir()
    files.stage(layer.files, sources)
    made = container.work / "base.sif"
    argv = [container.engine.path, "build"]
    if container.root:
        argv.append("--fakeroot")  # root of a restricted machine lacks capabilities that %post would be given
    for bind in workspace.binds:
        argv += ["--bind", bind]
    arguments = dict(layer.arguments)
    tools = _hide_mirror(arguments, container.work)
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    try:
        container.run([*argv, str(made), str(layer.definition.path.resolve())], log, cwd=sources, tools=tools)
    except Failed as error:
        raise _in_section(error) from error
    container.take_ownership(made, workspace.scratch, log)
    return made


def _hide_mirror(arguments: dict[str, str], work: Path) -> Optional[Path]:
    """Put a placeholder for the mirror's URL; return the folder of a debootstrap that puts the URL back, if needed.

    The engine writes the URL that it is given into the image (its definition and labels), where it is of no use to
    anybody and shows how the building site works.
    """
    mirror, real = arguments.get(MIRROR), command.find("debootstrap")
    if not mirror or not real:
        return None
    arguments[MIRROR] = PLACEHOLDER
    tools = work / "tools"
    tools.mkdir()
    shim = tools / "debootstrap"  # the engine gives the mirror as the last argument
    call = f'exec {shlex.quote(real)} "${{@:1:$#-1}}" {shlex.quote(mirror)}'
    shim.write_text(f"#!/bin/bash\n{call}\n", encoding="utf-8")
    shim.chmod(0o755)
    return tools


def _in_section(error: Failed) -> SectionFailed:
    """The failure with the section's name and exit code, which the engine's last lines tell."""
    text = "\n".join(last_lines(error.log, 5))
    section = re.search(r"%(post|test|setup|pre)\b", text)
    code = re.search(r"exit status (\d+)", text)
    return SectionFailed(section[1] if section else "", int(code[1]) if code else error.code, error.log)
