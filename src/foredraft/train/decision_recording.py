"""Recording what a decision model learns from, through the seams of the engine: its policy and its verifier.

The policy keeps the features of the rows that a level is drawn from; the verifier reads the laws of the
scored tree, labels the first child of every such row, and leaves the verdict to a real verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.policies.decision_model import features_of
from foredraft.policies.decision_rules import Kind
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import (
    Drafter,
    DraftLimits,
    Frontier,
    PolicyKind,
    RoundOutcome,
    Target,
    Verdict,
)
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers import verifier as make_verifier

OFF_CHAIN = -1
"""The depth of a row that is not on its round's chain of first children."""
PROPOSALS = {"soft": Proposal.SAMPLED, "hard": Proposal.DETERMINISTIC}
VERIFIERS = {"soft": "rejection", "hard": "exact"}


@dataclass(frozen=True, slots=True)
class RoundRows:
    """The rows of one round.

    Attributes:
        features: float32 [R, inputs], of the rows that tokens were drawn from.
        labels: float32 [R]: acceptance of the first token drawn from each row, given that its path is
            accepted: min(1, p/q) (soft), or 1 where it is the target's own choice and else 0 (hard).
        depths: int16 [R]: levels above the row if it is on the chain of first children, else -1.
    """

    features: Tensor
    labels: Tensor
    depths: Tensor


class Recorder:
    """The rounds of the request in progress."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self._features: dict[int, Tensor] = {}
        self._rounds: list[RoundRows] = []

    def begin(self) -> None:
        """A new draft: forget the features of the last one."""
        self._features = {}

    def keep(self, frontier: Frontier) -> None:
        """Note the rows that a level is about to be drawn from."""
        rows = features_of(frontier, self.kind)
        self._features |= dict(zip(frontier.nodes, rows, strict=True))

    def label(self, tree: DraftTree, laws: TargetLaws) -> None:
        """Note the labels of a scored draft."""
        parents = [node for node in range(len(tree)) if tree.children[node]]
        if not parents:
            return
        labels = [self._label(tree, laws, node) for node in parents]
        chain: dict[int, int] = {}
        node = 0
        while tree.children[node]:
            chain[node] = len(chain)
            node = tree.children[node][0]
        depths = [chain.get(node, OFF_CHAIN) for node in parents]
        features = torch.stack([self._features[node] for node in parents]).cpu()
        self._rounds.append(
            RoundRows(
                features.clone(), torch.tensor(labels), torch.tensor(depths, dtype=torch.int16)
            )
        )

    def take(self) -> list[RoundRows]:
        """The rounds since the last call."""
        taken, self._rounds = self._rounds, []
        return taken

    def _label(self, tree: DraftTree, laws: TargetLaws, node: int) -> float:
        """Acceptance of the first child of a node."""
        token = tree.token_ids[tree.children[node][0]]
        if self.kind == "hard":
            return float(laws.choose(node) == token)
        p, q = float(laws.probs(node)[token]), float(tree.laws[node][token])
        return min(1.0, p / q)


class RecordingPolicy:
    """A k-config whose rows are recorded."""

    kind = PolicyKind.GROWS

    def __init__(self, shape: str, recorder: Recorder) -> None:
        self._fixed, self._recorder = FixedPolicy(shape), recorder
        self.branches, self.max_nodes = self._fixed.branches, self._fixed.max_nodes

    def start(self) -> RecordingPolicy:
        """One request at a time."""
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The limits as they are; a new draft begins."""
        self._recorder.begin()
        return limits

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """As the k-config says."""
        counts = self._fixed.grow(frontier)
        if any(counts):
            self._recorder.keep(frontier)
        return counts

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""


class RecordingVerifier:
    """Labels every draft, then lets a real verifier decide."""

    reads_rejected = True

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._verifier = make_verifier(VERIFIERS[recorder.kind])
        self.proposals, self.policies = self._verifier.proposals, self._verifier.policies
        self.chains_only = self._verifier.chains_only

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """The real verifier's verdict."""
        self._recorder.label(tree, laws)
        return self._verifier.verify(tree, laws, random)


def recording_engine(target: Target, drafter: Drafter, shape: str, recorder: Recorder) -> Engine:
    """An engine whose rounds are recorded.

    Args:
        target: whose acceptance is learnt.
        drafter: makes proposals of the kind `PROPOSALS` names.
        shape: the k-config of its drafts.
        recorder: gets the rounds.

    Raises:
        ConfigError: the drafter makes other proposals, or the target cannot score such trees.
    """
    if drafter.proposals != {PROPOSALS[recorder.kind]}:
        raise ConfigError(
            f"a {recorder.kind} decision model learns from {PROPOSALS[recorder.kind].value} proposals, and "
            f"{type(drafter).__name__} makes others"
        )
    policy = RecordingPolicy(shape, recorder)
    if policy.branches and not target.scores_trees:
        raise ConfigError(f"this model cannot score the tree {shape}; give a chain such as 1,1,1,1")
    return Engine(target, drafter, policy, RecordingVerifier(recorder))
