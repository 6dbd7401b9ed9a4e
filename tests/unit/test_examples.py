"""What every example keeps to, as far as it shows without PyTorch; tests/integration/test_examples.py runs them."""

from __future__ import annotations

import ast
import atexit
import errno
import itertools
import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ctrain_runtime import job
from ctrain_runtime.plan.expectation import expect, read_training
from ctrain_runtime.plan.size import JobSize
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
    """megatron has those of gpt, and digits of both its programs."""
    runs = "".join(path.read_text() for path in (EXAMPLES.parent / "tests/integration").glob("test_*.py"))
    assert {path.stem for path in GOLDEN.iterdir()} == {*NAMES, "digits_keras"} - {"megatron"}
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
    assert layout.attention == "plain", "get_gpt_layer_local_spec has no flash attention"


def test_gpt_says_of_its_training_what_its_settings_are() -> None:
    """With the defaults of config.py, and every strategy in the terms of an estimate."""
    module = ast.parse((EXAMPLES / "gpt/config.py").read_text())
    (choices,) = [ast.literal_eval(node.value) for node in module.body if isinstance(node, ast.Assign)]
    nodes = [*module.body, *ast.parse((EXAMPLES / "common/gpt_shape.py").read_text()).body]
    shape_and_rest = [node for node in nodes if isinstance(node, ast.ClassDef)]
    fields = [field for part in shape_and_rest for field in part.body if isinstance(field, ast.AnnAssign)]
    defaults = {ast.unparse(field.target): str(ast.literal_eval(field.value or field.target)) for field in fields}
    training = job.find("gpt").training
    assert training
    sources = (training.model, training.layout, {"steps": training.steps}, *training.when.values())
    named = [tuple(str(value).split("=")) for values in sources for value in values.values() if "=" in str(value)]
    assert dict(named) == {name: defaults[name] for name, _ in named}
    assert {name for name, _ in named} >= {"layers", "width", "heads", "context", "batch", "micro_batch", "steps"}
    for name, value in (word.split("=") for condition in training.when for word in condition.split()):
        assert value in choices.get(name, ("true", "1"))
    blocks = {}
    for strategy in choices["strategy"]:
        _, layout, _ = read_training(training, (f"strategy={strategy}", "bf16=true", "offload=nvme"), 8)
        assert layout.offload
        blocks[strategy] = (layout.strategy, layout.pp, layout.tp, layout.precision)
        _, layout, _ = read_training(training, (f"strategy={strategy}",), 8)
        assert layout.precision == "fp32"
    _, layout, _ = read_training(training, ("strategy=3d", "pp=1", "tp=4"), 16)
    assert (layout.strategy, layout.pp, layout.tp) == ("fsdp", 1, 4)
    sharded = {name: (name, 1, 1, "bf16") for name in ("zero1", "zero2", "zero3", "fsdp")}
    whole = dict.fromkeys(("single", "ddp", "horovod"), ("ddp", 1, 1, "autocast"))
    parts = {"tp": ("ddp", 1, 8, "autocast"), "pp": ("ddp", 8, 1, "autocast"), "3d": ("fsdp", 2, 2, "bf16")}
    assert blocks == {**sharded, **whole, **parts}
    words = ("strategy=3d", "sequence_parallel=true", "model=llama", "kv_heads=2", "ffn=384")
    model, layout, _ = read_training(training, words, 8)
    of_llama = (model.gated, model.learned_positions, model.biases, model.key_value_heads, model.inner)
    assert of_llama == (True, False, False, 2, 384) and layout.sequence_parallel
    model, layout, _ = read_training(training, ("strategy=3d",), 8)
    assert (model.gated, model.biases, model.key_value_heads, model.inner) == (False, True, 4, 512)
    assert not layout.sequence_parallel


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_the_page_of_gpt_runs_can_run_on_nodes_with_8_gpus(nodes: int) -> None:
    lines = [line.partition("#")[0] for line in (EXAMPLES / "gpt/README.md").read_text().splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("ctrain run gpt")]
    gpt, size = job.find("gpt"), JobSize(nodes, 8, gpus_per_node=8, time_limit=None)
    for command in commands:
        settings = command[command.index("--") + 1 :] if "--" in command else []
        expected, _ = expect(gpt, (*gpt.command, *settings), size, ("a100",), 0)
        assert expected.step_seconds, command
    assert len(commands) >= 5 and any("--estimate" in command for command in commands)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--strategy zero1 --pp 4", {"strategy": "zero1", "pp": 4}),  # as ctrain estimate advises
        ("strategy=zero1 pp=4", {"strategy": "zero1", "pp": 4}),
        (
            "--micro-batch 4 --bf16 --steps=9 recompute=true",
            {"micro_batch": 4, "bf16": True, "steps": 9, "recompute": True},
        ),
        ("--data a=b --recompute", {"data": "a=b", "recompute": True}),
    ],
)
def test_gpt_takes_settings_in_both_forms(words: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    config = runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))
    assert config["parse"](words.split()) == config["Config"](**changes)


