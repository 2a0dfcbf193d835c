"""Counts and times for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from foredraft.engine.stream import Stream
from foredraft.results import RoundRecord
from foredraft.serve.jobs import Job, Outcome

TEXT = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """All that `/metrics` tells of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests", "path", "status")
        self._answers = self._counter("answers", "Answers that are over", "method", "outcome")
        self._tokens = self._counter(
            "tokens", "Tokens: prompt, completion, drafted, accepted", "method", "kind"
        )
        self._rounds = self._counter("rounds", "Rounds of drafting and verifying", "method")
        self._reached = self._counter(
            "draft_depth_reached", "Whole rounds that drafted to a depth", "method", "depth"
        )
        self._accepted = self._counter(
            "draft_depth_accepted", "Whole rounds that accepted to a depth", "method", "depth"
        )
        self._stages = self._counter(
            "stage_seconds",
            "Decoding time: prefill, draft, target, verify, other",
            "method",
            "stage",
        )
        self._seconds = Histogram(
            "foredraft_request_seconds",
            "From a request to the end of its response",
            ["path"],
            buckets=SECONDS,
            registry=self._registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"foredraft_{name}", text, labels, registry=self._registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Tell a number that is read when it is asked for."""
        Gauge(f"foredraft_{name}", text, registry=self._registry).set_function(value)

    def exposition(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)

    def responded(self, path: str, status: int, seconds: float) -> None:
        """A response is over."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def ended(self, job: Job, stream: Stream | None, outcome: Outcome) -> None:
        """A job is over; as `Observer` has it."""
        self._answers.labels(job.method, outcome).inc()
        if stream is None:
            return
        rounds = stream.rounds
        emitted = sum(r.num_emitted for r in rounds)
        self._count(job.method, "prompt", job.num_tokens - emitted)
        self._count(job.method, "completion", emitted)
        self._stages.labels(job.method, "prefill").inc(stream.prefill_s)
        for record in rounds:
            self._record(job.method, record)

    def _count(self, method: str, kind: str, count: int) -> None:
        self._tokens.labels(method, kind).inc(max(count, 0))

    def _record(self, method: str, record: RoundRecord) -> None:
        self._rounds.labels(method).inc()
        stages = {"draft": record.draft_s, "target": record.target_s, "verify": record.verify_s}
        stages["other"] = max(record.total_s - sum(stages.values()), 0.0)
        for stage, seconds in stages.items():
            self._stages.labels(method, stage).inc(seconds)
        if record.cut:
            return
        self._count(method, "drafted", record.num_drafted)
        self._count(method, "accepted", record.num_accepted)
        for depth in range(1, record.depth + 1):
            self._reached.labels(method, str(depth)).inc()
            self._accepted.labels(method, str(depth)).inc(record.num_accepted >= depth)
