"""The commands that a build runs, told beforehand. They come from the same functions that give them to the build."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Optional

from ctrain_builder.build_plan import BuildPlan, PlannedLayer
from ctrain_builder.image import assemble, flatten, sbom
from ctrain_builder.image.assemble import ReusableImage
from ctrain_builder.layers import base, inherit, layer, sif_file, workspace
from ctrain_builder.layers.build_host import BuildHost
from ctrain_builder.layers.container import Container, LowerLayers

WORK = Path("WORK")  # stands for the work folder, which gets its name when a step begins


@dataclass(frozen=True)
class Command:
    """`when` says on what it depends whether the command runs; "" if it runs in any case."""

    argv: tuple[str, ...]
    when: str = ""


@dataclass(frozen=True)
class Step:
    """`kind` is layer or image."""

    kind: str
    name: str
    commands: tuple[Command, ...]


def steps(
    container: Container,
    plan: BuildPlan,
    files: Sequence[Path],
    site: BuildHost,
    flat: bool,
    earlier: Optional[ReusableImage] = None,
) -> list[Step]:
    """What building the planned image runs, up to its tests; `files` are those of its layers, made or to be made.

    The commands are logged in the same form as they run.
    """
    shown_container = dataclasses.replace(container, work=WORK)
    shown_workspace = workspace.inside(WORK, site)
    layer_steps = [
        Step("layer", part.name, tuple(_layer(shown_container, part, files[:number], shown_workspace)))
        for number, part in enumerate(plan.layers)
        if not part.exists
    ]
    if flat:
        argvs = flatten.argvs(shown_container, files[0], files[1:], plan.arch)
    else:
        argvs = list(
            chain.from_iterable(assemble.assemble_argvs(shown_container, files[0], files[1:], plan.arch, earlier))
        )
    argvs.append(sbom.argv(shown_container, sif_file.output_path(shown_container)))
    return [*layer_steps, Step("image", plan.spec.name, tuple(Command(tuple(argv)) for argv in argvs))]


def _layer(
    container: Container, part: PlannedLayer, below: Sequence[Path], shown_workspace: workspace.Workspace
) -> Iterable[Command]:
    if part.part:
        argvs = inherit.argvs(container, arch=part.inputs.arch, is_base=part.definition.is_base)
        return (Command(tuple(argv)) for argv in argvs)
    if part.definition.is_base:
        return (Command(tuple(argv)) for argv in base.argvs(container, part, shown_workspace))
    conditional = layer.argvs(container, part, LowerLayers(below[0], tuple(below[1:])), shown_workspace)
    return (Command(tuple(argv), when) for argv, when in conditional)
