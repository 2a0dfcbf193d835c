"""Ctrl-C, wherever it strikes: Python drops the exception when that is inside a finaliser."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Noticing = TypeVar("Noticing", bound="Interrupts")

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


class PatientInterrupts(Interrupts):
    """Whether Ctrl-C came; the first one interrupts nothing, so that work may end where it is whole."""

    def notice(self, number: int, frame: FrameType | None) -> None:
        """The signal handler; from the second Ctrl-C on it raises."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def noticed_interrupts() -> Iterator[Interrupts]:
    """Notice Ctrl-C inside; call `heed` between steps of the work."""
    with _handled(Interrupts()) as interrupts:
        yield interrupts


@contextmanager
def patient_interrupts() -> Iterator[PatientInterrupts]:
    """Notice Ctrl-C inside; look at `came` between steps of the work. A second one raises at once."""
    with _handled(PatientInterrupts()) as interrupts:
        yield interrupts


@contextmanager
def _handled(interrupts: Noticing) -> Iterator[Noticing]:
    before = signal.signal(signal.SIGINT, interrupts.notice)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
