"""Heads written for other programs: see `formats` for what each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.identity import quantization_of
from foredraft.drafters.eagle import layouts
from foredraft.drafters.eagle.checkpoint import embedding_rows, own_tensors
from foredraft.drafters.eagle.documents import write_fields
from foredraft.drafters.eagle.fields import AUX_COUNT, EAGLE_CONFIG, TAPS
from foredraft.drafters.eagle.format_names import Format
from foredraft.drafters.eagle.formats import Exported, check_format, scales_embeddings
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.storage import write_checkpoint
from foredraft.errors import ModelError

LAYOUTS: Mapping[Format, str] = {
    "speculators": "speculators",
    "eagle3": "eagle",
    "sglang": "eagle",
    "eagle1": "eagle",
}


def export_head(
    head: EagleHead,
    folder: str | Path,
    form: Format,
    *,
    num_layers: int,
    dtype: torch.dtype | None = None,
    verifier: str | None = None,
) -> int:
    """Write a head for another program; `load_head` reads every format back.

    The target's rows of a borrowed language-model head are written as the head's own, and so are its
    embeddings where the reader does not take them from the target, or would take them unscaled.

    Args:
        head: what to write.
        folder: made if it is missing; its config.json and model.safetensors are replaced.
        form: one of `FORMATS`.
        num_layers: of the head's target.
        dtype: of the numbers that are written; None keeps the head's.
        verifier: the target's hub id or folder, which only `speculators` has a place for: its own code
            loads no head that lacks it.

    Returns:
        The bytes of the tensors.

    Raises:
        ConfigError: the format cannot hold the head; the message says what.
        ModelError: the disk refused it, or the head is quantised.
    """
    if quantization_of(head) is not None:
        raise ModelError(
            "a quantised head cannot be exported; export the one that it was made from"
        )
    check_format(Exported(head, num_layers), form)
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in _tensors(head, form).items()
    }
    written = tensors["fc.weight"].dtype
    document = _document(head, form, verifier) | {
        "torch_dtype": str(written).removeprefix("torch.")
    }
    variant = head.config.variant
    names = {name: layouts.published_name(name, LAYOUTS[form], variant) for name in tensors}
    write_checkpoint(Path(folder), {names[n]: tensor for n, tensor in tensors.items()}, document)
    return sum(tensor.nbytes for tensor in tensors.values())


def _tensors(head: EagleHead, form: Format) -> dict[str, Tensor]:
    """What the folder holds, by our names."""
    tensors = own_tensors(head, LAYOUTS[form])
    if not head.own_embeddings and (form == "speculators" or scales_embeddings(head.ends)):
        tensors["embed_tokens.weight"] = embedding_rows(head)
    if form == "sglang" and head.config.variant == 1 and not head.config.fc_bias:
        # SGLang always adds a bias here, and leaves it uninitialised where the folder has none.
        tensors["fc.bias"] = torch.zeros(head.config.hidden_size, dtype=head.dtype)
    return tensors


def _document(head: EagleHead, form: Format, verifier: str | None) -> dict[str, Any]:
    config = head.config
    document = write_fields(head, LAYOUTS[form], None)
    if form == "speculators":
        document["speculators_config"]["verifier"]["name_or_path"] = verifier
        document["transformer_layer_config"][AUX_COUNT] = len(config.taps)
        return document
    if form == "sglang" and config.variant == 1:
        without = {name: value for name, value in document.items() if name != "bias"}
        return without | {"architectures": ["LlamaForCausalLMEagle"]}
    if config.variant == 3:
        document[AUX_COUNT] = len(config.taps)
    if form == "sglang":
        ids = [tap - 1 for tap in config.taps]
        document[EAGLE_CONFIG] = {"use_aux_hidden_state": True, TAPS: ids}
    return document
