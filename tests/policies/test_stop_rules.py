"""Each stop rule against its formula: what it reads, where it stops, and how it learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft import ConfigError
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.schedules import (
    ConstantRule,
    GammaTuneRule,
    HeuristicRule,
    LengthState,
)
from foredraft.policies.stopping import StoppingPolicy, StopRule, StopState
from foredraft.policies.thresholds import (
    AdaEdlRule,
    BeamRule,
    ConfidenceRule,
    CumulativeRule,
    SvipRule,
)
from foredraft.protocols import DraftLimits, Frontier, RoundOutcome
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from tests.drafters.contexts import context


def level(
    depth: int,
    scores: Sequence[float] | None = None,
    laws: Sequence[Sequence[float]] | None = None,
    *,
    parents: Sequence[int] | None = None,
    first: int | None = None,
) -> Frontier:
    """A level of nodes; in chains the node at depth d is node d."""
    count = len(scores or laws or (0,))
    start = depth if first is None else first
    return Frontier(
        depth,
        nodes=tuple(range(start, start + count)),
        token_ids=(0,) * count,
        parents=tuple(parents or [depth - 1] * count),
        ranks=tuple(range(count)),
        log_probs=unread,
        scores=lambda: None if scores is None else list(scores),
        drawn_from=lambda: None if laws is None else torch.tensor(laws).log(),
        hidden=unread,
    )


def unread() -> Tensor | None:
    raise AssertionError("this costs a draft pass")


def asked(rule: StopRule, *levels: Frontier) -> list[list[bool]]:
    state = rule.start()
    state.begin([1, 2])
    return [list(state.going_on(frontier)) for frontier in levels]


def outcome(depth: int, accepted: int) -> RoundOutcome:
    builder = TreeBuilder(0)
    for node in range(depth):
        builder.add(node, 1, Proposal.COUPLED)
    return RoundOutcome(builder.build(), accepted, 0.0, 0.0)


# --- confidence -------------------------------------------------------------------------------------


def test_confidence_is_the_probability_of_the_nodes_own_token() -> None:
    """However unlikely the path already was."""
    chain = [level(d, [math.log(p)]) for d, p in enumerate([1.0, 0.3, 0.3 * 0.9, 0.3 * 0.9 * 0.2])]
    assert asked(ConfidenceRule(0.25), *chain) == [[True], [True], [True], [False]]


def test_confidence_of_siblings_is_each_ones_own() -> None:
    scores = [math.log(p) for p in (0.6, 0.3)]
    below = [math.log(p) for p in (0.6 * 0.1, 0.3 * 0.9)]
    levels = [level(0, [0.0]), level(1, scores), level(2, below, parents=[1, 2], first=3)]
    assert asked(ConfidenceRule(0.4), *levels) == [[True], [True, False], [False, True]]


def test_confidence_forgets_the_last_draft() -> None:
    state = ConfidenceRule(0.5).start()
    for _ in range(2):
        state.begin([1])
        state.going_on(level(0, [0.0]))
        assert state.going_on(level(1, [math.log(0.6)])) == [True]


def test_a_threshold_of_0_stops_nothing_and_of_1_all_that_is_unsure() -> None:
    chain = [level(0, [0.0]), level(1, [-math.inf])]
    assert asked(ConfidenceRule(0.0), *chain)[1] == [True]
    assert asked(ConfidenceRule(1.0), level(0, [0.0]), level(1, [-1e-3]))[1] == [False]


# --- cumulative -------------------------------------------------------------------------------------


def test_cumulative_is_the_probability_of_the_path() -> None:
    assert asked(CumulativeRule(-1.0), level(2, [-0.5, -1.0, -1.5])) == [[True, True, False]]


def test_the_beam_stops_whole_and_only_at_its_levels() -> None:
    beam = [math.log(p) for p in (0.25, 0.125)]
    rule = BeamRule(math.log(0.4), (3, 5))
    assert asked(rule, level(2, beam), level(3, beam)) == [[True, True], [False, False]]
    assert asked(BeamRule(math.log(0.374), (3,)), level(3, beam)) == [[True, True]]
    assert sorted(BeamRule(-1.0).levels) == [5, 7, 9]


# --- entropy ----------------------------------------------------------------------------------------

SHARP, FLAT = (1.0, 0.0, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)
NATS = math.log(4)


def test_svip_compares_the_entropy_of_the_law_drawn_from() -> None:
    at = math.sqrt(0.15 * NATS)
    for threshold, flat_goes_on in [(at + 1e-3, True), (at - 1e-3, False)]:
        rule = SvipRule(threshold)
        assert asked(rule, level(1, laws=[SHARP, FLAT])) == [[True, flat_goes_on]]


def test_adaedl_compares_a_bound_on_acceptance() -> None:
    promised = 1 - math.sqrt(0.2 * NATS)
    for bound, flat_goes_on in [(promised - 1e-3, True), (promised + 1e-3, False)]:
        rule = AdaEdlRule(bound)
        assert asked(rule, level(1, laws=[SHARP, FLAT])) == [[True, flat_goes_on]]


@pytest.mark.parametrize("rule", [SvipRule(0.0), AdaEdlRule(1.0)])
def test_roots_go_on_and_rows_that_are_no_laws_do_not(rule: StopRule) -> None:
    nan = (math.nan,) * 4
    assert asked(rule, level(0, [0.0]), level(1, laws=[SHARP, nan])) == [[True], [True, False]]


def test_lambda_rises_after_poor_rounds_and_falls_after_good_ones() -> None:
    rule = AdaEdlRule(0.3, longest=4)
    state = rule.start()
    state.observe(outcome(4, 0))  # rate .45 < .9
    assert (state.rate, state.bound) == pytest.approx((0.45, 0.301))
    state = rule.start()
    state.observe(outcome(2, 2))  # rate .95, and shorter than a draft could be
    assert (state.rate, state.bound) == pytest.approx((0.95, 0.299))
    state = rule.start()
    state.observe(outcome(4, 4))  # as long as it can be
    assert (state.rate, state.bound) == pytest.approx((0.95, 0.3))


def test_a_round_without_a_draft_says_nothing() -> None:
    state = AdaEdlRule(0.3).start()
    state.observe(outcome(0, 0))
    assert (state.rate, state.bound) == (0.9, 0.3)


@given(
    rounds=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=30),
    bound=st.floats(0, 1),
)
def test_lambda_follows_the_published_recurrence(
    rounds: list[tuple[int, int]], bound: float
) -> None:
    state = AdaEdlRule(bound, longest=6).start()
    rate, expected = 0.9, bound
    for depth, accepted in rounds:
        accepted = min(accepted, depth)
        state.observe(outcome(depth, accepted))
        rate = 0.5 * rate + 0.5 * accepted / depth
        move = 0.01 if rate < 0.9 else (0.0 if accepted == 6 else -0.01)
        expected = 0.9 * expected + 0.1 * (expected + move)
    assert state.bound == pytest.approx(expected)


# --- lengths ----------------------------------------------------------------------------------------


def lengths(rule: Any, *rounds: tuple[int, int]) -> list[float]:
    """What the length is after each round of so many (drafted, accepted)."""
    state: LengthState = rule.start()
    found = []
    for depth, accepted in rounds:
        state.observe(outcome(depth, accepted))
        found.append(state.length)
    return found


def test_a_constant_length_stays() -> None:
    assert lengths(ConstantRule(3), (3, 3), (3, 0)) == [3, 3]
    assert asked(ConstantRule(2), level(0), level(1), level(2)) == [[True], [True], [False]]


def test_the_heuristic_adds_two_or_takes_one() -> None:
    rounds = [(3, 3), (5, 4), (4, 0), (3, 0), (2, 0), (1, 0), (1, 0), (1, 1)]
    assert lengths(HeuristicRule(3), *rounds) == [5, 4, 3, 2, 1, 1, 1, 3]


def test_the_heuristic_stays_within_the_shape() -> None:
    """Whole drafts of a shape's full length do not store up a length that takes rounds to undo."""
    assert lengths(HeuristicRule(20, longest=4), (4, 4), (4, 4), (4, 3)) == [4, 4, 3]


