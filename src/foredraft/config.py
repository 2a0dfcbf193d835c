"""Options of one request, and the limits every part keeps to. Each default exists once, here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

from foredraft.errors import ConfigError, suggestion

MAX_TREE_NODES = 512
"""Most nodes in a draft tree, and most tokens in one prefill pass: one limit sizes every buffer."""

METHODS = (
    "autoregressive",
    "adaptive",
    "ngram",
    "speculative",
    "eagle-chain-K",
    "eagle",
    "eagle2",
    "adaeagle",
    "adaeagle-threshold",
    "hybrid",
    "mcsd",
    "mcsd-improved",
    "mcsd-improved-lossy",
)
"""Names of the recipes in `engine/recipes.py`, here so that help can list them without loading PyTorch."""

QUANTIZATIONS = ("int8", "int4")
"""What weights can be rounded to when a model is loaded."""

LEAST_TEMPERATURE = 1e-5
"""Logits divided by less would overflow float32; 0 means greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """What a request asks for. Frozen; every value is checked when it is made.

    Raises:
        ConfigError: a value is out of its range; the message names it and the range.
    """

    max_new_tokens: int = 256
    """Emitted tokens at most, the end token included."""
    min_new_tokens: int = 0
    """No end token before this many emitted tokens."""
    temperature: float = 0.0
    """0 is greedy decoding; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the most likely one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divide positive (multiply negative) logits of every token seen in prompt and answer."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token in the answer so far."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once per occurrence in the answer so far."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Token id -> value added to its logit; -inf forbids the token."""
    bad_words: Sequence[str | Sequence[int]] = ()
    """Words (or their token ids) that must not appear in the answer."""
    suppress_tokens: Sequence[int] = ()
    """Token ids that are never emitted."""
    logits_processors: Sequence[Any] = ()
    """Your own `transformers.LogitsProcessor` objects, applied after the penalties and before
    temperature. They see every prefix of the answer once, in order, and no rejected token; within the
    last round they may see tokens behind a stop string, since text is read after verification."""
    seed: int | None = None
    """Same seed, same text; None draws one (it is reported in the result)."""
    choice: int = 0
    """Which of several answers to the same prompt and seed this is; each has noise of its own."""
    eos_token_ids: Sequence[int] | None = None
    """End tokens; None takes the model's own."""
    ignore_eos: bool = False
    """Go on past end tokens."""
    stop: Sequence[str] = ()
    """Strings that end the answer; they are not part of its text."""
    logprobs: int | None = None
    """Report each emitted token's log-probability, and those of this many of the most likely tokens at its
    place: by the model alone, before penalties, processors, temperature and filters. None reports nothing."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = getattr(self, name)
            try:
                kept = rule.read(value)
            except (TypeError, ValueError, OverflowError):
                raise ConfigError(f"{name}={value!r} is not allowed; give {rule.allowed}") from None
            object.__setattr__(self, name, kept)  # plain numbers and tuples, not the caller's lists
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens={self.min_new_tokens} is not allowed; "
                f"give at most max_new_tokens={self.max_new_tokens}"
            )

    def replace(self, **changes: Any) -> GenerationOptions:
        """These options with some changed; an unknown name is an error that lists the known ones."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(f"unknown generation option {name!r}; {suggestion(name, known)}")
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What an option may be, in words, and how a value is read; reading fails with any of
    TypeError, ValueError and OverflowError."""

    allowed: str
    read: Callable[[Any], Any]


def _need(holds: bool) -> None:
    if not holds:
        raise ValueError


def _whole_number(value: Any, least: int | None = None) -> int:
    _need(isinstance(value, Integral) and not isinstance(value, bool))
    _need(least is None or value >= least)
    return int(value)


def _number(value: Any) -> float:
    _need(isinstance(value, Real) and not isinstance(value, bool))
    number = float(value)
    _need(math.isfinite(number))
    return number


def _whole(least: int) -> _Rule:
    return _Rule(f"a whole number of {least} or more", partial(_whole_number, least=least))


def _real(allowed: str, inside: Callable[[float], bool]) -> _Rule:
    def read(value: Any) -> float:
        number = _number(value)
        _need(inside(number))
        return number

    return _Rule(f"a number, {allowed}", read)


def _optional(rule: _Rule) -> _Rule:
    return _Rule(f"{rule.allowed}, or None", lambda v: None if v is None else rule.read(v))


def _sequence(allowed: str, item: Callable[[Any], Any]) -> _Rule:
    def read(value: Any) -> tuple[Any, ...]:
        _need(not isinstance(value, str | bytes | Mapping))
        return tuple(item(v) for v in value)

    return _Rule(f"a sequence of {allowed}", read)


_token_id = partial(_whole_number, least=0)


def _text(value: Any) -> str:
    _need(isinstance(value, str) and bool(value))
    value.encode()  # a ValueError for half a character, which no answer holds
    return str(value)


def _word(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return _text(value)
    ids = tuple(_token_id(v) for v in value)
    _need(bool(ids))
    return ids


def _callable(value: Any) -> Any:
    _need(callable(value))
    return value


def _flag(value: Any) -> bool:
    _need(isinstance(value, bool))
    return bool(value)


def _biases(value: Any) -> dict[int, float]:
    _need(isinstance(value, Mapping))
    return {_token_id(t): b if b == -math.inf else _number(b) for t, b in value.items()}


_WHOLE = _Rule("a whole number", _whole_number)
_TOKEN_IDS = _sequence("token ids", _token_id)
_RULES: Mapping[str, _Rule] = {
    "max_new_tokens": _whole(1),
    "min_new_tokens": _whole(0),
    "temperature": _real(
        f"0 (greedy) or at least {LEAST_TEMPERATURE}", lambda t: t == 0 or t >= LEAST_TEMPERATURE
    ),
    "top_k": _whole(0),
    "top_p": _real("above 0 and at most 1", lambda p: 0 < p <= 1),
    "min_p": _real("between 0 and 1", lambda p: 0 <= p <= 1),
    "repetition_penalty": _real("above 0", lambda p: p > 0),
    "presence_penalty": _real("finite", math.isfinite),
    "frequency_penalty": _real("finite", math.isfinite),
    "logit_bias": _Rule("a mapping from token ids to finite numbers or -inf", _biases),
    "bad_words": _sequence("words, as text or token ids, none of them empty", _word),
    "suppress_tokens": _TOKEN_IDS,
    "logits_processors": _sequence("transformers LogitsProcessor objects", _callable),
    "seed": _optional(_WHOLE),
    "choice": _whole(0),
    "eos_token_ids": _optional(_TOKEN_IDS),
    "ignore_eos": _Rule("True or False", _flag),
    "stop": _sequence("non-empty strings", _text),
    "logprobs": _optional(_whole(0)),
    "prompt_logprobs": _optional(_whole(0)),
}


def default_of(options: type, name: str) -> Any:
    """The default of a dataclass field, so that a command-line flag need not repeat it."""
    return next(f.default for f in dataclasses.fields(options) if f.name == name)


def check_quantization(kind: str | None) -> None:
    """Raise a `ConfigError` unless it is None or one of `QUANTIZATIONS`."""
    if kind is not None and kind not in QUANTIZATIONS:
        raise ConfigError(
            f"quantize={kind!r} is not allowed; {suggestion(str(kind), QUANTIZATIONS)}"
        )
