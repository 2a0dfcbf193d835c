"""What tells tokenizers from others, so that what was made with one is not used with another."""

from __future__ import annotations

import hashlib
from typing import Any


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
