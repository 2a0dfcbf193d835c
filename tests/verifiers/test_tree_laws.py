"""Whole rounds, enumerated: the joint law of the emitted tokens is the target's."""

from __future__ import annotations

import pytest

from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from foredraft.verifiers import verifier
from tests.verifiers.toys import (
    BREAK_ATOL,
    LAW_ATOL,
    ROOT,
    Table,
    draw_children,
    error_of,
    extend,
    grower,
    mean_accepted,
)

SAMPLED, RESAMPLED, DETERMINISTIC = Proposal.SAMPLED, Proposal.RESAMPLED, Proposal.DETERMINISTIC
CHAINS = [(), (1,), (1, 1), (1, 1, 1)]
TREES = [(2,), (3,), (2, 1), (1, 2), (2, 2)]
TARGET, DRAFT = Table(seed=1), Table(seed=2)


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@pytest.mark.parametrize("widths", CHAINS + TREES)
@pytest.mark.parametrize("name", ["exact", "rejection", "traversal"])
def test_sampled_trees_emit_the_targets_law(
    name: str, widths: tuple[int, ...], kind: Proposal
) -> None:
    """Case 42 (b) and (c)."""
    grow = grower(DRAFT, widths, kind)
    assert error_of(verifier(name), TARGET, grow, len(widths) + 1) < LAW_ATOL


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@pytest.mark.parametrize("widths", CHAINS)
def test_block_emits_the_targets_law(widths: tuple[int, ...], kind: Proposal) -> None:
    grow = grower(DRAFT, widths, kind)
    assert error_of(verifier("block"), TARGET, grow, len(widths) + 1) < LAW_ATOL


@pytest.mark.parametrize("widths", [*CHAINS, *TREES, (4,), (4, 2), (3, 3), (2, 2, 2)])
@pytest.mark.parametrize("name", ["exact", "rejection"])
def test_deterministic_trees_emit_the_targets_law(name: str, widths: tuple[int, ...]) -> None:
    """Case 42 (a), case 39: a deterministic draft token counts as a point mass."""
    target, draft = Table(seed=3, vocab_size=4), Table(seed=4, vocab_size=4)
    grow = grower(draft, widths, DETERMINISTIC)
    assert error_of(verifier(name), target, grow, len(widths) + 1) < LAW_ATOL


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@pytest.mark.parametrize(
    ("name", "widths"), [("rejection", (2, 1)), ("block", (1, 1)), ("traversal", (2, 1))]
)
def test_laws_with_forbidden_tokens(
    name: str, widths: tuple[int, ...], kind: Proposal, seed: int
) -> None:
    """Filters leave laws of small and disjoint supports; case 40 with an honest q."""
    target, draft = Table(seed, zeros=0.4), Table(seed + 100, zeros=0.4)
    grow = grower(draft, widths, kind)
    assert error_of(verifier(name), target, grow, len(widths) + 1) < LAW_ATOL


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_a_perfect_drafter_is_always_accepted(name: str) -> None:
    grow = grower(TARGET, (1, 1), SAMPLED)
    assert mean_accepted(verifier(name), TARGET, grow) == pytest.approx(2, abs=LAW_ATOL)
    assert error_of(verifier(name), TARGET, grow, 3) < LAW_ATOL


@pytest.mark.parametrize("widths", CHAINS)
def test_traversal_of_a_chain_is_block_verification(widths: tuple[int, ...]) -> None:
    grow = grower(DRAFT, widths, SAMPLED)
    lengths = [mean_accepted(verifier(n), TARGET, grow) for n in ("block", "traversal")]
    assert lengths[0] == pytest.approx(lengths[1], abs=LAW_ATOL)


@pytest.mark.parametrize("seed", range(5))
def test_block_and_traversal_accept_no_less_than_rejection(seed: int) -> None:
    target, draft = Table(seed), Table(seed + 50)
    chain, tree = grower(draft, (1, 1, 1), SAMPLED), grower(draft, (2, 1), SAMPLED)
    accepted = {n: mean_accepted(verifier(n), target, chain) for n in ("rejection", "block")}
    assert accepted["block"] >= accepted["rejection"] - LAW_ATOL
    accepted = {n: mean_accepted(verifier(n), target, tree) for n in ("rejection", "traversal")}
    assert accepted["traversal"] >= accepted["rejection"] - LAW_ATOL


def mixed_siblings(random: Randomness) -> DraftTree:
    """An n-gram branch in front of two sampled ones: a hybrid draft."""
    builder = TreeBuilder(ROOT)
    match = builder.add(0, 2, DETERMINISTIC)
    extend(builder, 0, DRAFT, 2, SAMPLED, random)
    builder.add(match, 1, DETERMINISTIC)
    return builder.build()


@pytest.mark.parametrize("name", ["exact", "rejection"])
def test_each_child_follows_its_own_proposal(name: str) -> None:
    assert error_of(verifier(name), TARGET, mixed_siblings, 3) < LAW_ATOL


def looking_chain(random: Randomness) -> DraftTree:
    """Stops after token 1, which stays."""
    builder = TreeBuilder(ROOT)
    (node,) = extend(builder, 0, DRAFT, 1, SAMPLED, random)
    if builder.token_ids[node] != 1:
        extend(builder, node, DRAFT, 1, SAMPLED, random)
    return builder.build()


@pytest.mark.parametrize("name", ["exact", "rejection", "block", "traversal"])
def test_a_policy_may_stop_on_a_token_that_stays(name: str) -> None:
    assert error_of(verifier(name), TARGET, looking_chain, 3) < LAW_ATOL


def dropping_chain(random: Randomness) -> DraftTree:
    """Drops token 1 once it has been drawn."""
    builder = TreeBuilder(ROOT)
    law = DRAFT.law(())
    builder.set_law(0, law)
    (token,) = draw_children(law, 1, SAMPLED, random)
    if token != 1:
        builder.add(0, token, SAMPLED)
    return builder.build()


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_this_check_catches_a_policy_that_drops_a_drawn_token(name: str) -> None:
    assert error_of(verifier(name), TARGET, dropping_chain, 2) > BREAK_ATOL


def test_exact_verification_allows_dropping_a_drawn_token() -> None:
    assert error_of(verifier("exact"), TARGET, dropping_chain, 2) < LAW_ATOL


def entangled_tree(random: Randomness) -> DraftTree:
    """Two branches, each extended only for some tokens of the other."""
    builder = TreeBuilder(ROOT)
    tokens = builder.token_ids
    first, second = extend(builder, 0, DRAFT, 2, SAMPLED, random)
    if tokens[second] != 1:
        (first,) = extend(builder, first, DRAFT, 1, SAMPLED, random)
    if tokens[first] != 2:
        (second,) = extend(builder, second, DRAFT, 1, SAMPLED, random)
    if builder.parents[first] != 0 and tokens[second] == 0:
        extend(builder, first, DRAFT, 2, SAMPLED, random)
    return builder.build()


@pytest.mark.parametrize("name", ["exact", "rejection", "traversal"])
def test_growth_may_look_across_branches(name: str) -> None:
    """Traversal too: a subtree is rejected with probability 1 - w, whatever its shape."""
    assert error_of(verifier(name), TARGET, entangled_tree, 4) < LAW_ATOL
