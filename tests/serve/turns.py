"""Answers side by side without shared passes: the plainest way, to compare with and to slow down."""

from __future__ import annotations

from foredraft.engine.batch import Progress
from foredraft.engine.stream import Stream


class TurnRounds:
    """`Rounds` in which members take turns, each with passes of its own."""

    def __init__(self) -> None:
        self._members: list[Stream] = []

    def join(self, stream: Stream) -> None:
        self._members.append(stream)

    def leave(self, stream: Stream) -> None:
        if stream in self._members:
            self._members.remove(stream)
            stream.close()

    def round(self) -> list[Progress]:
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
