from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.formulas import SIZES, evaluate
from ctrain_runtime.estimate.model import PRESETS, Model, find_model, parse_amount


def parameters(model: Model) -> float:
    symbols = {"l": model.layers, "h": model.hidden, "V": model.vocabulary, "s": model.sequence}
    return evaluate(SIZES[:1], symbols)["N"]


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558), ("gpt3-175b", 174_600)],
)
def test_presets_have_their_published_number_of_parameters(name: str, millions: float) -> None:
    assert parameters(PRESETS[name]) / 1e6 == pytest.approx(millions, rel=0.005)


@pytest.mark.parametrize("number", ["350M", "1.3B", "7.5B", "39B", "175B", "530B", "1T"])
def test_a_number_of_parameters_gives_a_shape_that_divides(number: str) -> None:
    model = find_model(number)
    assert parameters(model) == pytest.approx(parse_amount("", number), rel=0.02)
    assert (model.assumed, model.layers % 8, model.heads % 8, model.hidden % model.heads) == (True, 0, 0, 0)


def test_175_billion_parameters_are_gpt3() -> None:
    assert (find_model("175B").layers, find_model("175B").hidden, find_model("175B").heads) == (96, 12288, 96)


def test_unknown_models() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'gtp2'. Did you mean 'gpt2'"):
        find_model("gtp2")
    with pytest.raises(UsageError, match="Models: gpt2,"):
        find_model("x")


@pytest.mark.parametrize("text", ["", "0", "-1", "7.5X", "1e400", "nan", "1e17", "B"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="N must be a positive number"):
        parse_amount("N", text)
