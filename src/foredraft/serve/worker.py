"""The one thread that decodes: it admits waiting jobs, and runs round after round."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from foredraft.engine.batch import Progress
from foredraft.engine.stream import Stream
from foredraft.errors import ForedraftError
from foredraft.serve.jobs import Failed, Finished, Job, Outcome, Stepped
from foredraft.serve.rounds import Rounds


class QueueFullError(ForedraftError):
    """No more answers are taken until others have ended."""


class ShuttingDownError(ForedraftError):
    """The server is about to end."""


class Observer(Protocol):
    """Is told what the worker did, in its thread; must not block."""

    def ended(self, job: Job, stream: Stream | None, outcome: Outcome) -> None:
        """A job is over; `stream` is None if it never began."""
        ...


class Worker:
    """Decodes jobs in a thread of its own.

    Args:
        rounds: decodes the jobs that have begun.
        max_batch: jobs that are decoded at the same time.
        max_queue: jobs that wait.
        observer: is told of every job that is over.

    Places are reserved first and taken with `submit`, so that a request that does not fit is refused
    before any work is done for it. All methods may be called from any thread, and none waits for a round.
    """

    def __init__(
        self, rounds: Rounds, *, max_batch: int, max_queue: int, observer: Observer
    ) -> None:
        self._rounds, self._observer = rounds, observer
        self._max_batch, self._capacity = max_batch, max_batch + max_queue
        self._changed = threading.Condition()
        self._reserved = 0
        self._waiting: deque[Job] = deque()
        self._running: dict[Stream, Job] = {}
        self._draining = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="foredraft-worker", daemon=True)

    # --- for any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def reserve(self, count: int) -> None:
        """Keep places for so many jobs; each is given back by `submit` or `release`.

        Raises:
            QueueFullError: there are not so many free.
            ShuttingDownError: the server is about to end.
        """
        with self._changed:
            if self._draining:
                raise ShuttingDownError("the server is shutting down; ask another one")
            taken = self._reserved + len(self._waiting) + len(self._running)
            if taken + count > self._capacity:
                raise QueueFullError(
                    f"{taken} answers are being made or wait, of {self._capacity} that this server takes, "
                    f"and this request asks for {count}; try again later"
                )
            self._reserved += count

    def release(self, count: int) -> None:
        """Give reserved places back."""
        with self._changed:
            self._reserved -= count

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs whose places were reserved; they are begun in order.

        Raises:
            ShuttingDownError: the worker has ended since.
        """
        with self._changed:
            if self._stopping:
                raise ShuttingDownError("the server is shutting down; ask another one")
            self._reserved -= len(jobs)
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job, after the round in progress at the latest; nothing happens to one that is over."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def drain(self) -> None:
        """Take no more jobs."""
        with self._changed:
            self._draining = True

    def abort(self) -> None:
        """End after the round in progress; jobs that are left fail."""
        with self._changed:
            self._draining = self._stopping = True
            self._changed.notify()

    def stop(self) -> None:
        """`abort`, and wait for the thread."""
        self.abort()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def draining(self) -> bool:
        """Whether no more jobs are taken."""
        return self._draining

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether there is no job, waiting or running, and no reserved place. Jobs that move are seen."""
        with self._changed:
            return not (self._reserved or self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Jobs that have not begun, reserved places included."""
        return len(self._waiting) + self._reserved

    @property
    def num_running(self) -> int:
        """Jobs that are being decoded."""
        return len(self._running)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of all jobs that are being decoded."""
        return sum(job.num_tokens for job in tuple(self._running.values()))

    # --- the worker's own thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._drop_cancelled()
                self._admit()
                if self._running:
                    self._round()
        finally:  # also after a fault of ours: nobody is left waiting for a thread that has ended
            with self._changed:
                self._draining = self._stopping = True
            self._fail_all(ShuttingDownError("the server is shutting down"))

    def _wait(self) -> bool:
        """Wait for something to do; False when it is time to end."""
        with self._changed:
            while not (self._waiting or self._running or self._stopping):
                self._changed.wait()
            return not self._stopping

    def _drop_cancelled(self) -> None:
        with self._changed:
            gone = [job for job in self._waiting if job.cancelled]
            for job in gone:
                self._waiting.remove(job)
        for job in gone:
            self._observer.ended(job, None, "cancelled")
        for stream, job in tuple(self._running.items()):
            if job.cancelled:
                self._rounds.leave(stream)
                self._end(stream, "cancelled")

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            job = self._waiting[0]  # counted until it runs, so that its place is never given twice
            try:
                stream = job.start()
                self._rounds.join(stream)
            except Exception as error:
                self._waiting.popleft()
                self._observer.ended(job, None, "failed")
                job.tell(Failed(error))
                continue
            with self._changed:
                self._running[stream] = self._waiting.popleft()

    def _round(self) -> None:
        try:
            made = self._rounds.round()
        except Exception as error:  # a fault of ours: nobody's answer can be trusted to go on
            self._fail_running(error)
            return
        for progress in made:
            self._report(progress)

    def _report(self, progress: Progress) -> None:
        stream, step = progress.stream, progress.step
        job = self._running[stream]
        if step is not None:
            job.num_tokens += len(step.token_ids)
            try:
                trace = None if job.read is None else job.read(stream, step)
            except Exception as error:  # the trace's fault is its own answer's
                self._rounds.leave(stream)
                self._end(stream, "failed")
                job.tell(Failed(error))
                return
            job.tell(Stepped(step, stream.prompt_logprobs, trace))
        if progress.error is not None:
            self._end(stream, "failed")
            job.tell(Failed(progress.error))
        elif progress.finished and step is not None and step.finish_reason is not None:
            self._end(stream, step.finish_reason)
            job.tell(Finished(stream.result()))

    def _end(self, stream: Stream, outcome: Outcome) -> None:
        with self._changed:
            job = self._running.pop(stream)
        self._observer.ended(job, stream, outcome)

    def _fail_running(self, error: Exception) -> None:
        for stream, job in tuple(self._running.items()):
            with contextlib.suppress(Exception):  # whatever broke the round may break this too
                self._rounds.leave(stream)
            self._end(stream, "failed")
            job.tell(Failed(error))

    def _fail_all(self, error: Exception) -> None:
        self._fail_running(error)
        while self._waiting:
            job = self._waiting.popleft()
            self._observer.ended(job, None, "failed")
            job.tell(Failed(error))
