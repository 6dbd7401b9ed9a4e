"""Builds chains of definitions twice: with ctrain's layers, and with plain `apptainer build`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.definitions import definition as definitions
from ctrain_builder.definitions import files
from ctrain_builder.layers import layer, workspace
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.plan import layer_key
from ctrain_builder.plan.build_plan import FALLBACK_EPOCH, PlannedLayer
from ctrain_runtime.engines.apptainer import find_engine

NOTHING = BuildHost({}, (), None, {})


@dataclass(frozen=True)
class Chain:
    """`root` is what %files are relative to."""

    root: Path
    base: Path
    site: BuildHost = NOTHING

    def planned(self, path: Path) -> PlannedLayer:
        part = definitions.read(path.stem, path)
        values = {"PARENT": "the-parent"}
        listing = files.listing(definitions.render(part, values), self.root)
        inputs = layer_key.LayerInputs("", "", "amd64", {}, layer_key.significant_lines(part.text), {})
        return PlannedLayer(part, values, listing, inputs, layer_key.compute_key(inputs), False)

    def layers(self, work: Path, paths: Sequence[Path]) -> list[Path]:
        """ctrain's layers of the definitions, lowest first."""
        made: list[Path] = []
        for number, path in enumerate(paths):
            made.append(self.layer(work / str(number), self.planned(path), made))
        return made

    def layer(self, work: Path, planned: PlannedLayer, below: Sequence[Path] = ()) -> Path:
        work.mkdir(parents=True)
        room = workspace.prepare(work, self.site)
        return layer.make(container(work), planned, LowerLayers(self.base, tuple(below)), room, work / "log")

    def plain(self, work: Path, paths: Sequence[Path], *, sandbox: bool = False, epochs: Sequence[int] = ()) -> Path:
        """The image that `apptainer build` makes of the definitions, one after the other; %test is left out.

        Programs of %post take the time in `epochs` for the present; without it, that of the layers made here. Headers
        get it, too, as in a layer: GCC takes two with `#pragma once` for one if their bytes and times are equal. torch
        has such, and reading them once or twice gives other debugging symbols, and so another Build ID.
        """
        work.mkdir(parents=True)
        room = workspace.prepare(work, self.site)
        options = ["--notest", *(["--fakeroot"] if os.geteuid() == 0 else []), *(["--sandbox"] if sandbox else [])]
        options += [word for bind in room.binds for word in ("--bind", bind)]
        parent = self.base
        for number, path in enumerate(paths):
            room.set_time(epochs[number] if epochs else FALLBACK_EPOCH)
            image = work / f"{number}.sif"
            values = {"PARENT": parent, "MIRROR": self.site.mirror}
            used = [(name, value) for name, value in values.items() if f"{{{{ {name} }}}}" in path.read_text()]
            named = [word for name, value in used for word in ("--build-arg", f"{name}={value}")]
            argv = ["apptainer", "build", *options, *named, str(image), str(path)]
            env = {**os.environ, "APPTAINER_TMPDIR": str(work)}
            done = subprocess.run(argv, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert done.returncode == 0, done.stdout.decode()
            if epochs:
                time = f"@{epochs[number]}"
                headers = ["find", str(image), "-path", "*/include/*", "-type", "f", "-newermt", time]
                subprocess.run([*headers, "-exec", "touch", f"--date={time}", "{}", "+"], check=True)
            parent = image
        return parent


def container(work: Path) -> Container:
    return Container(find_engine(), work, lambda: None)
