"""The law of a token that is not chosen yet: what takes a last token's place where roots are open."""

from __future__ import annotations

from torch import Tensor

from foredraft.protocols import RootVerifier, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness


class PendingLaw:
    """The target's law of the next token, between two rounds of one request (arXiv 2409.10644).

    The next tree's roots come from it, and one of them becomes the token.
    """

    def __init__(self, verifier: RootVerifier, random: Randomness) -> None:
        self._verifier, self._random = verifier, random
        self._law: Tensor | None = None
        self._greedy = False

    def read(self, laws: TargetLaws, node: int) -> None:
        """Take the law after a node at which nothing was rejected."""
        self._law, self._greedy = laws.beliefs(node), laws.greedy

    def learn(self, verdict: Verdict, laws: TargetLaws) -> None:
        """Take what a round has left: of the law after its path, what its rejections have left of it."""
        if verdict.left is None:
            self.read(laws, verdict.path[-1])
        else:
            self._law = verdict.left

    def choose_roots(self) -> tuple[int, ...]:
        """Candidates for the next token."""
        assert self._law is not None, "prefill comes first"
        return self._verifier.choose_roots(self._law, self._greedy, self._random)
