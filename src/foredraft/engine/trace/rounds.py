"""From a sighting, which holds logits, to the few numbers of a round that a trace keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from foredraft.engine.trace.watch import DraftLevel, Sighting
from foredraft.results import Step

TokenKind = Literal["accepted", "recovered", "bonus", "plain"]
"""A kept draft token, one chosen after a rejection, one chosen after a path that was accepted whole, or one
of a round without a draft."""

KINDS: tuple[TokenKind, ...] = get_args(TokenKind)

DIGITS = 4
"""Significant digits of a probability."""


class Emitted(NamedTuple):
    """A token of the answer."""

    token_id: int
    kind: TokenKind
    p: float | None


@dataclass(frozen=True, slots=True)
class TracedRound:
    """One round, in plain numbers."""

    token_ids: tuple[int, ...]
    """[N] the tree, its root first."""
    parents: tuple[int, ...]
    p: tuple[float | None, ...]
    """[N] the target's probability of each node after its parent."""
    q: tuple[float | None, ...]
    """[N] the drafter's, where it has a law."""
    accepted: frozenset[int]
    """Nodes that became text, the root among them."""
    emitted: tuple[Emitted, ...]
    last: int
    """The node that the last token follows; its parent when the last token is itself a node."""
    dtype: str


def read_round(step: Step, seen: Sighting, temperature: float) -> TracedRound:
    """What a trace keeps of a round.

    Args:
        step: what the round added.
        seen: the same round, as it was watched.
        temperature: of the request; 0 reads laws at temperature 1.
    """
    scale = temperature or 1.0
    p, q = _target_probs(seen, scale), _draft_probs(seen, scale, greedy=temperature == 0)
    path, last = _accepted_path(step, seen), seen.path[-1]
    emitted = [
        Emitted(token, "accepted", p[node])
        for token, node in zip(step.token_ids, path[1:], strict=False)
    ]
    if len(emitted) < len(step.token_ids):
        token = step.token_ids[-1]
        (chance,) = _probs(seen.logits[last : last + 1], [token], scale)
        emitted.append(Emitted(token, _kind(seen, last), chance))
    return TracedRound(
        token_ids=seen.token_ids,
        parents=seen.parents,
        p=tuple(p),
        q=tuple(q),
        accepted=frozenset(path),
        emitted=tuple(emitted),
        last=last,
        dtype=str(seen.logits.dtype).removeprefix("torch."),
    )


def _accepted_path(step: Step, seen: Sighting) -> tuple[int, ...]:
    """[A + 1] the root and the draft tokens that were emitted.

    The last token is never committed. If the round was cut right behind an accepted token, that one is
    missing in the committed path, and is the first child that carries it.
    """
    path = seen.path[: step.num_accepted + 1]
    if len(path) > step.num_accepted:
        return path
    token = step.token_ids[-1]
    children = (n for n, parent in enumerate(seen.parents) if parent == path[-1])
    return (*path, next(node for node in children if seen.token_ids[node] == token))


def _kind(seen: Sighting, last: int) -> TokenKind:
    """What a token is that was not drafted, by the node that it follows."""
    if len(seen.token_ids) == 1:
        return "plain"
    return "recovered" if last in seen.parents else "bonus"


def _target_probs(seen: Sighting, scale: float) -> list[float | None]:
    """[N] None for the root."""
    parents = list(seen.parents[1:])
    if not parents:
        return [None]
    return [None, *_probs(seen.logits[parents], seen.token_ids[1:], scale)]


def _draft_probs(seen: Sighting, scale: float, *, greedy: bool) -> list[float | None]:
    """[N] None where the drafter told no law. Scores are one when greedy; else noise may count in them."""
    probs: list[float | None] = [None] * len(seen.token_ids)
    if greedy:
        probs = _scored_probs(seen)
    for level in seen.levels:
        row_of = {node: row for row, node in enumerate(level.nodes)}
        column_of = _columns(level)
        children = [
            node
            for node, parent in enumerate(seen.parents)
            if parent in row_of and column_of(seen.token_ids[node]) is not None
        ]
        rows = level.log_probs[[row_of[seen.parents[node]] for node in children]]
        columns = [column_of(seen.token_ids[node]) or 0 for node in children]
        for node, q in zip(children, _probs(rows, columns, scale), strict=True):
            probs[node] = q
    return probs


def _scored_probs(seen: Sighting) -> list[float | None]:
    """[N] by the scores of a node's path and of its parent's."""
    scores = seen.scores
    return [
        _rounded(math.exp(scores[node] - scores[parent]))
        if node in scores and parent in scores
        else None
        for node, parent in enumerate(seen.parents)
    ]


def _columns(level: DraftLevel) -> Callable[[int], int | None]:
    """The column of a token in a level's laws; None where they have none for it."""
    if level.column_ids is None:
        count = level.log_probs.shape[-1]
        return lambda token: token if token < count else None
    columns = {token: column for column, token in enumerate(level.column_ids.tolist())}
    return columns.get


def _probs(logits: Tensor, token_ids: Sequence[int], scale: float) -> list[float | None]:
    """softmax(logits / scale) of row i at token i, rounded; None where that is no number.

    Args:
        logits: [R, V], or log-probabilities.
        token_ids: [R], or columns of reduced laws.
        scale: the temperature.
    """
    scores = logits.double() if logits.dtype == torch.float64 else logits.float()
    scores = scores / scale
    chosen = scores.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0]
    values = (chosen - scores.logsumexp(-1)).exp().tolist()
    return [_rounded(value) for value in values]


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