def test_gammatune_smooths_what_is_accepted() -> None:
    assert lengths(GammaTuneRule(4), (4, 4), (6, 1)) == pytest.approx([6, 0.7 * 6 + 0.3])
    assert lengths(GammaTuneRule(4, 1.0), (4, 0)) == [1]
    assert lengths(GammaTuneRule(4, longest=5), (4, 4)) == [5]


def test_a_length_that_is_not_whole_is_rounded_up() -> None:
    state = GammaTuneRule(2, 0.5).start()
    state.observe(outcome(2, 1))
    assert state.length == 1.5
    assert state.going_on(level(1, [0.0, 0.0])) == [True, True]
    assert state.going_on(level(2)) == [False]


@pytest.mark.parametrize("rule", [HeuristicRule(3), GammaTuneRule(3), AdaEdlRule(0.3)])
def test_every_request_begins_anew(rule: Any) -> None:
    first = rule.start()
    first.observe(outcome(3, 0))
    assert vars(first) != vars(rule.start())
    assert vars(rule.start()) == vars(rule.start())


def test_rounds_without_room_leave_lengths_alone() -> None:
    assert lengths(HeuristicRule(3), (0, 0)) == [3]


# --- on a drafter -----------------------------------------------------------------------------------

DRAFT = TableModel.random(6, 2, seed=3)


def drafted(rule: StopRule, widths: str, kind: Proposal = Proposal.DETERMINISTIC) -> DraftTree:
    seen = context([1, 2], vocab_size=6, limits=DraftLimits(4))
    policy = StoppingPolicy(FixedPolicy(widths), rule)
    return DraftModelDrafter(DRAFT, kind).start(100).draft(seen, policy.start())


