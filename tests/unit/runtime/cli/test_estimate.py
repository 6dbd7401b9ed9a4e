"""`ctrain estimate`: what it prints, what it takes from sites and runs, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime import job
from ctrain_runtime.base import run_files
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cluster import machine
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.presets import PRESETS
from ctrain_runtime.plan.expectation import read_training
from ctrain_runtime.plan.model import Expectation
from ctrain_runtime.run import record
from samples import estimate_page
from samples.plans import a_plan

A100 = ("--gpu-type", "A100-SXM4-80GB")
GPT3 = ("gpt3-175b", *A100, "--gpus", "1024", "--batch", "1536")


@pytest.fixture(autouse=True)
def _no_cluster(programs: Path) -> None:
    """No scheduler answers: partitions are those of site files."""


def estimate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(RUNTIME_VERBS, ["estimate", *arguments])
    out, error = capsys.readouterr()
    return code, out, error


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, error = estimate(capsys, *arguments, "--json")
    assert code == 0, error
    data: dict[str, Any] = json.loads(out)
    return data


def test_the_text_names_model_hardware_memory_time_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tp", "8", "--pp", "16", "--recompute", "full", "--tokens", "300B")
    code, out, error = estimate(capsys, *GPT3, *words)
    assert (code, error) == (0, "")
    for line in (
        "model     174.6 billion parameters: 96 layers, hidden size 12288, 96 heads, sequence 2048, vocabulary 51200",
        "hardware  128 nodes: 1024 x A100-SXM4-80GB, 85.9 GB each",
        "layout    dp 8 x pp 16 x tp 8: --tp 8 --pp 16 --recompute full",
        "batch     1536 sequences: 192 x 1 per replica",
        "note      network: 8 x 200 Gb/s per node (assumed)",
        "memory per GPU: 31.0 GB of 79.0 GB usable: fits",
        "FLOP      4.51e+18 per iteration; 156 TFLOP/s per GPU",
    ):
        assert line in out.splitlines()
    compute = next(line for line in out.splitlines() if line.startswith("compute"))
    assert compute.count("█") == round(30 * 20.76 / 27.93)
    assert compute.endswith("matrix products")
    assert out.startswith("training  23 to 39 days (estimated 31) for 300 billion tokens: ")
    assert "GPU hours" in out.splitlines()[0]
    assert out.splitlines()[-1].endswith(" MWh of the GPUs at their power limit")


def test_a_rate_gives_the_days_that_the_paper_gives(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        *A100,
        "--gpus",
        "1040",
        "--tp",
        "8",
        "--pp",
        "2",
        "--recompute",
        "full",
        "--strategy",
        "zero1",
    )
    _, out, _ = estimate(capsys, "gpt3-175b", *words, "--tokens", "300B", "--rate", "140")
    assert "34 days for 300 billion tokens: " in out
    assert "; 140 TFLOP/s per GPU" in out


def test_explain_prints_formula_numbers_source_and_symbols(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = estimate(capsys, "gpt3-175b", *A100, "--gpus", "8", "--strategy", "zero3", "--explain")
    assert code == 74  # it is explained, too, why it does not fit
    paragraphs = out.split("\n\n")
    assert paragraphs[0].splitlines() == [
        "Lm = 1.812e+09  (parameters of a layer's matrices)",
        "    h*ha*(2 + 2*k/a) + j*h*i",
        "    h=12288  ha=12288  k=96  a=96  j=2  i=49152",
        "    Narayanan et al. 2021, eq. 2",
    ]
    assert paragraphs[-1].splitlines()[0].split() == ["symbol", "meaning"]
    assert "Bd      bandwidth among replicas, B/s" in paragraphs[-1]
    assert "Bt=inf" in out


def test_a_search_prints_a_ranking_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = estimate(capsys, *GPT3, "--attention", "plain", "--recompute", "full", "--fit")
    assert code == 0
    lines = out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("layout  ") and "MFU" in line)
    assert " fit with a margin, " in lines[head - 1]
    assert "slower (" in lines[head + 2]
    assert any(line.startswith("  strategy ") for line in lines)


def test_json_has_values_layouts_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys, "gpt2", "--gpu-type", "h100", "--gpus", "8", "--fit")
    assert data["model"]["layers"] == 12
    assert data["fits"] is True
    assert data["values"]["N"] == pytest.approx(124e6, rel=0.01)
    assert data["layouts"][0]["T"] == data["values"]["T"]
    assert data["reasons"]
    assert data["hardware"]["network"] == 8 * 400 / 8 * 0.96


def test_a_short_training_is_shown_in_hours(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = estimate(capsys, "gpt2", *A100, "--gpus", "8", "--precision", "autocast", "--tokens", "10B")
    assert re.match(r"training  [\d.]+ to [\d.]+ hours \(estimated [\d.]+\) for 10 billion tokens: ", out)


def test_the_text_says_how_a_model_differs_from_a_gpt(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = estimate(capsys, "llama-3-70b", *A100, "--gpus", "64", "--strategy", "fsdp", "--recompute", "full")
    shape = "80 layers, hidden size 8192, 64 heads (8 of keys and values), SwiGLU of 28672, sequence 8192"
    assert f"model     70.55 billion parameters: {shape}, vocabulary 128256, with a matrix for each end" in out


def test_what_does_not_fit_is_shown_and_refused_with_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = estimate(capsys, "7.5B", *A100, "--gpus", "8")
    assert code == 74
    assert "does not fit" in out
    assert error.startswith("ctrain: does not fit: 146 GB per GPU, 79.0 GB are usable. Fits: --strategy fsdp")
    assert error.count("\n") == 1
    code, out, _ = estimate(capsys, "7.5B", *A100, "--gpus", "8", "--json")
    assert (code, json.loads(out)["exit_code"], json.loads(out)["fits"]) == (74, 74, False)


def test_what_published_runs_had_enough_memory_for_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    shape = "--layers 96 --hidden 18432 --heads 96 --kv-heads 8 --vocabulary 256000 --sequence 4096 --untied"
    spread = "--gpus 128 --strategy zero1 --tp 8 --pp 8 --interleave 12 --sequence-parallel"
    words = (*shape.split(), *spread.split(), "--gpu-type", "H100-SXM5-80GB")
    code, out, error = estimate(capsys, *words, "--batch", "32")
    assert (code, error) == (0, "")
    [memory] = [line for line in out.splitlines() if line.startswith("memory    ")]
    assert re.search(
        r" usable per GPU: unknown whether it fits; published runs of Megatron-LM ran .* 1\.\d\d times", memory
    )
    assert "usable: may fit\n" in out
    assert as_json(capsys, *words, "--batch", "32")["fits"] is None
    assert estimate(capsys, *words, "--batch", "32", "--micro-batch", "2")[0] == 74


def test_gpus_and_nodes_are_those_of_the_site(capsys: pytest.CaptureFixture[str]) -> None:
    hardware = as_json(capsys, "gpt2", "--site", "neuron", "--nodes", "2")["hardware"]
    assert (hardware["gpu"]["name"], hardware["count"], hardware["per_node"]) == ("A100-SXM4-40GB", 16, 8)
    hardware = as_json(capsys, "gpt2", "--site", "neuron", "--gpu-type", "V100")["hardware"]
    assert (hardware["gpu"]["name"], hardware["count"]) == ("V100-SXM2-16GB", 4)
    hardware = as_json(capsys, "gpt2", "--site", "neuron", "--partition", "eme_h200nv_8")["hardware"]
    assert hardware["gpu"]["name"] == "H200-SXM5-141GB"
    data = as_json(capsys, "gpt2", "--site", "polaris", "--partition", "prod", "--nodes", "8")
    assert (data["hardware"]["per_node"], data["hardware"]["network"]) == (4, 30.0)
    partition, scheduler, ambiguous, network = data["notes"]
    assert partition == "GPUs of site polaris, partition prod"
    assert scheduler.startswith("partitions are those of the file of site polaris: ")  # there is no PBS here
    assert ambiguous.startswith("GPU type a100 is ambiguous (A100-SXM4-40GB, A100-PCIe-40GB, ")
    assert network == "network: 30 GB/s per node, as expected_bandwidth of the site"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("gpt2", "--site", "local"), 64, "site local has no partition with GPUs of a known type. Pass --gpu-type, "),
        (("gpt2", "--site", "neuron", "--gpu-type", "B200"), 64, "site neuron has no partition with GPUs of B200. "),
        (("gpt2", "--site", "neuron", "--partition", "x"), 64, "site neuron has no partition x with GPUs of a known "),
        (("gpt2", "--site", "neuron", "--gpus", "64"), 74, "partition amd_a100nv_8 has 56 GPUs, 64 requested. "
         "Largest that fits: --gpus 56"),
        (("gpt2", "--gpu-type", "A1000"), 64, "unknown GPU type 'A1000'. Did you mean 'A100'?"),
        (("gpt2", *A100, "--gpus", "12"), 64, "12 GPUs are not a multiple of the 8 of a node. "
         "Nearest: --gpus 8 or --gpus 16"),
        (("gpt2", *A100, "--gpus", "0"), 64, "argument --gpus: must be a positive integer of at most "),
        (("gpt2", *A100, "--gpus", "9" * 5000), 64, "argument --gpus: must be a positive integer of at most "),
        (("gpt2", *A100, "--gpus", "8", "--nodes", "1"), 64, "argument --nodes: not allowed with argument --gpus"),
        (("gpt2", *A100, "--strategy", "zero"), 64, "argument --strategy: invalid choice: 'zero'"),
        (("gpt2", *A100, "--rate", "nan"), 64, "--rate must be a positive number of TFLOP/s, not nan"),
        (("gpt2", *A100, "--rate", "312"), 64, "2,921,217 tokens/s are more than 8 A100-SXM4-80GB reach with this "),
        (("gpt2", *A100, "--tokens", "many"), 64, "--tokens must be a positive number such as 7.5B or 3e11"),
        (("gtp2", *A100), 64, "unknown model 'gtp2'. Did you mean 'gpt2'?"),
        (("--layers", "3", *A100), 64, "no model given, and no --hidden, --heads. "),
        (("gpt2", *A100, "--tp", "5", "--gpus", "40"), 64, "12 heads cannot be split among tp 5. Nearest: --tp 4"),
        (("gpt2", *A100, "--tp", "7"), 64, "12 heads cannot be split among tp 7. Nearest: --tp 4\n"),
        (("gpt2", *A100, "--precision", "fp8"), 64, "FP8 is estimated of Megatron-LM on H100, H200 and GH200: "),
        (("gpt2", *A100, "--precision", "int8"), 64, "argument --precision: must be bf16, fp8, autocast or fp32, "),
        (("gpt2", *A100, "--sequence-parallel"), 64, "--sequence-parallel splits what --tp leaves whole, "),
        (("gpt2", *A100, "--schedule", "gpipe"), 64, "--schedule gpipe is of pipelines, and pp is 1. "),
        (("gpt2", *A100, "--fit", "--tp", "1", "--sequence-parallel"), 64, "--sequence-parallel splits what --tp "),
        (("gpt2", *A100, "--fit", "--strategy", "ddp", "--offload"), 64, "--offload is of ZeRO, not of ddp. "),
        (("gpt2", *A100, "--fit", "--tp", "2", "--compiled"), 64, "compiled programs are told from others only "),
        (("gpt2", *A100, "--offload"), 64, "--offload is of ZeRO, not of ddp. Pass --strategy zero1, zero2 or zero3"),
        (("gpt2", *A100, "--fit", "--tp", "5"), 64, "12 heads cannot be split among tp 5. Nearest: --tp 4"),
        (("gpt2", *A100, "--gpus", "16000000"), 64, "16,000,000 GPUs are more than any training has had. "),
        (("gpt2", *A100, "--tokens", "1"), 64, "--tokens 1 are fewer than the 524,288 of one iteration. "),
        (("gpt2", *A100, "--days", "3"), 64, "--days needs a positive number of days, and --tokens. As in: "),
        (("gpt2", *A100, "--days", "nan", "--tokens", "1T"), 64, "--days needs a positive number of days"),
        (("gpt2", *A100, "--days", "3", "--tokens", "1T", "--gpus", "8"), 64, "--days finds the number of GPUs. Omit "),
        (("gpt2", *A100, "--lora"), 64, "--lora: LoRA cannot be estimated. Too few published runs would judge it: "),
        (("gpt2", *A100, "--cp", "2", "--strategy", "fsdp"), 64, "context parallelism is estimated of Megatron-LM: "),
        (("gpt2", *A100, "--experts", "8"), 64, "--experts: mixtures of experts cannot be estimated. "),
        (("gpt2", *A100, "--strategy", "hsdp"), 64, "on one node, hsdp is fsdp. Pass --strategy fsdp, or more nodes\n"),
        (("gpt2", *A100, "--kv-heads", "5"), 64, "12 heads are not a multiple of 5 of keys and values. Nearest: "),
        (("nowhere/config.json", *A100), 71, "nowhere/config.json cannot be read: No such file or directory"),
        (("./nowhere", *A100), 71, "./nowhere cannot be read: No such file or directory"),
        (("/nowhere/model", *A100), 71, "/nowhere/model cannot be read: No such file or directory"),
        (("meta-llama/Llama-8B", *A100), 64, "unknown model 'meta-llama/Llama-8B'. Did you mean 'llama-3-8b'?"),
        (("gpt2", *A100, "--tp", "2", "--loss", "fused"), 64, "--loss fused: Megatron-LM has a loss of its own, "),
        (("gpt2", *A100, "--calibrate", "nowhere"), 71, "run 'nowhere' not found in "),
    ],
)  # fmt: skip  # rows, as they are read
def test_what_is_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, error: str) -> None:
    ended, out, message = estimate(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert message.startswith(f"ctrain: {error}")
    assert message.count("\n") == 1


def test_dimensions_make_or_change_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--layers", "6", "--hidden", "384", "--heads", "6", "--sequence", "256", "--vocabulary", "65")
    model = as_json(capsys, *own, *A100)["model"]
    assert (model["layers"], model["hidden"], model["sequence"], model["vocabulary"]) == (6, 384, 256, 65)
    assert as_json(capsys, "gpt2", "--sequence", "4096", *A100)["model"]["sequence"] == 4096
    assert "derived from its number of parameters" in as_json(capsys, "124M", *A100)["notes"][-1]


def test_a_configuration_of_hugging_face_is_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in (tmp_path, tmp_path / "config.json"):
        assert as_json(capsys, str(name), *A100)["values"]["N"] == as_json(capsys, "gpt2", *A100)["values"]["N"]
    (tmp_path / "config.json").write_text("{")
    code, out, error = estimate(capsys, str(tmp_path), *A100)
    assert (code, out) == (71, "") and error.startswith(f"ctrain: {tmp_path / 'config.json'} is not JSON: ")


def test_options_make_a_llama(capsys: pytest.CaptureFixture[str]) -> None:
    shape = "--layers 32 --hidden 4096 --heads 32 --vocabulary 128256 --sequence 8192 --kv-heads 8 --ffn 14336"
    own = as_json(capsys, *shape.split(), "--swiglu", "--untied", *A100, "--strategy", "fsdp", "--recompute", "full")
    preset = as_json(capsys, "llama-3-8b", *A100, "--strategy", "fsdp", "--recompute", "full")
    assert own["model"] == preset["model"]


def a_run(parent: Path, ranks: int, metrics: str, expected: Optional[Expectation] = None) -> None:
    plan = a_plan(run_directory=parent / "one", nodes=1, ranks_per_node=ranks)
    (parent / "one").mkdir(parents=True)
    (parent / "one" / run_files.PLAN).write_text("{}")
    (parent / "one" / run_files.METRICS).write_text(metrics)
    record.save(replace(record.begin(plan), estimate=expected))


def test_a_run_calibrates_and_is_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    slow = [{"step": 1, "tokens_per_second": 10}, {"step": 2}, {"tokens_per_second": "fast"}]
    rates = [{"tokens_per_second": rate} for rate in (999_000, 1_000_000, 1_001_000)]
    a_run(tmp_path / "runs", 8, "".join(f"{json.dumps(line)}\n" for line in [*slow, *rates]))
    words = ("gpt2", *A100, "--gpus", "64", "--batch", "4096", "--runs", str(tmp_path / "runs"))
    data = as_json(capsys, *words, "--calibrate", "one")
    assert "1,000,000 tokens/s on 8 GPUs, estimated were 835,629;" in data["notes"][-1]
    assert data["values"]["tokens_per_second"] == pytest.approx(8e6, rel=0.05)
    unchecked = "; its model and layout are unknown: no --estimate"
    assert data["notes"][-1].endswith(f"reach {data['efficiency']:.1%} of the peak{unchecked}")


def test_a_run_calibrates_only_its_own_model_layout_and_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trained = {**asdict(PRESETS["gpt2-xl"]), **asdict(Layout(64, 8, "zero1", offload=True))}
    expected = Expectation("A100", 10, {}, None, tokens=1, steps=1, step_seconds=None, training=trained)
    a_run(tmp_path / "runs", 8, '{"tokens_per_second": 20000}\n', expected)
    words = ("gpt2-xl", "--gpus", "16", "--batch", "128", "--runs", str(tmp_path / "runs"), "--calibrate", "one")
    note = as_json(capsys, *words, *A100, "--micro-batch", "8", "--offload", "--strategy", "zero1")["notes"][-1]
    assert note.startswith("calibrated: 20,000 tokens/s on 8 GPUs") and note.endswith(" of the peak")
    code, out, error = estimate(
        capsys, *words, "--gpu-type", "H100", "--layers", "24", "--sequence-parallel", "--tp", "5"
    )
    assert (code, out) == (64, "")
    assert error == (
        "ctrain: run one cannot calibrate this estimate: it had layers 48, not 24, micro_batch 8, not 1, "
        "strategy zero1, not ddp, offload True, not False, tp 1, not 5, sequence_parallel False, not True, "
        "gpu_type A100, not H100-SXM5-80GB. Pass the options of the run: --layers 48 --micro-batch 8 --strategy zero1 "
        "--offload --tp 1 (no --sequence-parallel) --gpu-type A100\n"
    )


def test_the_calibration_of_the_documentation_is_accepted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = (Path(__file__).parents[4] / "docs" / "estimate.md").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines) if line.endswith("--calibrate last")]
    training = job.find("gpt").training
    assert training and lines[number - 1].startswith("$ ctrain run gpt --nodes 1 --estimate -- ")
    model, spread, _ = read_training(training, lines[number - 1].split(), 8)
    trained = {**asdict(model), **asdict(spread)}
    expected = Expectation("A100", 10, {}, None, tokens=1, steps=1, step_seconds=None, training=trained)
    a_run(tmp_path / "runs", 8, '{"tokens_per_second": 20000}\n', expected)
    words = (*lines[number].split()[3:], "--runs", str(tmp_path / "runs"))
    assert as_json(capsys, *words, *A100)["notes"][-1].startswith("calibrated: 20,000 tokens/s on 8 GPUs")


def test_a_run_without_rates_cannot_calibrate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a_run(tmp_path / "runs", 8, '{"images_per_second": 3}\n')
    words = ("gpt2", *A100, "--runs", str(tmp_path / "runs"), "--calibrate", "one")
    code, _, error = estimate(capsys, *words)
    assert code == 71
    assert f"no tokens_per_second in {tmp_path / 'runs/one/metrics.jsonl'}. The program must write it" in error


def test_no_gpu_is_needed_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "gpu_models", lambda: ())
    assert estimate(capsys, "gpt2", *A100)[0] == 0


DOCS = Path(__file__).parents[4] / "docs" / "estimate.md"


def test_the_examples_of_the_documentation_print_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """tests/golden/regenerate.py writes them."""
    shown = estimate_page.examples(DOCS.read_text(encoding="utf-8"))
    assert len(shown) >= 3
    for command, output in shown:
        code, out, error = estimate(capsys, *command.split()[3:])
        assert (code, error, out) == (0, "", output)


def test_the_answer_comes_first_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tp", "8", "--pp", "16", "--recompute", "full", "--tokens", "300B")
    lines = estimate(capsys, *GPT3, *words)[1].splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["training", "speed", "memory", "example", "error", "nearest"]
    band = as_json(capsys, *GPT3, *words)["band"]
    assert band["low"] <= 1 <= band["high"]
    data = as_json(capsys, *GPT3, *words, "--rate", "140")
    assert data["band"] is None, "a measured rate is not an estimate"


def test_gpus_of_which_no_run_is_known_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    out = estimate(capsys, "gpt2", "--gpu-type", "V100-SXM2-32GB", "--strategy", "fsdp")[1]
    assert "published runs of PyTorch FSDP on A100; none on V100-SXM2-32GB" in out
    words = ("--precision", "autocast", "--micro-batch", "32")
    out = estimate(capsys, "gpt2", "--gpu-type", "H100-PCIe", *words)[1]
    assert "published runs of PyTorch DDP on other GPUs; GPT-2 takes up to 1.9 times as long with torch of 2023" in out
    words = ("--strategy", "fsdp", "--gpus", "8", "--pp", "2")
    assert " on H100; none with a pipeline" in estimate(capsys, "gpt2", "--gpu-type", "H100-SXM", *words)[1]


def test_fewer_tokens_than_published_runs_have_are_less_certain(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gpt2", "--gpu-type", "A100-SXM4-80GB", "--strategy", "fsdp")
    few, usual = (as_json(capsys, *words, "--micro-batch", size)["band"] for size in ("1", "4"))
    assert (few["low"], few["high"]) == (pytest.approx(usual["low"] ** 2), pytest.approx(usual["high"] ** 2))
    assert "; none of fewer than 4,096 tokens at once on a GPU\n" in estimate(capsys, *words)[1]


def test_what_no_published_run_is_like_is_less_certain(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu-type", "A100-SXM4-80GB", "--gpus", "1024", "--batch", "2048", "--tp", "4")
    out = estimate(capsys, "gpt3-175b", *words, "--strategy", "fsdp")[1]
    assert "published runs of PyTorch FSDP on A100; none of a model as large; none of fewer than 4,096 tokens" in out
    assert "on A100; none of zero3 that splits layers; " in estimate(capsys, "7.5B", *words, "--strategy", "zero3")[1]


def test_of_layouts_that_are_as_fast_a_search_prefers_what_is_known_and_packaged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of GPT-3 no run of FSDP is known on A100."""
    small = as_json(capsys, "7.5B", *A100, "--nodes", "4", "--fit")
    assert small["example"] == "ctrain run gpt -- strategy=fsdp bf16=true"
    large = as_json(capsys, *GPT3, "--fit")["layout"]
    assert (large["strategy"], large["tp"]) == ("zero1", 8)


