"""The thread that decodes: who gets in, who gets out, and that one's fault is nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from foredraft import ConfigError, GenerationOptions
from foredraft.engine.batch import Batch, Progress
from foredraft.engine.stream import Stream
from foredraft.serve.jobs import Event, Failed, Finished, Job, Outcome, Stepped
from foredraft.serve.rounds import Rounds
from foredraft.serve.settings import ServeSettings
from foredraft.serve.worker import QueueFullError, ShuttingDownError, Worker
from tests.serve.live import PLAIN, TREE, engines, target, wait_until

PROMPT = [60, 70, 80]
OPTIONS = GenerationOptions(max_new_tokens=10, temperature=1.0, seed=3, ignore_eos=True)


class Ended:
    """Notes what is over."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def ended(self, job: Job, stream: Stream | None, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Gated:
    """A batch that goes on only while a gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.rounds = Batch(target())
        self.members: list[Stream] = []
        self.num_rounds = 0

    def join(self, stream: Stream) -> None:
        self.members.append(stream)
        self.rounds.join(stream)

    def leave(self, stream: Stream) -> None:
        self.members.remove(stream)
        self.rounds.leave(stream)

    def round(self) -> list[Progress]:
        assert self.open.wait(20)
        self.num_rounds += 1
        return self.rounds.round()


class Broken(Batch):
    """Fails as a whole in the first round."""

    failed = False

    def round(self) -> list[Progress]:
        if not self.failed:
            self.failed = True
            raise RuntimeError("broken")
        return super().round()


@contextmanager
def working(
    rounds: Rounds, *, max_batch: int = 2, max_queue: int = 2
) -> Iterator[tuple[Worker, Ended]]:
    observer = Ended()
    worker = Worker(rounds, max_batch=max_batch, max_queue=max_queue, observer=observer)
    worker.start()
    try:
        yield worker, observer
    finally:
        worker.stop()
        assert not worker.alive


class Told:
    """A job and all it was told."""

    def __init__(
        self, options: GenerationOptions = OPTIONS, method: str = PLAIN, **more: Any
    ) -> None:
        self.events: list[Event] = []
        engine = engines()[method]
        self.job = Job(method, lambda: engine.stream(PROMPT, options, **more), self.events.append)

    @property
    def over(self) -> bool:
        return bool(self.events) and not isinstance(self.events[-1], Stepped)

    def check(self, options: GenerationOptions = OPTIONS) -> None:
        """The answer is that of the request alone."""
        *steps, last = self.events
        assert isinstance(last, Finished)
        expected = engines()[PLAIN].generate(PROMPT, options)
        assert last.result.token_ids == expected.token_ids
        ids = [t for e in steps if isinstance(e, Stepped) for t in e.step.token_ids]
        assert tuple(ids) == expected.token_ids


def submit(worker: Worker, *told: Told) -> None:
    worker.reserve(len(told))
    worker.submit([each.job for each in told])


def test_jobs_side_by_side_are_answered_as_if_alone() -> None:
    options = [OPTIONS.replace(seed=seed, max_new_tokens=3 + 4 * seed) for seed in range(4)]
    told = [Told(o, method) for o, method in zip(options, [PLAIN, TREE] * 2, strict=True)]
    with working(Batch(target())) as (worker, observer):
        submit(worker, *told)
        wait_until(lambda: all(each.over for each in told))
        assert worker.num_running == worker.num_waiting == worker.num_cached_tokens == 0
    for each, option in zip(told, options, strict=True):
        each.check(option)
    assert observer.outcomes == ["length"] * 4


def test_no_more_run_than_the_batch_holds_nor_wait_than_the_queue() -> None:
    gated, told = Gated(), [Told() for _ in range(5)]
    with working(gated) as (worker, _):
        submit(worker, *told[:3])
        wait_until(lambda: worker.num_running == 2)
        assert (worker.num_waiting, len(gated.members)) == (1, 2)
        with pytest.raises(QueueFullError, match="asks for 2"):
            worker.reserve(2)
        submit(worker, told[3])
        with pytest.raises(QueueFullError):
            worker.reserve(1)
        gated.open.set()
        wait_until(lambda: all(each.over for each in told[:4]))
        submit(worker, told[4])
        wait_until(lambda: told[4].over)
    for each in told:
        each.check()


def test_reserved_places_are_kept_and_given_back() -> None:
    with working(Batch(target())) as (worker, _):
        worker.reserve(4)
        with pytest.raises(QueueFullError):
            worker.reserve(1)
        worker.release(4)
        worker.reserve(4)
        worker.release(4)


def test_a_worker_is_not_idle_while_a_job_waits_begins_or_runs() -> None:
    """A server that ends asks for it."""
    told, seen = Told(), list[bool]()
    begin = told.job.start
    with working(Batch(target())) as (worker, _):

        def start() -> Stream:
            seen.append(worker.idle)
            return begin()

        told.job.start, told.job.tell = start, lambda event: seen.append(worker.idle)
        assert worker.idle
        worker.reserve(1)
        assert not worker.idle
        worker.submit([told.job])
        wait_until(lambda: worker.idle)
    assert seen[:-1] == [False] * (OPTIONS.max_new_tokens + 1)  # and the last thing told is its end


def test_a_cancelled_job_leaves_after_the_round_in_progress() -> None:
    gated, first, second, third = Gated(), Told(), Told(), Told()
    with working(gated) as (worker, observer):
        submit(worker, first, second, third)
        wait_until(lambda: worker.num_running == 2)
        worker.cancel(first.job)
        worker.cancel(third.job)
        rounds = gated.num_rounds
        gated.open.set()
        wait_until(lambda: second.over)
        assert gated.num_rounds > rounds
        steps = sum(isinstance(event, Stepped) for event in first.events)
        assert steps <= 1, "decoded on after the round in progress"
        assert not first.over
        assert third.events == []
    second.check()
    assert sorted(observer.outcomes) == ["cancelled", "cancelled", "length"]


def test_cancelling_what_is_over_does_nothing() -> None:
    told = Told()
    with working(Batch(target())) as (worker, observer):
        submit(worker, told)
        wait_until(lambda: told.over)
        worker.cancel(told.job)
        submit(worker, again := Told())
        wait_until(lambda: again.over)
    assert observer.outcomes == ["length", "length"]


class Exploding:
    """A logits processor that fails after some tokens."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError
        return scores


