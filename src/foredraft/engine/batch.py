"""Many answers at once: streams of one target whose rounds share passes.

A batch runs the decoding loop of each of its streams as it is, a round at a time, in a meeting
(`foredraft.meeting`): the draft passes of all are made together, and then one pass of the target scores all
their trees. Each stream accepts its own count and ends when it ends; streams join and leave between rounds.
So there is no second decoding loop, no padding, and every answer is the one that its stream gives alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from foredraft.backends.own_pass import own_pass
from foredraft.config import GenerationOptions
from foredraft.engine.prompts import encode_prompt
from foredraft.engine.stopping import room_for
from foredraft.errors import ConfigError
from foredraft.meeting import Meeting, Outcome
from foredraft.protocols import Company, JoiningTarget, Target
from foredraft.results import Result, Step

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.prompts import Prompt
    from foredraft.engine.stream import Stream

MAX_BATCH = 8
"""Answers at a time, where nobody says how many."""
EXPECTED = 0.3
"""Weight of a stream's last round in what its next is expected to be."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of one stream in one round: a step, an error, or its end without either."""

    stream: Stream
    step: Step | None = None
    error: Exception | None = None
    finished: bool = False
    """Whether the stream has left the batch."""


@dataclass(slots=True)
class _Member:
    """A stream, and what its rounds are expected to be."""

    stream: Stream
    rows: float = 1.0
    tokens: float = 1.0

    def learn(self, step: Step) -> None:
        self.rows += EXPECTED * (step.num_drafted + 1 - self.rows)
        self.tokens += EXPECTED * (len(step.token_ids) - self.tokens)


