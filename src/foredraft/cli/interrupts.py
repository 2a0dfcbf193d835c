"""Ctrl-C, wherever it strikes: Python drops the exception when that is inside a finaliser."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""


class Interrupts:
    """Whether Ctrl-C came."""

    def __init__(self) -> None:
        self.came = False

    def notice(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self.came = True
        raise KeyboardInterrupt

    def heed(self) -> None:
        """Raise `KeyboardInterrupt` if it came and was dropped."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def noticed_interrupts() -> Iterator[Interrupts]:
    """Notice Ctrl-C inside; call `heed` between steps of the work."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.notice)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
