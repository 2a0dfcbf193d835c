"""What the adaptive policy pays with: prices read off a table, and corrected by live rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.policies.prices import MOST_CORRECTION, Correction, LivePrices, Prices
from foredraft.protocols import RoundOutcome
from foredraft.tree import DraftTree, Proposal

TARGET = PassCosts((1, 8), (0, 1024), ((1.0, 2.0), (2.0, 4.0)))
LEVEL = PassCosts((1, 8), (0,), ((0.1, 0.2),))


def chain(length: int, draft_rows: tuple[int, ...]) -> DraftTree:
    proposals = (Proposal.DETERMINISTIC,) * (length + 1)
    return DraftTree(
        tuple(range(length + 1)), tuple(range(-1, length)), proposals, draft_rows=draft_rows
    )


def outcome(length: int, *, draft_s: float, target_s: float, levels: int = 1) -> RoundOutcome:
    return RoundOutcome(chain(length, (1,) * levels), 0, draft_s, target_s, (0,))


def test_prices_are_those_of_the_method_in_the_table() -> None:
    table = CostTable(TARGET, 0.5, {"mine": DraftCosts(0.25, LEVEL), "copies": DraftCosts(0.125)})
    assert Prices.of(table, "mine") == Prices(TARGET, LEVEL, 0.5, 0.25)
    assert Prices.of(table, "copies") == Prices(TARGET, None, 0.5, 0.125)
    assert Prices.of(table, "unknown") == Prices(TARGET, None, 0.5, 0.0)


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 20])
@pytest.mark.parametrize("context", [0, 100, 1000, 5000])
def test_a_pass_costs_what_the_table_says_of_about_this_context(rows: int, context: int) -> None:
    live = LivePrices(Prices(TARGET, LEVEL))
    live.at(context)
    assert live.pass_s(rows) == pytest.approx(TARGET(rows, context), rel=0.07)
    assert live.level_s(rows) == LEVEL(rows, context)


def test_prices_follow_the_context_forth_and_back() -> None:
    live, fresh = (LivePrices(Prices(TARGET, LEVEL)) for _ in range(2))
    live.at(1000)
    far = live.pass_s(8)
    live.at(0)
    fresh.at(0)
    assert live.pass_s(8) == fresh.pass_s(8) < far


def test_a_round_costs_its_passes_and_the_host() -> None:
    live = LivePrices(Prices(TARGET, LEVEL, host_s=0.5, draft_host_s=0.25))
    live.at(0)
    plain = live.round_s(1, (), drafted=False)
    drafted = live.round_s(8, (1, 8), drafted=True)
    assert plain == live.pass_s(1) + 0.5
    assert drafted == pytest.approx(live.pass_s(8) + 0.1 + 0.2 + 0.75)


def test_without_a_model_levels_are_free() -> None:
    assert LivePrices(Prices(TARGET), Correction()).level_s(5) == 0.0


def test_prices_come_to_what_rounds_take() -> None:
    live = LivePrices(Prices(TARGET, LEVEL), Correction())
    live.at(0)
    before_s, level_s = live.pass_s(8), live.level_s(1)
    for _ in range(200):
        live.learn(outcome(7, draft_s=1.5 * level_s, target_s=0.5 * before_s))
    assert live.pass_s(8) == pytest.approx(0.5 * before_s, rel=0.01)
    assert live.level_s(1) == pytest.approx(1.5 * level_s, rel=0.01)


def test_what_rows_add_is_learnt_apart() -> None:
    """Measured beside other work: eight rows for 1.25 times one, where they really take 1.1 times it."""
    steep = Prices(PassCosts((1, 8), (0,), ((1.0, 1.25),)), LEVEL)
    live = LivePrices(steep, Correction())
    live.at(0)
    for round_number in range(600):
        rows = (0, 3, 7)[round_number % 3]
        live.learn(outcome(rows, draft_s=0.1, target_s=1.0 + rows / 70))
    assert live.pass_s(8) / live.pass_s(1) == pytest.approx(1.1, abs=0.05)
    assert live.pass_s(1) == pytest.approx(1.0, abs=0.05)


def test_requests_learn_together() -> None:
    correction = Correction()
    first, second = (LivePrices(Prices(TARGET, LEVEL), correction) for _ in range(2))
    first.at(0)
    second.at(0)
    before_s = second.pass_s(8)
    for _ in range(50):
        first.learn(outcome(7, draft_s=0.3, target_s=2 * before_s))
    assert second.pass_s(8) > 1.5 * before_s


def test_unrefined_prices_stay() -> None:
    live = LivePrices(Prices(TARGET, LEVEL))
    live.at(0)
    before_s = live.pass_s(8)
    live.learn(outcome(7, draft_s=9.0, target_s=9.0))
    assert live.pass_s(8) == before_s


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_no_stall_spoils_a_price_beyond_its_bound(stalls: list[float]) -> None:
    live = LivePrices(Prices(TARGET, LEVEL), Correction())
    live.at(0)
    before_s = live.pass_s(8)
    for seconds in stalls:
        live.learn(outcome(7, draft_s=seconds, target_s=seconds))
        assert before_s / MOST_CORRECTION**2 <= live.pass_s(8) * (1 + 1e-9)
        assert live.pass_s(8) <= before_s * MOST_CORRECTION**2 * (1 + 1e-9)


def test_rounds_without_a_draft_teach_nothing_of_drafts() -> None:
    live = LivePrices(Prices(TARGET, LEVEL), Correction())
    live.at(0)
    before_s = live.level_s(1)
    live.learn(outcome(0, draft_s=9.0, target_s=1.0, levels=0))
    assert live.level_s(1) == before_s
