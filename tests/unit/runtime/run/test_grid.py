from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.run.grid import combinations, parse_axes


def test_every_value_with_every_other_the_last_parameter_first() -> None:
    axes = parse_axes(["lr=0.1,0.01", "seed=-1..1", "name=a"], {}, ())
    assert combinations(axes, 6) == [
        {"lr": lr, "seed": seed, "name": "a"} for lr in ("0.1", "0.01") for seed in ("-1", "0", "1")
    ]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["lr"], "--sweep lr is not NAME=VALUE. As in: --sweep lr=0.1"),
        (["lr=1", "lr=2"], "--sweep lr is given twice. Give all of its values at once: --sweep lr=2,..."),
        (["lr=1,,2"], "--sweep lr=1,,2 has an empty value. As in: --sweep lr=0.1,0.01"),
        (["lr="], "--sweep lr= has an empty value. As in: --sweep lr=0.1,0.01"),
        (["lr=1,2,1"], "--sweep lr=1,2,1 has 1 twice. Each combination runs once"),
        (["seed=3..1"], "--sweep seed=3..1 has no values. Write: --sweep seed=1..3"),
        (["lr=0.1..0.3"], "--sweep lr=0.1..0.3: FIRST..LAST is for integers. As in: --sweep lr=0.1,0.2,0.4"),
        (["fixed=1"], "fixed is in --set and in --sweep. Leave out one of them"),
        (["sed=1"], "--sweep sed: the job has no such parameter. Did you mean 'seed'?"),
    ],
)
def test_what_is_no_sweep(texts: list[str], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_axes(texts, {"fixed": "1"}, ("lr", "seed", "fixed"))
    assert str(error.value) == complaint


def test_a_slip_of_the_finger_is_not_a_million_runs() -> None:
    axes = parse_axes(["seed=1..1000000000", "lr=1,2"], {})
    with pytest.raises(UsageError) as error:
        combinations(axes, 100)
    assert error.value.message == "the sweep has 2,000,000,000 runs (1000000000 of seed x 2 of lr), more than 100"
    assert error.value.hint.endswith("--max-runs 2000000000")
