"""The law that target-initialised candidates emit, from the paper's text alone (arXiv 2409.10644).

Nothing of Foredraft's verifiers is used: laws are arrays, and every draw is summed over by hand. A round
draws W roots from the pending law, one after the other and all different. The draft model extends each,
independently of the others, and recursive rejection walks what it drew. The root whose walk accepts most
wins, of equal ones the first drawn: if no walk accepts anything, that is root 0. What the rejections at
the end of its walk have left of the target's law there is the next pending law.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from foredraft import GenerationOptions
from foredraft.tree import Proposal
from tests.laws.engine_laws import PROMPT, Answer, Law, Reference, nucleus, softmax

IMPOSSIBLE = 1e-14
"""Less than this is what rounding leaves of a probability of 0."""

Drawn = tuple[tuple[int, ...], float]
"""Tokens in draw order, and their probability."""


@dataclass(frozen=True)
class Walk:
    """One outcome of the walk from a root: its probability, what it accepted, and the law at its end."""

    weight: float
    accepted: tuple[int, ...]
    left: np.ndarray


class DraftReference(Reference):
    """The law that drafts are drawn from, which is worked out from scores in float32.

    It may be any law without the target's output being another, but which law it is shows with W > 1.
    """

    def law(self, answer: Answer) -> np.ndarray:
        text, order = (*self.prompt, *answer), self.table.ndim - 1
        with np.errstate(divide="ignore"):
            scores = np.log(self.table[((0,) * order + text)[-order:]]).astype(np.float32)
        scores = scores / np.float32(self.options.temperature)
        return nucleus(softmax(scores.astype(np.float64)), self.options.top_p)


class RootModel:
    """W roots, and under each a product tree.

    Args:
        target, draft: tables of laws, as `random_table` gives them.
        widths: of the tree under each root.
        how: `multinomial`, `topk` or `nucleus`, the latter with the mass `top_p`.
        kind: how the children are drawn.
    """

    def __init__(
        self,
        target: np.ndarray,
        draft: np.ndarray,
        options: GenerationOptions,
        num_roots: int,
        widths: Sequence[int],
        *,
        how: str = "multinomial",
        top_p: float = 1.0,
        kind: Proposal = Proposal.SAMPLED,
        prompt: Sequence[int] = PROMPT,
    ) -> None:
        self.options, self.num_roots, self.widths = options, num_roots, tuple(widths)
        self.how, self.top_p, self.kind = how, top_p, kind
        self._target = Reference(target, options, prompt)
        without_penalties = replace(options, repetition_penalty=1.0, frequency_penalty=0.0)
        self._draft = DraftReference(draft, without_penalties, prompt)

    @cached_property
    def answers(self) -> Law:
        """Answer -> probability."""
        law: Law = {}
        self._go_on(law, (), self._target.law(()), 1.0)
        return law

    def _go_on(self, law: Law, answer: Answer, pending: np.ndarray, weight: float) -> None:
        if self._is_whole(answer):
            law[answer] = law.get(answer, 0.0) + weight
            return
        for share, tokens, left in self._rounds(answer, pending):
            self._go_on(law, (*answer, *tokens), left, weight * share)

    def _is_whole(self, answer: Answer) -> bool:
        return len(answer) == self.options.max_new_tokens or self._has_ended(answer)

    def _has_ended(self, answer: Answer) -> bool:
        return bool(answer) and answer[-1] in (self.options.eos_token_ids or ())

    # --- a round ------------------------------------------------------------------------------------

    def _rounds(
        self, answer: Answer, pending: np.ndarray
    ) -> Iterator[tuple[float, tuple[int, ...], np.ndarray]]:
        """(probability, tokens, next pending law); of the answer's last token the law is made up."""
        room = self.options.max_new_tokens - len(answer)
        widths = self.widths[: room - 1]
        for roots, drawn in self.root_draws(pending):
            if room == 1:
                yield drawn, roots[:1], pending
                continue
            walks = [list(self._walks((*answer, root), widths)) for root in roots]
            for i, root in enumerate(roots):
                for walk in walks[i]:
                    length = len(walk.accepted)
                    shorter = prod(_chance(others, length - 1) for others in walks[:i])
                    no_longer = prod(_chance(others, length) for others in walks[i + 1 :])
                    share = drawn * walk.weight * shorter * no_longer
                    if share > 0:
                        yield share, (root, *walk.accepted), walk.left

    def root_draws(self, pending: np.ndarray) -> list[Drawn]:
        """The roots in draw order, and how likely they are."""
        likely_first = np.argsort(-pending, kind="stable")
        possible = [int(token) for token in likely_first if pending[token] > IMPOSSIBLE]
        if self.how == "topk":
            return [(tuple(possible[: self.num_roots]), 1.0)]
        if self.how == "nucleus":
            count = int(np.searchsorted(pending[possible].cumsum(), self.top_p)) + 1
            inside = np.zeros_like(pending)
            inside[possible[:count]] = pending[possible[:count]]
            pending = inside / inside.sum()
        return list(_without_replacement(pending, self.num_roots))

    # --- the walk from one root ---------------------------------------------------------------------

    def _walks(self, answer: Answer, widths: Sequence[int]) -> Iterator[Walk]:
        """All that may come of the tree after `answer`, whose last token is its root."""
        target = self._target.law(answer)
        if not widths or self._has_ended(answer):
            yield Walk(1.0, (), target)
            return
        draft = self._draft.law(answer)
        below: dict[int, list[Walk]] = {}
        for children, drawn in self._child_draws(draft, widths[0]):
            p, q, reached = target.copy(), draft.copy(), drawn
            for token in children:
                accepts = self._acceptance(p, q, token)
                if token not in below:
                    below[token] = list(self._walks((*answer, token), widths[1:]))
                for walk in below[token]:
                    weight = reached * accepts * walk.weight
                    yield Walk(weight, (token, *walk.accepted), walk.left)
                reached *= 1 - accepts
                if reached < IMPOSSIBLE:
                    break
                p, q = self._after_rejection(p, q, token)
            else:
                yield Walk(reached, (), p)

    def _child_draws(self, draft: np.ndarray, count: int) -> Iterator[Drawn]:
        if self.kind is Proposal.SAMPLED:
            yield from _without_replacement(draft, count)
        elif self.kind is Proposal.RESAMPLED:
            yield from _with_replacement(draft, count)
        else:
            likely_first = np.argsort(-draft, kind="stable")[:count]
            yield tuple(int(token) for token in likely_first), 1.0

    def _acceptance(self, p: np.ndarray, q: np.ndarray, token: int) -> float:
        if self.kind is Proposal.DETERMINISTIC:
            return float(p[token])
        return float(min(1.0, p[token] / q[token]))

    def _after_rejection(
        self, p: np.ndarray, q: np.ndarray, token: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.kind is Proposal.DETERMINISTIC:
            return _normalised(_without(p, token)), q
        rest = _normalised(np.maximum(p - q, 0))
        if self.kind is Proposal.RESAMPLED:
            return rest, q
        return rest, _normalised(_without(q, token))


def _chance(walks: Sequence[Walk], length: int) -> float:
    """How likely a walk accepts no more than `length` tokens."""
    return sum(walk.weight for walk in walks if len(walk.accepted) <= length)


def _without_replacement(law: np.ndarray, count: int) -> Iterator[Drawn]:
    """Fewer where the law has less support."""
    if count == 0 or law.sum() < IMPOSSIBLE:
        yield (), 1.0
        return
    for token, weight in enumerate(law):
        if weight > IMPOSSIBLE:
            for later, share in _without_replacement(_normalised(_without(law, token)), count - 1):
                yield (token, *later), float(weight) * share


def _with_replacement(law: np.ndarray, count: int) -> Iterator[Drawn]:
    if count == 0:
        yield (), 1.0
        return
    for token, weight in enumerate(law):
        if weight > IMPOSSIBLE:
            for later, share in _with_replacement(law, count - 1):
                yield (token, *later), float(weight) * share


def _without(law: np.ndarray, token: int) -> np.ndarray:
    rest = law.copy()
    rest[token] = 0
    return rest


def _normalised(law: np.ndarray) -> np.ndarray:
    """Zeros stay zeros: then nothing more is drawn from it."""
    return law / law.sum() if law.sum() > IMPOSSIBLE else law
