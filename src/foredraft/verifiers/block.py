"""Block verification: a chain is judged as a whole, which keeps more of it than token by token."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from foredraft.protocols import PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.laws import Draw, block
from foredraft.verifiers.trees import child_draws, require_chain, require_proposals, verdict


class BlockVerifier:
    """Accepts the longest prefix of a sampled chain whose draw succeeds (arXiv 2403.10444).

    Node i succeeds with probability h_i, independently of the others; see `laws.block`. The
    expected number of accepted tokens is never below that of rejection sampling.
    """

    proposals = frozenset({Proposal.SAMPLED, Proposal.RESAMPLED})
    policies = frozenset({PolicyKind.GROWS})
    chains_only = True
    reads_rejected = True

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """The longest successful prefix and one token more; draws run from the end to a success."""
        require_proposals(tree, self.proposals, "block")
        require_chain(tree, "block")
        quantities = block(_chain(tree, laws))
        accepts = quantities.accepts
        last = next(i for i in reversed(range(len(accepts))) if random.bernoulli(accepts[i]))
        whole = last == tree.depth
        law = laws.probs(last) if whole else quantities.remainders[last].law
        return verdict(tree, last, random.categorical(law))


def _chain(tree: DraftTree, laws: TargetLaws) -> Iterator[tuple[Tensor, Draw]]:
    """For each node with a child, p after it and that child. A chain's nodes count its depth."""
    for node in range(tree.depth):
        p = laws.probs(node)
        yield p, next(child_draws(tree, node, p))
