"""What a verifier is: it keeps of a scored tree what the target agrees with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from foredraft.protocols.policy import PolicyKind
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of verification.

    Attributes:
        path: [A + 1] accepted nodes, root first.
        token_ids: [A + 1] the A accepted draft tokens, then one recovered or bonus token. Of a tree
            with open roots, the root and the A accepted draft tokens.
        left: of a tree with open roots, what rejections have left of the law after the path, float64
            [V]; None where nothing was rejected there, and of other trees.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    left: Tensor | None = None

    def __post_init__(self) -> None:
        assert len(self.path) == len(self.token_ids) >= 1

    @property
    def num_accepted(self) -> int:
        """A: draft tokens that were accepted."""
        return len(self.token_ids) - 1


@runtime_checkable
class Verifier(Protocol):
    """An acceptance algorithm."""

    @property
    def proposals(self) -> frozenset[Proposal]:
        """The kinds of proposals for which it keeps the target's law."""
        ...

    @property
    def policies(self) -> frozenset[PolicyKind]:
        """The kinds of policies for which it keeps the target's law."""
        ...

    @property
    def chains_only(self) -> bool:
        """Whether it verifies chains alone."""
        ...

    @property
    def reads_rejected(self) -> bool:
        """Whether it reads laws behind tokens that may be rejected; user processors are refused then."""
        ...

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """Choose a path of the tree and one token more."""
        ...


@runtime_checkable
class RootVerifier(Verifier, Protocol):
    """A verifier of trees with open roots, which also chooses these."""

    @property
    def num_roots(self) -> int:
        """Roots at most."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether it keeps the target's law."""
        ...

    def choose_roots(self, law: Tensor, greedy: bool, random: Randomness) -> tuple[int, ...]:
        """The next tree's roots, all different.

        Args:
            law: of the next token, float64 [V]; of a greedy request, what ranks the tokens.
            greedy: whether the temperature is 0.
            random: the request's draws.
        """
        ...
