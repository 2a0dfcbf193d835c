"""What tells a model from others of its shape: drafters and hidden states belong to certain weights."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

DIGITS = 16
_SAMPLED_VALUES = 64
"""Values of each weight that go into a model's digest."""


@torch.inference_mode()
def weights_digest(model: Any) -> str:
    """Of the first values of every weight: other weights of the same shapes differ in some of them."""
    digest = hashlib.sha256()
    whole = getattr(model, "_orig_mod", model)  # a compiled model's names have another beginning
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
