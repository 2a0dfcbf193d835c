"""What tells tokenizers and models from others, so that what was made with one is not used with another."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

DIGITS = 16
_SAMPLED_VALUES = 64
"""Values of each weight that go into a model's digest."""


def tokenizer_digest(tokenizer: Any) -> str:
    """Changes with the vocabulary, the way to split text, and the chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = (
        backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items()),
        tokenizer.chat_template,
        sorted(tokenizer.special_tokens_map.items()),
    )
    return digest_of(parts)


def digest_of(value: Any) -> str:
    """Of anything that is written the same way each time."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


@torch.inference_mode()
def weights_digest(model: Any) -> str:
    """Of the first values of every weight: other weights of the same shapes differ in some of them."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        values = weight.detach().flatten()[:_SAMPLED_VALUES].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + values.tobytes())
    return digest.hexdigest()


def target_identity(model: Any) -> dict[str, Any]:
    """What tells the hidden states of this target from those of others, as JSON."""
    return {
        "class": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": weights_digest(model)[:DIGITS],
    }
