"""The first values of a model: the weights of a GPT-2 or a Llama as Hugging Face keeps them, under the names of
gpt_model.py, or random ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from example import InputError
from gpt_model import TRAINED_ON, first_value

GPT2 = {
    "tokens": "wte",
    "positions": "wpe",
    "norm": "ln_f",
    "blocks": "h",
    "norm1": "ln_1",
    "attention.output": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "attn.c_attn"),
}
FUSED = ["attention.query", "attention.key", "attention.value"]  # one after the other
LLAMA = {
    "tokens": "embed_tokens",
    "norm": "norm",
    "blocks": "layers",
    "norm1": "input_layernorm",
    **{f"attention.{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "output")},
    "norm2": "post_attention_layernorm",
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
OF_LLAMA_3_1 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": TRAINED_ON}
OTHERWISE = {"kv_heads": "key_value_heads", "ffn": "inner"}  # of a Shape, where 0 stands for what they are


def first_values(config: Any, vocabulary: int) -> Callable[[str, torch.Size], torch.Tensor]:
    """What makes a parameter of gpt_model.GPT, of its name and shape: given weights, or random ones."""
    if config.weights:
        return Pretrained(config, vocabulary).value
    return partial(first_value, layers=config.layers, seed=config.seed)


class Pretrained:
    """`config` has `weights`, their directory (config.json, model.safetensors), and the Shape of the model, which must
    be theirs. Raises InputError."""

    def __init__(self, config: Any, vocabulary: int) -> None:
        from safetensors import SafetensorError, safe_open

        directory = Path(config.weights)
        try:
            theirs = json.loads((directory / "config.json").read_text())
            index = directory / "model.safetensors.index.json"
            files = {"model.safetensors"}
            if index.exists():
                files = {*json.loads(index.read_text())["weight_map"].values()}
            opened = [safe_open(directory / name, "pt") for name in sorted(files)]
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(f"weights={directory} cannot be read: {error}") from None
        try:
            context, size, needed = shape_of(theirs, directory)
        except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
            why = f"{type(error).__name__}: {error}"
            raise InputError(f"weights={directory}: its config.json does not describe a model ({why})") from None
        if any(getattr(config, OTHERWISE.get(key, key)) != value for key, value in needed.items()):
            settings = " ".join(f"{key}={value}" for key, value in needed.items())
            raise InputError(f"weights={directory} needs {settings}")
        if config.context > context:
            raise InputError(f"weights={directory} needs a context of at most {context}")
        if vocabulary != size:
            text = f"the text has {vocabulary} different tokens, weights={directory} {size}"
            raise InputError(f"{text}: make tokens with its tokenizer.json (common/tokens.py)")
        self.directory, self.is_llama = directory, config.is_llama
        self.names, prefix = (LLAMA, "model.") if self.is_llama else (GPT2, "transformer.")
        self.files = {name.removeprefix(prefix): (file, name) for file in opened for name in file.keys()}  # noqa: SIM118  # it is no dict

    def value(self, name: str, shape: torch.Size) -> torch.Tensor:
        """A parameter of gpt_model.GPT; positions beyond its context are left out."""
        value = self._find(name, shape[0])
        if value.shape != shape:
            shapes = f"the shape {[*value.shape]}, not {[*shape]}"
            raise InputError(f"weights={self.directory}: {name} has {shapes}, which config.json says")
        return value

    def _find(self, name: str, rows: int) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        if module == "head":  # the table of the tokens, unless it has its own
            return self._read("lm_head.weight" if "lm_head.weight" in self.files else f"{self.names['tokens']}.weight")
        if not module.startswith("blocks."):
            return self._read(f"{self.names[module]}.{kind}")[:rows]
        _, number, module = module.split(".", 2)
        value = self._read(f"{self.names['blocks']}.{number}.{self.names[module]}.{kind}")
        if self.is_llama:
            return value
        part = value.chunk(3, -1)[FUSED.index(module)] if module in FUSED else value
        return part.t()  # its layers have their weights transposed

    def _read(self, name: str) -> torch.Tensor:
        if name not in self.files:
            raise InputError(f"weights={self.directory} has no tensor {name}")
        file, key = self.files[name]
        return file.get_tensor(key).float()


def shape_of(theirs: dict[str, Any], directory: Path) -> tuple[int, int, dict[str, Any]]:
    """The largest context, the vocabulary, and the settings that a model needs, by its config.json. Raises InputError
    for one that gpt_model.py does not have, KeyError for what is no such file."""
    kind = theirs["model_type"]
    if kind == "gpt2" and theirs.get("activation_function", "gelu_new") == "gelu_new":
        needed = {"layers": theirs["n_layer"], "heads": theirs["n_head"], "width": theirs["n_embd"], "model": "gpt2"}
        return theirs["n_positions"], theirs["vocab_size"], needed
    if kind != "llama":
        raise InputError(f"weights={directory}: a model of type {kind}, but this is a GPT-2 or a Llama")
    heads, width = theirs["num_attention_heads"], theirs["hidden_size"]
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type")) or "default"
    given = {**theirs, **rope, "rope_type": kind}
    usual = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": width // heads}
    usual |= OF_LLAMA_3_1 if kind == "llama3" else {"rope_type": "default"}
    for key, value in usual.items():
        if given.get(key) not in (None, value):
            raise InputError(f"weights={directory}: a Llama with {key} {given[key]}, but this has {value}")
    needed = {"layers": theirs["num_hidden_layers"], "heads": heads, "width": width, "model": "llama"}
    needed |= {"kv_heads": theirs.get("num_key_value_heads") or heads, "ffn": theirs["intermediate_size"]}
    needed["rope_theta"] = float(given.get("rope_theta", 10_000.0))
    needed["rope_factor"] = float(rope["factor"]) if kind == "llama3" else 1.0
    return theirs["max_position_embeddings"], theirs["vocab_size"], {**needed, "norm_eps": theirs["rms_norm_eps"]}
