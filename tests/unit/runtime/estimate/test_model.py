from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.estimate import make_estimate
from ctrain_runtime.estimate.model import Model, parse_amount
from ctrain_runtime.estimate.presets import find_model
from samples.estimates import a_case


def parameters(model: Model) -> float:
    return make_estimate(a_case(model, 1, 1)).values["N"]


@pytest.mark.parametrize("number", ["350M", "1.3B", "7.5B", "39B", "175B", "530B", "1T"])
def test_a_number_of_parameters_gives_a_shape_that_divides(number: str) -> None:
    model = find_model(number)
    assert parameters(model) == pytest.approx(parse_amount("", number), rel=0.02)
    assert (model.assumed, model.layers % 8, model.heads % 8, model.hidden % model.heads) == (True, 0, 0, 0)


def test_175_billion_parameters_are_gpt3() -> None:
    assert (find_model("175B").layers, find_model("175B").hidden, find_model("175B").heads) == (96, 12288, 96)


@pytest.mark.parametrize("text", ["", "0", "-1", "7.5X", "1e400", "nan", "1e17", "B"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="N must be a positive number"):
        parse_amount("N", text)
