"""Laws of estimates: parts add up, sharing never costs memory, more adapters never cost time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.estimate import Case, Estimate, make_estimate
from ctrain_runtime.estimate.fit import fit, has_margin
from ctrain_runtime.estimate.formulas import MEMORY, TIME
from ctrain_runtime.estimate.hardware import GPU_TYPES, Hardware
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model

powers = st.integers(0, 4).map(lambda power: 1 << power)


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> Case:
    """Cases whose layout is possible. A stage has two layers or more: a single one is kept while it is recomputed."""
    tp, pp, dp, micro_batch, steps = (draw(powers) for _ in range(5))
    model = Model(pp * draw(st.integers(2, 6)), 64 * tp * draw(powers), tp, draw(powers) * 64, draw(powers) * 1000)
    per_node = draw(st.sampled_from([1, 4, 8, 16]))
    count = tp * pp * dp
    gpu = draw(st.sampled_from(list(GPU_TYPES.values())))
    strategy = draw(st.sampled_from(["ddp", "zero1", *(["zero2", "zero3"] if pp == 1 else []), "fsdp"]))
    choices = {
        "strategy": strategy,
        "offload": draw(st.booleans()),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe"])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "attention": draw(st.sampled_from(["flash", "plain"])),
        "sequence_parallel": draw(st.booleans()),
        "precision": draw(st.sampled_from(["bf16", "autocast", "fp32"])),
        **fixed,
    }
    layout = Layout(dp * micro_batch * steps, micro_batch, tp=tp, pp=pp, **choices)
    return Case(model, Hardware(gpu, count, per_node, draw(st.floats(1, 1000))), layout, tokens=1e9)


def change(case: Case, **layout: Any) -> Estimate:
    return make_estimate(replace(case, layout=replace(case.layout, **layout)))


@given(cases())
def test_parts_are_positive_and_add_up(case: Case) -> None:
    values = make_estimate(case).values
    for total, parts in (("G", MEMORY), ("T", TIME)):
        numbers = [values[part.symbol] for part in parts]
        assert min(numbers) >= 0
        assert abs(sum(numbers) - values[total]) <= 1e-9 * values[total]
    assert 0 < values["mfu"] <= values["hfu"] <= max(values["e"], 2 * values["ea"])  # half of attention is computed
    assert values["M"] <= values["F"]


@given(cases())
def test_each_formula_is_explained_by_its_text_and_numbers(case: Case) -> None:
    """What --explain prints is all that a formula needs, and gives the value that it prints."""
    estimate = make_estimate(case)
    for formula in estimate.formulas:
        numbers = {name: estimate.values[name] for name in formula.names}
        value = eval(formula.text, {"min": min, "max": max}, numbers)  # noqa: S307  # a constant of ctrain's own
        assert value == estimate.values[formula.symbol]
        symbols = {one.symbol for one in estimate.formulas}
        assert all(name in estimate.meanings or name in symbols for name in formula.names)
        assert formula.source


@given(cases())
def test_more_zero_never_takes_more_memory(case: Case) -> None:
    """With one replica, ZeRO has nobody to share with. Of fp32, DeepSpeed keeps a copy of the parameters, and gradients
    that DDP has only while activations go: two replicas share less than that; their optimizer's state is smaller."""
    replicas, is_fp32 = case.layout.data_parallel(case.hardware.count), case.layout.precision == "fp32"
    if replicas > 1:
        alone, shared = (change(case, strategy=strategy).values["optimizer"] for strategy in ("ddp", "zero1"))
        assert shared <= alone
    stages = (
        *(("ddp",) if replicas > 1 and not is_fp32 else ()),
        "zero1",
        *(("zero2",) if case.layout.pp == 1 else ()),
    )
    memory = [change(case, strategy=strategy).values["G"] for strategy in stages]
    assert all(more >= less * (1 - 1e-12) for more, less in zip(memory, memory[1:]))
    if case.layout.pp == 1:  # what ZeRO 3 gathers may be more than it shares, and its gradients are there all the time
        shared, all_shared = (change(case, strategy=strategy).values["optimizer"] for strategy in ("zero2", "zero3"))
        assert all_shared <= shared


@given(cases())
def test_less_is_kept_and_more_is_computed_with_recomputation(case: Case) -> None:
    kept, recomputed = change(case, recompute="none").values, change(case, recompute="full").values
    assert recomputed["compute"] > kept["compute"]
    assert recomputed["activations"] < kept["activations"]


@given(cases())
def test_what_is_split_or_moved_away_takes_less_memory(case: Case) -> None:
    for name, more in (("sequence_parallel", True), ("offload", True)):
        assert change(case, **{name: more}).values["G"] <= change(case, **{name: False}).values["G"] * (1 + 1e-12)
    assert change(case, schedule="1f1b").values["G"] <= change(case, schedule="gpipe").values["G"]
    assert change(case, attention="flash").values["G"] <= change(case, attention="plain").values["G"]


@given(cases(), st.floats(1, 10))
def test_a_faster_network_and_more_efficient_products_never_take_longer(case: Case, factor: float) -> None:
    slow, time = case.hardware, make_estimate(case).values["T"]
    fast = replace(case, hardware=replace(slow, network=slow.network * factor))
    assert make_estimate(fast).values["T"] <= time * (1 + 1e-12)
    efficient = replace(case, efficiency=min(1.0, make_estimate(case).values["e"] * factor))
    assert make_estimate(efficient).values["T"] <= time * (1 + 1e-12)


@given(st.integers(1, 64), st.integers(1, 40), st.integers(1, 40), st.integers(1, 100), powers)
def test_a_layout_is_possible_or_refused_with_a_next_step(gpus: int, tp: int, pp: int, batch: int, layers: int) -> None:
    hardware = Hardware(GPU_TYPES["A100-SXM4-80GB"], gpus, 8, 100)
    case = Case(Model(layers, 960, 12), hardware, Layout(batch, tp=tp, pp=pp))
    try:
        values = make_estimate(case).values
    except UsageError as error:
        assert error.hint.startswith("Nearest: --")
        return
    assert (values["d"] * values["t"] * values["p"], values["d"] * values["m"] * values["b"]) == (gpus, batch)


@given(cases(strategy="zero1"))
def test_a_search_finds_nothing_slower_than_what_is_given(case: Case) -> None:
    """Within the 5 % to which times are compared. What a search does not change stays."""
    stay = {"attention", "precision", "offload", "micro_batch"}  # and what is not silent here
    stay |= {name for name, parts in (("schedule", case.layout.pp), ("sequence_parallel", case.layout.tp)) if parts > 1}
    case = replace(case, hardware=replace(case.hardware, per_node=16))  # tensor parallelism stays within a node
    mine = make_estimate(case)
    if has_margin(mine):
        assert fit(case, stay).ranked[0].values["T"] <= mine.values["T"] * 1.06
