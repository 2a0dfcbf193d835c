"""A tiny Llama as a float32 GGUF file, without a tokenizer: prompts are token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""A layer's parts here and there."""


def save_gguf(model: Any, file: Path) -> Path:
    """Write a Llama model with untied embeddings."""
    config = model.config
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    for name, values in tensors(model):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def tensors(model: Any) -> list[tuple[str, np.ndarray]]:
    """Every weight by its name in the file."""
    config, weights = model.config, model.state_dict()
    found = [
        ("token_embd.weight", weights["model.embed_tokens.weight"].numpy()),
        ("output_norm.weight", weights["model.norm.weight"].numpy()),
        ("output.weight", weights["lm_head.weight"].numpy()),
    ]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for here, there in NAMES.items():
            values = weights[f"model.layers.{layer}.{here}.weight"].numpy()
            if there in heads:
                values = paired(values, heads[there])
            found.append((f"blk.{layer}.{there}.weight", values))
    return found


def paired(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rotary pairs side by side, as GGUF files have them, and not in two halves."""
    halves = values.reshape(num_heads, 2, -1, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
