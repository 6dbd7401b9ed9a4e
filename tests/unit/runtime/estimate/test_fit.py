from __future__ import annotations

from dataclasses import replace

import pytest

from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.estimate.estimate import make_estimate
from ctrain_runtime.estimate.fit import advice, best_change, compare, fit
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.presets import PRESETS
from samples.estimates import MEGATRON, a_case, a_hardware

PUBLISHED = [
    pytest.param("gpt3-175b", 1024, 1536, {"tp": 8, "pp": 8}, id="175B, tp 8 x pp 8"),
    pytest.param("gpt3-175b", 1024, 1536, {"tp": 8, "pp": 16}, id="175B, tp 8 x pp 16"),
    pytest.param("mt-nlg-530b", 2240, 1920, {"tp": 8, "pp": 35}, id="530B, tp 8 x pp 35"),
]


@pytest.mark.parametrize(("name", "gpus", "batch", "published"), PUBLISHED)
@pytest.mark.parametrize("era", [{}, MEGATRON], ids=["now", "2021"])
def test_a_layout_at_least_as_good_as_the_published_one_and_why(
    name: str, gpus: int, batch: int, published: dict[str, int], era: dict[str, str]
) -> None:
    result = fit(a_case(PRESETS[name], gpus, batch, **era), set(era))
    best = result.ranked[0]
    theirs = make_estimate(a_case(PRESETS[name], gpus, batch, **published, **era))
    assert best.fits
    assert best.values["T"] <= theirs.values["T"]
    reasons = result.reasons()
    assert any("slower (" in reason for reason in reasons)
    assert any("does not fit: " in reason for reason in reasons)


def test_another_choice_is_judged_with_the_micro_batch_that_suits_it() -> None:
    result = fit(a_case(PRESETS["llama-3-8b"], 64, 512), ())
    other = next(reason for reason in result.reasons() if reason.startswith("recompute"))
    best = result.ranked[0].case.layout
    times = [
        one.values["T"]
        for one in result.ranked
        if replace(one.case.layout, micro_batch=best.micro_batch, recompute=best.recompute) == best
        and one.case.layout.recompute != best.recompute
    ]
    slower = min(times) / result.ranked[0].values["T"] - 1
    assert f"{slower:.1%} slower" in other or slower < 0.05


def test_a_change_that_is_not_worth_it_is_none() -> None:
    case = a_case(PRESETS["gpt3-175b"], 1024, 1536, tp=8, pp=16, recompute="full")
    better = best_change(make_estimate(case))
    assert better and better.case.layout.recompute == "none"
    assert best_change(fit(a_case(PRESETS["gpt2-xl"], 8, 512), ()).ranked[0]) is None


def test_530b_is_split_as_published() -> None:
    result = fit(a_case(PRESETS["mt-nlg-530b"], 2240, 1920, **MEGATRON), {*MEGATRON, "strategy"})
    layout = result.ranked[0].case.layout
    assert (layout.tp, layout.pp) == (8, 35)


def test_a_split_model_has_its_optimizer_shared() -> None:
    layout = fit(a_case(PRESETS["gpt3-175b"], 1024, 1536), ()).ranked[0].case.layout
    assert layout.tp * layout.pp > 1 and layout.strategy == "zero1"


def test_what_fits_on_a_gpu_is_not_split() -> None:
    layout = fit(a_case(PRESETS["gpt2"], 8, 512), ()).ranked[0].case.layout
    assert (layout.tp, layout.pp, layout.offload) == (1, 1, False)


def test_given_choices_stay() -> None:
    result = fit(a_case(PRESETS["gpt2-xl"], 8, 512, strategy="zero1", micro_batch=2), {"strategy", "micro_batch"})
    layouts = [one.case.layout for one in (*result.ranked, *result.too_large)]
    assert {(layout.strategy, layout.micro_batch) for layout in layouts} == {("zero1", 2)}


def test_offload_only_if_nothing_else_fits() -> None:
    case = a_case(Model(48, 6144, 48), 2, 16)  # 22B: 16 bytes each are more than two GPUs have
    assert all(one.case.layout.offload for one in fit(case, ()).ranked)


def test_what_fits_nowhere_names_the_fewest_gpus() -> None:
    case = a_case(PRESETS["gpt3-175b"], 8, 8)
    with pytest.raises(ResourceError, match=r"no layout fits: [\d.]+ GB per GPU, 79.0 GB are usable with .*--gpus 16"):
        fit(case, ())


def test_the_advice_fits() -> None:
    case = a_case(PRESETS["gpt2-xl"], 8, 512, micro_batch=64)
    assert not make_estimate(case).fits
    words = advice(case).split()
    assert words[:1] == ["Fits:"]
    fitting = fit(case, ()).ranked[0]
    assert " ".join(words[1:]) == fitting.case.layout.options()
    assert make_estimate(replace(case, layout=fitting.case.layout)).fits


def test_a_layer_that_no_number_of_gpus_holds() -> None:
    assert advice(a_case(Model(1, 1 << 23, 1), 8, 8)) == "Use a smaller model, or GPUs with more memory"


def test_no_layout_divides() -> None:
    with pytest.raises(UsageError, match="no layout divides"):
        fit(a_case(Model(7, 700, 7), 8, 3), ())


def test_sequences_are_split_rather_than_computed_again() -> None:
    """As NVIDIA trains this model, on 1,152 H100."""
    case = replace(a_case(PRESETS["llama-3-405b"], 1024, 1024), hardware=a_hardware(1024, "H100-SXM5-80GB"))
    best = fit(case, ()).ranked[0].case.layout
    assert (best.cp, best.recompute) == (2, "none")
    short = replace(case, model=replace(case.model, sequence=4096))
    assert {one.case.layout.cp for one in fit(short, ()).ranked} == {1}


def test_where_none_leaves_a_margin_those_are_ranked_that_may_fit() -> None:
    """NVIDIA's run of Llama 3 8B on eight H100 had enough memory by no estimate."""
    case = a_case(PRESETS["llama-3-8b"], 8, 128, strategy="zero1", cp=2)
    case = replace(case, hardware=a_hardware(8, "H100"))
    result = fit(case, {"strategy", "tp", "pp", "cp", "recompute", "micro_batch", "offload", "sequence_parallel"})
    [only] = result.ranked
    assert not only.fits and not result.too_large
    assert compare(only, only).startswith("may not fit: 8")
    less = make_estimate(replace(case, hardware=replace(case.hardware, gpu=replace(case.hardware.gpu, memory=85))))
    assert less.fits and compare(less, only).startswith("leaves no margin: 8")
    assert compare(make_estimate(a_case(PRESETS["llama-3-8b"], 8, 8)), only).startswith("does not fit: ")
