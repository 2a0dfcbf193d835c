"""The config.json that goes with a saved head, in each layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.drafters.eagle.config import HeadConfig
from foredraft.drafters.eagle.fields import NORM_FLAGS, TAPS
from foredraft.drafters.eagle.head import EagleHead

OURS = "foredraft"
"""The object in config.json that other programs do not know."""
COMPACT = "foredraft"
"""The layout in which a language-model head that is the target's is left out."""
SPECULATIVE_TOKENS = 5
"""The draft length that a `speculators` folder suggests."""


def write_fields(head: EagleHead, layout: str, recipe: Mapping[str, Any] | None) -> dict[str, Any]:
    """The document for a head in a layout; `recipe` is kept as it is."""
    config = head.config
    document = _speculators(config) if layout == "speculators" else _flat(config)
    ours: dict[str, Any] = {} if recipe is None else {"recipe": dict(recipe)}
    if layout == COMPACT:
        ours["lm_head"] = "own" if head.own_lm_head else "target"
    return document | {OURS: ours} if ours else document


def _layer(config: HeadConfig) -> dict[str, Any]:
    """What a Llama config says of the layer."""
    rope = dict(config.rope_parameters)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else scaling,
        "attention_bias": config.output_bias,
        "qkv_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": False,
    }


def _of_variant_3(config: HeadConfig) -> dict[str, Any]:
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        TAPS: list(config.taps),
        **{flag: getattr(config, flag) for flag in NORM_FLAGS},
    }


def _flat(config: HeadConfig) -> dict[str, Any]:
    """EAGLE's own form."""
    layer = _layer(config)
    if layer["rope_scaling"] is not None:  # EAGLE's own code knows the older name alone
        layer["rope_scaling"] |= {"type": layer["rope_scaling"]["rope_type"]}
    if config.variant == 1:
        return {"architectures": ["EagleLlamaForCausalLM"], **layer, **_fc_bias(config)}
    named = {"architectures": ["LlamaForCausalLMEagle3"]}
    return named | layer | _fc_bias(config) | _of_variant_3(config)


def _fc_bias(config: HeadConfig) -> dict[str, Any]:
    """`bias` where it is not what readers assume: some take true for biases of the attention too."""
    usual = config.variant == 1
    return {} if config.fc_bias == usual else {"bias": config.fc_bias}


def _speculators(config: HeadConfig) -> dict[str, Any]:
    """The form of `speculators`."""
    algorithm = "eagle" if config.variant == 1 else "eagle3"
    proposal = {"proposal_type": "greedy", "speculative_tokens": SPECULATIVE_TOKENS}
    shared = {
        "speculators_model_type": algorithm,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "transformer_layer_config": _layer(config),
        "fusion_bias": config.fc_bias,
        "tie_word_embeddings": False,
    }
    if config.variant == 1:
        return {
            "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
            **shared,
            "transformer_layer_architecture": "LlamaDecoderLayer",
            "layernorms": False,
        }
    return {"architectures": ["Eagle3Speculator"], **shared, **_of_variant_3(config)}
