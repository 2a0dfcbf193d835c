"""Heads in folders: read as they are published, every tensor accounted for, and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foredraft.backends.identity import quantization_of
from foredraft.drafters import int8_rows
from foredraft.drafters.eagle import layouts
from foredraft.drafters.eagle.config import HeadConfig
from foredraft.drafters.eagle.documents import COMPACT, OURS, write_fields
from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.eagle.fields import TargetSizes, read_fields
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.storage import (
    CONFIG,
    read_config,
    read_tensors,
    tensor_names,
    write_checkpoint,
)
from foredraft.errors import ConfigError, ModelError

Layout = Literal["eagle", "speculators", "foredraft"]
LAYOUTS: tuple[Layout, ...] = ("eagle", "speculators", "foredraft")
MAPS = ("d2t", "t2d")


def load_head(
    folder: str | Path, target_model: Any, *, variant: Literal[1, 2, 3] | None = None
) -> EagleHead:
    """A head for a target, in the target's dtype and on its device.

    The folder may be in any published layout: EAGLE-1/2, EAGLE-3, `speculators`, or our compact one, with
    safetensors or a pickle of tensors, whole or sharded. Borrowed from the target are only: embeddings, if
    the folder has none; EAGLE-1's language-model head, likewise; and the language-model head of a
    compact folder that says so. Weights of the head's own are used where they are there.

    Args:
        folder: with config.json and weights.
        target_model: the Hugging Face causal language model that it was trained for.
        variant: what the caller takes it for, 2 meaning the same as 1; None takes what it is.

    Raises:
        ModelError: the folder is no head, not one for this target, not of the variant named, or has
            missing, unknown or misshapen tensors; the message names them.
    """
    place = Path(folder)
    raw = read_config(place)
    stored = int8_rows.unpack(read_tensors(place), torch.float32)
    try:
        return _build(place, raw, layouts.own_names(stored), target_model, variant)
    except ModelError as error:
        raise ModelError(f"the head at {str(folder)!r} cannot be used: {error}") from error


def is_head_folder(path: str | Path) -> bool:
    """Whether a folder holds a draft head, and not a language model; False for anything unreadable."""
    folder = Path(path)
    try:
        if not (folder / CONFIG).is_file():
            return False
        raw = read_config(folder)
        if layouts.declared_variant(raw) is not None:
            return True
        names = {layouts.own_name(name) for name in tensor_names(folder)}
    except (ModelError, OSError, ValueError):
        return False
    return "fc.weight" in names


def read_recipe(folder: str | Path) -> dict[str, Any]:
    """How a saved head was made; empty without such a record. Errors as in `read_config`."""
    recipe = _ours(read_config(Path(folder))).get("recipe")
    return recipe if isinstance(recipe, dict) else {}


def save_head(
    head: EagleHead,
    folder: str | Path,
    layout: Layout = "eagle",
    *,
    with_embeddings: bool | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> None:
    """Write a head; `load_head` reads every layout back.

    `eagle` and `speculators` keep the weights bit by bit. `foredraft` is compact: matrices as int8 with one
    scale a row, and a language-model head that is rows of the target's is left out.

    Args:
        head: what to write.
        folder: made if it is missing; its config.json and model.safetensors are replaced.
        layout: one of `LAYOUTS`.
        with_embeddings: write the target's embeddings too, for programs that do not borrow them; None
            writes those that are the head's own alone.
        recipe: how it was made: JSON values that are kept beside the weights.

    Raises:
        ConfigError: an unknown layout, embeddings to be left out that are the head's own, or a layout that
            cannot say what the target does to the logits of a borrowed language-model head.
        ModelError: the disk refused it, or the head is quantised.
    """
    if quantization_of(head) is not None:
        raise ModelError("a quantised head cannot be saved; save the one that it was made from")
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r} of a head; available: {', '.join(LAYOUTS)}")
    if with_embeddings is False and head.own_embeddings:
        raise ConfigError("the head has embeddings of its own; they cannot be left out")
    tensors = own_tensors(head, layout)
    if with_embeddings and not head.own_embeddings:
        tensors["embed_tokens.weight"] = embedding_rows(head)
    if layout == "foredraft":
        tensors = int8_rows.pack(tensors)
    names = {name: layouts.published_name(name, layout, head.config.variant) for name in tensors}
    document = write_fields(head, layout, recipe)
    write_checkpoint(Path(folder), {names[name]: t for name, t in tensors.items()}, document)


# --- reading ----------------------------------------------------------------------------------------


def _build(
    place: Path,
    raw: Mapping[str, Any],
    tensors: dict[str, Tensor],
    target_model: Any,
    variant: int | None,
) -> EagleHead:
    """The head of these tensors, by our names."""
    if not layouts.may_be_head(tensors):
        raise ModelError("it holds a language model and no EAGLE head; give a head's folder")
    found = layouts.check_variant(raw, tensors, str(place / CONFIG))
    if variant is not None and (3 if variant == 3 else 1) != found:
        raise ModelError(f"EAGLE-{variant} was asked for, and it is {layouts.name_of(found)}")
    config = read_fields(raw, tensors, found, TargetSizes.of(target_model))
    target_ids = layouts.read_target_ids(tensors, config)
    weights = {name: tensor for name, tensor in tensors.items() if name not in MAPS}
    head = _empty(config, TargetEnds.of(target_model), target_ids, weights, raw)
    _account_for(weights, head)
    if target_ids is not None:
        weights["target_ids"] = target_ids
    head.load_state_dict(weights, assign=True)
    return head.to(device=head.ends.device, dtype=head.ends.dtype).eval()


def _empty(
    config: HeadConfig,
    ends: TargetEnds,
    target_ids: Tensor | None,
    weights: Mapping[str, Tensor],
    raw: Mapping[str, Any],
) -> EagleHead:
    """The head without memory for its weights, which are about to be assigned."""
    own_embeddings = "embed_tokens.weight" in weights
    if not own_embeddings and config.hidden_size != ends.hidden_size:
        raise ModelError(
            f"embed_tokens.weight is missing, and the target's embeddings of size {ends.hidden_size} "
            f"do not fit a head of size {config.hidden_size}"
        )
    refers = _ours(raw).get("lm_head") == "target"
    own_lm_head = "lm_head.weight" in weights or (config.variant == 3 and not refers)
    with torch.device("meta"):
        return EagleHead(
            config, ends, target_ids, own_embeddings=own_embeddings, own_lm_head=own_lm_head
        )


def _account_for(weights: Mapping[str, Tensor], head: EagleHead) -> None:
    """Raise a `ModelError` that names every tensor that is missing, unknown, misshapen or no number."""
    expected = {n: t.shape for n, t in head.state_dict().items() if n != "target_ids"}
    troubles = [f"{name} is missing" for name in expected if name not in weights]
    troubles += [f"{name} is unknown" for name in weights if name not in expected]
    troubles += [
        f"{name} has the shape {list(weights[name].shape)} where {list(shape)} is expected"
        for name, shape in expected.items()
        if name in weights and weights[name].shape != shape
    ]
    troubles += [
        f"{name} holds {tensor.dtype} instead of floating-point numbers"
        for name, tensor in weights.items()
        if name in expected and not tensor.is_floating_point()
    ]
    if troubles:
        hint = _hint(troubles)
        raise ModelError(
            f"it looks like {layouts.name_of(head.config.variant)}, but {'; '.join(troubles)}{hint}"
        )


def _hint(troubles: Iterable[str]) -> str:
    """The way out of a missing bias, which config.json asks for by leaving a field out."""
    if "fc.bias is missing" in troubles:
        return ' (a head without this bias says "bias": false in its config.json)'
    return ""


def _ours(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What we wrote into config.json beside the published fields."""
    ours = raw.get(OURS)
    return ours if isinstance(ours, Mapping) else {}


