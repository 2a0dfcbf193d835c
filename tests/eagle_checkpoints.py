"""EAGLE checkpoints of random tensors, in the layouts in which people publish them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.eagle_reference import Head1, Head3
from tests.tiny_models import VOCAB_SIZE

CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-2,  # large enough to be missed
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 2048,
    "rope_theta": 500.0,
}
DRAFT_VOCAB_SIZE = 41
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


class Draws:
    """Random tensors: matrices large enough for every part to matter, norms around 1."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> Tensor:
        return 0.15 * torch.randn(*shape, generator=self._generator)

    def norm(self, size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size, generator=self._generator)


def layer_tensors(draws: Draws, config: dict[str, Any], width: int, name: str) -> dict[str, Tensor]:
    """One decoder layer whose attention reads `width` values; the variants add norms."""
    h, inner = config["hidden_size"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or h // heads
    return {
        f"{name}.self_attn.q_proj.weight": draws.matrix(heads * dim, width),
        f"{name}.self_attn.k_proj.weight": draws.matrix(groups * dim, width),
        f"{name}.self_attn.v_proj.weight": draws.matrix(groups * dim, width),
        f"{name}.self_attn.o_proj.weight": draws.matrix(h, heads * dim),
        f"{name}.mlp.gate_proj.weight": draws.matrix(inner, h),
        f"{name}.mlp.up_proj.weight": draws.matrix(inner, h),
        f"{name}.mlp.down_proj.weight": draws.matrix(h, inner),
        f"{name}.post_attention_layernorm.weight": draws.norm(h),
    }


def eagle1_tensors(
    config: dict[str, Any], *, bias: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """An EAGLE-1 checkpoint without embeddings of its own."""
    draws, h = Draws(seed), config["hidden_size"]
    tensors = layer_tensors(draws, config, h, "layers.0") | {"fc.weight": draws.matrix(h, 2 * h)}
    return tensors | ({"fc.bias": draws.matrix(h)} if bias else {})


def eagle3_tensors(config: dict[str, Any], *, seed: int = 0) -> dict[str, Tensor]:
    """An EAGLE-3 checkpoint without embeddings of its own."""
    draws, h = Draws(seed), config["hidden_size"]
    wide = 3 * (config.get("target_hidden_size") or h)
    small, vocab = config.get("draft_vocab_size", config["vocab_size"]), config["vocab_size"]
    tensors = layer_tensors(draws, config, 2 * h, "midlayer") | {
        "midlayer.hidden_norm.weight": draws.norm(h),
        "midlayer.input_layernorm.weight": draws.norm(h),
        "fc.weight": draws.matrix(h, wide),
        "norm.weight": draws.norm(h),
        "lm_head.weight": draws.matrix(small, h),
    }
    if small != vocab:
        chosen = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:small].sort()
        tensors["d2t"] = chosen.values - torch.arange(small)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen.values, True)
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = draws.norm(wide)
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{k}.weight": draws.norm(wide // 3) for k in range(3)}
    return tensors


@dataclass(frozen=True)
class Case:
    """A checkpoint as somebody publishes it."""

    variant: int
    changes: dict[str, Any]
    bias: bool = True
    own_embeddings: bool = False
    pickled: bool = False
    speculators: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return CONFIG | self.changes

    def tensors(self) -> dict[str, Tensor]:
        if self.variant == 1:
            tensors = eagle1_tensors(self.config, bias=self.bias)
        else:
            tensors = eagle3_tensors(self.config)
        if self.own_embeddings:
            own = Draws(5).matrix(VOCAB_SIZE, self.config["hidden_size"])
            tensors["embed_tokens.weight"] = own
        if self.speculators:
            tensors = {k.replace("midlayer.", "layers.0."): v for k, v in tensors.items()}
        return tensors

    def reference(self, model: Any) -> Head1 | Head3:
        """The second reading of it, in float64: what differs from it are the library's roundings."""
        tensors = {k: v.double() if v.is_floating_point() else v for k, v in self.tensors().items()}
        embed = model.get_input_embeddings().weight.detach().double()
        if self.variant == 1:
            lm_head = model.get_output_embeddings().weight.detach().double()
            return Head1(tensors, self.config, embed, lm_head)
        return Head3(tensors, self.config, embed)

    def published_config(self) -> dict[str, Any]:
        if self.speculators:
            return speculators_config(self.config)
        names = {1: "LlamaForCausalLM", 3: "LlamaForCausalLMEagle3"}
        bias = {} if self.bias or self.variant == 3 else {"bias": False}
        return {"model_type": "llama", "architectures": [names[self.variant]]} | self.config | bias

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.published_config()))
        if self.pickled:
            torch.save(self.tensors(), folder / "pytorch_model.bin")
        else:
            save_file(self.tensors(), folder / "model.safetensors")
        return folder


def speculators_config(config: dict[str, Any]) -> dict[str, Any]:
    """The same facts where vllm-project/speculators puts them."""
    outside = {"draft_vocab_size", "target_hidden_size", *FLAGS, "eagle_aux_hidden_state_layer_ids"}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"},
        },
        "transformer_layer_config": {"model_type": "llama"}
        | {k: v for k, v in config.items() if k not in outside},
    } | {k: v for k, v in config.items() if k in outside}


SMALLER = {"draft_vocab_size": DRAFT_VOCAB_SIZE}
NARROW = {"hidden_size": 24, "target_hidden_size": 32, "head_dim": 8, "num_attention_heads": 4}
CASES = {
    "eagle1": Case(1, {}),
    "eagle1-no-bias": Case(1, {}, bias=False),
    "eagle1-pickled-own-embeddings": Case(1, {}, own_embeddings=True, pickled=True),
    "eagle1-all-heads": Case(1, {"num_key_value_heads": 4}),
    "eagle3": Case(3, SMALLER),
    "eagle3-full-vocabulary": Case(3, {"draft_vocab_size": VOCAB_SIZE}),
    "eagle3-pickled": Case(3, SMALLER, pickled=True),
    "eagle3-own-embeddings": Case(3, SMALLER, own_embeddings=True),
    "eagle3-head-dim": Case(3, SMALLER | {"head_dim": 16}),
    "eagle3-narrow": Case(3, SMALLER | NARROW, own_embeddings=True),
    "speculators": Case(3, SMALLER, speculators=True, own_embeddings=True),
    **{f"speculators-{flag}": Case(3, SMALLER | {flag: True}, speculators=True) for flag in FLAGS},
    "speculators-all": Case(
        3,
        SMALLER | dict.fromkeys(FLAGS, True) | {"norm_before_fc": False},
        speculators=True,
        own_embeddings=True,
    ),
}
