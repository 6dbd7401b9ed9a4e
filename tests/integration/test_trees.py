"""Layers against plain `apptainer build`: the same files, one by one, as seen inside the container.

With CTRAIN_TREES=whole all definitions of a real image are built plainly, too, which takes a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from ctrain_builder.build_host import settings
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.store import sif
from samples import tiny
from samples.chains import Chain
from samples.long_mode import LONG, often
from samples.trees import differences, seen

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "tests" / "samples" / "tree_script.py"
PACKAGES = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    . /mnt/build-env.sh
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
    python3 -m pip uninstall --yes networkx wheel
    python3 -m pip install --no-deps cloudpickle==3.1.2 pyyaml==6.0.3
    python3 -c 'import cloudpickle, yaml'
"""
NAMES = ("a", "b", "sub", "deep", "two words", "\u00e9", "-n", ".hidden", "line\nend", 'quo"te', "back\\slash", "st*r")
TEXTS = ("", "one\n", "two\n", "x" * 5000)
KINDS = (
    *("write", "append", "replace", "folder", "folder_again", "file_again", "delete"),
    *("symlink", "link", "link", "link", "move", "mode", "set_id", "attribute", "fifo"),
)
MODES = (0o644, 0o755, 0o1777, 0o600, 0o555, 0o711)
TREES, LAYERS, STEPS = often(25, 8), 3, 30
WHOLE = os.environ.get("CTRAIN_TREES") == "whole"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    root = tmp_path_factory.mktemp("project")
    shutil.copy(SCRIPT, root / "tree_script.py")
    return Chain(root, tiny.sif(root / "base.sif"))


def define(chain: Chain, name: str, steps: Iterable[list[object]]) -> Path:
    """A definition that changes /trees in these steps."""
    (chain.root / f"{name}.steps").write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    path = chain.root / f"{name}.def"
    path.write_text(f"""\
Bootstrap: localimage
From: {{{{ PARENT }}}}

%files
    tree_script.py /opt/tree_script.py
    {name}.steps /opt/steps

%post
    python3 /opt/tree_script.py < /opt/steps
""")
    return path


def some_step(chance: random.Random, tree: int) -> list[object]:
    def some_path() -> str:
        return "/".join([str(tree), *chance.choices(NAMES, k=chance.choice((1, 1, 2, 2, 3)))])

    kind = chance.choice(KINDS)
    if kind in ("folder", "delete", "fifo"):
        return [kind, some_path()]
    if kind in ("link", "move"):
        return [kind, some_path(), some_path()]
    if kind == "symlink":
        return [kind, some_path(), chance.choice(("../sub", "/trees/0/deep", "nowhere"))]
    if kind == "mode":
        return [kind, some_path(), chance.choice(MODES)]
    if kind == "set_id":
        return [kind, some_path(), chance.choice((0o4755, 0o2755, 0o6711))]
    if kind == "attribute":
        return [kind, some_path(), chance.choice(("one", "two")), chance.choice(("value", "other"))]
    return [kind, some_path(), chance.choice(TEXTS)]


@pytest.mark.parametrize("seed", [20261121])
def test_generated_trees_are_those_of_plain_builds(chain: Chain, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    definitions = []
    for number in range(LAYERS):
        # Steps that change nothing are many: the tree is small at first.
        steps = [some_step(chance, tree) for tree in range(TREES) for _ in range(STEPS * (3 - number))]
        definitions.append(define(chain, f"layer{number}", steps))
    layers = chain.layers(tmp_path / "layers", definitions)
    plain = seen(chain.plain(tmp_path / "plain", definitions))
    assert len(plain) > TREES * 5
    assert differences(seen(chain.base, [f"{layer}:ro" for layer in layers]), plain) == []


def real_plan() -> BuildPlan:
    spec = image_spec.find_spec(CHECKOUT / "definitions", "pytorch-cpu")
    mirror = {"MIRROR": settings.detect(os.environ).mirror}
    return build_plan.plan_image(spec, {}, mirror, "amd64", lambda _key, _is_base: False, lambda _reference: "")


def packed_at(path: Path) -> int:
    """The time, in seconds since 1970, that the squashfs of a layer or of a base tells: that of its build."""
    at = sif.partitions(path)[0].offset if path.suffix == ".sif" else 0
    return int.from_bytes(path.read_bytes()[at + 8 : at + 12], "little")


@pytest.mark.usefixtures("pytorch_cpu")
@pytest.mark.skipif(not WHOLE, reason="compiles all of an image for a quarter of an hour: CTRAIN_TREES=whole")
def test_all_real_definitions_make_the_files_of_plain_builds(tmp_path: Path) -> None:
    plan, cache = real_plan(), open_cache()
    base, *layers = (cache.layers.path(part.key, part.definition.is_base) for part in plan.layers)
    chain = Chain(CHECKOUT, base, settings.detect(os.environ))
    paths = [part.definition.path for part in plan.layers]
    plain = chain.plain(tmp_path / "plain", paths, sandbox=True, epochs=list(map(packed_at, (base, *layers))))
    for root in (plain.with_name("0.sif"), plain):  # apt's folders are another user's, whom containers here don't know
        foreign = ["find", str(root), "-type", "d", "!", "-user", "root", "-exec", "chown", "root:", "{}", "+"]
        subprocess.run(foreign, check=True)
    assert differences(seen(plain.with_name("0.sif")), seen(base)) == []
    assert differences(seen(plain), seen(base, [f"{layer}:ro" for layer in layers])) == []


@pytest.mark.usefixtures("pytorch_cpu")
@pytest.mark.skipif(
    not LONG, reason="by day the generated trees, and small definitions in test_layers.py: CTRAIN_LONG=1"
)
def test_real_definitions_make_the_files_of_plain_builds(tmp_path: Path) -> None:
    """One that removes and installs packages, and `train`, on the real base."""
    site, plan = settings.detect(os.environ), real_plan()
    base = open_cache().layers.path(plan.keys[0], True)
    texts = {"packages": PACKAGES, "train": (CHECKOUT / "definitions" / "train" / "train.def").read_text()}
    definitions = []
    for name, text in texts.items():
        definitions.append(tmp_path / f"{name}.def")
        definitions[-1].write_text(re.sub(r"(?ms)^%test$.*?^(?=%)", "", text))  # that of train wants Horovod, too
    chain = Chain(CHECKOUT, base, site)
    layers = chain.layers(tmp_path / "layers", definitions)
    plain = chain.plain(tmp_path / "plain", definitions, sandbox=True)
    assert differences(seen(base, [f"{layer}:ro" for layer in layers]), seen(plain)) == []
