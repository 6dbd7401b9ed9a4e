from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.estimate import make_estimate
from ctrain_runtime.estimate.presets import PRESETS, find_model
from samples.estimates import a_case


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt2", 124.4),
        ("gpt2-medium", 355),
        ("gpt2-large", 774),
        ("gpt2-xl", 1558),
        ("gpt3-175b", 174_600),
        ("bloom-176b", 176_200),
        ("llama-2-7b", 6_738),
        ("llama-2-13b", 13_016),
        ("llama-2-70b", 68_977),
        ("llama-3-8b", 8_030),
        ("llama-3-70b", 70_554),
        ("llama-3-405b", 405_850),
        ("mistral-7b", 7_242),
        ("qwen2.5-7b", 7_616),
        ("qwen2.5-72b", 72_706),
        ("qwen3-8b", 8_191),
        ("llama-3.2-1b", 1_235.8),
        ("llama-3.2-3b", 3_212.7),
        ("mistral-nemo-12b", 12_247.8),
        ("qwen2.5-14b", 14_770),
        ("qwen2.5-32b", 32_763.9),
        ("qwen3-0.6b", 596.05),
        ("qwen3-1.7b", 1_720.6),
        ("qwen3-4b", 4_022.5),
        ("qwen3-14b", 14_768.3),
        ("qwen3-32b", 32_762.1),
    ],
)
def test_presets_have_their_published_number_of_parameters(name: str, millions: float) -> None:
    assert make_estimate(a_case(PRESETS[name], 1, 1)).values["N"] / 1e6 == pytest.approx(millions, rel=0.002)


def test_names_are_read_as_people_write_them() -> None:
    assert find_model("Llama-3.1-8B") == PRESETS["llama-3-8b"]
    for name in ("meta-llama/Llama-3.1-70B", "Meta-Llama-3-70B-Instruct", "llama3-70b"):
        assert find_model(name) == PRESETS["llama-3-70b"]
    for name, preset in {
        "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
        "openai-community/gpt2": "gpt2",
        "bigscience/bloom": "bloom-176b",
        "mistralai/Mistral-7B-v0.1": "mistral-7b",
        "Qwen/Qwen3-8B-Base": "qwen3-8b",
    }.items():
        assert find_model(name) == PRESETS[preset]
    with pytest.raises(UsageError, match=r"unknown model 'llama-70b'. Did you mean 'llama-3-70b'"):
        find_model("llama-70b")


def test_unknown_models() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'gtp2'. Did you mean 'gpt2'"):
        find_model("gtp2")
    with pytest.raises(UsageError, match="Models: gpt2,"):
        find_model("x")


@pytest.mark.parametrize("name", ["mixtral-8x7b", "DeepSeek-V3", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_mixtures_of_experts_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: mixtures of experts are not estimated. Too few published"):
        find_model(name)
