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
MAX_SCHEMA_BYTES = 100_000
"""Of a schema as JSON: one of half a megabyte can hold up the decoding of all answers for seconds."""
MAX_REASON = 300
"""Characters of llguidance's own words in an error."""


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
    """A matcher at the start of an answer; copy it for each answer. What may come first is computed here.

    Raises:
        ConfigError: no schema, one that is too large, or one that asks for what is not supported; the
            message says what.
    """
    try:
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA_BYTES:
            raise _refusal(f"it has {len(text)} bytes; give one of {MAX_SCHEMA_BYTES} at most")
        grammar = LLMatcher.grammar_from_json_schema(text, None, LAYOUT)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise _refusal(str(error)) from None
    matcher = LLMatcher(tokens, grammar, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise _refusal(matcher.get_error())
    return matcher


def _refusal(fault: str) -> ConfigError:
    return ConfigError(f"response_format: the schema cannot be followed: {_one_line(fault)}")


def _one_line(fault: str) -> str:
    """What llguidance says, without the state of its parser that it shows behind."""
    words = " ".join(fault.split("<state>")[0].split())
    words = words.replace("NoExtensionBias", "no JSON can follow it")
    return words if len(words) <= MAX_REASON else f"{words[: MAX_REASON - 3]}..."


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
        reason = _one_line(self._matcher.get_error()) or "it has ended"
        raise GrammarError(f"the grammar cannot be followed: {reason}")
