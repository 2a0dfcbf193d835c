"""Things that are timed in turn: a slow moment of the machine then slows all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import torch

from foredraft.backends.hf import HFTarget
from foredraft.bench.profile.samples import Times
from foredraft.engine.pass_costs import Clock, Report, pass_parents, pass_s, random_tokens
from foredraft.protocols import Target

SEED = 0
PREFILL_ROWS = 64
"""Tokens of a prefill pass through transformers, so that their logits take little memory."""

Contestant = Callable[[], float]
"""Does its thing once and gives the seconds that it took; what it needs before is outside of them."""


def own_name(rows: int) -> str:
    """What a target pass of so many rows is called."""
    return f"target, {rows} row{'s' * (rows > 1)}"


def draft_name(rows: int) -> str:
    """What a draft pass of so many rows is called."""
    return f"draft, {rows} row{'s' * (rows > 1)}"


def take_turns(
    contestants: Mapping[str, Contestant], repeats: int, report: Report = lambda message: None
) -> dict[str, Times]:
    """Every one's times, in an order drawn anew for each turn, behind a turn that warms up.

    Args:
        contestants: by name.
        repeats: of each.
        report: called at the beginning of a turn.
    """
    order, shuffled = list(contestants), random.Random(SEED)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        report(f"passes in turn: {turn} of {repeats}")
        shuffled.shuffle(order)
        for name in order:
            took = contestants[name]()
            if turn:
                seconds[name].append(took)
    return {name: Times(tuple(own)) for name, own in seconds.items()}


def own_passes(
    target: Target,
    context: int,
    rows: Sequence[int],
    stack: ExitStack,
    clock: Clock = time.perf_counter,
) -> dict[int, Contestant]:
    """Our passes of so many rows behind `context` tokens, as decoding makes them: a tree, or a chain.

    Args:
        target: a target, a draft model, or the passes of a head.
        stack: closes the state.
    """
    most = max(rows)
    token_ids, parents = (
        random_tokens(target, context + most),
        pass_parents(most, target.scores_trees),
    )
    state = target.start(context + most)
    stack.callback(state.close)
    state.prefill(token_ids[:context])

    def contestant(count: int) -> Contestant:
        nodes = token_ids[context : context + count]
        return lambda: pass_s(target, state, nodes, parents[:count], clock)

    return {count: contestant(count) for count in rows}


class HFPass:
    """transformers' own forward of one token with its own `DynamicCache`, as `generate` calls it.

    What we exchange in a model acts in our passes alone, so this is the library's own code. No mask is
    given, which is the least that the library can be asked to do. The cache is cut back outside the clock.
    """

    def __init__(self, target: HFTarget, context: int, clock: Clock = time.perf_counter) -> None:
        from transformers import DynamicCache

        self._target, self._clock = target, clock
        token_ids = random_tokens(target, context + 1)
        self._token = self._ids(token_ids[context:])
        self._cache = DynamicCache(config=target.model.config)
        for start in range(0, context, PREFILL_ROWS):
            self._forward(self._ids(token_ids[start : min(start + PREFILL_ROWS, context)]))
        self._crops = bool(getattr(self._cache, "is_croppable", True)) and not any(
            getattr(layer, "is_sliding", False) for layer in self._cache.layers
        )

    def __call__(self) -> float:
        """Seconds of one pass."""
        kept = None if self._crops else deepcopy(self._cache)
        self._target.synchronize()
        began = self._clock()
        self._forward(self._token)
        self._target.synchronize()
        seconds = self._clock() - began
        if kept is None:
            self._cache.crop(-1)
        else:
            self._cache = kept
        return seconds

    @torch.no_grad()
    def _forward(self, token_ids: torch.Tensor) -> Any:
        return self._target.model(input_ids=token_ids, cache=self._cache, use_cache=True).logits

    def _ids(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(token_ids)], device=self._target.device)
