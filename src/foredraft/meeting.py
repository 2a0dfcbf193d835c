"""Where sequences that decode side by side meet, to make their passes over a model together.

Each member of a meeting runs as it would alone, in a greenlet of its own: plain code, one thread, no locks.
Where it needs a pass it asks (`ask`) and rests. When all members rest, what was asked of the same model
is served at once, and they go on. Outside of a meeting `ask` serves its one request directly, so that there
is one code path for one sequence and for many.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

R = TypeVar("R")
T = TypeVar("T")
Serve = Callable[[Sequence[Any]], Sequence[Any]]
"""Requests -> an answer for each, in their order. Equal functions (the same method of the same object) are
served together."""

_here = threading.local()


def ask(serve: Callable[[Sequence[R]], Sequence[T]], request: R) -> T:
    """The answer to a request, served together with those of the other members of the meeting.

    Args:
        serve: what answers; called with this request alone outside of a meeting.
        request: checked by the asker: an error that `serve` raises reaches all who asked with it.
    """
    meeting: Meeting | None = getattr(_here, "meeting", None)
    if meeting is None:
        return serve([request])[0]
    answer: T = meeting.wait(serve, request)
    return answer


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """How a member's task ended: with a value, or with an error."""

    value: T | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    member: greenlet
    serve: Serve
    request: Any


class Meeting:
    """One round of several members.

    Args:
        last: what is served only when nobody asks for anything else: the dearest pass, which is to be shared
            by all.
    """

    def __init__(self, last: Serve | None = None) -> None:
        self._last = last
        self._asked: list[_Asked] = []

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[Outcome[T]]:
        """Run these to their ends; an error of one is its own outcome and disturbs no other.

        Raises:
            BaseException: what is no `Exception`, such as an interrupt; the other tasks are ended then.
        """
        outcomes: list[Outcome[T]] = [Outcome()] * len(tasks)
        members = [greenlet(_task(task, outcomes, i)) for i, task in enumerate(tasks)]
        try:
            for member in members:
                member.gr_context = contextvars.copy_context()
                self._resume(member)
            while self._asked:
                self._serve_some()
        except BaseException:
            for member in members:
                if not member.dead:
                    member.throw(GreenletExit)
            raise
        return outcomes

    def wait(self, serve: Serve, request: Any) -> Any:
        """Rest until the request is served; called by a member."""
        member = getcurrent()
        assert member.parent is not None
        self._asked.append(_Asked(member, serve, request))
        return member.parent.switch()

    def _serve_some(self) -> None:
        """Serve all that one function was asked for."""
        first = next((a.serve for a in self._asked if a.serve != self._last), self._last)
        group = [asked for asked in self._asked if asked.serve == first]
        self._asked = [asked for asked in self._asked if asked.serve != first]
        try:
            answers = group[0].serve([asked.request for asked in group])
        except Exception as error:
            for asked in group:
                self._resume(asked.member, error=error)
            return
        for asked, answer in zip(group, answers, strict=True):
            self._resume(asked.member, answer)

    def _resume(self, member: greenlet, *answer: Any, error: Exception | None = None) -> None:
        """Let a member run until it asks again or ends."""
        _here.meeting = self
        try:
            if error is None:
                member.switch(*answer)
            else:
                member.throw(error)
        finally:
            _here.meeting = None


def _task(task: Callable[[], T], outcomes: list[Outcome[T]], place: int) -> Callable[[], None]:
    def run() -> None:
        try:
            outcomes[place] = Outcome(task())
        except Exception as error:
            outcomes[place] = Outcome(error=error)

    return run
