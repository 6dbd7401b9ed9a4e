"""The shape of a model by its config.json, as Hugging Face's transformers write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctrain_runtime.errors import ConfigError
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.estimate.presets import llama

LONGEST = 8192  # tokens of a sequence, unless --sequence is given: what a model accepts is more than it is trained with
MOST = 1 << 24  # of each number
# What differs from a GPT-2, by model_type.
_LIKE_GPT = {
    "gpt2": {},
    "opt": {},
    "bloom": {"learned_positions": False},
    "gpt_neox": {"learned_positions": False, "tied": False},
}
_LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def model_of_config(config: Any, where: str) -> Model:
    """The model that a config.json describes. Raises ConfigError, which names `where`."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where} is not a model's config.json: not an object of JSON")
    kind = config.get("model_type")
    if any(config.get(key) for key in _EXPERTS):
        raise ConfigError(f"{where}: mixtures of experts are not estimated", "Too few published runs would judge it")
    if kind not in (*_LIKE_GPT, *_LIKE_LLAMA):
        hint = f"Known are {', '.join((*_LIKE_GPT, *_LIKE_LLAMA))}; or pass --layers, --hidden and --heads"
        raise ConfigError(f"{where}: model_type {kind!r} is not estimated", hint)

    def number(*names: str, default: int = 0) -> int:
        value = next((config[name] for name in names if config.get(name) is not None), default)
        if type(value) is not int or not 1 <= value <= MOST:
            raise ConfigError(f"{where}: {names[0]} must be a positive integer of at most {MOST}, not {value!r}")
        return value

    layers = number("num_hidden_layers", "n_layer")
    hidden, heads = number("hidden_size", "n_embd"), number("num_attention_heads", "n_head")
    sequence = number("max_position_embeddings", "n_positions", "seq_length", default=2048)
    vocabulary = number("vocab_size")
    width = number("head_dim", default=max(1, hidden // heads))
    own = 0 if width * heads == hidden else width
    ffn = number("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    tied = config.get("tie_word_embeddings", kind in _LIKE_GPT)
    if kind in _LIKE_LLAMA:
        kv_heads = number("num_key_value_heads", default=heads)
        llama_like = llama(layers, hidden, heads, kv_heads, ffn, vocabulary, sequence)
        model = replace(llama_like, tied=bool(tied), head_width=own)
    else:
        own_ends = {"tied": bool(tied), **_LIKE_GPT[kind]}
        model = Model(layers, hidden, heads, sequence, vocabulary, ffn=ffn, head_width=own, **own_ends)
    return replace(model, sequence=min(sequence, LONGEST))
