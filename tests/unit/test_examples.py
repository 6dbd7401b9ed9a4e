"""What every example keeps to, as far as it shows without PyTorch; tests/integration/test_examples.py runs them."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ctrain_runtime import job
from ctrain_runtime.plan.expectation import read_training
from samples.losses import GOLDEN

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_LINES = 350
IMAGES = {"resnet50_keras": ("tensorflow", "tensorflow-cpu"), "megatron": ("pytorch",)}
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/job.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_described_short_and_ends_through_the_shared_helper(name: str) -> None:
    found = job.find(name)
    images = IMAGES.get(name, ("pytorch", "pytorch-cpu"))
    assert (found.workdir, found.images) == (f"/opt/ctrain/examples/{name}", images)
    assert (EXAMPLES / name / "README.md").read_text().startswith(f"# {name}\n")
    assert f"[{name}]({name}/README.md)" in (EXAMPLES / "README.md").read_text()
    programs = {path.name: path.read_text() for path in sorted((EXAMPLES / name).glob("*.py"))}
    lines = sum(text.count("\n") for text in programs.values())
    assert lines <= MOST_LINES, "a reader should hold it in the head"
    assert job.script_of(found.command) in programs
    for program, text in programs.items():
        ast.parse(text, program, feature_version=(3, 8))  # NVIDIA's 22.03
        if "from example import" in text and "__main__" in text:
            assert text.endswith('if __name__ == "__main__":\n    finish(main)\n')


def test_an_example_has_losses_that_its_test_run_compares() -> None:
    """megatron has those of gpt, and no test builds the image of resnet50_keras."""
    runs = "".join(path.read_text() for path in (EXAMPLES.parent / "tests/integration").glob("test_*.py"))
    assert {path.stem for path in GOLDEN.iterdir()} == {*NAMES} - {"megatron", "resnet50_keras"}
    for path in GOLDEN.iterdir():
        assert f'check_losses("{path.stem}", ' in runs and json.loads(path.read_text())


def test_megatron_says_of_its_training_what_its_options_are() -> None:
    program, training = (EXAMPLES / "megatron/train.py").read_text(), job.find("megatron").training
    assert training
    for value in (*training.model.values(), *training.layout.values(), training.steps):
        name, equals, default = str(value).partition("=")
        assert not equals or f'add("--{name.replace("_", "-")}", default={default}' in program
    _, layout, _ = read_training(training, ("--tp", "4", "--pp=2", "--bf16", "--batch", "64"), 16)
    assert (layout.strategy, layout.tp, layout.pp, layout.precision) == ("ddp", 4, 2, "bf16")


def test_gpt_says_of_its_training_what_its_settings_are() -> None:
    """With the defaults of config.py, and every strategy in the terms of an estimate."""
    module = ast.parse((EXAMPLES / "gpt/config.py").read_text())
    (choices,) = [ast.literal_eval(node.value) for node in module.body if isinstance(node, ast.Assign)]
    (config,) = [node for node in module.body if isinstance(node, ast.ClassDef)]
    fields = [field for field in config.body if isinstance(field, ast.AnnAssign) and field.value]
    defaults = {ast.unparse(field.target): str(ast.literal_eval(field.value or field.target)) for field in fields}
    training = job.find("gpt").training
    assert training
    sources = (training.model, training.layout, {"steps": training.steps}, *training.when.values())
    named = [tuple(str(value).split("=")) for values in sources for value in values.values() if "=" in str(value)]
    assert dict(named) == {name: defaults[name] for name, _ in named}
    assert {name for name, _ in named} >= {"layers", "width", "heads", "context", "batch", "micro_batch", "steps"}
    for name, value in (condition.split("=") for condition in training.when):
        assert value in choices.get(name, ("true",))
    blocks = {}
    for strategy in choices["strategy"]:
        _, layout, _ = read_training(training, (f"strategy={strategy}", "bf16=true", "offload=nvme"), 8)
        assert (layout.precision, layout.offload) == ("bf16", True)
        blocks[strategy] = (layout.strategy, layout.pp, layout.tp)
    sharded = {name: (name, 1, 1) for name in ("ddp", "zero1", "zero2", "zero3", "fsdp")}
    alone = dict.fromkeys(("single", "horovod"), ("ddp", 1, 1))
    assert blocks == {**sharded, **alone, "tp": ("ddp", 1, 8), "pp": ("ddp", 8, 1), "3d": ("fsdp", 2, 2)}


@pytest.mark.parametrize(
    ("launcher", "skipped"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, {"torch": None, "mpi4py": None, "horovod": None}),
        (
            {"HOROVOD_CONTROLLER": "gloo"},
            {"torch": None, "mpi4py": "the ranks were not started by MPI: use --launcher mpi", "horovod": None},
        ),
        (
            {"HOROVOD_CONTROLLER": "none"},  # env and torchrun
            {
                "torch": None,
                "mpi4py": "the ranks were not started by MPI: use --launcher mpi",
                "horovod": "the ranks were started neither by MPI nor for Horovod's Gloo: use --launcher mpi or gloo",
            },
        ),
    ],
)
def test_selftest_says_which_libraries_it_leaves_out(
    launcher: dict[str, str], skipped: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MPI started otherwise, importing mpi4py ends the process, so it must not even be tried."""
    for module in ("torch", "torch.distributed", "mpi4py", "horovod"):
        monkeypatch.setitem(sys.modules, module, stand_in(module))
    for name in ("OMPI_COMM_WORLD_SIZE", "HOROVOD_CONTROLLER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    collectives = runpy.run_path(str(EXAMPLES / "selftest" / "collectives.py"))
    assert {module: collectives["skip_reason"](module) for module in collectives["LIBRARIES"]} == skipped
    monkeypatch.delitem(sys.modules, "mpi4py")
    assert collectives["skip_reason"]("mpi4py") == "this image does not have it"


@pytest.mark.parametrize(("device", "written"), [("cuda", {"step": 1, "memory": 5}), ("cpu", {"step": 1})])
def test_metrics_have_the_memory_of_a_gpu(
    device: str, written: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.cuda.max_memory_allocated, as its documentation describes it."""
    torch = stand_in("torch")
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(max_memory_allocated=lambda: 5), raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    example = runpy.run_path(str(EXAMPLES / "common" / "example.py"))
    metrics = example["Metrics"](example["World"](0, 1, 0, SimpleNamespace(type=device)), tmp_path)
    metrics.write(step=1)
    metrics.file.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == written


def stand_in(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module
