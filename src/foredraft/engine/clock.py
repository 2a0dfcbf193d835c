"""Where a round's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class StageClock:
    """Seconds spent in each stage of the current round.

    Args:
        synchronize: waits for the device, so that a stage's time is its own work's.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time inside to stage `name`."""
        begin = time.perf_counter()
        yield
        self._synchronize()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin

    @property
    def spent(self) -> Mapping[str, float]:
        """Seconds by stage since the last lap."""
        return self._seconds

    def lap(self) -> dict[str, float]:
        """Seconds by stage, and `total`, since the last lap; starts the next one."""
        now = time.perf_counter()
        seconds = {**self._seconds, "total": now - self._since}
        self._seconds, self._since = {}, now
        return seconds

    def restart(self) -> None:
        """Leave out the time since the last lap: it belongs to whoever consumed the step."""
        self._since = time.perf_counter()