# --- writing ----------------------------------------------------------------------------------------


def own_tensors(head: EagleHead, layout: str) -> dict[str, Tensor]:
    """What a folder of this layout holds, by our names; without embeddings that are the target's.

    Raises:
        ConfigError: a layout that cannot say what the target does to the logits of a borrowed head.
    """
    tensors = {name: t for name, t in head.state_dict().items() if name != "target_ids"}
    if head.config.variant == 3 and not head.own_lm_head and layout != COMPACT:
        tensors["lm_head.weight"] = _as_own_lm_head(head, layout)
    if head.target_ids is not None:
        tensors["d2t"] = layouts.draft_map(head.target_ids)
        if layout != COMPACT:
            tensors["t2d"] = layouts.target_mask(head.target_ids, head.config.vocab_size)
    return tensors


def embedding_rows(head: EagleHead) -> Tensor:
    """[V, h] the embeddings that the head reads, with whatever the target's module does to them."""
    ids = torch.arange(head.config.vocab_size, device=head.ends.device)
    with torch.no_grad():
        return head.embed(ids)


def _as_own_lm_head(head: EagleHead, layout: str) -> Tensor:
    """[Vd, h] the target's rows as those of a head of its own, which has no more than a product."""
    ends = head.ends
    if ends.softcap is not None or ends.lm_bias is not None:
        what = "a bias" if ends.softcap is None else "a cap of its logits"
        raise ConfigError(
            f"the head drafts with the target's language-model head, which has {what}; layout {layout!r} "
            f"cannot say so, save it as {COMPACT!r}"
        )
    rows = ends.lm_rows.detach() if head.lm_rows is None else head.lm_rows
    return rows * ends.logit_scale if ends.logit_scale != 1.0 else rows.clone()