@pytest.mark.parametrize("after", [0, 3])
def test_one_jobs_error_is_its_own(after: int) -> None:
    good, bad = Told(), Told(logits_processors=(Exploding(after),))
    late = Told(OPTIONS.replace(stop=["x"]), logit_bias={10**6: 1.0})  # refused when it begins
    with working(Batch(target()), max_batch=3) as (worker, observer):
        submit(worker, good, bad, late)
        wait_until(lambda: good.over and bad.over and late.over)
        assert worker.num_running == 0
    good.check()
    assert isinstance(bad.events[-1], Failed)
    assert isinstance(bad.events[-1].error, ZeroDivisionError)
    assert len(bad.events) == after + 1
    assert isinstance(late.events[0], Failed)
    assert isinstance(late.events[0].error, ConfigError)
    assert sorted(observer.outcomes) == ["failed", "failed", "length"]


def test_a_round_that_fails_as_a_whole_fails_its_members_and_no_others() -> None:
    first, later = Told(), Told()
    with working(Broken(target())) as (worker, observer):
        submit(worker, first)
        wait_until(lambda: first.over)
        assert isinstance(first.events[-1], Failed)
        submit(worker, later)
        wait_until(lambda: later.over)
        assert worker.alive
    later.check()
    assert observer.outcomes == ["failed", "length"]


def test_a_draining_worker_finishes_and_takes_no_more() -> None:
    gated, told = Gated(), Told()
    with working(gated) as (worker, _):
        submit(worker, told)
        worker.drain()
        with pytest.raises(ShuttingDownError):
            worker.reserve(1)
        gated.open.set()
        wait_until(lambda: told.over)
    told.check()


def test_a_stopped_worker_fails_what_is_left() -> None:
    told = [Told(OPTIONS.replace(max_new_tokens=150)) for _ in range(4)]
    with working(Batch(target())) as (worker, observer):
        submit(worker, *told)
        wait_until(lambda: worker.num_running == 2)
        worker.stop()
        with pytest.raises(ShuttingDownError):
            worker.submit([Told().job])
    for each in told:
        last = each.events[-1]
        assert isinstance(last, Failed)
        assert isinstance(last.error, ShuttingDownError)
    assert observer.outcomes == ["failed"] * 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch", 0),
        ("max_batch", True),
        ("max_queue", -1),
        ("max_choices", 1.5),
        ("max_tokens", 0),
        ("max_body_bytes", 0),
        ("time_limit_s", 0),
        ("grace_s", -1),
        ("grace_s", float("nan")),
        ("model_name", ""),
        ("model_name", "\udcff"),
        ("api_keys", ("a", " ")),
        ("api_keys", ("a", "\udcff")),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ServeSettings(**{"model_name": "m", name: value})
