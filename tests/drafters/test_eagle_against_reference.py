"""EAGLE heads and their drafts against a second reading of section 4, `tests/eagle_reference.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.eagle_reference import (
    Head1,
    Head3,
    drafted_logits,
    reference_draft_eagle1,
    reference_draft_eagle3,
    reference_logits_eagle1,
    reference_logits_eagle3,
    reference_training_time_test,
)
from tests.tiny_models import SMALL, VOCAB_SIZE

CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 2048,
    "rope_theta": 500.0,
}
DRAFT_VOCAB_SIZE = 41
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
TEXT = (3, 14, 15, 92, 6, 53, 58, 9, 79)
PATH = (32, 38, 4)


class Draws:
    """Random tensors: matrices large enough for every part to matter, norms around 1."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=self._generator)

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


def target_matrices() -> tuple[Tensor, Tensor]:
    """Embeddings and LM head [V, h] of a target."""
    draws = Draws(99)
    return draws.matrix(VOCAB_SIZE, 32), draws.matrix(VOCAB_SIZE, 32)


def random_features(width: int, length: int = len(TEXT) - 1) -> Tensor:
    return torch.randn(length, width, generator=torch.Generator().manual_seed(7))


def some_head(variant: int, **flags: Any) -> Head1 | Head3:
    config = CONFIG | flags
    embed, lm_head = target_matrices()
    if variant == 1:
        return Head1(eagle1_tensors(config), config, embed, lm_head)
    config["draft_vocab_size"] = DRAFT_VOCAB_SIZE
    return Head3(eagle3_tensors(config), config, embed)


# --- the reference against itself, and against transformers -----------------------------------------


def test_the_references_layer_is_a_llama_layer() -> None:
    """Norm, rotary positions, grouped attention and MLP as `transformers` has them."""
    config = LlamaConfig(**SMALL | CONFIG | {"rope_theta": None})
    config.rope_parameters = {"rope_type": "default", "rope_theta": CONFIG["rope_theta"]}
    config._attn_implementation = "eager"
    layer = LlamaDecoderLayer(config, 0).eval()
    layer.input_layernorm = torch.nn.Identity()
    tensors = eagle1_tensors(CONFIG)
    own = {k.removeprefix("layers.0."): v for k, v in tensors.items() if "layers.0." in k}
    layer.load_state_dict(own)
    embed, lm_head = target_matrices()
    features, length = random_features(32), len(TEXT) - 1
    paired = torch.cat((embed[list(TEXT[1:])], features), -1)
    x = paired @ tensors["fc.weight"].T + tensors["fc.bias"]
    rotary = LlamaRotaryEmbedding(config)(x[None], torch.arange(length)[None])
    mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        out = layer(x[None], attention_mask=mask, position_embeddings=rotary)
    ours = reference_logits_eagle1(tensors, CONFIG, embed, lm_head, features, TEXT)
    torch.testing.assert_close(out[0] @ lm_head.T, ours, atol=1e-5, rtol=1e-5)


def test_drafting_goes_on_from_the_last_row() -> None:
    """The root's law is the last true row's; a draft row stands in the next true one's place."""
    embed, lm_head = target_matrices()
    tensors, features = eagle1_tensors(CONFIG), random_features(32)
    whole = reference_logits_eagle1(tensors, CONFIG, embed, lm_head, features, TEXT)
    drafted = reference_draft_eagle1(tensors, CONFIG, embed, lm_head, features, TEXT, PATH)
    assert drafted.shape == (1 + len(PATH), VOCAB_SIZE)
    torch.testing.assert_close(drafted[0], whole[-1])
    config = CONFIG | {"draft_vocab_size": DRAFT_VOCAB_SIZE}
    tensors, features = eagle3_tensors(config), random_features(96)
    whole = reference_logits_eagle3(tensors, config, embed, features, TEXT)
    drafted = reference_draft_eagle3(tensors, config, embed, features, TEXT, PATH)
    torch.testing.assert_close(drafted[0], whole[-1])
    assert drafted.shape == (1 + len(PATH), DRAFT_VOCAB_SIZE)


@pytest.mark.parametrize("variant", [1, 3])
def test_training_time_test_is_drafting_at_every_position(variant: int) -> None:
    """Row t of step s is what drafting s true tokens behind the first t + 2 gives (section 4.7)."""
    head = some_head(variant)
    features = random_features(32 if variant == 1 else 96)
    steps = reference_training_time_test(head, features, TEXT, 3)
    for step in range(3):
        for row in range(len(features) - step):
            seen, rest = TEXT[: row + 2], TEXT[row + 2 : row + 2 + step]
            drafted = drafted_logits(head, features[: row + 1], seen, rest)
            torch.testing.assert_close(steps[step, row], drafted[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_of_the_dialect_changes_drafts(flag: str) -> None:
    """Else a comparison could not tell whether the flag was read."""
    features = random_features(96)
    plain = drafted_logits(some_head(3), features, TEXT, PATH)
    changed = drafted_logits(some_head(3, **{flag: True}), features, TEXT, PATH)
    at_once = flag != "norm_output"  # it changes what is recycled, so not the first row
    assert torch.allclose(plain[0], changed[0]) is not at_once
    assert not torch.allclose(plain[1], changed[1], atol=1e-2)