def test_a_search_recomputes_a_part_where_that_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys, "llama-3-8b", *A100, "--gpus", "8", "--strategy", "fsdp", "--tp", "1", "--fit")
    assert data["layout"]["recompute"] == "selective"


def test_a_search_leaves_out_layouts_in_which_an_option_would_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gpt2", *A100, "--fit")
    assert all(one["tp"] > 1 for one in as_json(capsys, *words, "--sequence-parallel")["layouts"])
    assert all(one["pp"] > 1 for one in as_json(capsys, *words, "--schedule", "gpipe")["layouts"])
    assert all(one["strategy"][:4] == "zero" for one in as_json(capsys, *words, "--offload")["layouts"])


def test_the_usual_batch_is_of_whole_micro_batches(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gpt2", *A100, "--gpus", "96", "--strategy", "fsdp", "--micro-batch", "2")
    assert as_json(capsys, *words)["layout"]["batch"] == 576


def test_the_change_that_helps_most_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*GPT3, "--tp", "8", "--pp", "16")
    faster = next(line for line in estimate(capsys, *words, "--recompute", "full")[1].splitlines() if "faster" in line)
    assert re.match(r"faster    --tp 8 --pp 16: \d\d% less time, [\d.]+ GB per GPU$", faster)
    assert "faster" not in estimate(capsys, *GPT3, "--fit")[1]
    out = estimate(capsys, "gpt2", *A100, "--hidden", "816", "--heads", "8")[1]
    assert "note      heads of 102 numbers: FlashAttention pads them to 104" in out


def test_the_fewest_gpus_for_some_days(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = estimate(capsys, "gpt2-xl", *A100, "--tokens", "300B", "--days", "10")
    assert (code, error) == (0, "")
    table = out.split("\n\n")[0].splitlines()
    assert table[0].split() == ["GPUs", "days", "memory", "layout"]
    assert table[-1].endswith("enough") and not any(line.endswith("enough") for line in table[:-1])
    tried = as_json(capsys, "gpt2-xl", *A100, "--tokens", "300B", "--days", "10")["tried"]
    assert tried[-1]["days_high"] <= 10 < tried[-2]["days_high"]


def test_when_no_number_of_gpus_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = estimate(capsys, "gpt2-xl", *A100, "--tokens", "300T", "--days", "0.01")
    assert code == 74 and "enough" not in out.split("\n\n")[0]
    assert error.startswith(
        "ctrain: no number of GPUs up to 16384 is known to be enough for 0.01 days. Pass more --days"
    )
