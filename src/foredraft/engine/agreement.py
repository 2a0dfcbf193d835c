"""Is a different answer a float tie or a fault? (design, section 4.7)

A target scores one row and many rows with sums in another order, so in low precision two nearly equal
scores may swap. A first difference is a *tie* when the gap between the two tokens is within what that
noise can do at that very point, and a *bug* otherwise. The noise also comes through the cache: its
rows were written by passes of one row in plain decoding, and of many with drafts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor

from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine
from foredraft.protocols import ModelState
from foredraft.results import Result
from foredraft.tree import NO_PARENT, DraftTree

PASS_WIDTHS = (2, 4, 8, 16)
"""Rows of the passes whose noise is measured against a one-row pass."""
CACHE_WIDTHS = (1, 8)
"""Rows of the passes that write the caches which those passes read: plain decoding's, and a draft's."""
FLOAT32_TIE_GAP = 1e-4
"""In float32 the noise is too small to measure well; a gap under this is a tie."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an answer compares with plain decoding's.

    `token` is the index of the first differing token; `gap` is the distance of the two tokens' scores
    there and `noise` the largest score change between a one-row and a wider pass.
    """

    kind: Literal["yes", "tie", "bug", "n/a"]
    token: int | None = None
    gap: float | None = None
    noise: float | None = None

    def __str__(self) -> str:
        if self.token is None:
            return self.kind
        return f"{self.kind} at token {self.token}"


def compare(engine: Engine, plain: Result, other: Result, options: GenerationOptions) -> Agreement:
    """Classify the first difference between plain decoding's answer and another one.

    Args:
        engine: the engine that gave `other`.
        plain: the answer of `engine.without_drafts()` with the same options and seed.
        other: the answer to judge.
        options: the request that both answered.

    Returns:
        `n/a` when the two need not be equal: sampled answers of a verifier that keeps the law but not
        the noise.
    """
    if options.temperature > 0 and not engine.keeps_seeds:
        return Agreement("n/a")
    request = options.replace(seed=plain.seed)
    return compare_ids(engine, plain.prompt_ids, plain.token_ids, other.token_ids, request)


def compare_ids(
    engine: Engine,
    prompt_ids: Sequence[int],
    plain_ids: Sequence[int],
    other_ids: Sequence[int],
    options: GenerationOptions,
) -> Agreement:
    """The same for token ids, whoever made them, that ought to be plain decoding's own.

    Args:
        engine: any engine of the target; its passes measure the noise.
        prompt_ids: what was answered.
        plain_ids: plain decoding's answer.
        other_ids: the answer to judge.
        options: the request that both answered, with its seed if it was sampled.
    """
    if tuple(plain_ids) == tuple(other_ids):
        return Agreement("yes")
    token = first_difference(plain_ids, other_ids)
    if token == min(len(plain_ids), len(other_ids)):
        return Agreement("bug", token)  # one stopped where the other went on
    prefix = [*prompt_ids, *plain_ids[:token]]
    pair = [plain_ids[token], other_ids[token]]
    return _judge(engine, prefix, len(prompt_ids), pair, options)


def first_difference(plain_ids: Sequence[int], other_ids: Sequence[int]) -> int:
    """The index of the first token that differs; the shorter answer's length where none does."""
    pairs = zip(plain_ids, other_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _judge(
    engine: Engine,
    prefix: list[int],
    prompt_length: int,
    pair: list[int],
    options: GenerationOptions,
) -> Agreement:
    rows = _rows_after(engine, prefix, prompt_length)
    scored = [_scores(engine, row, prefix, prompt_length, options).double() for row in rows]
    gap = abs(float(scored[0][pair[0]] - scored[0][pair[1]]))
    noise = max(_largest_change(scored[0], wide) for wide in scored[1:])
    filtered = {tuple(torch.isfinite(row[pair]).tolist()) for row in scored}
    at_filter = len(filtered) > 1  # top-k, top-p or min-p keeps a token in some passes only
    tie = at_filter or gap <= max(2 * noise, _step(rows[0][pair], options), FLOAT32_TIE_GAP)
    return Agreement("tie" if tie else "bug", len(prefix) - prompt_length, gap, noise)


def _scores(
    engine: Engine, row: Tensor, prefix: list[int], prompt_length: int, options: GenerationOptions
) -> Tensor:
    """What the choice after `prefix` maximises, [V]: processed scores plus the request's noise."""
    own = copy.deepcopy(list(options.logits_processors))  # theirs may keep state, which is not ours
    law = engine.law(options.replace(logits_processors=own), prompt_length)
    random = engine.randomness(options.seed, options.choice)
    return law.laws(DraftTree.root_only(prefix[-1]), row[None], prefix, random).perturbed(0)


def _rows_after(engine: Engine, prefix: list[int], prompt_length: int) -> list[Tensor]:
    """Logits [V] after `prefix` from passes and caches of all widths; the first is plain decoding's own."""
    rows = []
    limit = engine.target.context_length
    room = max(PASS_WIDTHS) if limit is None else limit - len(prefix) + 1
    for cache_width in CACHE_WIDTHS:
        state = engine.target.start(len(prefix) + max(PASS_WIDTHS))
        try:
            _write(state, prefix[:-1], prompt_length - 1, cache_width)
            for width in (1, *(w for w in PASS_WIDTHS if w <= room)):
                tokens = [prefix[-1]] * width
                rows.append(state.score(tokens, range(NO_PARENT, width - 1))[0].clone())
                state.commit(())
        finally:
            state.close()
    return rows


def _write(state: ModelState, token_ids: list[int], prefilled: int, width: int) -> None:
    """Commit tokens, those after the first `prefilled` in passes of `width` rows, as in decoding."""
    state.prefill(token_ids[:prefilled])
    for start in range(prefilled, len(token_ids), width):
        chunk = token_ids[start : start + width]
        state.score(chunk, range(NO_PARENT, len(chunk) - 1))
        state.commit(range(len(chunk)))


def _step(logits: Tensor, options: GenerationOptions) -> float:
    """How far neighbours in the dtype are apart here: noise below it shows as that much or as none."""
    step = torch.finfo(logits.dtype).eps * float(logits.abs().max())
    return step / (options.temperature or 1.0)


def _largest_change(scores: Tensor, others: Tensor) -> float:
    change = (scores - others).abs()
    return float(change[torch.isfinite(change)].max())
