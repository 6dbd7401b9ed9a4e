from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import ConfigError
from ctrain_runtime.estimate.hugging_face import model_of_config
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.presets import PRESETS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257}


def test_configurations_are_those_of_the_presets() -> None:
    assert model_of_config(LLAMA, "config.json") == PRESETS["llama-3-8b"]
    assert replace(model_of_config({**GPT2, "n_inner": None}, "x"), ffn=0) == PRESETS["gpt2-xl"]
    wide = {**LLAMA, "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "intermediate_size": 9728,
            "vocab_size": 151936, "tie_word_embeddings": True, "head_dim": 128}  # fmt: skip
    assert replace(model_of_config(wide, "x"), sequence=4096) == PRESETS["qwen3-4b"]
    small = model_of_config({**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": None}, "x")
    assert (small.tied, small.key_value_heads) == (True, 32)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ([], "c is not a model's config.json: not an object of JSON"),
        ({}, "c: model_type None is not estimated. Known are gpt2, opt, bloom, gpt_neox, llama"),
        ({**LLAMA, "model_type": "mixtral", "num_local_experts": 8}, "c: mixtures of experts are not estimated"),
        ({**LLAMA, "model_type": "mamba"}, "c: model_type 'mamba' is not estimated"),
        ({**LLAMA, "model_type": []}, "c: model_type [] is not estimated"),
        ({**LLAMA, "head_dim": 0}, "c: head_dim must be a positive integer of at most 16777216, not 0"),
        ({**LLAMA, "hidden_size": "4096"}, "c: hidden_size must be a positive integer of at most 16777216, not '4096'"),
        ({**LLAMA, "num_hidden_layers": True}, "c: num_hidden_layers must be a positive integer"),
        ({**LLAMA, "vocab_size": 10**30}, "c: vocab_size must be a positive integer"),
    ],
)
def test_what_is_refused(config: Any, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model_of_config(config, "c")
    assert str(refused.value).startswith(error)


@given(st.dictionaries(st.sampled_from(list(LLAMA)), st.none() | st.integers() | st.text() | st.lists(st.integers())))
def test_any_configuration_is_a_model_or_refused(changes: dict[str, Any]) -> None:
    try:
        assert isinstance(model_of_config({**LLAMA, **changes}, "c"), Model)
    except ConfigError as error:
        assert "\n" not in str(error)
