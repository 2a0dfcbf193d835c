"""Cost tables: what they say between and past the measured points, and what they refuse to be read from."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.config import MAX_TREE_NODES
from foredraft.costs import CostTable, DraftCosts, PassCosts, check_budget, check_grid
from foredraft.errors import ConfigError
from foredraft.results import RoundRecord

RELATIVE = 1e-9
"""Interpolation takes a few float64 operations; a wrong neighbour is off by more than 1e-3."""


@st.composite
def tables(draw: st.DrawFn, monotone: bool = False) -> PassCosts:
    """Any grid of up to 4 x 4 points; `monotone` ones rise along both axes."""
    more_nodes = draw(st.sets(st.integers(2, 100), max_size=3))
    contexts = draw(st.sets(st.integers(0, 5000), min_size=1, max_size=4))
    columns = len(more_nodes) + 1
    rows = [
        draw(st.lists(st.floats(1e-3, 1.0), min_size=columns, max_size=columns)) for _ in contexts
    ]
    if monotone:
        for i, row in enumerate(rows):
            for j in range(columns):
                row[j] += max(rows[i - 1][j] if i else 0.0, row[j - 1] if j else 0.0)
    return PassCosts((1, *sorted(more_nodes)), tuple(sorted(contexts)), tuple(map(tuple, rows)))


def at_most(a: float, b: float) -> bool:
    """a <= b, rounding apart."""
    return a <= b or math.isclose(a, b, rel_tol=RELATIVE)


# --- interpolation ----------------------------------------------------------------------------------


@given(tables())
def test_measured_points_keep_their_price(costs: PassCosts) -> None:
    for context, row in zip(costs.contexts, costs.seconds, strict=True):
        for count, seconds in zip(costs.nodes, row, strict=True):
            assert costs(count, context) == pytest.approx(seconds, rel=RELATIVE)


@given(tables(), st.integers(1, 100), st.integers(0, 5000))
def test_a_price_inside_lies_between_its_neighbours(
    costs: PassCosts, nodes: int, context: int
) -> None:
    nodes = min(nodes, costs.nodes[-1])
    context = min(context, costs.contexts[-1])
    rows = neighbours(costs.contexts, context)
    columns = neighbours(costs.nodes, nodes)
    corners = [costs.seconds[i][j] for i in rows for j in columns]
    assert at_most(min(corners), costs(nodes, context))
    assert at_most(costs(nodes, context), max(corners))


def neighbours(axis: tuple[int, ...], at: int) -> list[int]:
    """Indices of the measured points on both sides."""
    below = max((i for i, point in enumerate(axis) if point <= at), default=0)
    return [below, min((i for i, point in enumerate(axis) if point >= at), default=below)]


@given(tables(monotone=True), st.integers(1, 200), st.integers(1, 200), st.integers(0, 9000))
def test_prices_rise_with_nodes_where_measured_ones_do(
    costs: PassCosts, nodes: int, more: int, context: int
) -> None:
    context = min(context, costs.contexts[-1])
    assert at_most(costs(nodes, context), costs(nodes + more, context))


@given(tables(monotone=True), st.integers(1, 100), st.integers(0, 9000), st.integers(1, 9000))
def test_prices_rise_with_contexts_where_measured_ones_do(
    costs: PassCosts, nodes: int, context: int, more: int
) -> None:
    nodes = min(nodes, costs.nodes[-1])
    assert at_most(costs(nodes, context), costs(nodes, context + more))


@given(tables(), st.integers(0, 400), st.integers(1, 400))
def test_past_the_last_point_no_price_falls(costs: PassCosts, past: int, more: int) -> None:
    """Whatever the slope before it."""
    nodes, context = costs.nodes[-1], costs.contexts[-1]
    assert at_most(costs(nodes + past, context), costs(nodes + past + more, context))
    assert at_most(costs(nodes, context + past), costs(nodes, context + past + more))


def test_the_last_slope_goes_on() -> None:
    costs = PassCosts((1, 8), (0, 100), ((1.0, 8.0), (2.0, 9.0)))
    assert costs(16, 0) == pytest.approx(16.0)
    assert costs(1, 300) == pytest.approx(4.0)
    assert costs(16, 300) == pytest.approx(19.0)
    assert costs(4, 50) == pytest.approx(4.5)


def test_before_the_first_context_its_price_holds() -> None:
    costs = PassCosts((1, 2), (64, 128), ((1.0, 2.0), (2.0, 3.0)))
    assert costs(2, 0) == costs(2, 64) == 2.0


# --- rounds -----------------------------------------------------------------------------------------


def record(context: int, accepted: int, draft_rows: tuple[int, ...] = (1, 1, 1)) -> RoundRecord:
    """A round with a chain of 3."""
    return RoundRecord(
        context, (1, 1, 1, 1), draft_rows, accepted, accepted + 1, False, 9.0, 9.0, 9.0, 99.0
    )


def test_case_93_is_priced_by_hand() -> None:
    """Accepted 3, 0, 2 of chains of 3; a target pass takes 10 + n + c / 100, a draft pass 1 + n."""
    target = PassCosts((1, 4), (0, 100), ((11.0, 14.0), (12.0, 15.0)))
    level = PassCosts((1, 2), (0,), ((2.0, 3.0),))
    table = CostTable(target, 0.5, {"speculative": DraftCosts(0.25, level)})
    rounds = [record(100, 3), record(104, 0, (2, 1, 1)), record(105, 2)]
    draft_s = [0.25 + 3 * 2.0, 0.25 + 3.0 + 2 * 2.0, 0.25 + 3 * 2.0]
    target_s = [15.0, 15.04, 15.05]
    for round_, draft, one_pass in zip(rounds, draft_s, target_s, strict=True):
        assert table.round_s(round_, "speculative") == pytest.approx(draft + one_pass + 0.5)
        assert table.passes_s(round_, "speculative") == pytest.approx(draft - 0.25 + one_pass)


def test_methods_with_options_are_priced_by_their_own_entry_or_else_by_their_name() -> None:
    pass_ = PassCosts((1,), (0,), ((1.0,),))
    dear = PassCosts((1,), (0,), ((5.0,),))
    entries = {"speculative": DraftCosts(0.0, pass_), "speculative:depth=3": DraftCosts(0.5, dear)}
    table = CostTable(pass_, 0.0, entries)
    for options, price in (("", 1 + 3), (":depth=3", 1 + 3 * 5 + 0.5), (":depth=5", 1 + 3)):
        assert table.round_s(record(0, 1), f"speculative{options}") == price


@pytest.mark.parametrize("method", [None, "another", "ngram", "ngram:depth=3"])
def test_draft_passes_that_nothing_prices_are_not_free(method: str | None) -> None:
    """Neither without an entry nor by one that holds no passes; rounds without draft passes have a price."""
    table = CostTable(PassCosts((1,), (0,), ((1.0,),)), 0.5, {"ngram": DraftCosts(0.25)})
    assert table.round_s(record(0, 1), method) is None
    assert table.passes_s(record(0, 1), method) is None
    host_s = 0.75 if method and "ngram" in method else 0.5
    assert table.round_s(record(0, 1, ()), method) == 1 + host_s
    assert table.passes_s(record(0, 1, ()), method) == 1


@given(tables(), st.lists(st.integers(1, 100), max_size=6), st.floats(0, 1))
def test_a_draft_is_the_sum_of_its_passes(
    costs: PassCosts, draft_rows: list[int], host_s: float
) -> None:
    expected = host_s + sum(costs(rows, 7) for rows in draft_rows)
    assert DraftCosts(host_s, costs)(draft_rows, 7) == pytest.approx(expected, rel=RELATIVE)
    assert DraftCosts(host_s)(draft_rows, 7) == host_s


@pytest.mark.parametrize(("passes", "pass_s"), [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)])
def test_a_round_costs_the_passes_that_it_made(passes: int, pass_s: float) -> None:
    flat = CostTable.flat(pass_s=1.0, level_s=0.1)
    priced = dataclasses.replace(record(500, 1, ()), target_passes=passes)
    assert flat.passes_s(priced) == pass_s


def test_on_a_flat_table_width_and_context_cost_nothing() -> None:
    table = CostTable.flat(0.02, 0.002, ["speculative"])
    wide = RoundRecord(5000, (1, 4, 16), (1, 4), 2, 3, False, 0.0, 0.0, 0.0, 0.0)
    assert table.round_s(wide, "speculative") == pytest.approx(0.024)
    assert table.round_s(wide) is None, "a draft model that was not named has no price"


# --- JSON -------------------------------------------------------------------------------------------


@given(tables(), st.none() | tables(), st.floats(0, 1))
def test_json_gives_the_same_table(
    target: PassCosts, passes: PassCosts | None, host_s: float
) -> None:
    table = CostTable(target, host_s, {"a": DraftCosts(host_s, passes)}, {"threads": 2})
    assert CostTable.from_dict(json.loads(json.dumps(table.as_dict()))) == table


def good() -> dict[str, Any]:
    passes = {"nodes": [1, 2], "contexts": [64], "seconds": [[0.1, 0.2]]}
    return {
        "format": 1,
        "provenance": {},
        "target": passes,
        "host_s": 0.001,
        "drafts": {"a": {"host_s": 0.001, "passes": dict(passes)}},
    }


def with_(*path: str, value: Any) -> Callable[[], Any]:
    """The good document with one value changed."""

    def make() -> Any:
        document = good()
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return document

    return make


def without(name: str) -> Callable[[], Any]:
    return lambda: {key: value for key, value in good().items() if key != name}


GARBAGE: dict[str, Callable[[], Any]] = {
    "null": lambda: None,
    "number": lambda: 7,
    "text": lambda: "cost table",
    "list": lambda: [good()],
    "empty": dict,
    **{f"no-{name}": without(name) for name in good()},
    "old-format": with_("format", value=0),
    "no-drafts-object": with_("drafts", value=[1]),
    "no-draft-object": with_("drafts", "a", value=3),
    "false-passes": with_("drafts", "a", "passes", value=False),
    "empty-passes": with_("drafts", "a", "passes", value=""),
    "list-passes": with_("drafts", "a", "passes", value=[]),
    "provenance-list": with_("provenance", value=[]),
    "provenance-text": with_("provenance", value="mine"),
    "target-list": with_("target", value=[1]),
    "text-nodes": with_("target", "nodes", value="12"),
    "fractional-nodes": with_("target", "nodes", value=[1, 2.5]),
    "true-nodes": with_("target", "nodes", value=[True, 2]),
    "no-single-node": with_("target", "nodes", value=[2, 4]),
    "falling-nodes": with_("target", "nodes", value=[2, 1]),
    "no-nodes": with_("target", "nodes", value=[]),
    "negative-context": with_("target", "contexts", value=[-1]),
    "no-contexts": with_("target", "contexts", value=[]),
    "null-contexts": with_("target", "contexts", value=None),
    "too-few-seconds": with_("target", "seconds", value=[[0.1]]),
    "too-many-rows": with_("target", "seconds", value=[[0.1, 0.2], [0.1, 0.2]]),
    "flat-seconds": with_("target", "seconds", value=[0.1, 0.2]),
    "text-seconds": with_("target", "seconds", value=[["0.1", "0.2"]]),
    "free-pass": with_("target", "seconds", value=[[0.0, 0.2]]),
    "endless-pass": with_("target", "seconds", value=[[0.1, math.inf]]),
    "nan-pass": with_("target", "seconds", value=[[math.nan, 0.2]]),
    "huge-pass": with_("target", "seconds", value=[[0.1, 10**400]]),
    "negative-host": with_("host_s", value=-0.1),
    "nan-host": with_("host_s", value=math.nan),
    "text-host": with_("host_s", value="0.1"),
    "negative-draft-host": with_("drafts", "a", "host_s", value=-0.1),
}


@pytest.mark.parametrize("make", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        CostTable.from_dict(make())


def test_the_garbage_above_is_one_change_from_a_good_table() -> None:
    assert CostTable.from_dict(good()).target(2, 64) == 0.2


# --- grids ------------------------------------------------------------------------------------------


def test_a_grid_is_sorted_and_has_one_node() -> None:
    assert check_grid([8, 2, 8], [512, 0, 64, 64]) == ((1, 2, 8), (0, 64, 512))


@pytest.mark.parametrize(
    ("nodes", "contexts", "said"),
    [
        ([], [64], "nodes is empty"),
        ([1], [], "contexts is empty"),
        ([0, 1], [64], "holds 0; give numbers of 1 to 512"),
        ([MAX_TREE_NODES + 1], [64], "holds 513; give numbers of 1 to 512"),
        ([1], [-1], "holds -1; give numbers of 0 or more"),
    ],
)
def test_a_grid_that_cannot_be_measured_is_refused(
    nodes: list[int], contexts: list[int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_grid(nodes, contexts)


@pytest.mark.parametrize("budget_s", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_is_a_time(budget_s: float) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        check_budget(budget_s)
