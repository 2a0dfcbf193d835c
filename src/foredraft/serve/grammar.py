"""Answers that follow a JSON schema: a logits processor on llguidance's matcher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from foredraft.errors import ConfigError, ForedraftError

ANY_OBJECT: dict[str, Any] = {"type": "object"}
LAYOUT: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,32}"}
"""Between JSON tokens: enough for any layout, and not so much that a model can go on with nothing else."""


class GrammarError(ForedraftError):
    """A matcher was given what its grammar forbids, or ran out of its limits."""


def token_bytes_of(tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """What llguidance needs of a tokenizer: the bytes of every token. Takes up to a second.

    Args:
        tokenizer: of `transformers`.
        vocab_size: V of the model.
        eos_token_ids: the tokens that end an answer.

    Raises:
        ConfigError: it is not one of the fast tokenizers.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(
            "response_format and logprobs need the bytes of tokens, which this model's tokenizer does not "
            "tell; leave them out"
        )
    size = max(vocab_size, len(tokenizer))
    return from_tokenizer(tokenizer, n_vocab=size, eos_token=list(eos_token_ids) or None)


def compile_schema(tokens: LLTokenizer, schema: Any) -> LLMatcher:
    """A matcher at the start of an answer; copy it for each answer.

    Raises:
        ConfigError: no schema, or one that asks for what is not supported; the message says what.
    """
    try:
        matcher = LLMatcher(
            tokens, LLMatcher.grammar_from_json_schema(json.dumps(schema), None, LAYOUT)
        )
        fault = matcher.get_error()
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault:
        reason = next(iter(fault.splitlines()), "").strip()
        raise ConfigError(f"response_format: the schema cannot be followed: {reason}")
    return matcher


class GrammarProcessor:
    """Forbids every token with which the answer could no longer follow the grammar.

    As the engine promises, it is called with each prefix of the answer once, in order, and with no
    rejected token; so the matcher only ever goes forward.

    Args:
        matcher: at the start; this object is its owner.
        prompt_length: tokens before the answer.
    """

    def __init__(self, matcher: LLMatcher, prompt_length: int) -> None:
        self._matcher, self._num_read = matcher, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: int64 [1, T], prompt and answer; scores: float [1, V]; forbidden ones become -inf.

        Raises:
            GrammarError: the answer has left the grammar, or following it became too complex.
        """
        self.read(input_ids[0, self._num_read :].tolist())
        return scores.masked_fill(~self.allowed(scores.shape[-1]).to(scores.device), -torch.inf)

    def read(self, token_ids: Sequence[int]) -> None:
        """Go on by these tokens of the answer."""
        self._num_read += len(token_ids)
        if not self._matcher.consume_tokens(list(token_ids)):
            self._raise()

    def allowed(self, vocab_size: int) -> Tensor:
        """bool [V]: what may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            self._raise()
        return torch.from_numpy(np.unpackbits(bits, count=vocab_size, bitorder="little")).bool()

    def _raise(self) -> None:
        lines = self._matcher.get_error().splitlines()
        raise GrammarError(f"the grammar cannot be followed: {next(iter(lines), 'it has ended')}")
