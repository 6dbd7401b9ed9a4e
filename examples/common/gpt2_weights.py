"""The weights of a GPT-2 as Hugging Face keeps them, under the names of gpt_model.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from example import InputError

ENDS = {"tokens": "wte", "positions": "wpe", "norm": "ln_f", "head": "wte"}  # the head has the weights of the tokens
OF_BLOCKS = {
    "norm1": "ln_1",
    "attention.output": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
FUSED = ["attention.query", "attention.key", "attention.value"]  # one after the other


class Pretrained:
    """`config` has `weights`, their directory (config.json, model.safetensors), and the shape of the model, which must
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
        if theirs.get("model_type") != "gpt2" or theirs.get("activation_function", "gelu_new") != "gelu_new":
            raise InputError(f"weights={directory}: a model of type {theirs.get('model_type')}, but this is a GPT-2")
        self.files = {name.removeprefix("transformer."): (file, name) for file in opened for name in file.keys()}  # noqa: SIM118  # it is no dict
        needed = {"layers": theirs["n_layer"], "heads": theirs["n_head"], "width": theirs["n_embd"]}
        if any(getattr(config, key) != value for key, value in needed.items()):
            settings = " ".join(f"{key}={value}" for key, value in needed.items())
            raise InputError(f"weights={directory} needs {settings}")
        if config.context > theirs["n_positions"]:
            raise InputError(f"weights={directory} needs a context of at most {theirs['n_positions']}")
        if vocabulary != theirs["vocab_size"]:
            text = f"the text has {vocabulary} different tokens, weights={directory} {theirs['vocab_size']}"
            raise InputError(f"{text}: make tokens with its tokenizer.json (common/tokens.py)")

    def value(self, name: str, shape: torch.Size) -> torch.Tensor:
        """A parameter of gpt_model.GPT; positions beyond its context are left out."""
        module, _, kind = name.rpartition(".")
        if module in ENDS:
            is_own_head = module == "head" and "lm_head.weight" in self.files
            return self._read(f"lm_head.{kind}" if is_own_head else f"{ENDS[module]}.{kind}")[: shape[0]]
        _, number, module = module.split(".", 2)
        if module in FUSED:
            return self._read(f"h.{number}.attn.c_attn.{kind}").chunk(3, -1)[FUSED.index(module)].t()
        return self._read(f"h.{number}.{OF_BLOCKS[module]}.{kind}").t()  # its layers have their weights transposed

    def _read(self, name: str) -> torch.Tensor:
        file, key = self.files[name]
        return file.get_tensor(key).float()
