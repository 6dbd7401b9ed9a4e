"""The figures that papers and talks have published, and what estimates are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.estimate import Case, calibrate, capacity, make_estimate
from ctrain_runtime.estimate.formulas import MEMORY, TIME
from ctrain_runtime.estimate.hardware import find_gpus
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.presets import PRESETS
from samples import estimate_page
from samples.estimates import MEGATRON, TABLE_1, Row, a_case, a_hardware

GPT3 = PRESETS["gpt3-175b"]
YEAR, DAY = 365.25 * 86400, 86400


def at_rate(case: Case, tflops: float) -> Case:
    """The case with the efficiency at which a GPU reaches a rate, as with --rate."""
    values = make_estimate(case).values
    tokens = values["tokens_per_second"] * tflops * 1e12 / (values["hfu"] * values["X"])
    return replace(case, efficiency=calibrate(case, case.hardware.count, tokens)[0])


def test_operations_of_an_iteration_of_gpt3() -> None:
    values = make_estimate(a_case(GPT3, 1024, 1024, tp=8, pp=8, **MEGATRON)).values
    assert values["F"] == pytest.approx(3.00e18, rel=0.005)
    assert 100_000 * values["F"] / values["X"] / YEAR == pytest.approx(30.5, abs=0.05)
    closed_form = 96 * 1024 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert values["F"] == pytest.approx(closed_form, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "gpus", "tp", "tflops", "days"),
    [(GPT3, 1040, 8, 140, 34), (Model(36, 4096, 32), 256, 4, 142, 6)],
    ids=["175B", "7.5B"],
)
def test_days_of_300_billion_tokens_at_a_measured_rate(
    model: Model, gpus: int, tp: int, tflops: float, days: int
) -> None:
    case = at_rate(a_case(model, gpus, 2 * gpus, 300e9, tp=tp, **MEGATRON), tflops)
    values = make_estimate(case).values
    assert round(values["seconds"] / DAY) == days
    approximation = 8 * 300e9 * values["N"] / (gpus * tflops * 1e12)  # Narayanan et al. 2021, eq. 4
    assert values["seconds"] == pytest.approx(approximation, rel=0.08)
    assert values["gpu_hours"] == pytest.approx(gpus * values["seconds"] / 3600)
    assert values["energy"] == pytest.approx(gpus * 400 * values["seconds"])


def test_the_state_of_gpt3_in_fp32_is_2_8_terabytes() -> None:
    values = make_estimate(a_case(GPT3, 1, 1, precision="fp32")).values
    parts = [values[name] / 1e9 for name in ("parameters", "gradients", "optimizer")]
    assert parts == pytest.approx([700, 700, 1400], rel=0.005)
    assert sum(parts) == pytest.approx(2800, rel=0.005)


@pytest.mark.parametrize(
    ("strategy", "precision", "sizes"),
    [
        ("ddp", "bf16", (2, 4, 12)),  # Megatron-LM: 18 bytes, 6 + 12/d with its distributed optimizer
        ("ddp", "fp32", (4, 4, 8)),
        ("zero1", "bf16", (2, 2, 12 / 4)),  # DeepSpeed
        ("zero1", "fp32", (4, 4, 12 / 4)),
        ("fsdp", "fp32", (None, 4 / 4, 8 / 4)),
        ("fsdp", "bf16", (None, 4 / 4, 8 / 4)),
    ],
)
def test_bytes_per_parameter(strategy: str, precision: str, sizes: tuple[Optional[float], ...]) -> None:
    values = make_estimate(a_case(GPT3, 4, 8, strategy=strategy, precision=precision)).values  # two micro batches
    for name, size in zip(("parameters", "gradients", "optimizer"), sizes):
        assert size is None or values[name] / values["P"] == pytest.approx(size)


def test_megatrons_distributed_optimizer_shares_the_state_and_not_the_gradients() -> None:
    values = make_estimate(a_case(GPT3, 64, 64, strategy="zero1", tp=8)).values
    sizes = [values[name] / values["P"] for name in ("parameters", "gradients", "optimizer")]
    assert sizes == pytest.approx([2, 4, 12 / 8])


@pytest.mark.parametrize(
    ("row", "case"),
    estimate_page.measured(),
    ids=["-".join([*row.values()][:-2]) for row, _ in estimate_page.measured()],
)
def test_memory_of_the_packaged_gpt_is_what_was_measured(row: dict[str, str], case: Case) -> None:
    """Measured by the programs in tests/samples/memory."""
    assert make_estimate(case).values["G"] == pytest.approx(int(row["bytes"]), rel=0.05)


@pytest.mark.parametrize(("row", "case"), estimate_page.measured_llama())
def test_memory_of_the_packaged_llama_is_what_was_measured_but_for_rmsnorm(row: dict[str, str], case: Case) -> None:
    """On CPUs it keeps its result in fp32 besides, of each layer's two and the last, or of one layer at a time."""
    kept = 2 * (1 if row["recompute"] == "True" else case.model.layers) + 1
    of_cpus = kept * 4 * 8 * 512 * 512
    assert make_estimate(case).values["G"] + of_cpus == pytest.approx(int(row["bytes"]), rel=0.05)


