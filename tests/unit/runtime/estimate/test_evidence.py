"""What published runs say of estimates. Goals: a median error of 8 %, nine of ten within 20 %."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ctrain_runtime.estimate.estimate import make_estimate
from ctrain_runtime.estimate.evidence import find_band, median, memory_is_unknown, published_runs
from ctrain_runtime.estimate.families import OTHER
from ctrain_runtime.estimate.layout import check
from ctrain_runtime.estimate.presets import PRESETS
from samples import estimate_page
from samples.estimates import a_case, a_hardware

MODELS = [("megatron", "A100"), ("megatron", "H100"), ("fp8", "H100"), ("fsdp", "A100"), ("fsdp", "H100")]


@pytest.mark.parametrize("group", MODELS, ids="-".join)
def test_the_runs_that_judge_are_met(group: tuple[str, str]) -> None:
    errors = [abs(run.ratio - 1) for run in published_runs() if run.group == group and run.role == "judged"]
    assert len(errors) >= 5
    assert median(errors) <= 0.08
    assert sum(error <= 0.2 for error in errors) >= 0.9 * len(errors)


@pytest.mark.parametrize("group", [("ddp", "A100"), ("eager", "A100"), ("compiled", "A100"), ("compiled", "H100")])
def test_few_runs_that_judge_are_within_a_fifth(group: tuple[str, str]) -> None:
    ratios = [run.ratio for run in published_runs() if run.group == group and run.role == "judged"]
    assert ratios
    assert max(abs(ratio - 1) for ratio in ratios) <= 0.2


def test_runs_that_judge_context_parallelism_and_hsdp_are_within_a_fifth() -> None:
    judging = [run for run in published_runs() if run.role == "judged"]
    for chosen in (
        [run for run in judging if run.case.layout.cp > 1],
        [run for run in judging if run.case.layout.strategy == "hsdp"],
    ):
        assert len(chosen) >= 3
        assert max(abs(run.ratio - 1) for run in chosen) <= 0.2


def test_no_model_judges_that_was_fitted_to() -> None:
    models: dict[str, set[object]] = {"fitted": set(), "judged": set(), "assumed": set(), "other": set()}
    for run in published_runs():
        models[run.role].add((run.group, run.model))
    assert all(models.values())
    assert not models["fitted"] & models["judged"]


def test_published_layouts_are_possible() -> None:
    assert len(published_runs()) >= 420
    for run in published_runs():
        check(run.case.model, run.case.hardware, run.case.layout)
        assert run.published > 0 and run.source


def test_no_published_run_is_told_that_it_does_not_fit() -> None:
    """All of them ran."""
    known = [run for run in published_runs() if run.role in ("fitted", "judged")]
    estimates = [make_estimate(run.case) for run in known]
    assert all(estimate.fits or memory_is_unknown(estimate) for estimate in estimates)
    assert sum(estimate.fits for estimate in estimates) >= 0.9 * len(estimates)


def test_published_memory_is_met() -> None:
    """torchtitan's: what torch had reserved, which is more than what was used."""
    ratios = [run.peak / make_estimate(run.case).values["G"] for run in published_runs() if run.peak]
    assert len(ratios) >= 4
    assert min(ratios) >= 1 and max(ratios) <= 1.25


def test_what_did_not_fit_does_not() -> None:
    """torchtitan's docs/performance.md: Llama 2 70B on 64 A100 with its selective recomputation, two sequences: OOM."""
    model = PRESETS["llama-2-70b"]
    case = a_case(model, 64, 128, strategy="fsdp", recompute="selective", micro_batch=2)
    assert not make_estimate(case).fits and not memory_is_unknown(make_estimate(case))
    assert make_estimate(replace(case, layout=replace(case.layout, micro_batch=1))).fits


def test_a_band_has_the_nearest_run_and_contains_the_estimate() -> None:
    run = next(run for run in published_runs() if run.model == "gpt3-175b" and run.case.hardware.count == 768)
    band = find_band(make_estimate(run.case))
    assert band.nearest is run
    assert band.low <= 1 <= band.high


@pytest.mark.parametrize("group", MODELS, ids="-".join)
def test_a_band_has_nine_in_ten_of_both_halves(group: tuple[str, str]) -> None:
    """Those that judge are of few models, and agree."""
    runs = [run for run in published_runs() if run.group == group and run.role in ("fitted", "judged")]
    band = find_band(make_estimate(runs[0].case))
    for role in ("fitted", "judged"):
        half = [run for run in runs if run.role == role]
        assert sum(band.low <= run.ratio <= band.high for run in half) >= 0.89 * len(half)
    assert band.runs == len(runs)


def test_a_sequence_that_is_longer_than_all_published_ones_has_a_wider_band() -> None:
    case = a_case(PRESETS["llama-3-8b"], 16, 16, strategy="zero1", tp=8, cp=2)
    case = replace(case, hardware=a_hardware(16, "H100"))
    known, longer = (
        find_band(make_estimate(replace(case, model=replace(case.model, sequence=size)))) for size in (8192, 16384)
    )
    assert (longer.low, longer.high) == (pytest.approx(known.low**2), pytest.approx(known.high**2))


def test_few_runs_that_agree_make_no_narrow_band() -> None:
    band = find_band(make_estimate(a_case(PRESETS["gpt2-xl"], 8, 512, strategy="zero1", compiled=True)))
    assert band.runs == 3
    assert band.low <= 0.8 and band.high >= 1.25


def test_cards_are_judged_by_runs_on_cards() -> None:
    """Their power is limited: of one model, with one program, an H100 NVL was as slow as an H100 PCIe."""
    case = a_case(PRESETS["gpt2"], 1, 32, micro_batch=32, precision="autocast")
    bands = [find_band(make_estimate(replace(case, hardware=a_hardware(1, name)))) for name in ("L40S", "A100-PCIe")]
    assert {run.group[1] for run in (band.nearest for band in bands)} == {OTHER}
    assert bands[0].high == bands[1].high > 1.5
    assert [band.nearest.case.hardware.gpu.name for band in bands] == ["L40S-48GB", "A100-PCIe-40GB"]


def test_a_family_with_few_runs_has_a_wide_band() -> None:
    many = find_band(make_estimate(a_case(published_runs()[0].case.model, 8, 512, strategy="fsdp")))
    few = find_band(make_estimate(a_case(published_runs()[0].case.model, 8, 512, strategy="zero1")))
    assert few.runs < many.runs
    assert few.high / few.low > many.high / many.low


def test_the_band_of_a_gpu_of_which_hardly_a_run_is_known_is_that_of_others() -> None:
    case = a_case(published_runs()[0].case.model, 8, 512, tp=8)
    gpus = ("V100-SXM2-32GB", "A100-SXM4-80GB")
    old, known = (find_band(make_estimate(replace(case, hardware=a_hardware(8, gpu)))) for gpu in gpus)
    assert (old.low, old.high, old.runs) == (known.low, known.high, known.runs)


def test_the_page_of_evidence_is_that_of_now() -> None:
    """tests/golden/regenerate.py writes it."""
    assert (estimate_page.DOCS / "estimate-evidence.md").read_text(encoding="utf-8") == estimate_page.evidence()
