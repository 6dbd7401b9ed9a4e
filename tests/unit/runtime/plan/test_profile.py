from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.options import Options
from ctrain_runtime.plan.profile import variables
from samples.plans import a_plan


def test_what_the_ranks_are_told() -> None:
    assert variables(Options(), 8) == {}
    assert variables(Options(profile="torch"), 8) == {
        "CTRAIN_PROFILE": "torch",
        "CTRAIN_PROFILE_RANKS": "0",
        "CTRAIN_PROFILE_STEPS": "10-19",
    }
    chosen = variables(Options(profile="pyinstrument", profile_ranks="7,0,7", profile_steps="1-1"), 8)
    assert list(chosen.values()) == ["pyinstrument", "0,7", "1-1"]


def test_a_plan_has_them_and_one_without_has_none() -> None:
    plan = a_plan(profile="torch", env={"CTRAIN_PROFILE_STEPS": "3-4"})
    assert plan.environment.variables["CTRAIN_PROFILE"] == "torch"
    assert plan.environment.variables["CTRAIN_PROFILE_STEPS"] == "3-4"
    assert not [name for name in a_plan().environment.variables if "PROFILE" in name]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"profile_steps": "1-2"}, "--profile-steps is for --profile alone. Add --profile torch or pyinstrument"),
        ({"profile_ranks": "1"}, "--profile-ranks is for --profile alone"),
        ({"profile": "torch", "profile_ranks": "8"}, "--profile-ranks: rank 8 does not exist, the run has 8"),
        ({"profile": "torch", "profile_ranks": "all"}, "--profile-ranks must be numbers of ranks, not 'all'"),
        ({"profile": "torch", "profile_ranks": "0,"}, "--profile-ranks must be numbers of ranks"),
        ({"profile": "torch", "profile_steps": "5"}, "--profile-steps must be FIRST-LAST, not '5'"),
        ({"profile": "torch", "profile_steps": "9-5"}, "--profile-steps must be FIRST-LAST"),
        ({"profile": "torch", "profile_steps": "0-5"}, "--profile-steps must be FIRST-LAST"),
    ],
)
def test_mistakes(options: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        variables(Options(**options), 8)  # type: ignore[arg-type]  # a table of texts, for fields of several types
    assert problem in str(caught.value)
