"""The acceptance rules of one node: whatever is drafted, the emitted token follows p."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foredraft.tree import Proposal
from foredraft.verifiers.laws import (
    Draw,
    acceptance,
    block,
    draws,
    emitted_law,
    point_mass,
    recursive_rejection,
    remainder,
    without,
)
from tests.enumeration import enumerate_outcomes
from tests.verifiers.toys import BREAK_ATOL, LAW_ATOL, draw_children

KINDS = [Proposal.SAMPLED, Proposal.RESAMPLED, Proposal.DETERMINISTIC]
ALGEBRA = settings(max_examples=25, deadline=None, derandomize=True)

Rule = Callable[[Tensor, Tensor, Sequence[int], Proposal], Tensor]
"""(p, q, tokens, proposal) -> the law of the emitted token."""


def law(*weights: float) -> Tensor:
    row = torch.tensor(weights, dtype=torch.float64)
    return row / row.sum()


def nudged(p: Tensor, token: int, ulps: int) -> Tensor:
    """p with one probability moved by some units in the last place."""
    moved = p.clone()
    for _ in range(abs(ulps)):
        moved[token] = math.nextafter(float(moved[token]), math.copysign(math.inf, ulps))
    return moved


@st.composite
def law_pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """(p, q), float64 [V]: unrelated, disjoint, equal, or an ulp apart; zeros included."""
    size = draw(st.integers(3, 5))
    weights = st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any)
    p = law(*draw(weights))
    relation = draw(st.sampled_from(["unrelated", "disjoint", "equal", "near"]))
    if relation == "equal":
        return p, p.clone()
    if relation == "near":
        return p, nudged(p, int(p.argmax()), draw(st.sampled_from([-1, 1])))
    q = law(*draw(weights))
    if relation == "disjoint" and bool((q * (p == 0)).any()):
        q = q * (p == 0) / (q * (p == 0)).sum()
    return p, q


def our_rule(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    return emitted_law(p, list(draws(p, q, tokens, [proposal] * len(tokens))))


def mean_emitted(
    p: Tensor, q: Tensor, count: int, proposal: Proposal, rule: Rule = our_rule
) -> Tensor:
    """The law of the emitted token, over all draws of the children from q."""
    drafts = enumerate_outcomes(lambda random: draw_children(q, count, proposal, random))
    return torch.stack([w * rule(p, q, tokens, proposal) for w, tokens in drafts]).sum(0)


def error(p: Tensor, q: Tensor, count: int, proposal: Proposal, rule: Rule = our_rule) -> float:
    return float((mean_emitted(p, q, count, proposal, rule) - p).abs().max())


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("proposal", KINDS)
@given(pair=law_pairs())
@ALGEBRA
def test_the_emitted_law_is_p(proposal: Proposal, count: int, pair: tuple[Tensor, Tensor]) -> None:
    assert error(*pair, count, proposal) < LAW_ATOL


@given(pair=law_pairs(), weight=st.floats(0, 1))
@ALGEBRA
def test_what_is_left_is_a_law(pair: tuple[Tensor, Tensor], weight: float) -> None:
    left = remainder(*pair, weight)
    assert bool((left.law >= 0).all())
    assert float(left.law.sum()) == pytest.approx(1, abs=LAW_ATOL)
    assert 0 <= left.weight <= 1


@given(pair=law_pairs(), weight=st.floats(0, 1))
@ALGEBRA
def test_weights_are_kept_on_average(pair: tuple[Tensor, Tensor], weight: float) -> None:
    """A node is kept, by its child or by itself, with its weight as the probability."""
    p, q = pair
    left = remainder(p, q, weight)
    kept = [acceptance(p, Draw(x, q), weight) if q[x] > 0 else 0.0 for x in range(len(q))]
    rejected = sum(float(q[x]) * (1 - kept[x]) for x in range(len(q)))
    assert rejected * (1 - left.weight) == pytest.approx(1 - weight, abs=LAW_ATOL)


# --- by hand (cases 39 to 41) ---------------------------------------------------------------------

P, Q = law(0.6, 0.3, 0.1), law(0.2, 0.3, 0.5)


def test_leviathan_by_hand() -> None:
    trials = list(recursive_rejection(P, [Draw(2, Q)]))
    assert trials[0].accept == pytest.approx(0.1 / 0.5)
    torch.testing.assert_close(trials[0].residual, law(1, 0, 0))


def test_without_replacement_the_second_draw_has_another_law() -> None:
    first, second = draws(P, Q, [2, 0], [Proposal.SAMPLED] * 2)
    torch.testing.assert_close(first.law, Q)
    torch.testing.assert_close(second.law, law(0.2, 0.3, 0))


def test_with_replacement_a_duplicate_keeps_its_trial() -> None:
    drawn = list(draws(P, Q, [1, 1], [Proposal.RESAMPLED] * 2))
    assert [d.token for d in drawn] == [1, 1]
    assert all(d.law is Q for d in drawn)


def test_a_deterministic_child_is_accepted_with_p_and_removed() -> None:
    p = law(0.5, 0.3, 0.2)
    (drawn,) = draws(p, None, [0], [Proposal.DETERMINISTIC])
    (trial,) = recursive_rejection(p, [drawn])
    assert trial.accept == 0.5
    torch.testing.assert_close(trial.residual, law(0, 0.3, 0.2))
    torch.testing.assert_close(trial.residual, without(p, [0]))


def test_a_child_more_than_the_law_has_support_counts_as_deterministic() -> None:
    q = law(0, 1, 0)
    _, spare = draws(P, q, [1, 0], [Proposal.SAMPLED] * 2)
    torch.testing.assert_close(spare.law, point_mass(0, like=P))
    torch.testing.assert_close(our_rule(P, q, [1, 0], Proposal.SAMPLED), P)


def test_block_by_hand() -> None:
    """Case 41: two draft tokens on four; the index of each law matters."""
    p0, q0 = law(0.4, 0.3, 0.2, 0.1), law(0.1, 0.2, 0.3, 0.4)
    p1, q1 = law(0.1, 0.1, 0.1, 0.7), law(0.25, 0.25, 0.25, 0.25)
    quantities = block([(p0, Draw(2, q0)), (p1, Draw(3, q1))])
    b1 = 0.2 / 0.3
    excess = b1 * 0.7 - 0.25
    assert quantities.weights == pytest.approx((1, b1, 1))
    assert quantities.accepts == pytest.approx((1, excess / (excess + 1 - b1), 1))
    torch.testing.assert_close(quantities.remainders[0].law, law(0.3, 0.1, 0, 0))
    torch.testing.assert_close(quantities.remainders[1].law, law(0, 0, 0, 1))


@given(pairs=st.lists(law_pairs(), min_size=1, max_size=5), data=st.data())
@ALGEBRA
def test_block_weights_have_their_closed_form(
    pairs: list[tuple[Tensor, Tensor]], data: st.DataObject
) -> None:
    """log b_i = S_i - max over 0 <= j <= i of S_j, with S the sums of log p/q and S_0 = 0."""
    chain, sums = [], [0.0]
    for p, q in pairs:
        token = data.draw(st.sampled_from(q.nonzero().flatten().tolist()))
        chain.append((p, Draw(token, q)))
        ratio = float(p[token]) / float(q[token])
        sums.append(sums[-1] + math.log(ratio) if ratio else -math.inf)
    for i, weight in enumerate(block(chain).weights):
        expected = math.exp(sums[i] - max(sums[: i + 1]))
        assert weight == pytest.approx(expected, abs=LAW_ATOL)


# --- rounding (case 46) ---------------------------------------------------------------------------


@pytest.mark.parametrize("ulps", [-1, 0, 1])
@pytest.mark.parametrize("token", [0, 1, 2])
def test_where_p_is_q_up_to_an_ulp_a_rejection_falls_back_to_p(token: int, ulps: int) -> None:
    left = remainder(P, nudged(P, token, ulps))
    assert left.law is P
    assert left.weight == 1


def test_disjoint_supports_fall_back_to_p() -> None:
    p, q = law(0.5, 0.5, 0, 0), law(0, 0, 0.5, 0.5)
    assert acceptance(p, Draw(2, q)) == 0
    torch.testing.assert_close(remainder(p, q).law, p)


def test_nothing_is_left_of_a_weightless_node() -> None:
    assert remainder(P, Q, 0.0).weight == 0


# --- this check can fail --------------------------------------------------------------------------


def forgotten_residual(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """Every trial and the final draw read the untouched p."""
    emitted, reached = torch.zeros_like(p), 1.0
    for draw in draws(p, q, tokens, [proposal] * len(tokens)):
        emitted[draw.token] += reached * acceptance(p, draw)
        reached *= 1 - acceptance(p, draw)
    return emitted + reached * p


def softmaxed_residual(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """The residual goes through softmax where it should be normalised (case 41)."""
    (draw,) = draws(p, q, tokens[:1], [proposal])
    accept = acceptance(p, draw)
    return accept * point_mass(draw.token, p) + (1 - accept) * (p - q).relu().softmax(-1)


def stale_draft_law(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """Drawn without replacement, tried as if drawn with."""
    return our_rule(p, q, tokens, Proposal.RESAMPLED)


def sorted_siblings(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """The likeliest child is tried first, whenever it was drawn."""
    return our_rule(p, q, sorted(tokens, key=lambda t: -float(q[t])), proposal)


def shared_noise(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """One uniform u serves every trial: a later child gets only what lies above all before it."""
    emitted, highest = torch.zeros_like(p), 0.0
    for draw in draws(p, q, tokens, [proposal] * len(tokens)):
        accept = acceptance(p, draw)
        emitted[draw.token] += max(0.0, accept - highest)
        highest = max(highest, accept)
        p = remainder(p, draw.law).law
    return emitted + (1 - highest) * p


def dishonest_law(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """Drawn from q, reported as a flatter law (cases 39 and 40)."""
    return our_rule(p, q.sqrt() / q.sqrt().sum(), tokens, proposal)


def merged_duplicates(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
    """A child drawn twice is tried once."""
    return our_rule(p, q, list(dict.fromkeys(tokens)), proposal)


@pytest.mark.parametrize(
    ("broken", "proposal"),
    [
        (forgotten_residual, Proposal.SAMPLED),
        (forgotten_residual, Proposal.RESAMPLED),
        (softmaxed_residual, Proposal.SAMPLED),
        (stale_draft_law, Proposal.SAMPLED),
        (sorted_siblings, Proposal.SAMPLED),
        (shared_noise, Proposal.SAMPLED),
        (shared_noise, Proposal.RESAMPLED),
        (dishonest_law, Proposal.SAMPLED),
        (dishonest_law, Proposal.RESAMPLED),
        (merged_duplicates, Proposal.RESAMPLED),
    ],
)
def test_a_broken_rule_is_caught(broken: Rule, proposal: Proposal) -> None:
    p, q = law(0.1, 0.35, 0.35, 0.2), law(0.5, 0.3, 0.05, 0.15)
    assert error(p, q, 2, proposal) < LAW_ATOL
    assert error(p, q, 2, proposal, broken) > BREAK_ATOL


def test_a_top_k_set_scored_with_soft_probabilities_is_caught() -> None:
    """Case 39: the drafter takes its argmax, the ratio reads its law."""
    soft = our_rule(P, Q, [int(Q.argmax())], Proposal.SAMPLED)
    assert float((soft - P).abs().max()) > BREAK_ATOL
    assert error(P, Q, 1, Proposal.DETERMINISTIC) < LAW_ATOL


def test_a_filtered_draw_with_a_raw_law_is_caught() -> None:
    """Case 40: tokens come from the top-2 law, the full law is reported."""
    raw, filtered = Q, without(Q, [0])

    def report_raw(p: Tensor, q: Tensor, tokens: Sequence[int], proposal: Proposal) -> Tensor:
        return our_rule(p, raw, tokens, proposal)

    assert error(P, filtered, 1, Proposal.SAMPLED) < LAW_ATOL
    assert error(P, filtered, 1, Proposal.SAMPLED, report_raw) > BREAK_ATOL
