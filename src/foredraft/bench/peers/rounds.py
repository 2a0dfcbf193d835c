"""A peer's answer as rounds: what each pass of the target verified and gave, and when.

A round begins with the emission before it. The first emission comes out of the prefill pass: it is no
round. A draft model may read the prompt only behind that emission, in its first pass: what that takes
beyond a pass over the root alone is taken out of its round and counts as prefill, as for every other method.
It came after the first token, so the time to that token is without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from torch import Tensor

from foredraft.bench.records import Answer
from foredraft.results import RoundRecord, Statistics, loop_mask


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of a model, from clock reading to clock reading, in seconds."""

    token_ids: Tensor
    """int64 [1, N], on the device: reading it before the answer is done would wait for it."""
    begin: float
    end: float

    @property
    def rows(self) -> int:
        """N."""
        return self.token_ids.shape[-1]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class PassLog:
    """Keeps every pass of a model while it is watched.

    Args:
        synchronize: waits for the device, so that a pass ends when its work is done.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.passes: list[Pass] = []
        self._synchronize = synchronize
        self._token_ids: Any = None
        self._begin = 0.0

    @contextmanager
    def watching(self, first: Any, last: Any) -> Iterator[None]:
        """Watch a model: from the call of module `first`, with the token ids, to the return of `last`."""
        hooks = [first.register_forward_pre_hook(self._enter, with_kwargs=True)]
        try:
            hooks.append(last.register_forward_hook(self._leave))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def between(self, begin: float, end: float) -> list[Pass]:
        """The passes inside a span of time."""
        return [p for p in self.passes if begin <= p.begin and p.end <= end]

    def _enter(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._token_ids = named["input_ids"] if "input_ids" in named else arguments[0]
        self._begin = time.perf_counter()

    def _leave(self, module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        self._synchronize()
        self.passes.append(Pass(self._token_ids, self._begin, time.perf_counter()))


@dataclass(frozen=True, slots=True)
class Drafting:
    """What a draft model did for one round."""

    rows: tuple[int, ...] = ()
    """[L] rows of each of its passes, the prompt left out."""
    seconds: float = 0.0
    """From the first pass to the end of the last, the prompt left out."""
    prompt_s: float = 0.0
    """Seconds within the round that reading the prompt took."""


@dataclass(frozen=True, slots=True)
class Emission:
    """The tokens that one target pass added to the answer, and the draft that it verified."""

    num_tokens: int
    at: float
    """When they were known, in seconds of `time.perf_counter`."""
    num_drafted: int = 0
    num_accepted: int = 0
    cut: bool = False
    """Whether a stop or a limit trimmed what was verified."""
    target_s: float = 0.0
    drafting: Drafting = Drafting()


def drafting_of(draft: PassLog, begin: float, end: float) -> Drafting:
    """What a draft model did in a span of time behind the first emission."""
    passes = draft.between(begin, end)
    if not passes:
        return Drafting()
    rows = tuple(p.rows for p in passes)
    seconds = passes[-1].end - passes[0].begin
    if passes[0] is not draft.passes[0]:
        return Drafting(rows, seconds)
    prompt_s = _prompt_s(draft.passes)
    return Drafting((1, *rows[1:]), seconds - prompt_s, prompt_s)


def _prompt_s(passes: Sequence[Pass]) -> float:
    """Seconds by which the first pass, over prompt and root, outlasts one over the root alone.

    What the root alone takes is the median of the other passes with the fewest rows; without any other
    pass it is not known, and the whole pass is the prompt's.
    """
    first, *others = passes
    fewest = min((p.rows for p in others), default=0)
    root_s = median([p.seconds for p in others if p.rows == fewest] or [0.0])
    return max(first.seconds - root_s, 0.0)


def rounds_of(emissions: Sequence[Emission], num_prompt: int) -> tuple[RoundRecord, ...]:
    """The rounds behind the first emission of an answer to a prompt of `num_prompt` tokens."""
    # The last token's cache row is written by the pass that it is the root of.
    contexts = accumulate((e.num_tokens for e in emissions), initial=num_prompt - 1)
    return tuple(
        RoundRecord(
            context=context,
            widths=(1,) * (emission.num_drafted + 1),
            draft_rows=emission.drafting.rows,
            num_accepted=emission.num_accepted,
            num_emitted=emission.num_tokens,
            cut=emission.cut,
            draft_s=emission.drafting.seconds,
            target_s=emission.target_s,
            verify_s=0.0,
            total_s=emission.at - before.at - emission.drafting.prompt_s,
        )
        for context, (before, emission) in zip(
            list(contexts)[1:-1], pairwise(emissions), strict=True
        )
    )


def answer_of(
    token_ids: Sequence[int],
    emissions: Sequence[Emission],
    *,
    num_prompt: int,
    started: float,
    stages: tuple[str, ...],
) -> Answer:
    """The answer that these emissions spell, with its statistics.

    Args:
        token_ids: [T] the whole answer.
        emissions: what each target pass gave, the prefill first.
        num_prompt: tokens of the prompt.
        started: when the request was made.
        stages: those whose time the emissions tell.
    """
    ends = list(accumulate(e.num_tokens for e in emissions))
    assert ends[-1] == len(token_ids), "every token belongs to one pass"
    loops = loop_mask(token_ids)
    ttft_s = emissions[0].at - started
    stats = Statistics(
        rounds=rounds_of(emissions, num_prompt),
        prompt_tokens=num_prompt,
        in_loop=tuple(loops[start] for start in ends[:-1]),
        loop_tokens=sum(loops[ends[0] :]),
        prefill_s=ttft_s + sum(e.drafting.prompt_s for e in emissions),
        ttft_s=ttft_s,
        stages=stages,
    )
    return Answer(tuple(token_ids), stats)
