"""Models by the names that people use."""

from __future__ import annotations

import re
from dataclasses import replace

from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError
from ctrain_runtime.estimate.model import Model, parse_amount, shape_of


def llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int, sequence: int = 8192
) -> Model:
    """RMSNorm, SwiGLU, rotary positions, fewer heads of keys and values, an output matrix of its own, no biases."""
    return Model(
        layers,
        hidden,
        heads,
        sequence,
        vocabulary,
        kv_heads=kv_heads,
        ffn=ffn,
        gated=True,
        tied=False,
        learned_positions=False,
        biases=False,
    )


# GPT-2: Radford et al. 2019. GPT-3: Brown et al. 2020, with the vocabulary of Narayanan et al. 2021. MT-NLG: Smith et
# al. 2022. The others: their config.json on Hugging Face, with the sequences of their training.
PRESETS = {
    "gpt2": Model(12, 768, 12, 1024, 50257),
    "gpt2-medium": Model(24, 1024, 16, 1024, 50257),
    "gpt2-large": Model(36, 1280, 20, 1024, 50257),
    "gpt2-xl": Model(48, 1600, 25, 1024, 50257),
    "gpt3-175b": Model(96, 12288, 96),
    "mt-nlg-530b": Model(105, 20480, 128),
    "bloom-176b": Model(70, 14336, 112, 2048, 250880, learned_positions=False),
    "llama-2-7b": llama(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": llama(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-2-70b": llama(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama-3-8b": llama(32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": llama(80, 8192, 64, 8, 28672, 128256),
    "llama-3-405b": llama(126, 16384, 128, 8, 53248, 128256),
    "mistral-7b": llama(32, 4096, 32, 8, 14336, 32000),
    "llama-3.2-1b": replace(llama(16, 2048, 32, 8, 8192, 128256), tied=True),
    "llama-3.2-3b": replace(llama(28, 3072, 24, 8, 8192, 128256), tied=True),
    "mistral-nemo-12b": replace(llama(40, 5120, 32, 8, 14336, 131072), head_width=128),
    "qwen2.5-7b": llama(28, 3584, 28, 4, 18944, 152064, 4096),
    "qwen2.5-14b": llama(48, 5120, 40, 8, 13824, 152064, 4096),
    "qwen2.5-32b": llama(64, 5120, 40, 8, 27648, 152064, 4096),
    "qwen2.5-72b": llama(80, 8192, 64, 8, 29568, 152064, 4096),
    "qwen3-0.6b": replace(llama(28, 1024, 16, 8, 3072, 151936, 4096), tied=True, head_width=128),
    "qwen3-1.7b": replace(llama(28, 2048, 16, 8, 6144, 151936, 4096), tied=True),
    "qwen3-4b": replace(llama(36, 2560, 32, 8, 9728, 151936, 4096), tied=True, head_width=128),
    "qwen3-8b": llama(36, 4096, 32, 8, 12288, 151936, 4096),
    "qwen3-14b": llama(40, 5120, 40, 8, 17408, 151936, 4096),
    "qwen3-32b": replace(llama(64, 5120, 64, 8, 25600, 151936, 4096), head_width=128),
}
_ALIASES = {"bloom": "bloom-176b", "gpt3": "gpt3-175b", "gpt-2": "gpt2", "mistral": "mistral-7b"}
EXPERTS = ("mixtral", "deepseek", "gpt-oss", "grok", "dbrx", "moe", "8x", "-a3b", "-a22b")  # parts of names


def preset_name(name: str) -> str:
    """As a preset would be called: without who published it, and what it was trained for after that. Llama 3.1 has the
    shapes of Llama 3."""
    key = re.sub(r"^meta-|(-(instruct|chat|base|hf|v0\.[12]))+$", "", name.lower().rpartition("/")[2])
    return _ALIASES.get(key) or re.sub(r"^llama-?3(\.1)?-", "llama-3-", key)


def find_model(name: str) -> Model:
    """The model for a preset's name, or for a number of parameters such as 7.5B. Raises UsageError."""
    key = preset_name(name)
    if key in PRESETS:
        return PRESETS[key]
    if any(part in name.lower() for part in EXPERTS):
        raise UsageError(f"{name}: mixtures of experts are not estimated", "Too few published runs would judge it")
    if name[:1].isdigit():
        return shape_of(parse_amount("MODEL", name))
    hint = (
        suggest(key, PRESETS) or f"Models: {', '.join(PRESETS)}; a number of parameters, as in 7.5B; or a config.json"
    )
    raise UsageError(f"unknown model {name!r}", hint)
