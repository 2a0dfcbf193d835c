"""Negative controls: what breaks losslessness is refused, or moves the law that these tests compare.

Each control breaks one rule of drafting (design, section 4.2) on the real engine. The same check without the
fault passes, so it is the fault that is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, DrafterState, PolicyState
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from foredraft.verifiers import verifier
from tests.laws.engine_laws import (
    BREAK,
    LAW_ATOL,
    Reference,
    RoundRandomness,
    error_of,
    random_table,
    table_model,
)

SAMPLED, RESAMPLED = Proposal.SAMPLED, Proposal.RESAMPLED

TARGET = random_table(vocab_size=3, order=1, seed=1)
DRAFT = random_table(vocab_size=3, order=1, seed=2)
OPTIONS = GenerationOptions(temperature=0.8, max_new_tokens=3)

Order = Callable[[DraftTree, int], Sequence[int]]
"""(tree, node) -> those of its children that stay, in their new order."""
Laws = Callable[[Tensor], Tensor]
"""The law [V] that children were drawn from -> the one that is reported."""


class Tampering:
    """A draft-model drafter whose trees are changed after they were drawn."""

    def __init__(
        self,
        drawn_as: Proposal,
        *,
        declared: Proposal | None = None,
        order: Order = lambda tree, node: tree.children[node],
        law: Laws = lambda q: q,
    ) -> None:
        self.honest = DraftModelDrafter(table_model(DRAFT), drawn_as)
        self.declared = declared or drawn_as
        self.proposals = frozenset({self.declared})
        self.order, self.law = order, law

    @property
    def default_policy(self) -> FixedPolicy:
        return FixedPolicy.chain(2)

    def start(self, capacity: int) -> DrafterState:
        return TamperingState(self, self.honest.start(capacity))


class TamperingState:
    """Commits by the nodes that the honest drafter knows."""

    def __init__(self, drafter: Tampering, honest: DrafterState) -> None:
        self._drafter, self._honest = drafter, honest
        self._drawn_node: list[int] = []

    def prefill(self, token_ids: Sequence[int]) -> None:
        pass

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        drawn = self._honest.draft(context, policy)
        tree, self._drawn_node = self._rebuild(drawn)
        return tree

    def commit(self, path: Sequence[int]) -> None:
        self._honest.commit([self._drawn_node[node] for node in path])

    def close(self) -> None:
        self._honest.close()

    def _rebuild(self, drawn: DraftTree) -> tuple[DraftTree, list[int]]:
        builder, drawn_node = TreeBuilder(drawn.token_ids[0]), [0]
        for node, origin in enumerate(drawn_node):  # grows while it is read: level order
            if origin in drawn.laws:
                builder.set_law(node, self._drafter.law(drawn.laws[origin]))
            for child in self._drafter.order(drawn, origin):
                builder.add(node, drawn.token_ids[child], self._drafter.declared)
                drawn_node.append(child)
        return builder.build(), drawn_node


def error(
    name: str,
    drafter: Tampering,
    widths: str,
    randomness: Callable[..., RoundRandomness] = RoundRandomness,
) -> float:
    engine = Engine(table_model(TARGET), drafter, FixedPolicy(widths), verifier(name))
    return error_of(engine, Reference(TARGET, OPTIONS), randomness=randomness)


sampling_verifiers = pytest.mark.parametrize(
    ("name", "widths"), [("rejection", "2,1"), ("block", "1,1"), ("traversal", "2,1")]
)


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@sampling_verifiers
def test_the_wrapper_itself_changes_nothing(name: str, widths: str, kind: Proposal) -> None:
    assert error(name, Tampering(kind), widths) < LAW_ATOL


# --- a drawn token is dropped -----------------------------------------------------------------------


def without_token_1(tree: DraftTree, node: int) -> Sequence[int]:
    return [child for child in tree.children[node] if tree.token_ids[child] != 1]


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@sampling_verifiers
def test_dropping_a_drawn_token_is_caught(name: str, widths: str, kind: Proposal) -> None:
    assert error(name, Tampering(kind, order=without_token_1), widths) > BREAK


def test_exact_verification_may_drop_any_token() -> None:
    assert error("exact", Tampering(SAMPLED, order=without_token_1), "2") < LAW_ATOL


# --- another law is reported than was drawn from ----------------------------------------------------


def flattened(q: Tensor) -> Tensor:
    """What q would be at twice the temperature: raw logits reported instead of processed ones."""
    return q.sqrt() / q.sqrt().sum()


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@sampling_verifiers
def test_a_dishonest_law_is_caught(name: str, widths: str, kind: Proposal) -> None:
    assert error(name, Tampering(kind, law=flattened), widths) > BREAK


def test_exact_verification_reads_no_law() -> None:
    assert error("exact", Tampering(SAMPLED, law=flattened), "1") < LAW_ATOL


# --- siblings do not stand in the order of their draws ----------------------------------------------


def likely_first(tree: DraftTree, node: int) -> Sequence[int]:
    law = tree.laws.get(node)
    return sorted(tree.children[node], key=lambda child: -float(law[tree.token_ids[child]]))


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@pytest.mark.parametrize("name", ["rejection", "traversal"])
def test_siblings_sorted_by_their_law_are_caught(name: str, kind: Proposal) -> None:
    assert error(name, Tampering(kind, order=likely_first), "2") > BREAK


def merged(tree: DraftTree, node: int) -> Sequence[int]:
    """The first child of each token."""
    first = {tree.token_ids[child]: child for child in reversed(tree.children[node])}
    return sorted(first.values())


@pytest.mark.parametrize("name", ["rejection", "traversal"])
def test_merged_duplicates_are_caught(name: str) -> None:
    assert error(name, Tampering(RESAMPLED, order=merged), "3") > 1e-3


# --- acceptance reuses the noise of the draw --------------------------------------------------------


class SharedNoise(RoundRandomness):
    """Acceptance compares with the very uniform that drew the last token.

    What is known of that uniform is an interval: the token's part of the cumulative law, cut at each
    threshold it was compared with. So it can be enumerated exactly.
    """

    _known = (0.0, 1.0)

    def categorical(self, probs: Tensor) -> int:
        token = super().categorical(probs)
        law = probs / probs.sum()
        self._known = (float(law[:token].sum()), float(law[: token + 1].sum()))
        return token

    def bernoulli(self, prob: float) -> bool:
        low, high = self._known
        cut = min(max(prob, low), high)
        below = super().bernoulli((cut - low) / (high - low))
        self._known = (low, cut) if below else (cut, high)
        return below


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_shared_noise_is_caught(name: str) -> None:
    assert error(name, Tampering(SAMPLED), "1,1", randomness=SharedNoise) > BREAK


# --- an illegal triple ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_coupled_proposals_are_refused_by_verifiers_with_noise_of_their_own(name: str) -> None:
    with pytest.raises(ConfigError, match="makes coupled proposals"):
        error(name, Tampering(Proposal.COUPLED), "1,1")


@pytest.mark.parametrize("name", ["block", "traversal"])
def test_deterministic_proposals_are_refused_by_verifiers_of_sampled_drafts(name: str) -> None:
    with pytest.raises(ConfigError, match="makes deterministic proposals"):
        error(name, Tampering(Proposal.DETERMINISTIC), "1,1")


def test_trees_are_refused_by_block_verification() -> None:
    with pytest.raises(ConfigError, match="chains alone"):
        error("block", Tampering(SAMPLED), "2,1")


class TopAsSampled(Tampering):
    """The most likely tokens, passed off as draws without replacement (MCSD's code at T_draft = 0)."""

    def __init__(self) -> None:
        super().__init__(Proposal.DETERMINISTIC, declared=SAMPLED)

    def start(self, capacity: int) -> DrafterState:
        return TopAsSampledState(self, self.honest.start(capacity))


class TopAsSampledState(TamperingState):
    """Adds the laws that nothing was drawn from."""

    def _rebuild(self, drawn: DraftTree) -> tuple[DraftTree, list[int]]:
        laws = {node: self._law_after(drawn.token_ids[node]) for node in range(len(drawn))}
        return super()._rebuild(DraftTree(drawn.token_ids, drawn.parents, drawn.proposals, laws))

    def _law_after(self, token: int) -> Tensor:
        logits = self._drafter.honest.model.logits_after([token])
        return (logits / OPTIONS.temperature).softmax(-1)


@sampling_verifiers
def test_top_tokens_passed_off_as_sampled_are_caught(name: str, widths: str) -> None:
    assert error(name, TopAsSampled(), widths) > BREAK


def test_a_tree_that_is_not_what_its_drafter_declares_is_refused() -> None:
    """Should a drafter lie to the engine, the verifier still looks at each tree."""
    drafter = Tampering(Proposal.COUPLED)
    drafter.proposals = frozenset({SAMPLED})
    with pytest.raises(ConfigError, match="coupled one"):
        Engine(table_model(TARGET), drafter, None, verifier("rejection")).generate(
            [0], OPTIONS, seed=0
        )