def test_examples_with_options_take_settings_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    parser = runpy.run_path(str(EXAMPLES / "common" / "settings.py"))["OptionParser"]()
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--data")
    both = SimpleNamespace(batch_size=4, compile=True, data="a=b")
    assert vars(parser.parse_args(["--batch-size", "4", "--compile", "--data", "a=b"])) == vars(both)
    assert vars(parser.parse_args(["batch_size=4", "compile=true", "data=a=b"])) == vars(both)
    assert not parser.parse_args(["compile=false"]).compile
    monkeypatch.setattr(sys, "argv", ["train.py", "batch-size=5"])
    assert parser.parse_args().batch_size == 5
    with pytest.raises(SystemExit):
        parser.parse_args(["steps=4"])
    for program in EXAMPLES.glob("*/train*.py"):
        assert "argparse.ArgumentParser(" not in program.read_text(), program


@pytest.mark.parametrize(
    ("words", "tp", "problem"),
    [
        ("width=130", 1, "width=130 must be a multiple of heads=4"),
        ("", 8, "heads=4 must be a multiple of tp=8"),
        ("kv_heads=2", 1, "kv_heads is a setting of model=llama, not of model=gpt2"),
        ("norm_eps=1e-6", 1, "norm_eps is a setting of model=llama, not of model=gpt2"),
        ("model=llama kv_heads=3", 1, "heads=4 must be a multiple of kv_heads=3"),
        ("model=llama kv_heads=2", 4, "kv_heads=2 must be a multiple of tp=4"),
        ("model=llama ffn=101", 2, "ffn=101 must be a multiple of tp=2"),
        ("model=llama width=132", 1, "width=132 must be an even multiple of heads=4: positions turn pairs"),
        ("context=63 strategy=tp sequence_parallel=true", 2, "context=63 must be a multiple of tp=2"),
        ("sequence_parallel=true", 1, "sequence_parallel=true needs strategy=tp, or strategy=3d with tp=2 or more"),
        ("sequence_parallel=true strategy=3d tp=1", 1, "sequence_parallel=true needs strategy=tp, or strategy=3d with"),
        ("model=llama rope_theta=nan", 1, "rope_theta must be a positive number, not 'nan'"),
        ("tiles=2", 1, "tiles=2 needs strategy=zero3, not ddp"),
        ("tiles=0 strategy=zero3", 1, "tiles must be a positive number, not '0'"),
        ("model=mamba", 1, "model must be one of gpt2, llama, not 'mamba'"),
        ("model=llama kv_heads=2 ffn=384 strategy=3d sequence_parallel=true", 2, "accepted"),
    ],
)
def test_gpt_refuses_a_shape_that_ranks_cannot_share(
    words: str, tp: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    parse = runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))["parse"]
    try:
        config = parse(words.split())
        config.check(tp, config.sequence_parallel)
        answer = "accepted"
    except ValueError as error:
        answer = str(error)
    assert answer.startswith(problem)


@pytest.mark.parametrize("words", ["--steps", "--steps --bf16", "zero1", "--no 1", "--pp 0", "- 1", "--strategy x"])
def test_gpt_refuses_what_is_no_setting(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    with pytest.raises(ValueError, match=r"^(unknown setting|[a-z]+ must be )"):
        runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))["parse"](words.split())


@pytest.mark.parametrize(
    "word", ["lr=nan", "lr=inf", "lr=-1", "lr=0", "clip=-1", "clip=nan", "weight_decay=-0.1", "validate_every=-1"]
)
def test_gpt_refuses_numbers_that_would_climb_or_teach_nothing(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    parse = runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))["parse"]
    key, _, text = word.partition("=")
    least = "" if key == "lr" else "0 or "
    with pytest.raises(ValueError, match=rf"^{key} must be {least}a positive number, not '{re.escape(text)}'$"):
        parse([word])
    assert parse(["clip=0", "weight_decay=0", "validate_every=0"]).clip == 0, "without clipping, decay, validation"


