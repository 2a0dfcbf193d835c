"""One answer's way through the worker: what is asked for, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from foredraft.engine.stream import Stream
from foredraft.engine.trace.shown import TraceRound
from foredraft.results import Result, Step, TokenLogprob

ReadRound = Callable[[Stream, Step], TraceRound]
Outcome = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A round added to the answer."""

    step: Step
    prompt_logprobs: tuple[TokenLogprob | None, ...]
    """Of the prompt's tokens; empty if they were not asked for."""
    trace: TraceRound | None = None
    """The round itself; None if it was not asked for."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    result: Result


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no (more of the) answer."""

    error: Exception


Event = Stepped | Finished | Failed
"""What is told of a job: any number of steps, then one of the others. A cancelled job may hear no more."""


@dataclass(eq=False, slots=True)
class Job:
    """An answer to make. The worker's thread alone changes it.

    Attributes:
        method: the name of the method that makes it.
        start: makes its stream, memory included; called by the worker when its turn has come.
        tell: takes its events, in the worker's thread; must not block.
        read: reads each round of a stream that is traced, right after its step.
    """

    method: str
    start: Callable[[], Stream]
    tell: Callable[[Event], None]
    num_tokens: int = 0
    """Prompt and answer so far; what the target's cache holds of it."""
    read: ReadRound | None = None
    cancelled: bool = field(default=False)
