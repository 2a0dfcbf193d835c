"""What to call a token that stands alone."""

from __future__ import annotations

from typing import Any

from foredraft.engine.engine import Engine
from foredraft.engine.text import REPLACEMENT

ANCHOR = "a"
"""Decoders strip a space from the front of a text, so a token is read behind this letter."""


class TokenNames:
    """Names of tokens: their text where it can be read, else the vocabulary's name or the number.

    Args:
        engine: whose tokens they are; without a tokenizer they have numbers alone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: dict[int, str] = {}
        self._anchor = self._find_anchor()

    def __call__(self, token_id: int) -> str:
        """The name; never empty."""
        if token_id not in self._names:
            self._names[token_id] = self._text(token_id) or self._fallback(token_id)
        return self._names[token_id]

    def _text(self, token_id: int) -> str:
        """Empty for special tokens and for parts of characters."""
        before = self._engine.decode(self._anchor)
        text = self._engine.decode([*self._anchor, token_id])
        if not text.startswith(before) or REPLACEMENT in text:
            return ""
        return text[len(before) :]

    def _fallback(self, token_id: int) -> str:
        if REPLACEMENT in self._engine.decode([token_id]):
            return (
                f"{REPLACEMENT}{token_id}"  # a part of a character: bytes say nothing to a reader
            )
        name: Any = None
        if self._engine.tokenizer is not None:
            name = self._engine.tokenizer.convert_ids_to_tokens(token_id)
        return str(name) if name else f"#{token_id}"

    def _find_anchor(self) -> list[int]:
        if self._engine.tokenizer is None:
            return []
        spelled = self._engine.tokenizer(ANCHOR, add_special_tokens=False)["input_ids"]
        return list(spelled)
