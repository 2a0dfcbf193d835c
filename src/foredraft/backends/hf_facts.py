"""What Foredraft reads off a Hugging Face model, its config and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from foredraft.backends.kv_layout import KVLayout, refuse_state
from foredraft.backends.quantized import QuantizedLinear
from foredraft.errors import ModelError

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def text_config(model: Any) -> Any:
    """The config of the model's language part."""
    return model.config.get_text_config(decoder=True)


def refuse_unsupported(model: Any) -> None:
    """Raise a `ModelError` for a model that cannot decode speculatively, without running it."""
    name = type(model).__name__
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
        raise ModelError(f"{name} is not a transformers model; give a causal language model")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder; give a decoder-only causal language model")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} has no language-model head; give a causal language model")
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ModelError(
            f"{name} has weights on the meta device (not loaded, or offloaded); "
            "load all of it onto CPU or accelerators"
        )
    for index, layer in enumerate(_native_cache(model).layers):
        refuse_state(index, layer)


def _native_cache(model: Any) -> Any:
    from transformers import DynamicCache

    try:
        return DynamicCache(config=model.config)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} has layers without a standard KV cache ({error}); "
            "use a model with plain attention layers"
        ) from error


def head_rows(model: Any) -> int:
    """Rows of the language-model head, padding included."""
    head = model.get_output_embeddings()
    return head.out_features if isinstance(head, QuantizedLinear) else int(head.weight.shape[0])


def vocab_size(model: Any, tokenizer: Any | None) -> int:
    """V: ids that both the head and the tokenizer know, so that padding is never emitted."""
    rows = head_rows(model)
    return rows if tokenizer is None else min(rows, _tokenizer_size(tokenizer))


def _tokenizer_size(tokenizer: Any) -> int:
    """One more than the largest id; added tokens may stand behind a gap that `len` leaves out."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return max(len(tokenizer), 1 + max(added, default=-1))


def eos_token_ids(model: Any, tokenizer: Any | None) -> tuple[int, ...]:
    """End tokens: the generation config's, else the config's, else the tokenizer's."""
    for source in (getattr(model, "generation_config", None), text_config(model), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
    return ()


def context_length(config: Any) -> int | None:
    """Most tokens in a sequence, None without a limit.

    Rotary embeddings of the kinds `dynamic` and `longrope` change every frequency once a sequence
    passes the original length, so several tokens in one pass would see another length than one at a
    time. The context ends there for them: up to it, output equals one-token decoding.
    """
    limits = [getattr(config, "max_position_embeddings", None), *_constant_rope_lengths(config)]
    return min((limit for limit in limits if limit), default=None)


def _constant_rope_lengths(config: Any) -> Iterator[int | None]:
    """Lengths up to which each length-dependent rotary embedding keeps its frequencies."""
    rope = getattr(config, "rope_parameters", None) or {}
    per_layer_type = [value for value in rope.values() if isinstance(value, dict)]
    for parameters in per_layer_type or [rope]:
        if parameters.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            name = "original_max_position_embeddings"
            yield parameters.get(name) or getattr(config, name, None)


def has_hidden_window(config: Any, layout: KVLayout) -> bool:
    """Whether the config names a window that no cache layer has: the model then keeps it itself.

    GPT-Neo does, by cache slot instead of by position, so a tree's siblings would shift it. The edge
    of a long window moves a row too little for a probe to tell from rounding. Configs with
    `layer_types` leave windows to the library's masks, which ours replace.
    """
    if getattr(config, "layer_types", None) is not None:
        return False
    named = [v for n, v in vars(config).items() if n.endswith(("window", "window_size"))]
    cached = {layer.window for layer in layout.layers if layer is not None}
    return any(type(window) is int and window not in cached for window in named)


def devices(model: Any) -> set[torch.device]:
    """Every device that holds weights."""
    return {parameter.device for parameter in model.parameters()}


def weights_mark(model: Any) -> tuple[tuple[int, int], ...]:
    """What changes when weights are exchanged or written in place (but through `.data`): a moment's look."""
    return tuple((p.data_ptr(), -1 if p.is_inference() else p._version) for p in model.parameters())