@pytest.mark.parametrize("row", estimate_page.measured_host(), ids=lambda row: f"{row['strategy']}-{row['bf16']}")
def test_host_memory_of_the_packaged_gpt_is_what_was_measured(row: dict[str, str]) -> None:
    """Measured by tests/samples/memory/measure_host.py, with the model of 4 layers of 512."""
    model, precision = Model(4, 512, 8, 128, 2000, tied=False), "bf16" if row["bf16"] == "True" else "fp32"
    values = make_estimate(a_case(model, 1, 2, strategy=row["strategy"], offload=True, precision=precision)).values
    assert values["host"] == pytest.approx(int(row["bytes"]), rel=0.01)


def test_gradients_of_autocast_cross_the_network_in_fp32_and_activations_in_bf16() -> None:
    half, cast, full = (
        make_estimate(a_case(GPT3, 16, 16, tp=2, precision=name)).values for name in ("bf16", "autocast", "fp32")
    )
    assert cast["compute"] == half["compute"] < full["compute"]
    assert cast["tensor"] == half["tensor"] < full["tensor"]
    assert (cast["wn"], cast["w"]) == (full["wn"], half["w"])


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row.parameters}B")
def test_the_rows_of_megatrons_table(row: Row) -> None:
    estimate = make_estimate(row.case())
    values = estimate.values
    assert values["N"] / 1e9 == pytest.approx(row.parameters, rel=0.03)  # the paper rounds 1.65 to 1.7
    assert values["F"] / values["T"] / row.gpus / 1e12 == pytest.approx(row.tflops, rel=0.1)
    assert values["F"] / values["T"] / 1e15 == pytest.approx(row.pflops, rel=0.1)
    assert 100 * values["hfu"] == pytest.approx(row.percent, rel=0.1)
    assert estimate.fits


@pytest.mark.parametrize(("gpus", "tflops"), [(384, 153), (768, 149), (1536, 141)])
def test_gpt3_on_ever_more_gpus(gpus: int, tflops: int) -> None:
    """Narayanan et al. 2021, Table 2: 174.6B parameters, batch 1536, tp 8 x pp 12."""
    values = make_estimate(a_case(GPT3, gpus, 1536, tp=8, pp=12, **MEGATRON)).values
    assert values["hfu"] * 312 == pytest.approx(tflops, rel=0.1)


def test_fewer_network_adapters_are_slower() -> None:
    """SK Telecom's TITAN, 175B: 32,209 ms with 8 per node, then 32,492, 37,105 and 50,368 with 4, 2 and 1."""
    times = [
        make_estimate(a_case(GPT3, 1024, 1536, nics=nics, tp=8, pp=16, **MEGATRON)).values["T"] for nics in (8, 4, 2, 1)
    ]
    ratios = [time / times[0] for time in times]
    assert ratios == sorted(ratios)
    assert 1 < ratios[1] < 1.05 < ratios[2] < 1.2 < ratios[3] < 1.6


def test_an_interleaved_schedule_has_less_of_a_bubble_and_keeps_and_sends_more() -> None:
    """Narayanan et al. 2021, section 2.2.2; Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1)/(p v) times as much."""
    case = a_case(GPT3, 128, 256, tp=8, pp=8)
    once, thrice = (
        make_estimate(replace(case, layout=replace(case.layout, interleave=parts))).values for parts in (1, 3)
    )
    before = sum(once[name] for name in ("compute", "attention", "elementwise", "tensor", "pipeline"))
    assert once["bubble"] == pytest.approx(7 / 128 * before)
    assert thrice["bubble"] == pytest.approx(7 / 128 / 3 * (before + 2 * once["pipeline"]))
    assert thrice["pipeline"] == pytest.approx(3 * once["pipeline"])
    assert thrice["f"] == pytest.approx(once["f"] * (1 + 7 / 24))


