from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.image_spec import TagSpec
from ctrain_builder.layers.container import CommandFailed, Container
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import PUBLIC_MIRROR, BuildPlan
from ctrain_builder.testing import tests
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.engines.apptainer import Engine

TORCH = {"python": "3.11.2", "torch": "2.13.0+cpu", "torchvision": "0.28.0", "files of torch": "12ab"}
CHAIN = ("base", "horovod", "deepspeed", "upper")


def planned(project: Path, chain: Sequence[str] = ("base", "upper"), **facts: Any) -> BuildPlan:
    """The plan of an image with this chain; `facts` are fields of its ImageSpec."""
    upper = (project / "definitions/upper/upper.def").read_text()
    for name in {*chain} - {"base", "upper"}:
        (project / "definitions" / name).mkdir(exist_ok=True)
        (project / f"definitions/{name}/{name}.def").write_text(upper.replace("    true", f"    exit {len(name)}"))
    images = project / "definitions/images.yaml"
    images.write_text(images.read_text().replace("[base, upper]", f"[{', '.join(chain)}]"))
    spec = dataclasses.replace(image_spec.find_spec(project / "definitions", "small"), **facts)
    return build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: True, lambda _: "")


def names(checks: Sequence[ImageTest]) -> list[str]:
    return [check.name for check in checks]


def test_what_is_tested_of_an_image_with_all(project: Path) -> None:
    image = planned(project, CHAIN, horovod=("PyTorch", "MPI", "Gloo"), variant=TagSpec(python="3.11"))
    checks = list(tests.checks(image, TORCH, 0))
    assert [(check.name, check.since) for check in checks] == [
        ("layers mounted", 3),
        ("as declared", 0),
        ("imports", 0),
        ("torch unchanged", 1),
        ("horovodrun -cb", 1),
        ("all-reduce by MPI", 1),
        ("all-reduce by Gloo", 1),
        ("DeepSpeed step", 2),
        ("%test of horovod", 1),
        ("%test of deepspeed", 2),
        ("%test of upper", 3),
    ]
    argvs = {check.name: check.argv for check in checks}
    assert argvs["layers mounted"][-1] == image.keys[-1]
    assert json.loads(argvs["torch unchanged"][-1]) == TORCH
    assert argvs["horovodrun -cb"][-3:] == ("PyTorch", "MPI", "Gloo")
    assert json.loads(argvs["as declared"][-1]) == {"python": "3.11", "mpi": "", "constraints": "", "sm": ""}
    assert not any(check.gpu or check.skip for check in checks)


def test_what_is_tested_where_there_is_nothing_known(project: Path) -> None:
    assert names(list(tests.checks(planned(project), {"python": "3.11.2"}, 0))) == ["layers mounted", "%test of upper"]


def test_a_base_alone_has_no_layers_to_compare(project: Path) -> None:
    assert names(list(tests.checks(planned(project, ("base",)), TORCH, 0))) == ["imports"]


def test_tensorflow_whose_base_has_horovod(project: Path) -> None:
    image = planned(project, horovod=("TensorFlow", "Gloo"))
    facts = {"tensorflow": "2.17.0", "horovod": "0.28.1", "files of tensorflow": "34cd"}
    checks = {check.name: check for check in tests.checks(image, facts, 0)}
    assert list(checks) == [
        *("layers mounted", "imports", "tensorflow unchanged", "horovodrun -cb", "all-reduce by Gloo"),
        "%test of upper",
    ]
    assert checks["all-reduce by Gloo"].since == 0
    assert checks["all-reduce by Gloo"].argv[-3:] == ("/mnt/all_reduce.py", "tensorflow", "2")


@pytest.mark.parametrize(
    ("features", "imports"),
    [
        (("PyTorch",), ["import horovod.torch"]),
        (("PyTorch", "TensorFlow"), ["import horovod.torch", "import horovod.tensorflow"]),
        (("PyTorch", "TensorFlow", "MPI"), ["import horovod.tensorflow"]),
    ],
)
def test_what_no_all_reduce_imports_is_imported(project: Path, features: tuple[str, ...], imports: list[str]) -> None:
    found = names(list(tests.checks(planned(project, horovod=features), TORCH, 0)))
    assert [name for name in found if name.startswith("import ")] == imports