class Batch:
    """Streams that decode side by side. Not for several threads at a time.

    Args:
        target: the model of all its streams, whatever their drafters, policies and verifiers.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._last = target.serve if isinstance(target, JoiningTarget) else None
        self._members: list[_Member] = []

    def __len__(self) -> int:
        return len(self._members)

    def join(self, stream: Stream) -> None:
        """Add a stream from the next round on; its prompt is read in that round.

        Raises:
            ConfigError: it is of another target.
        """
        if stream.target is not self._target:
            raise ConfigError(
                "this stream's engine has another target; make all engines of a batch from the same one"
            )
        self._members.append(_Member(stream))

    def leave(self, stream: Stream) -> None:
        """Close a stream between rounds; one that has left already stays as it is."""
        self._members = [member for member in self._members if member.stream is not stream]
        stream.close()

    def round(self) -> list[Progress]:
        """One round of every stream, in the order in which they joined."""
        members = list(self._members)
        for member in members:
            member.stream.share(self._company_of(member))
        with torch.inference_mode(), own_pass():  # as in every pass: members may rest inside of one
            tasks = [lambda member=member: next(member.stream, None) for member in members]
            outcomes = Meeting(self._last).run(tasks)
        made = [self._progress(*pair) for pair in zip(members, outcomes, strict=True)]
        ended = {id(m) for m, p in zip(members, made, strict=True) if p.finished}
        self._members = [m for m in self._members if id(m) not in ended]  # others may have come
        return made

    def close(self) -> None:
        """Close all streams."""
        for member in self._members:
            member.stream.close()
        self._members = []

    def _progress(self, member: _Member, outcome: Outcome[Step | None]) -> Progress:
        stream, step = member.stream, outcome.value
        finished = step is None or stream.is_finished
        if step is not None:
            member.learn(step)
        if finished:
            stream.close()
        return Progress(stream, step, outcome.error, finished)

    def _company_of(self, member: _Member) -> Company:
        others = [other for other in self._members if other is not member]
        rows = sum(other.rows for other in others)
        return Company(len(others), round(rows), sum(other.tokens for other in others))


def stream_batch(
    engine: Engine,
    prompts: Sequence[Prompt],
    options: Sequence[GenerationOptions],
    max_batch: int,
) -> Iterator[tuple[int, Progress]]:
    """(index of the prompt, progress) as it comes; the next prompt starts when an answer has ended.

    Raises:
        ConfigError, PromptError, NumericsError: of a prompt; a note says of which.
    """
    starts = [
        lambda prompt=prompt, own=own: engine.stream(prompt, own)
        for prompt, own in zip(prompts, options, strict=True)
    ]
    notes = [_note(index, len(prompts)) for index in range(len(prompts))]
    return run_streams(engine.target, starts, max_batch, notes)


def run_streams(
    target: Target,
    starts: Sequence[Callable[[], Stream]],
    max_batch: int,
    notes: Sequence[str | None],
) -> Iterator[tuple[int, Progress]]:
    """(index, progress) of streams side by side; the next is started when one has ended.

    Args:
        target: of all of them.
        starts: make the streams, in order.
        max_batch: streams in progress at most.
        notes: say of each which it is; None says nothing.

    Raises:
        Exception: what one of them fails with, at its start or later, with its note.
    """
    batch, waiting = Batch(target), list(range(len(starts)))[::-1]
    indices: dict[int, int] = {}
    try:
        while waiting or len(batch):
            while waiting and len(batch) < max_batch:
                index = waiting.pop()
                with _noting(notes[index]):
                    stream = starts[index]()
                indices[id(stream)] = index
                batch.join(stream)
            for progress in batch.round():
                index = indices[id(progress.stream)]
                if progress.error is not None:
                    with _noting(notes[index]):
                        raise progress.error
                yield index, progress
    finally:
        batch.close()


@contextmanager
def _noting(note: str | None) -> Iterator[None]:
    """Errors from inside get this note."""
    try:
        yield
    except Exception as error:
        if note is not None:
            error.add_note(note)
        raise


def generate_batch(
    engine: Engine,
    prompts: Sequence[Prompt],
    options: GenerationOptions | Sequence[GenerationOptions] | None,
    max_batch: int,
    changes: dict[str, Any],
) -> list[Result]:
    """See `Engine.generate_batch`."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise ConfigError("generate_batch takes a list of prompts; for a single one, use generate")
    if type(max_batch) is not int or max_batch < 1:
        raise ConfigError(
            f"max_batch={max_batch!r} is not allowed; give a whole number of 1 or more"
        )
    each = _options_of_each(len(prompts), options, changes)
    encoded = [_encoded(engine, prompts, each, index) for index in range(len(prompts))]
    results: dict[int, Result] = {}
    for index, progress in stream_batch(engine, encoded, each, max_batch):
        if progress.finished:
            results[index] = progress.stream.result()
    return [results[index] for index in range(len(prompts))]


def _encoded(
    engine: Engine, prompts: Sequence[Prompt], options: Sequence[GenerationOptions], index: int
) -> list[int]:
    """Token ids of one prompt, checked before anything is decoded: none is found wrong after hours."""
    with _noting(_note(index, len(prompts))):
        ids = encode_prompt(prompts[index], engine.tokenizer, engine.target.vocab_size)
        room_for(ids, options[index], engine.target)
    return ids


def _note(index: int, count: int) -> str:
    return f"prompt {index} of {count} of a batch"


def _options_of_each(
    count: int,
    options: GenerationOptions | Sequence[GenerationOptions] | None,
    changes: dict[str, Any],
) -> list[GenerationOptions]:
    if options is None or isinstance(options, GenerationOptions):
        options = [options or GenerationOptions()] * count
    if not isinstance(options, list | tuple) or not all(
        isinstance(one, GenerationOptions) for one in options
    ):
        raise ConfigError(
            f"options={options!r} is not allowed; give GenerationOptions, or a list of them"
        )
    if len(options) != count:
        raise ConfigError(
            f"there are {count} prompts and {len(options)} options; give one for each, or one for all"
        )
    return [one.replace(**changes) for one in options]