def test_selective_recomputation_keeps_no_scores_and_computes_attention_again() -> None:
    """Korthikanti et al. 2022, section 5: of GPT-3, 70 % less memory."""
    case = a_case(GPT3, 8, 64, attention="plain", tp=8, sequence_parallel=True)
    kept, selective = (
        make_estimate(replace(case, layout=replace(case.layout, recompute=how))).values for how in ("none", "selective")
    )
    assert selective["F"] - kept["F"] == pytest.approx(4 * 64 * 96 * 2048**2 * 12288)
    assert selective["A"] / kept["A"] == pytest.approx(0.3, abs=0.01)
    assert selective["compute"] == kept["compute"] and selective["attention"] > kept["attention"]
    assert selective["elementwise"] > kept["elementwise"]
    assert kept["activations"] - selective["activations"] == pytest.approx(95 * kept["S"])  # one layer's is computed


def test_zero_divides_the_state_among_the_replicas() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5B on 64 GPUs: 31.4, 16.6 and 1.9 GB. ZeRO 3 also leaves a billion
    parameters gathered."""
    model = Model(36, 4096, 32)
    state = []
    for strategy in ("zero1", "zero2", "zero3"):
        values = make_estimate(a_case(model, 64, 128, strategy=strategy)).values
        state.append(sum(values[name] for name in ("parameters", "gradients", "optimizer")) / 1e9)
    assert state == pytest.approx([31.4, 16.6, 1.9 + 2], rel=0.02)


def test_zero_3_hides_neither_the_first_gather_nor_the_last_reduction_of_a_micro_batch() -> None:
    """Zhao et al. 2023, section 3.3: what is prefetched needs a layer before it; however long that layer computes."""
    values = make_estimate(a_case(GPT3, 64, 64 * 32, strategy="zero3", micro_batch=16)).values
    layer = 2 * values["P"] / 96 * 63 / 64 / 192e9  # bytes, over the node's network
    assert values["data"] == pytest.approx(2 * 2 * (layer + 56 * 3.4e-6 + 7 * 14e-6))
    hidden = make_estimate(a_case(GPT3, 64, 64 * 32, strategy="zero1", micro_batch=16)).values
    assert hidden["data"] == 0


def test_gathers_of_more_gpus_take_longer_than_a_smaller_batch_hides() -> None:
    """By their volume, which does not shrink with the batch of a GPU, and by the steps of their rings."""
    batches = {64: 16, 256: 4, 1024: 1}
    shares = []
    for gpus, micro_batch in batches.items():
        case = a_case(GPT3, gpus, 1024, strategy="zero3", micro_batch=micro_batch, recompute="full")
        values = make_estimate(case).values
        shares.append(values["data"] / values["T"])
    assert shares == sorted(shares)
    fast = replace(case, hardware=replace(case.hardware, gpu=replace(case.hardware.gpu, bf16=1e9, bandwidth=1e9)))
    values = make_estimate(fast).values
    volume, latency = 3 * 2 * values["P"] * 1023 / 1024 / 192e9, 3 * 96 * (896 * 3.4e-6 + 127 * 14e-6)
    assert values["data"] + values["launch"] == pytest.approx(volume + latency, rel=1e-3)


def test_activations_by_korthikanti() -> None:
    """Table 2 of the paper: per layer sbh(34 + 5as/h), (10 + 24/t), and split by sequence parallelism."""
    sbh, scores = 2048 * 12288, 5 * 96 * 2048 / 12288

    def per_layer(**layout: object) -> float:
        return make_estimate(a_case(GPT3, 8, 8, **layout)).values["activations"] / 96 / sbh

    assert per_layer(attention="plain") == pytest.approx(34 + scores)
    assert per_layer() == pytest.approx(32)  # no dropout, no masks
    assert per_layer(attention="plain", tp=8) == pytest.approx(10 + (24 + scores) / 8)
    assert per_layer(attention="plain", tp=8, sequence_parallel=True) == pytest.approx((34 + scores) / 8)
    assert per_layer(recompute="full") == pytest.approx(2 + 32 / 96)


def test_llm_c_makes_gradients_of_logits_in_their_place() -> None:
    """It has published 331 MiB per sequence of GPT-2 where GeLU is computed again; without, 11 of 12 layers' are kept
    besides. Megatron-LM computes SwiGLU again."""
    case = a_case(PRESETS["gpt2"], 1, 448, strategy="zero1", micro_batch=56, compiled=True)
    values = make_estimate(case).values
    kept = (values["activations"] + values["output"]) / 56
    assert kept == pytest.approx(331 * 2**20 + 11 * 4 * 768 * 2 * 1024, rel=0.05)
    llama = a_case(PRESETS["llama-3-8b"], 8, 8, strategy="zero1", tp=8, sequence_parallel=True)
    split = make_estimate(llama).values
    assert split["D"] - split["A"] == pytest.approx(2 * 8192 * 14336 / 8)


def test_gpipe_keeps_all_micro_batches_and_1f1b_as_many_as_stages() -> None:
    kept = {
        schedule: make_estimate(a_case(GPT3, 64, 256, tp=8, pp=8, schedule=schedule)).values
        for schedule in ("gpipe", "1f1b")
    }
    assert kept["gpipe"]["activations"] == pytest.approx(kept["1f1b"]["activations"] * 256 / 8)
    assert kept["gpipe"]["bubble"] == kept["1f1b"]["bubble"]


def test_stages_of_torch_keep_what_they_send_and_receive_of_all_micro_batches() -> None:
    """Megatron-LM's, in bf16, do not. The last stage keeps its logits, too."""
    model, received = Model(8, 64, 4, 128, 1000), 128 * 64
    ends = make_estimate(a_case(model, 8, 64, pp=8, precision="fp32")).values
    assert (ends["hs"], ends["stages"]) == (1, 64 * 4 * (received + 128 * 1000))
    wide = replace(model, hidden=512, vocabulary=10)
    first = make_estimate(a_case(wide, 8, 64, pp=8, schedule="gpipe", precision="fp32")).values
    assert first["stages"] == 64 * first["hs"] * 4 * 128 * 512
    assert first["hs"] in (2, 3)
    assert make_estimate(a_case(model, 8, 64, pp=8)).values["stages"] == 0
    assert make_estimate(a_case(model, 8, 64, precision="fp32")).values["stages"] == 0


