"""Token ids to text while they come.

A token is not a piece of text: it may hold half a character, and decoders strip the space in front
of the first token. So the text of new tokens is read off a decode of the last few tokens together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Decode: TypeAlias = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
MAX_UNFINISHED = 3
"""Bytes of an unfinished UTF-8 character at most. Decoders show one replacement character for all
of them, or one for each."""
MIN_CONTEXT = 4
"""Tokens of context to keep at least when old tokens are forgotten."""
MIN_WINDOW = 16
"""Tokens in the window before any are forgotten."""
STRAY_BYTE_IDS = range(512)
"""Where to look for a stray byte: vocabularies list their bytes first, after special tokens."""


class IncrementalText:
    """The text of one growing sequence of tokens, given out in deltas.

    1. All deltas and the final `finish()`, joined, are `decode(all ids)`.
    2. No delta holds anything that a later token can still change, such as a part of a character.

    Both hold for decoders that only ever append, but for broken bytes. Byte-level decoders replace
    the broken ones alone; byte fallback replaces a whole run of byte tokens, the valid characters
    in it included, so such a run is given out when it has ended.

    Args:
        decode: text of a sequence of ids, without clean-up of spaces.
        stray_byte: what `find_stray_byte` says of `decode`; the same for every request.
    """

    def __init__(self, decode: Decode, stray_byte: int | None) -> None:
        self._decode, self._stray_byte = decode, stray_byte
        self._window: list[int] = []
        self._next_cut = MIN_WINDOW
        self._num_shown = 0  # characters of the window's text that were given out
        self._pending = ""

    @property
    def pending(self) -> str:
        """Complete characters not given out yet: a broken byte next would take them back."""
        return self._pending

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens; returns the text that is certain now and was not given out before."""
        self._window += token_ids
        text = self._decode(self._window)
        readable = self._without_unfinished(text)
        certain = self._certain(readable) if readable == text else readable
        delta = certain[self._num_shown :]
        self._num_shown += len(delta)
        self._pending = readable[self._num_shown :]
        if len(self._window) >= self._next_cut:
            self._forget(text)
        return delta

    def finish(self) -> str:
        """The rest of the text, an unfinished character as a replacement character."""
        rest = self._decode(self._window)[self._num_shown :]
        self._num_shown += len(rest)
        self._pending = ""
        return rest

    def _without_unfinished(self, text: str) -> str:
        """`text` without replacement characters at its end that may become something else."""
        body = text.rstrip(REPLACEMENT)
        if len(text) - len(body) > MAX_UNFINISHED and self._is_broken_for_good():
            return text[:-MAX_UNFINISHED]
        return body

    def _is_broken_for_good(self) -> bool:
        """Whether the window ends in broken bytes that no later token can repair.

        An unfinished character is at most three tokens: if the text was broken before each of them,
        the fault lies further back.
        """
        ends = range(1, MAX_UNFINISHED + 1)
        return all(self._decode(self._window[:-n]).endswith(REPLACEMENT) for n in ends)

    def _certain(self, text: str) -> str:
        """The part of the window's `text` that stays even if a broken byte comes next."""
        if self._stray_byte is None:
            return text
        broken = self._decode([*self._window, self._stray_byte])
        return text if broken.startswith(text) else broken.rstrip(REPLACEMENT)

    def _forget(self, text: str) -> None:
        """Drop old tokens from the window, to keep the cost of a step independent of the length.

        The window may begin at any token from which the end of `text` is read unchanged, if that
        end begins with a proper character that was given out: stripped spaces and half characters
        are then behind it.
        """
        num_kept = MIN_CONTEXT
        while num_kept < len(self._window):
            tail = self._decode(self._window[-num_kept:])
            num_dropped = len(text) - len(tail)
            proper = tail[:1] not in ("", REPLACEMENT)
            if proper and num_dropped < self._num_shown and text.endswith(tail):
                del self._window[:-num_kept]
                self._num_shown -= num_dropped
                break
            num_kept *= 2
        self._next_cut = max(MIN_WINDOW, 2 * len(self._window))


def find_stray_byte(decode: Decode) -> int | None:
    """A token that is a byte without a character, or None if the vocabulary seems to have none.

    Takes up to a few milliseconds, so ask once for each tokenizer.
    """
    try:
        return next((i for i in STRAY_BYTE_IDS if decode([i]) == REPLACEMENT), None)
    except (LookupError, ValueError, OverflowError):  # an id beyond a small vocabulary
        return None