@pytest.mark.parametrize(
    ("gpus", "size", "skip"), [(0, "2", "the building machine has no GPU"), (1, "1", ""), (8, "2", "")]
)
def test_gpus_are_tested_where_there_are_some(project: Path, gpus: int, size: str, skip: str) -> None:
    image = planned(project, CHAIN, horovod=("PyTorch", "MPI", "Gloo", "NCCL"))
    checks = [check for check in tests.checks(image, {**TORCH, "cuda": "12.6"}, gpus) if check.gpu]
    assert names(checks) == ["GPU", "all-reduce by NCCL"]
    assert {check.skip for check in checks} == {skip}
    assert checks[0].argv[-1] == size
    assert checks[1].argv[-2:] == (size, "gpu")
    assert checks[1].since == 1


def test_the_test_of_a_definition_is_run_as_the_engine_would(project: Path, tmp_path: Path) -> None:
    """By the interpreter that its section names, with its arguments filled in; the mirror need not be known."""
    path = project / "definitions/base/base.def"
    path.write_text(path.read_text() + "\n%test -e\n    echo {{ VERSION }} {{ MIRROR }}\n    false\n    echo too far\n")
    (check, *_) = (check for check in tests.checks(planned(project), {}, 0) if check.name == "%test of base")
    script = tmp_path / "script"
    script.write_text(check.script)
    script.chmod(0o755)
    done = subprocess.run([script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, f"1.0 {PUBLIC_MIRROR}\n")


class Fake(Container):
    """A container in which a command fails when `fails` says so of the image and the layers over it."""

    bad: frozenset[tuple[str, ...]] = frozenset()

    def run(self, argv: Sequence[str], log: Path, *_: object, **__: object) -> None:
        image = argv.index("image") if "image" in argv else argv.index("base")
        overlays = tuple(after for word, after in zip(argv[:image], argv[1:]) if word == "--overlay")
        with log.open("a") as file:
            file.write(f"{argv[image]} {' '.join(overlays)}\n")
        if (argv[image], *overlays) in type(self).bad:
            raise CommandFailed(1, log)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(Fake, "bad", frozenset())
    return Fake(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), tmp_path, lambda: None)


FILES = [Path("base"), Path("one"), Path("two"), Path("three")]
PREFIXES = [("base",), ("base", "one:ro"), ("base", "one:ro", "two:ro"), ("base", "one:ro", "two:ro", "three:ro")]


@pytest.mark.parametrize(
    ("failing", "since", "layer", "tried"),
    [
        ([3], 0, "upper", 2),
        ([2, 3], 0, "deepspeed", 3),
        ([1, 2, 3], 1, "horovod", 3),  # not tried without the layer that brings what is tested
        ([0, 1, 2, 3], 0, "base", 4),
        ([0, 3], 0, "upper", 2),  # the layers between have repaired what the base broke
        ([], 0, "", 1),
        ([0, 1], 0, "", 1),
    ],
)
def test_the_layer_to_blame(
    project: Path,
    tmp_path: Path,
    fake: Fake,
    monkeypatch: pytest.MonkeyPatch,
    failing: list[int],
    since: int,
    layer: str,
    tried: int,
) -> None:
    monkeypatch.setattr(Fake, "bad", frozenset(PREFIXES[number] for number in failing))
    log = tmp_path / "blame.log"
    assert (
        tests.first_failing_layer(fake, planned(project, CHAIN), FILES, ImageTest("x", ("true",), since), log) == layer
    )
    assert len(log.read_text().splitlines()) == tried


def test_a_test_that_cannot_be_run_here_starts_nothing(tmp_path: Path, fake: Fake) -> None:
    result = tests.run(fake, Path("image"), ImageTest("GPU", ("true",), skip="no GPU"), tmp_path / "log")
    assert (result.outcome, result.skipped) == ("skipped", "no GPU")
    assert not (tmp_path / "log").exists()


def test_a_result(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tests.run(fake, Path("image"), ImageTest("x", ("true",)), tmp_path / "log").outcome == "passed"
    monkeypatch.setattr(Fake, "bad", frozenset({("image",)}))
    assert tests.run(fake, Path("image"), ImageTest("x", ("true",)), tmp_path / "log").outcome == "failed"
