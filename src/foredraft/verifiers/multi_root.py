"""Target-initialised roots, of which the one whose draft goes furthest wins: lossy beyond one root."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from foredraft.errors import ConfigError, suggestion
from foredraft.protocols import PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.rejection import Walk, walk
from foredraft.verifiers.trees import require_proposals

RootChoice = Literal["multinomial", "topk", "nucleus"]
NUCLEUS = 0.9
"""Mass of the nucleus that roots are drawn from when nothing else is asked for."""


class MultiRootVerifier:
    """The acceptance rule of *Improving Multi-candidate Speculative Decoding* (arXiv 2409.10644).

    The roots are W candidates for the next token from the target's own pending law. Each carries a draft,
    which recursive rejection walks as `RejectionVerifier` does. The root whose walk accepts most tokens
    wins, of equal ones the first drawn; it and its accepted tokens become text, and what the walk left of
    the law at its end is the next pending law.

    One root drawn from the law is exact. With more, a root's chance grows with how easily its continuation
    is accepted, so the output does *not* follow the target's law: `lossless` says so.

    Args:
        num_roots: W.
        roots: how they are chosen above temperature 0: `multinomial` draws without replacement, `topk`
            takes the most likely ones, `nucleus` draws without replacement from the smallest set of tokens
            that has the mass `top_p`, and so gives fewer where the target is sure. At temperature 0
            all take the most likely ones.
        top_p: mass of the nucleus.

    Raises:
        ConfigError: no root, an unknown way to choose them, or no mass.
    """

    proposals = frozenset({Proposal.SAMPLED, Proposal.RESAMPLED, Proposal.DETERMINISTIC})
    policies = frozenset({PolicyKind.GROWS})
    chains_only = False
    reads_rejected = True

    def __init__(
        self, num_roots: int = 2, roots: str = "multinomial", top_p: float = NUCLEUS
    ) -> None:
        if num_roots < 1:
            raise ConfigError(f"{num_roots} roots are not allowed; give 1 or more")
        if roots not in get_args(RootChoice):
            raise ConfigError(f"unknown roots={roots!r}; {suggestion(roots, get_args(RootChoice))}")
        if not 0 < top_p <= 1:
            raise ConfigError(f"top_p={top_p} of roots is not allowed; give above 0 and at most 1")
        self.num_roots, self.roots, self.top_p = num_roots, roots, top_p

    @property
    def lossless(self) -> bool:
        """Whether answers follow the target's law: with one root, drawn from all of it."""
        return self.num_roots == 1 and self.roots == "multinomial"

    def choose_roots(self, law: Tensor, greedy: bool, random: Randomness) -> tuple[int, ...]:
        """Up to W different tokens; see `RootVerifier`."""
        count = min(self.num_roots, int(torch.count_nonzero(law)))
        if greedy or self.roots == "topk":
            return tuple(_best(law, count).tolist())
        rest = nucleus(law, self.top_p) if self.roots == "nucleus" else law.clone()
        drawn: list[int] = []
        while len(drawn) < count and bool(rest.any()):
            drawn.append(random.categorical(rest))
            rest[drawn[-1]] = 0
        return tuple(drawn)

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """The longest walk from any root, and what it leaves of the law at its end."""
        if not tree.open_roots:
            raise ConfigError(
                "multi-root verification reads trees with open roots, and this draft has none; build it "
                "with DraftContext.builder"
            )
        require_proposals(tree, self.proposals, "multi-root")
        if not tree.num_drafted:
            return _verdict(tree, Walk(0, None))
        walks = [walk(tree, root, laws, random) for root in range(tree.num_roots)]
        best = max(walks, key=lambda found: tree.depths[found.node])  # of equal ones the first
        return _verdict(tree, best)


def nucleus(law: Tensor, top_p: float) -> Tensor:
    """`law` [V] without all but the fewest most likely tokens whose mass is at least `top_p`."""
    ordered = law.sort(descending=True)
    mass_before = ordered.values.cumsum(-1) - ordered.values
    kept = torch.where(mass_before < top_p * law.sum(), ordered.values, 0.0)
    return torch.zeros_like(law).scatter_(0, ordered.indices, kept)


def _best(law: Tensor, count: int) -> Tensor:
    """The most likely tokens [count], of equal ones the first, as `argmax` has it; `topk` may not."""
    likely = (law >= law.topk(count).values[-1]).nonzero()[:, 0]
    return likely[law[likely].sort(descending=True, stable=True).indices[:count]]


def _verdict(tree: DraftTree, found: Walk) -> Verdict:
    return Verdict(tree.path(found.node), tree.path_tokens(found.node), found.left)