def test_gpt_refuses_to_offload_what_its_strategy_would_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    parse = runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))["parse"]
    allowed = {"none": r".*", "cpu": r"zero[123]", "nvme": "zero3"}
    for strategy, offload in itertools.product(("single", "ddp", "zero1", "zero2", "zero3", "3d"), allowed):
        if re.fullmatch(allowed[offload], strategy):
            assert parse([f"strategy={strategy}", f"offload={offload}"]).offload == offload
        else:
            with pytest.raises(ValueError, match=rf"^offload={offload} needs strategy=zero.*, not {strategy}$"):
                parse([f"strategy={strategy}", f"offload={offload}"])


def test_gpt_refuses_to_compile_blocks_whose_parameters_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    parse = runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))["parse"]
    assert parse(["strategy=zero2", "compile=true"]).compile
    with pytest.raises(ValueError, match=r"^compile=true needs another strategy than zero3, such as fsdp$"):
        parse(["strategy=zero3", "compile=true"])


@pytest.fixture
def swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """swap_directory of examples/common; HOME is below tmp_path."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CTRAIN_RUN_DIR", "/run")
    monkeypatch.delenv("TMPDIR", raising=False)
    function = runpy.run_path(str(EXAMPLES / "common" / "swap.py"))["swap_directory"]

    return lambda: Path(function())


def test_gpt_swaps_to_the_nodes_disk_and_clears_up(
    swap: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[Any, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *end: ends.append(end))
    first, second = swap(), swap()
    assert first.parent == second.parent == tmp_path and first != second, "one for each rank"
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    assert swap().parent == tmp_path / "scratch"
    for function, *arguments in ends:
        function(*arguments)
    assert [*tmp_path.rglob("*")] == [tmp_path / "scratch"]


@pytest.mark.parametrize(
    ("offload", "installed", "lacking"),
    [
        ("cpu", {"cpu_adam": True, "async_io": False}, ""),
        ("cpu", {"cpu_adam": False, "async_io": True}, "cpu_adam"),
        ("nvme", {"cpu_adam": True, "async_io": True}, ""),
        ("nvme", {"cpu_adam": True, "async_io": False}, "async_io"),
        ("nvme", {"cpu_adam": False}, "cpu_adam"),
    ],
)
def test_gpt_refuses_an_offload_whose_operators_the_image_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offload: str, installed: dict[str, bool], lacking: str
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    prepare = runpy.run_path(str(EXAMPLES / "common" / "swap.py"))["prepare_offload"]
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.git_version_info", SimpleNamespace(installed_ops=installed))
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    if not lacking:
        directory = prepare(offload)
        assert [directory and Path(directory).parent] == [tmp_path if offload == "nvme" else None]
        return
    why = rf"^offload={offload} needs the operator {lacking} of DeepSpeed, which this image lacks; .* offload=none$"
    with pytest.raises(ValueError, match=why):
        prepare(offload)


def test_gpt_refuses_to_swap_to_a_file_system_in_memory(
    swap: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def no_direct(path: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", no_direct)
    with pytest.raises(ValueError, match=rf"^offload=nvme cannot use {tmp_path} on \S+: Invalid argument; set TMPDIR"):
        swap()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", [(), ("batch=24", "micro_batch=7"), ("micro_batch=1",)])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32, 64])
def test_a_micro_batch_of_gpt_adapts_to_the_ranks_as_the_estimate_says(
    ranks: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    settings = runpy.run_path(str(EXAMPLES / "gpt" / "config.py"))["parse"](list(words))
    training = job.find("gpt").training
    assert training
    for strategy, stages, copies in (("ddp", 1, ranks), ("fsdp", 1, ranks), ("zero3", 1, ranks), ("3d", 2, ranks // 4)):
        if not copies or settings.batch % copies or settings.batch // copies < stages:
            assert (strategy, ranks) == ("3d", 2) or words == ("batch=24", "micro_batch=7") or ranks == 1
            continue
        _, layout, _ = read_training(training, (*words, f"strategy={strategy}"), ranks)
        assert layout.micro_batch == settings.micro_batch_of(settings.batch // copies, stages)
        assert layout.micro_batches(ranks) * layout.micro_batch * copies == settings.batch
        assert stages <= layout.micro_batches(ranks)


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
    monkeypatch.syspath_prepend(str(EXAMPLES / "common"))
    example = runpy.run_path(str(EXAMPLES / "common" / "example.py"))
    metrics = example["Metrics"](example["World"](0, 1, 0, SimpleNamespace(type=device)), tmp_path)
    metrics.write(step=1)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert {name: value for name, value in line.items() if name != "time"} == written


def stand_in(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module
