"""Log-probabilities in the two forms of OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llguidance import LLTokenizer

from foredraft.engine.text import IncrementalText
from foredraft.results import TokenLogprob

UNLIKELY = -9999.0
"""Stands for what JSON cannot hold, as OpenAI has it."""


def _finite(value: float) -> float:
    return value if math.isfinite(value) else UNLIKELY


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokens: LLTokenizer) -> dict[str, Any]:
    """Of a chat: for each token its text, its bytes, and the likeliest ones at its place."""
    content = [
        {
            **_entry(read.token_id, read.logprob, tokens),
            "top_logprobs": [_entry(token_id, value, tokens) for token_id, value in read.top],
        }
        for read in logprobs
    ]
    return {"content": content, "refusal": None}


def _entry(token_id: int, logprob: float, tokens: LLTokenizer) -> dict[str, Any]:
    raw = tokens.decode_bytes([token_id])
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": _finite(logprob),
        "bytes": list(raw),
    }


class TextLogprobs:
    """Of a text: parallel lists, and where each token starts in it. One for each answer, fed in order."""

    def __init__(self, tokens: LLTokenizer, text: IncrementalText) -> None:
        self._tokens, self._text = tokens, text
        self._offset = 0

    def read(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> dict[str, Any]:
        """The next tokens [T] and their log-probabilities [T]; None for a prompt's first token."""
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [
                None if read is None else _finite(read.logprob) for read in logprobs
            ],
            "top_logprobs": [None if read is None else self._likeliest(read) for read in logprobs],
            "text_offset": [self._advance(token_id) for token_id in token_ids],
        }

    def _name(self, token_id: int) -> str:
        """The text of a token; of a piece of a character, its bytes."""
        raw = self._tokens.decode_bytes([token_id])
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _likeliest(self, read: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens, and the one that was chosen if it is not among them."""
        named: dict[str, float] = {}
        for token_id, value in (*read.top, (read.token_id, read.logprob)):
            named.setdefault(self._name(token_id), _finite(value))
        return named

    def _advance(self, token_id: int) -> int:
        start = self._offset
        self._offset += len(self._text.push([token_id]))
        return start