def test_fsdp_in_a_pipeline_gathers_once_and_keeps_that() -> None:
    kept, shared = (make_estimate(a_case(GPT3, 64, 64, strategy="fsdp", tp=8, pp=stages)).values for stages in (2, 1))
    assert kept["parameters"] == pytest.approx(kept["P"] * (4 / 4 + 2))
    assert (kept["r"], shared["r"]) == (2, 3 * 8)
    assert kept["gradients"] == pytest.approx(4 * kept["P"])
    assert shared["gradients"] < kept["gradients"]


def test_gpus_that_share_a_sequence_keep_a_part_of_it_and_add_up_gradients() -> None:
    whole, half = (make_estimate(a_case(GPT3, 32, 64, strategy="zero1", tp=8, cp=cp)).values for cp in (1, 2))
    assert half["activations"] == pytest.approx(whole["activations"] / 2)
    assert (half["m"], half["d"], half["dg"]) == (2 * whole["m"], whole["d"] / 2, whole["dg"])
    assert half["optimizer"] == whole["optimizer"]  # which all of them share
    assert half["compute"] == pytest.approx(whole["compute"])


def test_attention_hides_the_exchange_of_keys_and_values_unless_the_network_is_slow() -> None:
    """Half a sequence of GPT-3 has 50.3 MB of keys and values: an eighth on each GPU of tp 8, once forward and twice
    back, of 96 layers, are 1.81 GB, which a GPU sends to another node at 24 GB/s. Within a node attention hides it."""
    across = make_estimate(a_case(GPT3, 16, 1, tp=8, cp=2)).values
    assert across["context"] + across["attention"] == pytest.approx(1.812e9 / 24e9, rel=1e-3)
    within = a_case(PRESETS["llama-3-70b"], 8, 1, tp=4, cp=2)
    assert make_estimate(within).values["context"] == 0
    slow = replace(within.hardware, gpu=replace(within.hardware.gpu, link=1))
    assert make_estimate(replace(within, hardware=slow)).values["context"] > 0


