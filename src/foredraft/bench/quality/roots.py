"""The law of the token that several roots emit, exact given their drafts (arXiv 2409.10644).

W roots are drawn from the target's law p; each carries a draft, and the root with the longest accepted
path wins, the first drawn of several. Whatever a root's draft is, the acceptance rule gives the law of
its accepted length; roots are judged independently. So the law of the winner is a finite sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from foredraft.bench.intervals import Floats
from foredraft.sampling.law import TargetLaws
from foredraft.tree import DraftTree
from foredraft.verifiers.laws import recursive_rejection
from foredraft.verifiers.multi_root import NUCLEUS, RootChoice, nucleus
from foredraft.verifiers.trees import child_draws

ROOTS: tuple[RootChoice, ...] = get_args(RootChoice)


def length_law(tree: DraftTree, laws: TargetLaws, node: int = 0) -> Floats:
    """How many draft tokens recursive rejection accepts below a node, [D + 1]: P(0), P(1), .. P(D).

    Args:
        tree: with the laws that its sampled children were drawn from.
        laws: the target's laws over it.
        node: where to begin; D is the depth of the whole tree below it.
    """
    lengths = np.zeros(tree.depth - tree.depths[node] + 1)
    reached = 1.0
    children = tree.children[node]
    p = laws.probs(node) if children else None
    trials = recursive_rejection(p, child_draws(tree, node, p)) if p is not None else ()
    for child, trial in zip(children, trials, strict=True):
        if trial.accept > 0:
            lengths[1:] += reached * trial.accept * length_law(tree, laws, child)
        reached *= 1.0 - trial.accept
    lengths[0] += reached
    return lengths


def winners(lengths: Floats) -> Floats:
    """P(the i-th drawn root wins), [.., W]: the longest path wins, the first drawn of equal ones.

    Args:
        lengths: [.., W, D + 1] the law of each root's accepted length, in draw order.
    """
    upto = lengths.cumsum(-1)
    below = upto - lengths
    roots = lengths.shape[-2]
    wins = []
    for i in range(roots):
        others = [below[..., j, :] if j < i else upto[..., j, :] for j in range(roots) if j != i]
        wins.append((lengths[..., i, :] * np.prod(others, axis=0)).sum(-1))
    return np.stack(wins, axis=-1)


def emitted_law(p: Floats, lengths: Floats, num_roots: int, roots: RootChoice) -> Floats:
    """The law of the emitted root, [M].

    Args:
        p: [M] the target's law of the candidates, likeliest first, which sums to 1. That of a greedy
            request is a point mass, whose runners-up are roots all the same.
        lengths: [M, D + 1] the law of each candidate's accepted length, averaged over its drafts.
        num_roots: W; of a law with less support than that, as many as there are.
        roots: how they are chosen, as in `MultiRootVerifier`.
    """
    orders, weights = _orders(p, num_roots, roots)
    wins = weights[:, None] * winners(lengths[orders])
    law = np.zeros(len(p))
    np.add.at(law, orders, wins)
    return law


def total_variation(p: Floats, q: Floats) -> float:
    """Half the sum of what two laws [M] differ by: the largest change of any event's probability."""
    return float(np.abs(p - q).sum() / 2)


def _orders(p: Floats, num_roots: int, roots: RootChoice) -> tuple[NDArray[Any], Floats]:
    """Every ordered draw of roots, [O, W], and its probability, [O]."""
    if roots == "topk" or np.count_nonzero(p) == 1:  # of a greedy law, runners-up by rank
        return np.arange(min(num_roots, len(p)))[None], np.ones(1)
    if roots == "nucleus":
        p = nucleus(torch.from_numpy(p), NUCLEUS).numpy()
        p = p / p.sum()
    support = np.flatnonzero(p > 0)
    drawn = list(permutations(support.tolist(), min(num_roots, len(support))))
    return np.array(drawn), np.array([_draw_weight(p, order) for order in drawn])


def _draw_weight(p: Floats, order: Sequence[int]) -> float:
    """The probability to draw these in this order, without replacement."""
    weight, left = 1.0, p.copy()
    for token in order:
        weight *= (
            left[token] / left.sum()
        )  # of what is left, not 1 - what is gone: p may be nearly a point
        left[token] = 0.0
    return float(weight)
