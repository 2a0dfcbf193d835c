"""How likely a copy from the text is right, by how much of the text agrees with its source.

Where the m tokens before a copy's source equal the m tokens at the text's end, the copy is right the more
often the larger m is; how often also depends on the text. Each token that the text gains is first compared
with its copy, so a request learns rates of its own on top of the measured ones
([benchmarks/ngram-reliability]).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

LONGEST_AGREEMENT = 32
"""Tokens compared at most: longer agreement says nothing more."""
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""Agreements from each of these on, up to the next, share one rate."""
FIRST = (0.18, 0.48, 0.58, 0.7, 0.74, 0.79, 0.85, 0.88, 0.91, 0.94, 0.95, 0.95, 0.97)
"""Measured rates of the first copy, the latest one of the longest match."""
OTHER_LENGTHS = (1, 2, 3, 4, 5, 8)
SECOND = (0.13, 0.24, 0.3, 0.37, 0.35, 0.69)
"""Measured rates of the first copy of another token where the first copy was wrong, by its own agreement."""
LATER = (0.09, 0.14, 0.15, 0.2, 0.2, 0.2)
"""Those of the third and later copies, where all before were wrong."""

PRIOR_WEIGHT = 8.0
"""Copies of the text that count as much as the measured rate."""
DECAY = 0.95
"""What a copy still counts when the next one of its rate has been seen."""
PROMPT_WEIGHT = 0.25
"""What a copy inside the prompt counts; one inside the answer counts 1."""


def agreement(token_ids: Sequence[int], source: int, end: int) -> int:
    """How many tokens before `source` equal those before `end`, the nearest first; 32 at most."""
    most = min(LONGEST_AGREEMENT, source)
    for length in range(most):
        if token_ids[source - 1 - length] != token_ids[end - 1 - length]:
            return length
    return most


class Reliability:
    """What one text has shown of its first copies."""

    def __init__(self) -> None:
        self._hits, self._trials = [0.0] * len(FIRST), [0.0] * len(FIRST)

    def note(self, length: int, hit: bool, weight: float) -> None:
        """Count a first copy.

        Args:
            length: agreement of its source.
            hit: whether the text went on with it.
            weight: what it counts.
        """
        place = _place(length, LENGTHS)
        self._hits[place] = DECAY * self._hits[place] + weight * hit
        self._trials[place] = DECAY * self._trials[place] + weight

    def __call__(self, length: int, rank: int = 0) -> float:
        """How likely a copy is right, given that all before it are wrong.

        Args:
            length: agreement of its source, 1 or more.
            rank: its place among the different tokens copied there, 0 first.
        """
        if rank > 0:
            return (SECOND if rank == 1 else LATER)[_place(length, OTHER_LENGTHS)]
        place = _place(length, LENGTHS)
        seen, hits = self._trials[place], self._hits[place]
        return (PRIOR_WEIGHT * FIRST[place] + hits) / (PRIOR_WEIGHT + seen)


def _place(length: int, lengths: Sequence[int]) -> int:
    return max(bisect_right(lengths, length) - 1, 0)
