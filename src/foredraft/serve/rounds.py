"""Many answers side by side, one round after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from foredraft.engine.engine import Stream
from foredraft.results import Step


@dataclass(frozen=True, slots=True)
class Progress:
    """What one round did to one member.

    Attributes:
        stream: the member.
        step: what it added; None if it failed.
        error: why it failed; None if it did not.
        finished: whether it has left, because its answer is complete or because it failed.
    """

    stream: Stream
    step: Step | None
    error: Exception | None
    finished: bool


class Rounds(Protocol):
    """Decodes the streams that have joined. Used from one thread."""

    def join(self, stream: Stream) -> None:
        """Have a fresh stream take part from the next round on."""
        ...

    def leave(self, stream: Stream) -> None:
        """Close a member's stream and drop it, between two rounds; nothing happens to strangers."""
        ...

    def round(self) -> list[Progress]:
        """One round of every member. One member's error is its own, and never raised."""
        ...


class TurnRounds:
    """`Rounds` in which members take turns, each with passes of its own."""

    def __init__(self) -> None:
        self._members: list[Stream] = []

    def join(self, stream: Stream) -> None:
        """Have a fresh stream take part from the next round on."""
        self._members.append(stream)

    def leave(self, stream: Stream) -> None:
        """Close a member's stream and drop it, between two rounds."""
        if stream in self._members:
            self._members.remove(stream)
            stream.close()

    def round(self) -> list[Progress]:
        """One round of every member in turn; a stream's first one covers its prompt."""
        return [self._turn(stream) for stream in tuple(self._members)]

    def _turn(self, stream: Stream) -> Progress:
        try:
            step = next(stream)
        except Exception as error:
            self.leave(stream)
            return Progress(stream, None, error, finished=True)
        finished = step.finish_reason is not None
        if finished:
            self.leave(stream)
        return Progress(stream, step, None, finished)
