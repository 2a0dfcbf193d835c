"""Exclusive times of nested stages of a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foredraft.engine.pass_costs import Clock


class Stopwatch:
    """Seconds by stage. What a stage calls that is charged elsewhere is not its own.

    Args:
        synchronize: waits for the device, so that a stage's time is its own work's.
        clock: seconds that only go up.
    """

    def __init__(
        self, synchronize: Callable[[], None] = lambda: None, clock: Clock = time.perf_counter
    ) -> None:
        self._synchronize, self._clock = synchronize, clock
        self._seconds: dict[str, float] = {}
        self._inside: list[float] = []  # of every open stage, what stages within it took
        self._passes = 0

    @contextmanager
    def charge(self, name: str) -> Iterator[None]:
        """Charge the time inside to `name`, less what is charged within."""
        began = self._clock()
        self._inside.append(0.0)
        try:
            yield
        finally:
            self._synchronize()
            took = self._clock() - began
            own = took - self._inside.pop()
            self._seconds[name] = self._seconds.get(name, 0.0) + own
            if self._inside:
                self._inside[-1] += took

    @contextmanager
    def draft_pass(self, ends: bool) -> Iterator[None]:
        """Charge a piece of this round's current draft pass; `ends` says that the next one is another."""
        with self.charge(pass_name(self._passes)):
            yield
        self._passes += ends

    def take(self) -> dict[str, float]:
        """Seconds by stage since the last call; the next draft pass is a round's first."""
        seconds, self._seconds, self._passes = self._seconds, {}, 0
        return seconds


PASS = "draft pass "


def pass_name(index: int) -> str:
    """The stage of a round's draft pass: 0 catches up with the text and scores the root."""
    return f"{PASS}{index}"


def pass_index(name: str) -> int:
    """The other way round."""
    return int(name.removeprefix(PASS))
