"""The answers of one request, on the side of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from foredraft.engine.stream import Stream
from foredraft.errors import ForedraftError
from foredraft.results import Result
from foredraft.serve.jobs import Event, Failed, Finished, Job, ReadRound, Stepped
from foredraft.serve.worker import Worker


class TimeLimitError(ForedraftError):
    """A request took longer than the server allows."""


class Start(NamedTuple):
    """How one answer is begun.

    Attributes:
        method: the name of the method that makes it.
        stream: makes its stream, in the worker's thread.
        num_prompt_tokens: tokens of its prompt.
        read: reads its rounds, if they are to be told.
    """

    method: str
    stream: Callable[[], Stream]
    num_prompt_tokens: int
    read: ReadRound | None = None


class Answers:
    """Events of the answers of one request, as they come. Made and used in the event loop.

    Args:
        worker: makes the answers; the places for them are reserved.
        starts: one for each answer.
        time_limit_s: seconds from now to the last event; None sets no limit.

    Raises:
        ShuttingDownError: the worker has ended.
    """

    def __init__(self, worker: Worker, starts: Sequence[Start], time_limit_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._worker, self._time_limit_s = worker, time_limit_s
        self._deadline = None if time_limit_s is None else loop.time() + time_limit_s
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._jobs = [
            Job(
                start.method,
                start.stream,
                self._teller(loop, index),
                start.num_prompt_tokens,
                start.read,
            )
            for index, start in enumerate(starts)
        ]
        worker.submit(self._jobs)

    def _teller(self, loop: asyncio.AbstractEventLoop, index: int) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who listened
                loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

        return tell

    def cancel(self) -> None:
        """Drop what is not finished."""
        for job in self._jobs:
            self._worker.cancel(job)

    async def events(self) -> AsyncIterator[tuple[int, Stepped | Finished]]:
        """Each event with the index of its answer, until all are finished.

        Raises:
            TimeLimitError: they took too long.
            Exception: whatever one of the answers failed with.
        """
        open_answers = len(self._jobs)
        while open_answers:
            index, event = await self._next()
            if isinstance(event, Failed):
                raise event.error
            open_answers -= isinstance(event, Finished)
            yield index, event

    async def results(self) -> list[Result]:
        """All answers, whole, in order. Errors as in `events`."""
        found = {i: e.result async for i, e in self.events() if isinstance(e, Finished)}
        return [found[index] for index in range(len(self._jobs))]

    async def _next(self) -> tuple[int, Event]:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._events.get()
        except TimeoutError:
            raise TimeLimitError(
                f"the answer took longer than the {self._time_limit_s:g} seconds that this server allows; "
                "ask for fewer tokens"
            ) from None
