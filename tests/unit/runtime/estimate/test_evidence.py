"""What published runs say of estimates. Goals: a median error of 8 %, nine of ten within 20 %."""

from __future__ import annotations

import pytest

from ctrain_runtime.estimate.estimate import make_estimate
from ctrain_runtime.estimate.evidence import find_band, median, published_runs
from ctrain_runtime.estimate.layout import check
from samples import estimate_page
from samples.estimates import MEGATRON, a_case

MODELS = [("megatron", "A100"), ("megatron", "H100"), ("fsdp", "A100"), ("fsdp", "H100")]


@pytest.mark.parametrize("group", MODELS, ids="-".join)
def test_the_runs_that_judge_are_met(group: tuple[str, str]) -> None:
    errors = [abs(run.ratio - 1) for run in published_runs() if run.group == group and not run.fitted]
    assert len(errors) >= 5
    assert median(errors) <= 0.08
    assert sum(error <= 0.2 for error in errors) >= 0.9 * len(errors)


def test_nothing_is_fitted_to_what_was_entered_from_memory() -> None:
    assert any(not run.seen for run in published_runs())
    assert not any(run.fitted for run in published_runs() if not run.seen)
    assert {run.fitted for run in published_runs()} == {True, False}


def test_published_layouts_are_possible() -> None:
    assert len(published_runs()) >= 240
    for run in published_runs():
        check(run.case.model, run.case.hardware, run.case.layout)
        assert run.published > 0 and run.source


def test_a_band_has_the_nearest_run_and_contains_the_estimate() -> None:
    run = next(run for run in published_runs() if run.model == "gpt3-175b" and run.case.hardware.count == 768)
    band = find_band(make_estimate(run.case))
    assert band.nearest is run
    assert band.low <= 1 <= band.high


def test_a_family_with_few_runs_has_a_wide_band() -> None:
    many = find_band(make_estimate(a_case(published_runs()[0].case.model, 8, 512, strategy="fsdp")))
    few = find_band(make_estimate(a_case(published_runs()[0].case.model, 8, 512, strategy="ddp", **MEGATRON)))
    assert few.runs < many.runs
    assert few.high / few.low > many.high / many.low


def test_the_page_of_evidence_is_that_of_now() -> None:
    """tests/golden/regenerate.py writes it."""
    assert (estimate_page.DOCS / "estimate-evidence.md").read_text(encoding="utf-8") == estimate_page.evidence()
