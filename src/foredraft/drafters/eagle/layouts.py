"""How heads are published: names of tensors, and what tells one variant from the other.

Two dialects are read and written: EAGLE's own (`layers.0.*` or `midlayer.*`) and the one of
`speculators` (`layers.0.*`; for EAGLE-1 `fusion_fc` and `transformer.*`). Our own names are EAGLE-3's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from foredraft.drafters.eagle.config import HeadConfig, Variant
from foredraft.errors import ModelError

RENAMED = (
    ("model.", ""),
    ("layers.0.", "midlayer."),
    ("transformer.", "midlayer."),
    ("fusion_fc.", "fc."),
)
"""Published beginnings of names, and ours."""
IGNORED = ("inv_freq", "verifier_norm.weight", "verifier_lm_head.weight")
"""Ends of names of tensors that follow from the config or are the target's."""
MARKS_OF_3 = (
    "d2t",
    "t2d",
    "norm.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
)
QKV = tuple(f"midlayer.self_attn.{name}_proj" for name in "qkv")


def own_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors by our names, without those that follow from the config.

    Raises:
        ModelError: two of its names are one of ours.
    """
    named: dict[str, Tensor] = {}
    for published, tensor in tensors.items():
        if published.endswith(IGNORED):
            continue
        name = own_name(published)
        if name in named:
            raise ModelError(f"the head has {name} twice, under two names; keep one of them")
        named[name] = tensor
    return named


def own_name(published: str) -> str:
    """Our name of a published tensor."""
    for theirs, ours in RENAMED:
        if published.startswith(theirs):
            published = ours + published.removeprefix(theirs)
    return published


def published_name(name: str, layout: str, variant: Variant) -> str:
    """The name of one of our tensors in the layout `eagle` or `speculators`."""
    if layout == "speculators" and variant == 1:
        name = name.replace("fc.", "fusion_fc.", 1) if name.startswith("fc.") else name
        return name.replace("midlayer.", "transformer.", 1)
    if layout == "speculators" or variant == 1:
        return name.replace("midlayer.", "layers.0.", 1)
    return name


def may_be_head(names: Iterable[str]) -> bool:
    """Whether tensors of these (our) names can be a head's, even one that lacks some."""
    known = set(names)
    fuses = any(name.startswith("fc.") for name in known)
    return fuses or not any(name.startswith("layers.") for name in known)


def variant_of(tensors: Mapping[str, Tensor]) -> Variant:
    """Which variant these (our) tensors look like: projections of pairs, norms and maps are EAGLE-3's."""
    size = next((t.shape[0] for n, t in tensors.items() if n == "fc.weight" and t.dim() == 2), None)
    for name in QKV:
        weight = tensors.get(f"{name}.weight")
        if weight is not None and weight.dim() == 2 and size is not None:
            return 3 if weight.shape[1] == 2 * size else 1
    return 3 if any(name in tensors for name in MARKS_OF_3) else 1


def declared_variant(config: Mapping[str, Any]) -> Variant | None:
    """The variant that a config.json names; None if it names none."""
    names = [config.get("speculators_model_type"), config.get("model_type")]
    architectures = config.get("architectures")
    names += architectures if isinstance(architectures, list) else []
    words = [name.lower() for name in names if isinstance(name, str)]
    if any("eagle3" in word or "eagle-3" in word for word in words):
        return 3
    return 1 if any("eagle" in word for word in words) else None


def check_variant(config: Mapping[str, Any], tensors: Mapping[str, Tensor], place: str) -> Variant:
    """The variant that the tensors look like.

    Raises:
        ModelError: the config names the other one.
    """
    found, declared = variant_of(tensors), declared_variant(config)
    if declared is not None and declared != found:
        raise ModelError(
            f"the config of {place} says EAGLE-{declared}, but its tensors look like "
            f"{name_of(found)}; correct its architectures or model type, or fetch it again"
        )
    return found


def name_of(variant: Variant) -> str:
    """The variant in messages."""
    return "an EAGLE-1 or EAGLE-2 head" if variant == 1 else "an EAGLE-3 head"


# --- the reduced vocabulary -------------------------------------------------------------------------


def draft_map(target_ids: Tensor) -> Tensor:
    """d2t, int64 [Vd]: what to add to a draft id to get the target's."""
    return target_ids.cpu() - torch.arange(len(target_ids))


def target_mask(target_ids: Tensor, vocab_size: int) -> Tensor:
    """t2d, bool [V]: the tokens that the head knows."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[target_ids.cpu()] = True
    return mask


def read_target_ids(tensors: Mapping[str, Tensor], config: HeadConfig) -> Tensor | None:
    """The target's id of each draft token, int64 [Vd]; None when the vocabulary is not reduced.

    `d2t` alone says it; `t2d` may be left out, and must agree where it is there.

    Raises:
        ModelError: there is no map, it is not [Vd], leaves the vocabulary, repeats or decreases, or the two
            maps disagree.
    """
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None:
        if config.is_reduced:
            raise ModelError(
                f"d2t is missing, though the head has {config.draft_vocab_size} of the target's "
                f"{config.vocab_size} tokens; fetch the head again"
            )
        return None
    if d2t.shape != (config.draft_vocab_size,):
        raise ModelError(
            f"d2t has the shape {list(d2t.shape)} where draft_vocab_size={config.draft_vocab_size}"
        )
    ids = d2t.to(torch.int64) + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise ModelError(
            f"d2t maps to target ids {int(ids.min())} to {int(ids.max())}, outside the vocabulary of "
            f"{config.vocab_size}"
        )
    wrong = (ids[1:] <= ids[:-1]).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise ModelError(
            f"d2t maps draft ids {first} and {first + 1} to target ids {int(ids[first])} and "
            f"{int(ids[first + 1])}; they must increase without repeats"
        )
    if not config.is_reduced:
        return None
    _check_agreement(ids, t2d, config.vocab_size)
    return ids


def _check_agreement(ids: Tensor, t2d: Tensor | None, vocab_size: int) -> None:
    if t2d is None:
        return
    if t2d.shape != (vocab_size,):
        raise ModelError(
            f"t2d has the shape {list(t2d.shape)} where the vocabulary is {vocab_size}"
        )
    differ = (t2d.to(torch.bool) != target_mask(ids, vocab_size)).nonzero()
    if len(differ):
        raise ModelError(f"d2t and t2d disagree about target id {int(differ[0])}; fetch them again")
