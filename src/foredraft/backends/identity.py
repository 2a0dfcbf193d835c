"""What tells a model from others of its shape: drafters and hidden states belong to certain weights."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

DIGITS = 16
_SAMPLED_VALUES = 64
"""Values of each weight that go into a model's digest."""


_NOTE = "_foredraft_quantization"


def note_quantization(model: Any, kind: str) -> None:
    """Remember, before a model's weights are rounded, which they were."""
    setattr(model, _NOTE, (kind, weights_digest(model)))


def quantization_of(model: Any) -> str | None:
    """What its weights were rounded to when it was loaded; None if they were not."""
    noted = getattr(getattr(model, "_orig_mod", model), _NOTE, None)
    return noted and noted[0]


def costs_digest(model: Any) -> str:
    """What tells models apart whose passes cost differently: the weights, and what these were rounded to."""
    kind = quantization_of(model)
    return weights_digest(model)[:DIGITS] + ("" if kind is None else f"-{kind}")


@torch.inference_mode()
def weights_digest(model: Any) -> str:
    """Of the first values of every weight: other weights of the same shapes differ in some of them.

    A quantised model has the digest of the weights that it was made from: what was learnt for these fits it.
    """
    digest = hashlib.sha256()
    whole = getattr(model, "_orig_mod", model)  # a compiled model's names have another beginning
    if quantization_of(whole) is not None:
        noted: str = getattr(whole, _NOTE)[1]
        return noted
    for name, weight in whole.named_parameters():
        values = weight.detach().flatten()[:_SAMPLED_VALUES].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + values.tobytes())
    return digest.hexdigest()


def target_identity(model: Any) -> dict[str, Any]:
    """What tells this target from others, as JSON."""
    return {
        "class": type(getattr(model, "_orig_mod", model)).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": weights_digest(model)[:DIGITS],
    }
