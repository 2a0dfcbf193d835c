"""Members of a meeting run as they would alone, and what they ask for is served together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.meeting import Meeting, ask


class Doubler:
    """Answers with twice the number, and remembers what it was asked at a time."""

    def __init__(self) -> None:
        self.served: list[list[int]] = []

    def serve(self, requests: Sequence[int]) -> list[int]:
        self.served.append(list(requests))
        if 13 in requests:
            raise ValueError("13 is not doubled")
        return [2 * r for r in requests]


def asker(plan: Sequence[tuple[Doubler, int]]) -> Callable[[], list[int]]:
    return lambda: [ask(doubler.serve, number) for doubler, number in plan]


def test_outside_of_a_meeting_one_request_is_served_alone() -> None:
    doubler = Doubler()
    assert ask(doubler.serve, 4) == 8
    assert doubler.served == [[4]]


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=5), max_size=5))
def test_everyone_gets_the_answers_that_they_would_get_alone(
    plans: list[list[tuple[bool, int]]],
) -> None:
    first, last = Doubler(), Doubler()
    meeting = Meeting(last=last.serve)
    tasks = [asker([(last if late else first, n) for late, n in plan]) for plan in plans]
    outcomes = meeting.run(tasks)
    assert [o.value for o in outcomes] == [[2 * n for _, n in plan] for plan in plans]
    assert sum(map(len, first.served + last.served)) == sum(map(len, plans))


def test_the_last_is_shared_by_all_however_long_they_took() -> None:
    first, last = Doubler(), Doubler()
    plans = [[(first, n)] * n + [(last, n)] for n in range(4)]
    Meeting(last=last.serve).run([asker(plan) for plan in plans])
    assert sorted(last.served[0]) == [0, 1, 2, 3]
    assert len(last.served) == 1
    assert [len(group) for group in first.served] == [3, 2, 1]


def test_an_error_belongs_to_those_who_asked() -> None:
    doubler, other = Doubler(), Doubler()

    def fails() -> list[int]:
        raise KeyError("own")

    def recovers() -> list[int]:
        with pytest.raises(ValueError, match="13"):
            ask(doubler.serve, 13)
        return [ask(doubler.serve, 1)]

    meeting = Meeting()
    got = meeting.run([asker([(doubler, 1)]), fails, recovers, asker([(other, 3)])])
    assert isinstance(got[0].error, ValueError)  # it shared the pass with 13
    assert isinstance(got[1].error, KeyError)
    assert [o.value for o in got[2:]] == [[2], [6]]


def test_an_interrupt_ends_all_and_lets_them_clean_up() -> None:
    cleaned = []

    def waits() -> None:
        try:
            ask(Doubler().serve, 1)
        finally:
            cleaned.append(1)

    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Meeting().run([waits, interrupts])
    assert cleaned == [1]
    assert ask(Doubler().serve, 2) == 4  # no meeting is left open


def test_a_generator_goes_on_from_meeting_to_meeting() -> None:
    """As a stream does, one round a meeting."""
    doubler = Doubler()

    def numbers(start: int):  # type: ignore[no-untyped-def]
        for number in range(start, start + 3):
            yield ask(doubler.serve, number)

    streams = [numbers(0), numbers(10)]
    rounds = [[o.value for o in Meeting().run([s.__next__ for s in streams])] for _ in range(3)]
    assert rounds == [[0, 20], [2, 22], [4, 24]]
    assert doubler.served == [[0, 10], [1, 11], [2, 12]]


def test_threads_meet_apart() -> None:
    doubler, seen = Doubler(), []

    def elsewhere() -> None:
        seen.append(ask(doubler.serve, 5))

    def member() -> int:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return ask(doubler.serve, 1)

    assert [o.value for o in Meeting().run([member])] == [2]
    assert seen == [10]
    assert doubler.served == [[5], [1]]
