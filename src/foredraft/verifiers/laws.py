"""The acceptance rules as pure functions of laws: this file computes, a verifier draws.

Notation: p is the target's law after a node, q the law that a child was drawn from *given the
siblings drawn before it*, x the child's token, w a node's weight (1 at the root); laws are float64
[V].

Every rule is built from a child's weight and from what a rejected child leaves its parent:

    weight of the child   min(1, w p(x) / q(x))
    excess                relu(w p - q), of mass S
    law left              excess / S
    weight left           S / (S + 1 - w)

- *Rejection sampling* (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318), for
  several children *recursive* (SpecInfer, arXiv 2305.09781; MCSD, arXiv 2401.06706; Sequoia, arXiv
  2402.12374): w is 1 at every visited node, children are tried in the order in which they were
  drawn, and the law that a rejected one leaves takes the place of p.
- *Block verification* (arXiv 2403.10444), for a chain: b_i, h_i and the bonus law of node i are its
  weight, the weight left and the law left.
- *Traversal verification* (arXiv 2505.12398), for a tree: both quantities replace w and p at the
  parent before its next child is weighed.

What differs between kinds of proposals is q alone, and `draws` computes it: without replacement
earlier siblings are removed and q renormalised; with replacement it stays; a deterministic child
has a point mass, for which the two quantities say: accept with probability p(x), else remove x and
renormalise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.tree import Proposal

EXCESS_FLOOR = 1e-14
"""Excess mass that float64 rounding can fake where w p equals q (a few 1e-16, with room). A true
one this small is drawn from with no larger a probability: what replaces it does not matter."""


class Draw(NamedTuple):
    """A drafted child: its token x, and the law q, float64 [V], of its draw given those before."""

    token: int
    law: Tensor


class Remainder(NamedTuple):
    """What a rejected child leaves its parent: a law, float64 [V], for p and a weight for w."""

    law: Tensor
    weight: float


class Trial(NamedTuple):
    """One child's turn: the probability to accept it, and the law, float64 [V], left if not."""

    accept: float
    residual: Tensor


def point_mass(token: int, like: Tensor) -> Tensor:
    """The law [V], of the dtype and device of `like` [V], of what is `token` for certain."""
    law = torch.zeros_like(like)
    law[token] = 1.0
    return law


def without(law: Tensor, tokens: Sequence[int]) -> Tensor:
    """`law` [V] with `tokens` removed, renormalised; all zeros if nothing else had mass."""
    if not tokens:
        return law
    kept = law.clone()
    kept[list(tokens)] = 0.0
    mass = float(kept.sum())
    return kept / mass if mass > 0 else kept


def draws(
    p: Tensor, law: Tensor | None, tokens: Sequence[int], proposals: Sequence[Proposal]
) -> Iterator[Draw]:
    """One node's children with the law of each draw given those before it.

    Args:
        p: the target's law after the node, float64 [V]; only its shape and device count here.
        law: q of the node, float64 [V]; None if all its children are deterministic.
        tokens: [K] the children's tokens in draw order; duplicates each have their turn.
        proposals: [K] how each was proposed.

    A child whose token has no mass in the law it claims was not drawn from it. It counts as
    deterministic, which is exact for any child that does not depend on the target's own draws.
    """
    removed: list[int] = []
    for token, proposal in zip(tokens, proposals, strict=True):
        q = None if proposal is Proposal.DETERMINISTIC else law
        if q is not None and proposal is Proposal.SAMPLED:
            q = without(q, removed)
            removed.append(token)
        if q is None or not q[token] > 0:
            q = point_mass(token, like=p)
        yield Draw(token, q)


def acceptance(p: Tensor, draw: Draw, weight: float = 1.0) -> float:
    """min(1, w p(x) / q(x)): a child's weight; at w = 1, the probability to accept it."""
    return min(1.0, weight * float(p[draw.token]) / float(draw.law[draw.token]))


def remainder(p: Tensor, q: Tensor, weight: float = 1.0) -> Remainder:
    """What is left at a node of law p [V] and weight w after a child drawn from q [V] was rejected.

    The law is excess / S and the weight S / (S + 1 - w), with excess = relu(w p - q) and S its
    sum. At w = 1 the law is the residual of rejection sampling and the weight stays 1. Where S is
    0 up to rounding (q covers w p), the law is p: a rejection there has no more than a rounding's
    probability.
    """
    excess = (weight * p - q).relu()
    mass = float(excess.sum())
    law = excess / mass if mass > EXCESS_FLOOR else p
    whole = mass + (1.0 - weight)
    return Remainder(law, mass / whole if whole > 0 else 1.0)


def recursive_rejection(p: Tensor, children: Iterable[Draw]) -> Iterator[Trial]:
    """The trials of a node's children, in draw order; each assumes that those before it failed.

    A child is accepted with probability min(1, p(x) / q(x)), else p becomes norm(relu(p - q)).
    After the last rejection the token is drawn from the last residual.
    """
    for draw in children:
        trial = Trial(acceptance(p, draw), remainder(p, draw.law).law)
        yield trial
        p = trial.residual


def emitted_law(p: Tensor, children: Sequence[Draw]) -> Tensor:
    """The law, float64 [V], of the token that recursive rejection emits after this node.

    It is given the node's p and children. Its mean over the draws of the children is p: that is
    what makes the rule lossless.
    """
    emitted = torch.zeros_like(p)
    reached = 1.0
    for draw, trial in zip(children, recursive_rejection(p, children), strict=True):
        emitted[draw.token] += reached * trial.accept
        reached *= 1.0 - trial.accept
        p = trial.residual
    return emitted + reached * p


@dataclass(frozen=True, slots=True)
class Block:
    """Block verification's quantities for a chain of g draft tokens.

    Attributes:
        weights: b_0 .. b_g, the nodes' weights.
        remainders: for nodes 0 .. g - 1, what rejecting all behind the node leaves it.
    """

    weights: tuple[float, ...]
    remainders: tuple[Remainder, ...]

    @property
    def accepts(self) -> tuple[float, ...]:
        """h_0 .. h_g: the probability to stop at a node, given that no later one succeeded."""
        return (*(left.weight for left in self.remainders), self.weights[-1])


def block(chain: Iterable[tuple[Tensor, Draw]]) -> Block:
    """Block verification of a chain x_1 .. x_g (arXiv 2403.10444).

        b_0 = 1,  b_i = min(1, b_{i-1} p_{i-1}(x_i) / q_{i-1}(x_i))
        h_i = S_i / (S_i + 1 - b_i),  h_g = b_g

    with S_i the sum of relu(b_i p_i - q_i), and 0/0 = 1. The accepted length is the largest i
    whose draw succeeds, with probability h_i; the next token comes from relu(b_i p_i - q_i) / S_i,
    or from p_g if i = g.

    Args:
        chain: [g] for each node but the last, p after it, float64 [V], and its child. Read one by
            one, and only as far as something can be accepted: the first weight of 0 ends the chain.
    """
    weights, remainders = [1.0], []
    for p, draw in chain:
        remainders.append(remainder(p, draw.law, weights[-1]))
        weights.append(acceptance(p, draw, weights[-1]))
        if weights[-1] == 0:
            break
    return Block(tuple(weights), tuple(remainders))
