"""What was said in a chat, and what its answers took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foredraft.results import Statistics

INTERRUPTED = "interrupted"
"""The finish reason of an answer that Ctrl-C ended."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer."""

    question: str
    text: str
    finish_reason: str
    """`stop`, `length` or `interrupted`."""
    method: str
    seed: int | None
    """None where the answer was greedy."""
    choice: int
    """Which answer to the question this is: 0, and one more with every retry."""
    stats: Statistics

    def as_dict(self) -> dict[str, Any]:
        """The turn as one JSON document."""
        return {
            "question": self.question,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "method": self.method,
            "seed": self.seed,
            "choice": self.choice,
            "stats": self.stats.as_dict(),
        }


class Conversation:
    """The turns that the next answer is given, and the statistics of every answer of the session.

    Args:
        system: what the model is told before anything is said; None tells it nothing.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[Turn] = []
        self._stats: list[Statistics] = []

    @property
    def turns(self) -> Sequence[Turn]:
        """What was said, the first turn first."""
        return tuple(self._turns)

    @property
    def stats(self) -> Sequence[Statistics]:
        """Of every answer, of those that were taken back too."""
        return tuple(self._stats)

    def add(self, turn: Turn) -> None:
        """An answer was given."""
        self._turns.append(turn)
        self._stats.append(turn.stats)

    def take_back(self) -> Turn | None:
        """Forget the last turn, and return it; None where nothing was said."""
        return self._turns.pop() if self._turns else None

    def put_back(self, turn: Turn) -> None:
        """Undo `take_back`."""
        self._turns.append(turn)

    def clear(self) -> None:
        """Forget every turn; the system message stays."""
        self._turns.clear()

    def messages(self, question: str | None = None) -> list[dict[str, str]]:
        """The messages so far, and a question behind them if there is one."""
        said = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self._turns:
            said.append({"role": "user", "content": turn.question})
            said.append({"role": "assistant", "content": turn.text})
        return said if question is None else [*said, {"role": "user", "content": question}]
