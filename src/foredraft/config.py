"""Options of one request, and the limits every part keeps to. Each default exists once, here."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from foredraft.errors import ConfigError

MAX_TREE_NODES = 512
"""Most nodes in a draft tree, and most tokens in one prefill pass: one limit sizes every buffer."""


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
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Token id -> value added to its logit; -inf forbids the token."""
    bad_words: Sequence[str | Sequence[int]] = ()
    """Words (or their token ids) that must not appear in the answer."""
    suppress_tokens: Sequence[int] = ()
    """Token ids that are never emitted."""
    logits_processors: Sequence[Any] = ()
    """Your own `transformers.LogitsProcessor` objects, applied after the penalties and before temperature."""
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

    def __post_init__(self) -> None:
        whole = {"max_new_tokens": 1, "min_new_tokens": 0, "top_k": 0, "choice": 0}
        for name, least in whole.items():
            self._check(
                name,
                f"a whole number of {least} or more",
                _is_int(getattr(self, name)) and getattr(self, name) >= least,
            )
        for name in (
            "temperature",
            "min_p",
            "top_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            self._check(name, "a finite number", _is_finite(getattr(self, name)))
        self._check("temperature", "0 (greedy) or more", self.temperature >= 0)
        self._check("top_p", "above 0 and at most 1", 0 < self.top_p <= 1)
        self._check("min_p", "between 0 and 1", 0 <= self.min_p <= 1)
        self._check("repetition_penalty", "above 0", self.repetition_penalty > 0)
        self._check("seed", "a whole number or None", self.seed is None or _is_int(self.seed))
        self._check(
            "stop",
            "a sequence of non-empty strings",
            not isinstance(self.stop, str) and all(isinstance(s, str) and s for s in self.stop),
        )
        self._check(
            "bad_words",
            "a sequence of words, not one string",
            not isinstance(self.bad_words, str) and all(len(w) > 0 for w in self.bad_words),
        )
        self._check(
            "logit_bias",
            "finite numbers or -inf",
            all(_is_number(b) and b < math.inf for b in self.logit_bias.values()),
        )
        self._check(
            "min_new_tokens",
            f"at most max_new_tokens={self.max_new_tokens}",
            self.min_new_tokens <= self.max_new_tokens,
        )

    def _check(self, name: str, allowed: str, holds: bool) -> None:
        if not holds:
            raise ConfigError(f"{name}={getattr(self, name)!r} is not allowed; give {allowed}")

    def replace(self, **changes: Any) -> GenerationOptions:
        """These options with some changed; an unknown name is an error that lists the known ones."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
                )
                raise ConfigError(f"unknown generation option {name!r}; {hint}")
        return dataclasses.replace(self, **changes)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _is_finite(value: object) -> bool:
    return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def default_of(options: type, name: str) -> Any:
    """The default of a dataclass field, so that a command-line flag need not repeat it."""
    return next(f.default for f in dataclasses.fields(options) if f.name == name)
