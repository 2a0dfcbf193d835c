"""A new head for a target: its sizes from the target's config, its weights from the target's last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foredraft.drafters.eagle.config import HeadConfig, Variant, check_rope, default_taps
from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ConfigError, ModelError

Init = Literal["last-layer", "random"]
INITS = ("last-layer", "random")
DEFAULT_INIT: Mapping[Variant, Init] = {1: "random", 3: "last-layer"}
"""EAGLE-1 gives features, which come after the final norm: a layer of the target adds to what stands before
it, and its outputs are of another size (of smollm2, a loss of 170 at the beginning instead of 12)."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


def head_for_target(
    target_model: Any,
    variant: Variant,
    *,
    taps: Sequence[int] | None = None,
    draft_ids: Tensor | None = None,
    fc_norm: bool | None = None,
    init: Init | None = None,
    own_lm_head: bool | None = None,
    max_positions: int | None = None,
) -> EagleHead:
    """A head to be trained for a target, in the target's dtype and on its device.

    With `init="last-layer"`, whatever of the target's last decoder layer has the right shape is copied
    (a target that is not Llama-like gives less, down to nothing): MLP, output projection, the norm after
    attention, the final norm. EAGLE-3's q, k and v take (embedding, hidden state): the target's
    go into the hidden half, and the embedding half starts small. `fc` passes its last tap (EAGLE-3) or
    the feature (EAGLE-1) through, and everything else starts at a twentieth of its usual size.

    Args:
        target_model: a Hugging Face causal language model; it is not changed.
        variant: 1 or 3.
        taps: hidden states to read (variant 3); None takes `default_taps`.
        draft_ids: int64 [Vd], increasing: target ids of a reduced vocabulary (variant 3).
        fc_norm: norm each tap before they are fused (variant 3); None does.
        init: "last-layer" or "random"; None takes `DEFAULT_INIT`.
        own_lm_head: a trainable copy of the target's language-model head (rows `draft_ids`), instead
            of the target's frozen rows; None does so for variant 3.
        max_positions: rows of text that it is trained to attend to, which it is held to when it drafts;
            None takes the target's own limit.

    Raises:
        ConfigError: a choice that belongs to the other variant, or is not possible for this target.
    """
    if init is not None and init not in INITS:
        raise ConfigError(f"init={init!r} of a head is not known; give one of {', '.join(INITS)}")
    if variant == 1 and draft_ids is not None:
        raise ConfigError("draft_ids belong to EAGLE-3 heads; EAGLE-1 has the target's vocabulary")
    ends = TargetEnds.of(target_model)
    draft_ids = _checked(draft_ids, len(ends.lm_rows))
    config = config_for_target(
        target_model,
        variant,
        taps=taps,
        draft_vocab_size=None if draft_ids is None else len(draft_ids),
        fc_norm=variant == 3 if fc_norm is None else fc_norm,
        max_positions=max_positions,
    )
    ids = draft_ids if config.is_reduced else None
    own = variant == 3 if own_lm_head is None else own_lm_head
    head = EagleHead(config, ends, ids, own_lm_head=own)
    with torch.no_grad():
        if own:
            rows = ends.lm_rows if ids is None else ends.lm_rows[ids.to(ends.lm_rows.device)]
            head.lm_head.weight.copy_(rows * ends.logit_scale)
        if (init or DEFAULT_INIT[variant]) == "last-layer":
            _copy_last_layer(head, target_model)
            _pass_last_tap(head.fc, config.hidden_size)
    return head.to(device=ends.device, dtype=ends.dtype)


def config_for_target(
    target_model: Any,
    variant: Variant,
    *,
    taps: Sequence[int] | None,
    draft_vocab_size: int | None,
    fc_norm: bool,
    max_positions: int | None = None,
) -> HeadConfig:
    """The architecture of a new head, with the target's sizes. Errors as in `head_for_target`."""
    config = target_model.config.get_text_config(decoder=True)
    layers = config.num_hidden_layers
    if variant == 1 and taps is not None and tuple(taps) != (layers,):
        raise ConfigError(f"an EAGLE-1 head reads the last hidden state, not taps={tuple(taps)}")
    chosen = (layers,) if variant == 1 else tuple(taps or default_taps(layers))
    for tap in chosen:
        if not 0 <= tap <= layers:
            raise ConfigError(f"tap {tap} is not among the target's hidden states 0 to {layers}")
    heads, size = config.num_attention_heads, config.hidden_size
    limit = getattr(config, "max_position_embeddings", None) or 2048
    rows = int(target_model.get_output_embeddings().weight.shape[0])
    attention = getattr(_last_layer(target_model), "self_attn", None)
    return HeadConfig(
        variant=variant,
        hidden_size=size,
        intermediate_size=_intermediate_size(config),
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or size // heads,
        vocab_size=rows,
        draft_vocab_size=draft_vocab_size or rows,
        target_hidden_size=size,
        taps=chosen,
        fc_bias=variant == 1,
        rms_norm_eps=getattr(config, "rms_norm_eps", None) or 1e-5,
        hidden_act=_activation(config),
        rope_parameters=_rope(config),
        max_position_embeddings=min(limit, max_positions or limit),
        attention_bias=getattr(getattr(attention, "q_proj", None), "bias", None) is not None,
        output_bias=getattr(getattr(attention, "o_proj", None), "bias", None) is not None,
        fc_norm=fc_norm,
    )