def law_before(tree: DraftTree, node: int) -> Tensor:
    """The drafter's law that a node was drawn from."""
    text = [1, 2, *tree.path_tokens(tree.parents[node])]
    return DRAFT.logits_after(text).double().softmax(-1)


def entropy(law: Tensor) -> float:
    return float(torch.special.entr(law).sum())


CRITERIA: list[tuple[StopRule, Callable[[DraftTree, int], bool]]] = [
    (ConfidenceRule(0.3), lambda t, n: float(law_before(t, n)[t.token_ids[n]]) >= 0.3),
    (
        CumulativeRule(-2.0),
        lambda t, n: sum(math.log(law_before(t, i)[t.token_ids[i]]) for i in t.path(n)[1:]) >= -2.0,
    ),
    (SvipRule(0.45), lambda t, n: math.sqrt(0.15 * entropy(law_before(t, n))) <= 0.45),
    (AdaEdlRule(0.48), lambda t, n: 1 - math.sqrt(0.2 * entropy(law_before(t, n))) >= 0.48),
]


@pytest.mark.parametrize("widths", ["1,1,1,1", "3,2,2"])
@pytest.mark.parametrize(("rule", "goes_on"), CRITERIA, ids=lambda x: type(x).__name__)
def test_each_node_is_judged_by_its_own_path(
    rule: StopRule, goes_on: Callable[[DraftTree, int], bool], widths: str
) -> None:
    tree, depth = drafted(rule, widths), len(widths.split(","))
    inner = [node for node in range(1, len(tree)) if tree.depths[node] < depth]
    assert [bool(tree.children[node]) for node in inner] == [goes_on(tree, node) for node in inner]


@pytest.mark.parametrize("rule", [rule for rule, _ in CRITERIA], ids=lambda r: type(r).__name__)
def test_no_level_is_scored_that_is_not_drawn_from(rule: StopRule) -> None:
    """The pass behind the last level of a draft is saved, wherever the rule ends it."""
    tree = drafted(rule, "3,2,2")
    parents = [
        sum(1 for n in range(len(tree)) if tree.depths[n] == d and tree.children[n])
        for d in range(tree.depth)
    ]
    assert list(tree.draft_rows) == [
        2,
        *parents[1:],
    ]  # the root's pass holds the text before it too


READ_LAWS = [rule for rule, _ in CRITERIA if not isinstance(rule, ConfidenceRule | CumulativeRule)]


@pytest.mark.parametrize("rule", READ_LAWS, ids=lambda r: type(r).__name__)
def test_rules_of_laws_refuse_drafters_without_laws(rule: StopRule) -> None:
    """Copies have scores, by which confidence and cumulative rules go, and no laws."""
    state = NgramDrafter().start(100)
    seen = context([1, 2, 3, 4, 1, 2], vocab_size=6, limits=DraftLimits(4))
    with pytest.raises(ConfigError, match="reads the drafter's laws, and this drafter has none"):
        state.draft(seen, StoppingPolicy(FixedPolicy.chain(4), rule).start())


def test_copies_stop_where_they_are_unsure() -> None:
    """One token agrees with the source, so the first copy is unsure; it stays, and nothing follows it."""
    seen = context([1, 2, 3, 4, 1], vocab_size=6, limits=DraftLimits(4))
    policy = StoppingPolicy(FixedPolicy.chain(4), ConfidenceRule(0.9))
    tree = NgramDrafter(min_match=1).start(100).draft(seen, policy.start())
    assert tree.token_ids == (1, 2)


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConfidenceRule(1.5), "threshold 1.5 is not allowed; give a number from 0 to 1"),
        (lambda: ConfidenceRule(math.nan), "threshold nan"),
        (lambda: CumulativeRule(0.5), "threshold 0.5 is not allowed; give a number of 0 or less"),
        (lambda: CumulativeRule(-math.inf), "threshold -inf"),
        (lambda: BeamRule(-1.0, (0,)), r"levels \[0\] are not allowed"),
        (lambda: BeamRule(-1.0, ()), r"levels \[\] are not allowed"),
        (lambda: SvipRule(-0.1), "threshold -0.1 is not allowed; give a number of 0 or more"),
        (lambda: SvipRule(0.3, math.inf), "scale inf"),
        (lambda: AdaEdlRule(2), "bound 2 is not allowed"),
        (lambda: AdaEdlRule(0.3, step=-1), "step -1"),
        (lambda: AdaEdlRule(0.3, inertia=1.1), "inertia 1.1"),
        (lambda: ConstantRule(0), "length 0 is not allowed; give a whole number of 1 or more"),
        (lambda: HeuristicRule(0), "length 0"),
        (lambda: GammaTuneRule(4, 2.0), "pace 2.0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], StopState], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
