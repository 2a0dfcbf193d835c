"""Coupled exact verification: the target chooses every token, the draft only saves its passes."""

from __future__ import annotations

from foredraft.protocols import PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.trees import chosen_walk, verdict


class ExactVerifier:
    """Walks the tree along the target's own choices.

    The token after each node is `argmax(log p + G)`, with Gumbel noise G of the position alone (at
    temperature 0: G = 0). If a child carries it the walk goes there, else the token is emitted and
    the walk ends. So the text is that of plain decoding with the same seed, whatever was drafted
    and however it was chosen. Seen over all noise, this is naive sampling (MCNS in arXiv
    2401.06706): one draw a node.
    """

    proposals = frozenset(Proposal)
    policies = frozenset(PolicyKind)
    chains_only = False
    reads_rejected = False

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """The path of the target's choices as far as the tree holds it, and the next choice."""
        return verdict(tree, *chosen_walk(tree, 0, laws))
