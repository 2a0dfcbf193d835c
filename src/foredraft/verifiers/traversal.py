"""Traversal verification: block verification's gain, for trees."""

from __future__ import annotations

from torch import Tensor

from foredraft.protocols import PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.laws import acceptance, remainder
from foredraft.verifiers.trees import child_draws, require_proposals, verdict


class TraversalVerifier:
    """Decides from the leaves to the root (arXiv 2505.12398).

    A leaf is accepted with its weight as the probability, and with it the path that leads to it. A
    rejected leaf is removed; its parent's law and weight become what `laws.remainder` says, and a
    parent without children left is a leaf itself. The first-drawn child's subtree is finished
    before the next child is weighed. On a chain this is block verification.
    """

    proposals = frozenset({Proposal.SAMPLED, Proposal.RESAMPLED})
    policies = frozenset({PolicyKind.GROWS})
    chains_only = False
    reads_rejected = True

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """The path to the first accepted leaf, and a token from the law left there."""
        require_proposals(tree, self.proposals, "traversal")
        found = _accept_below(tree, laws, random, node=0, weight=1.0)
        assert found is not None  # the root's weight stays 1
        node, law = found
        return verdict(tree, node, random.categorical(law))


def _accept_below(
    tree: DraftTree, laws: TargetLaws, random: Randomness, *, node: int, weight: float
) -> tuple[int, Tensor] | None:
    """The accepted node of this subtree and the law [V] left there; None if all is rejected."""
    if weight == 0:
        return None  # nor can anything behind it be accepted: its laws are not read
    children = tree.children[node]
    if not children:  # its law is read only once it is accepted
        return (node, laws.probs(node)) if random.bernoulli(weight) else None
    law = laws.probs(node)
    for child, draw in zip(children, child_draws(tree, node, law), strict=True):
        child_weight = acceptance(law, draw, weight)
        found = _accept_below(tree, laws, random, node=child, weight=child_weight)
        if found is not None:
            return found
        law, weight = remainder(law, draw.law, weight)
    return (node, law) if random.bernoulli(weight) else None
