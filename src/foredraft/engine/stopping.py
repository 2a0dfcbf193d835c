"""Where an answer ends, and which of its text may be shown before that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from foredraft.config import GenerationOptions
from foredraft.engine.text import IncrementalText
from foredraft.errors import PromptError
from foredraft.protocols import Target
from foredraft.results import FinishReason

Criterion: TypeAlias = Callable[[int], bool]
"""A caller's own rule: asked of every token of the answer, once and in order, whether it ends there."""


def end_tokens(options: GenerationOptions, target: Target) -> tuple[int, ...]:
    """The tokens that end an answer: those asked for, else the target's own; empty when none does."""
    if options.ignore_eos:
        return ()
    own = options.eos_token_ids
    return tuple(target.eos_token_ids if own is None else own)


def room_for(prompt_ids: Sequence[int], options: GenerationOptions, target: Target) -> int:
    """Tokens that the answer may have, by what was asked for and what the context has room for.

    Raises:
        PromptError: the prompt fills the context.
    """
    limit = target.context_length
    if limit is None:
        return options.max_new_tokens
    if len(prompt_ids) >= limit:
        raise PromptError(
            f"the prompt has {len(prompt_ids)} tokens and this model's context holds {limit}, "
            "which leaves no room for an answer; shorten the prompt"
        )
    return min(options.max_new_tokens, limit - len(prompt_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """What ends one answer. On one token, end tokens go before stop strings, those before limits."""

    eos_token_ids: frozenset[int] = frozenset()
    """End tokens: part of the answer's ids, not of its text."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer, in its own text: a start in the prompt does not count. The token
    that completes one is part of the ids; the text is cut right before the string."""
    max_new_tokens: int
    """Tokens in the answer at most, by what was asked for and what the context has room for."""

    def __post_init__(self) -> None:
        assert all(self.stop), "an empty stop string"
        assert self.max_new_tokens >= 1, "no room for an answer"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the tokens of one round."""

    num_kept: int
    """How many of them, from the first, belong to the answer."""
    text: str
    """The text that may be shown now."""
    finish_reason: FinishReason | None = None
    """Why the answer ended with the last kept token; None when it goes on."""
    stopped_by: int | str | None = None
    """The end token or the stop string that ended it."""


class StopState:
    """Applies the rules to one answer as it grows, and owns its text.

    The joined texts of all rounds are those of the kept ids without the end token, cut before the stop
    string. Text that may be the start of a stop string is held back until that is decided.

    Args:
        rules: what ends the answer.
        incoming: makes its text.
        criterion: what else ends it. Where a stop string ends it too, it may have been asked of later tokens.
    """

    def __init__(
        self, rules: StopRules, incoming: IncrementalText, criterion: Criterion | None = None
    ) -> None:
        self._rules, self._incoming, self._criterion = rules, incoming, criterion
        self._num_tokens = 0
        self._held = ""
        self._finished = False

    def take(self, token_ids: Sequence[int]) -> Taken:
        """Take the verified tokens of one round; those after the end of the answer are left.

        Args:
            token_ids: [A + 1] tokens, at least one. Must not be called once the answer has ended.
        """
        assert token_ids, "a round yields at least one token"
        assert not self._finished, "the answer has ended"
        taken = self._take(token_ids)
        self._num_tokens += taken.num_kept
        self._finished = taken.finish_reason is not None
        return taken

    def _take(self, token_ids: Sequence[int]) -> Taken:
        num_kept, reason, eos = self._end_by_tokens(token_ids)
        num_read = num_kept if eos is None else num_kept - 1
        found = self._read(token_ids[:num_read])
        if found is not None:
            return Taken(found.num_read, found.before, "stop", found.stop)
        if reason is None:
            return Taken(num_kept, self._release())
        return Taken(num_kept, self._held + self._incoming.finish(), reason, eos)

    def _end_by_tokens(
        self, token_ids: Sequence[int]
    ) -> tuple[int, FinishReason | None, int | None]:
        """How many tokens to keep and why the answer ends there, stop strings left aside."""
        room = self._rules.max_new_tokens - self._num_tokens
        for index, token_id in enumerate(token_ids[:room]):
            ends = self._criterion is not None and self._criterion(token_id)
            if token_id in self._rules.eos_token_ids:
                return index + 1, "stop", token_id
            if ends:
                return index + 1, "stop", None
        return (room, "length", None) if room <= len(token_ids) else (len(token_ids), None, None)

    def _read(self, token_ids: Sequence[int]) -> _Found | None:
        """Hold the text of these tokens, up to the first one that completes a stop string."""
        if not self._rules.stop:
            self._held += self._incoming.push(token_ids)
            return None
        for index, token_id in enumerate(token_ids):
            self._held += self._incoming.push([token_id])
            text = self._held + self._incoming.pending
            match = find_stop(text, self._rules.stop)
            if match is not None:
                start, stop = match
                return _Found(index + 1, text[:start], stop)
        return None

    def _release(self) -> str:
        """Stop holding the text that cannot be part of a stop string."""
        num_free = len(self._held) - num_undecided(self._held, self._rules.stop)
        free, self._held = self._held[:num_free], self._held[num_free:]
        return free


class _Found(NamedTuple):
    """A stop string, completed by the last of `num_read` tokens."""

    num_read: int
    before: str
    stop: str


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop string in `text` starts, and the longest one that starts there."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found, key=lambda match: (match[0], -len(match[1])), default=None)


def num_undecided(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` could be the start of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