def _checked(ids: Tensor | None, vocab_size: int) -> Tensor | None:
    """The draft vocabulary as int64; increasing and in range, or a ConfigError."""
    if ids is None:
        return None
    ids = ids.detach().to(torch.int64)
    if ids.dim() != 1 or not len(ids) or bool((ids[1:] <= ids[:-1]).any()):
        raise ConfigError(
            "draft_ids must be one list of target ids, increasing and without repeats"
        )
    if int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise ConfigError(
            f"draft_ids go from {int(ids[0])} to {int(ids[-1])}; the target's ids end at {vocab_size - 1}"
        )
    return ids.clone()


def _intermediate_size(config: Any) -> int:
    size = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    if isinstance(size, (list, tuple)):
        size = size[-1]
    return int(size or 4 * config.hidden_size)


def _activation(config: Any) -> str:
    """The target's activation, for the MLP is copied from it."""
    named = (getattr(config, name, None) for name in ACTIVATIONS)
    return next((name for name in named if isinstance(name, str)), "silu")


def _rope(config: Any) -> dict[str, Any]:
    """The rotary embedding of the target's last layer; a plain one where the head supports no other."""
    rope = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in rope.values()):  # one for each type of layer
        types = getattr(config, "layer_types", None) or list(rope)
        rope = rope.get(types[-1]) or {}
    theta = rope.get("rope_theta") or 10000.0
    whole = {"rope_type": "default", **rope, "rope_theta": theta}
    try:
        check_rope(whole)
    except ModelError:
        return {"rope_type": "default", "rope_theta": theta}
    return whole


def _last_layer(model: Any) -> Any:
    """The last decoder layer, wherever this model keeps its layers; None if it is not found."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    layers = next(lists, None)
    return None if layers is None else layers[-1]


def _copy_last_layer(head: EagleHead, model: Any) -> None:
    """Copy what has the right shape; what the target has not stays as it is."""
    source = _last_layer(model)
    attention, mlp = getattr(source, "self_attn", None), getattr(source, "mlp", None)
    # Norms on queries and keys (Qwen 3, Gemma 3) are no part of a head: theirs would be out of scale.
    normed = hasattr(attention, "q_norm")
    layer = head.midlayer
    for name in ("v_proj",) if normed else ("q_proj", "k_proj", "v_proj"):
        _copy_projection(getattr(layer.self_attn, name), getattr(attention, name, None))
    _copy_projection(layer.self_attn.o_proj, getattr(attention, "o_proj", None))
    for name in ("gate_proj", "up_proj", "down_proj"):
        _copy_projection(getattr(layer.mlp, name), getattr(mlp, name, None))
    _copy_norm(
        layer.post_attention_layernorm.weight, getattr(source, "post_attention_layernorm", None)
    )
    if head.config.variant == 3:
        _copy_norm(layer.hidden_norm.weight, getattr(source, "input_layernorm", None))
        _copy_norm(head.norm.weight, getattr(model.get_decoder(), "norm", None))


SMALL = 0.05
"""Of what is not copied, relative to its usual random size."""


def _copy_projection(own: nn.Linear, source: Any) -> None:
    """Copy weight and bias; into the hidden half where the head's takes twice the width."""
    weight = getattr(source, "weight", None)
    if not isinstance(weight, Tensor) or weight.shape[0] != own.weight.shape[0]:
        return
    if weight.shape[1] * 2 == own.weight.shape[1]:
        own.weight.mul_(SMALL)[:, weight.shape[1] :] = weight
    elif weight.shape == own.weight.shape:
        own.weight.copy_(weight)
    else:
        return
    if own.bias is not None and getattr(source, "bias", None) is not None:
        own.bias.copy_(source.bias)


def _copy_norm(weight: Tensor, source: Any) -> None:
    """Copy what the norm multiplies by, which some models store less one: the image of ones."""
    theirs = getattr(source, "weight", None)
    if isinstance(theirs, Tensor) and theirs.shape == weight.shape:
        weight.copy_(source(torch.ones_like(theirs)[None])[0])


def _pass_last_tap(fc: nn.Linear, size: int) -> None:
    """Make fc the identity of its last `size` inputs, with little of the others."""
    if fc.in_features >= size:
        fc.weight.mul_(SMALL)
        fc.weight[:, -size:] += torch.eye(size, dtype=fc.weight.dtype)
    if fc.bias is not None:
        fc.bias.zero_()