def test_hsdp_shares_within_a_node_and_reduces_shares_between_nodes() -> None:
    case = a_case(PRESETS["llama-2-7b"], 128, 256, strategy="hsdp", micro_batch=2)
    values = make_estimate(case).values
    assert (values["dg"], values["dn"], values["optimizer"]) == (8, 16, pytest.approx(8 * values["P"] / 8))
    slow = replace(case.hardware, gpu=replace(case.hardware.gpu, bf16=1e9, bandwidth=1e9))
    shown = make_estimate(replace(case, hardware=slow)).values
    within, between = 3 * 2 * values["P"] * 7 / 8 / 230e9, 2 * 2 * values["P"] / 8 * 15 / 16 / 24e9
    expected = within + shown["xn"] * between + 3 * 32 * 7 * 3.4e-6  # a part of what crosses nodes is hidden
    assert 0 < shown["xn"] < 1 and shown["data"] + shown["launch"] == pytest.approx(expected, rel=1e-3)
    everywhere = make_estimate(replace(case, layout=replace(case.layout, strategy="fsdp"))).values
    assert everywhere["optimizer"] == pytest.approx(values["optimizer"] / 16)


def test_a_fused_loss_keeps_a_logit_and_its_gradient_and_megatrons_a_softmax() -> None:
    """flash-attn's xentropy: both in bf16. Megatron-LM's cross_entropy.py: the softmax in fp32, which becomes the
    gradient, and that in bf16."""
    case = a_case(PRESETS["gpt2"], 8, 64, strategy="fsdp", micro_batch=8)
    plain, fused = (make_estimate(replace(case, layout=replace(case.layout, loss=loss))) for loss in ("plain", "fused"))
    assert plain.values["Q"] - fused.values["Q"] == pytest.approx((12 - 4) * 8 * 1024 * 50257)
    assert fused.values["T"] == plain.values["T"]
    megatron = make_estimate(a_case(PRESETS["gpt2"], 8, 64, tp=4)).values
    assert megatron["Q"] == pytest.approx(1024 * (6 * 50257 / 4 + 4 * 768))


def test_ranks_of_torchs_parallel_loss_share_the_logits() -> None:
    case = a_case(PRESETS["llama-3-8b"], 64, 64, strategy="fsdp", tp=8)
    own, shared = (
        make_estimate(replace(case, layout=replace(case.layout, loss=loss))) for loss in ("plain", "parallel")
    )
    assert own.values["Q"] - shared.values["Q"] == pytest.approx(12 * 8192 * 128256 * 7 / 8)


def test_torchtitans_selective_recomputation_keeps_every_second_product_and_attention() -> None:
    """parallelize_llama.py of 2024: of wq, wk, wv, wo, w1, w3 and w2 the first, third, fifth and seventh."""
    case = a_case(PRESETS["llama-3-8b"], 64, 64, strategy="fsdp")
    none, some, all_ = (
        make_estimate(replace(case, layout=replace(case.layout, recompute=how))).values
        for how in ("none", "selective", "full")
    )
    h, wide = 4096, 14336
    again = 2 * 64 * 8192 * 32 * (h * h * (1 / 4 + 1) + h * wide)  # wk, wo and w3
    assert some["F"] - none["F"] == pytest.approx(again)
    assert some["Ak"] == pytest.approx(
        2 * 8192 * (h + h + h + h / 4 + h + wide)
    )  # the input; w2, wq, wv, attention; w1
    assert all_["activations"] < some["activations"] < none["activations"]
    assert none["T"] < some["T"] < all_["T"]


def test_fp8_halves_the_time_of_products_and_keeps_in_fp8_what_they_read() -> None:
    case = replace(a_case(GPT3, 64, 64, strategy="zero1", tp=8, pp=8), hardware=a_hardware(64, "H100"))
    half, eighth = (
        make_estimate(replace(case, layout=replace(case.layout, precision=name))).values for name in ("bf16", "fp8")
    )
    assert eighth["X"] == 2 * half["X"]
    assert half["compute"] / eighth["compute"] == pytest.approx(1.6, abs=0.1)
    assert eighth["attention"] == pytest.approx(half["attention"])
    # A result of a norm or of GeLU takes a byte less; attention's is there in FP8, too.
    sizes = [values["A"] / 2048 / 12288 for values in (half, eighth)]
    assert sizes == pytest.approx([8 + (8 + 16) / 8, 6 + (9 + 12) / 8])
    assert eighth["parameters"] == half["parameters"] == 2 * half["P"]  # FP8 twice is as much as bf16
    assert (eighth["gradients"], half["gradients"]) == (2 * half["P"], 4 * half["P"])


