"""Tiny random Hugging Face models, built in code; weights are large enough for masks to matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    Qwen3Config,
)

VOCAB_SIZE = 97
WINDOW = 8
WEIGHT_STD = 0.2
SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(config: Any, *, dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any) -> Any:
    """A model of this config with weights drawn from normal(0, 0.2)."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, WEIGHT_STD)
    return model.to(dtype)


def tiny_llama(*, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """Two layers of grouped-query attention."""
    return build(LlamaConfig(**SMALL | changes), dtype=dtype, seed=seed)


def tiny_eager_llama() -> Any:
    """The same, with attention that adds its mask."""
    return build(LlamaConfig(**SMALL), attn_implementation="eager")


def tiny_tied_llama() -> Any:
    """One matrix for input and output."""
    return tiny_llama(tie_word_embeddings=True)


def tiny_bf16_llama() -> Any:
    """bfloat16 weights."""
    return tiny_llama(dtype=torch.bfloat16)


def tiny_mistral() -> Any:
    """A window of 8 in every layer."""
    return build(MistralConfig(**SMALL, sliding_window=WINDOW))


def tiny_gemma3() -> Any:
    """Layers with a window of 8 between layers with full attention."""
    types = ["sliding_attention", "full_attention"] * 2
    shape = SMALL | {"num_hidden_layers": 4}
    config = Gemma3TextConfig(
        **shape, head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW, layer_types=types
    )
    return build(config)


def tiny_qwen3() -> Any:
    """Layer types named in the config, all of them full."""
    return build(Qwen3Config(**SMALL, head_dim=8))


def tiny_gpt2() -> Any:
    """Learned positions."""
    return build(GPT2Config(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=256))


def tiny_bloom() -> Any:
    """ALiBi: its forward takes no 4-D mask."""
    return build(BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4))


def tiny_gpt_neo(window: int) -> Any:
    """A layer whose window is kept by the model itself, and by cache slot."""
    config = GPTNeoConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=window,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
    )
    return build(config)


def tiny_hybrid() -> Any:
    """Convolution layers, whose state cannot be rolled back."""
    return build(Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]))


def tiny_rope(kind: str) -> Any:
    """Rotary frequencies that change once a sequence passes 32 tokens."""
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        rope["original_max_position_embeddings"] = 32
    limit = 64 if kind == "longrope" else 32
    return tiny_llama(rope_parameters=rope, max_position_embeddings=limit)


def tiny_granite() -> Any:
    """Logits divided by 4."""
    return build(GraniteConfig(**SMALL, logits_scaling=4.0))


def tiny_cohere() -> Any:
    """Logits multiplied by 0.3."""
    return build(CohereConfig(**SMALL, logit_scale=0.3))


def tiny_gemma2() -> Any:
    """Logits capped at 2."""
    return build(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0))


def tiny_phi() -> Any:
    """A head with a bias."""
    model = build(PhiConfig(**SMALL | {"num_key_value_heads": 4}))
    torch.nn.init.normal_(model.lm_head.bias)
    return model


TREE_MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny_llama,
    "eager": tiny_eager_llama,
    "tied": tiny_tied_llama,
    "mistral": tiny_mistral,
    "gemma3": tiny_gemma3,
    "qwen3": tiny_qwen3,
    "gpt2": tiny_gpt2,
}
"""Float32 models that score trees."""

FINISHED_MODELS: dict[str, Callable[[], Any]] = {
    "scaled": tiny_granite,
    "multiplied": tiny_cohere,
    "capped": tiny_gemma2,
    "shifted": tiny_phi,
}
"""By what they do to the product of hidden states and head."""
