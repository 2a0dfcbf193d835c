"""Recursive rejection sampling over a tree of sampled or deterministic draft tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foredraft.protocols import PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.laws import recursive_rejection
from foredraft.verifiers.trees import child_draws, chosen_walk, require_proposals, verdict


class RejectionVerifier:
    """Tries a node's children in draw order, and descends into the first that is accepted.

    A child is accepted with probability min(1, p(x) / q(x)); a rejection turns p into
    norm(relu(p - q)). Where no child is left, the next token is drawn from the p that is left. q is
    the law of the child's draw:

    - sampled without replacement (arXiv 2401.06706, 2402.12374): earlier siblings are removed from
      it;
    - resampled, with replacement (arXiv 2305.09781): always the node's q, and duplicates each have
      a trial;
    - deterministic (EAGLE-2, arXiv 2406.16858): a point mass.
    """

    proposals = frozenset({Proposal.SAMPLED, Proposal.RESAMPLED, Proposal.DETERMINISTIC})
    policies = frozenset({PolicyKind.GROWS})
    chains_only = False
    reads_rejected = False

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """The path of accepted children, and a token from the law left at its end."""
        require_proposals(tree, self.proposals, "rejection")
        if laws.greedy:  # every law is a point mass
            return verdict(tree, *chosen_walk(tree, 0, laws))
        found = walk(tree, 0, laws, random)
        left = laws.probs(found.node) if found.left is None else found.left
        return verdict(tree, found.node, random.categorical(left))


@dataclass(frozen=True, slots=True)
class Walk:
    """Where recursive rejection came to.

    Attributes:
        node: the last accepted one.
        left: what the rejections of its children left of the law after it, float64 [V]; None where it
            has no children, and at temperature 0, where all laws are point masses.
    """

    node: int
    left: Tensor | None


def walk(tree: DraftTree, node: int, laws: TargetLaws, random: Randomness) -> Walk:
    """Descend from `node` into accepted children until there is none."""
    if laws.greedy:
        return Walk(chosen_walk(tree, node, laws)[0], None)
    while tree.children[node]:
        child, left = _try_children(tree, node, laws.probs(node), random)
        if child is None:
            return Walk(node, left)
        node = child
    return Walk(node, None)


def _try_children(
    tree: DraftTree, node: int, p: Tensor, random: Randomness
) -> tuple[int | None, Tensor]:
    """The accepted child of `node`, if any, and what its trials have left of p [V]."""
    trials = recursive_rejection(p, child_draws(tree, node, p))
    for child, trial in zip(tree.children[node], trials, strict=True):
        if random.bernoulli(trial.accept):
            return child, p
        p = trial.residual
    return None, p