def test_a_toy_model_takes_what_its_kernels_take_to_start() -> None:
    toy = make_estimate(a_case(Model(4, 128, 4, 64, 65), 1, 12, micro_batch=12)).values
    started = sum(toy[name] for name in ("compute", "attention", "elementwise", "launch"))
    assert started == pytest.approx(4 * 70 * 5e-6) and toy["launch"] > started / 2
    assert make_estimate(a_case(PRESETS["gpt2"], 1, 8, micro_batch=8)).values["launch"] == 0


def test_the_bubble_is_what_stages_wait() -> None:
    values = make_estimate(a_case(GPT3, 64, 64, tp=8, pp=8)).values
    busy = sum(values[name] for name in ("compute", "attention", "elementwise", "tensor", "pipeline"))
    assert values["bubble"] / busy == pytest.approx(7 / 64)


def test_offload_moves_the_optimizers_state_and_takes_time() -> None:
    kept, offloaded = (
        make_estimate(a_case(GPT3, 64, 64, strategy="zero2", offload=off)).values for off in (False, True)
    )
    assert (offloaded["optimizer"], offloaded["host"]) == (
        0,
        pytest.approx(kept["optimizer"] * 18 / 12),
    )  # with gradients
    assert offloaded["update"] > kept["update"]


def test_all_reduces_of_a_tensor_parallel_layer_take_what_their_bytes_take() -> None:
    """GPT-3 on a DGX A100: 96 layers, four sums per micro batch of 2048 x 12288 numbers in bf16, which are 50.3 MB. A
    ring of eight sends 7/4 of them, at 230 GB/s (nccl-tests): 383 us each, 147 ms in all."""
    forward_and_backward = make_estimate(a_case(GPT3, 8, 1, tp=8)).values["tensor"]
    assert forward_and_backward == pytest.approx(0.14706, rel=1e-4)
    forward_again = make_estimate(a_case(GPT3, 8, 1, tp=8, recompute="full")).values["tensor"]
    assert forward_again == pytest.approx(0.22059, rel=1e-4)
    ten_micro_batches = make_estimate(a_case(GPT3, 8, 10, tp=8)).values["tensor"]
    assert ten_micro_batches == pytest.approx(1.4706, rel=1e-4)


def test_the_update_reads_and_writes_adams_state_and_the_gradients() -> None:
    """GPT-2 XL has 1.56e9 parameters: 12 bytes of state and 4 of gradient, read and written, are 49.8 GB, which an A100
    moves in 24.4 ms at 2039 GB/s, and of DeepSpeed, whose state is 16 bytes and gradient 2, the host
    in 2.24 s at 25 GB/s. Four replicas share it."""
    model = PRESETS["gpt2-xl"]
    assert make_estimate(a_case(model, 1, 1)).values["update"] == pytest.approx(0.02445, rel=1e-3)
    assert make_estimate(a_case(model, 4, 4, strategy="zero1")).values["update"] == pytest.approx(0.006876, rel=1e-3)
    on_the_host = make_estimate(a_case(model, 1, 1, strategy="zero2", offload=True)).values["update"]
    assert on_the_host == pytest.approx(2.2431, rel=1e-3)


def test_parts_add_up() -> None:
    estimate = make_estimate(TABLE_1[6].case())
    assert estimate.values["G"] == pytest.approx(sum(estimate.values[part.symbol] for part in MEMORY))
    assert estimate.values["T"] == pytest.approx(sum(estimate.values[part.symbol] for part in TIME))


def test_whether_it_fits() -> None:
    assert not make_estimate(a_case(GPT3, 8, 8)).fits
    assert capacity(a_hardware(8)) < 80 * 2**30


def test_a_measured_run_calibrates_the_efficiency_for_any_number_of_replicas() -> None:
    case = a_case(PRESETS["gpt2-xl"], 64, 512)
    as_measured = replace(case, hardware=a_hardware(8), layout=replace(case.layout, batch=64), efficiency=0.4)
    measured = make_estimate(as_measured).values["tokens_per_second"]
    efficiency, estimated = calibrate(case, 8, measured)
    assert efficiency == pytest.approx(0.4)
    assert estimated > measured
    with pytest.raises(UsageError, match="more than 8 A100-SXM4-80GB reach with this layout"):
        calibrate(case, 8, 1e9)


def test_fp32_computes_at_the_peak_of_fp32() -> None:
    assert make_estimate(a_case(GPT3, 8, 8, precision="fp32")).values["X"] == 19.5e12
    assert find_gpus("a100")[0].bf16 == 312
