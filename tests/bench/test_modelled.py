"""Modelled time by hand: rounds whose price can be added up on paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.bench.modelled import (
    FLAT_PASS_S,
    modelled_s,
    modelled_tokens_per_s,
    oracle_rounds,
    oracle_s,
    oracle_tokens_per_s,
    oracle_totals,
    pricing_of,
    read_costs,
)
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.errors import ConfigError
from tests.bench.synthetic_runs import answer_of, prompt_of, round_of, run_of, statistics

TARGET = PassCosts((1, 5), (0,), ((10.0, 14.0),))
"""A pass of n rows takes 9 + n seconds."""
LEVELS = PassCosts((1, 3), (0,), ((1.0, 2.0),))
COSTS = CostTable(TARGET, 0.5, {"chain": DraftCosts(0.25, LEVELS), "ngram": DraftCosts(0.25)})

CHAIN = {"widths": (1, 1, 1, 1), "draft_rows": (1, 1, 1)}
CASE_93 = statistics(*(round_of(accepted, **CHAIN) for accepted in (3, 0, 2)))
"""Chains of 3, of which 3, 0 and 2 tokens were accepted."""
FULL_ROUND = 13 + 0.5 + 0.25 + 3


def test_a_round_costs_its_passes_and_the_work_beside_them() -> None:
    assert modelled_s(CASE_93, COSTS, "chain") == pytest.approx(3 * FULL_ROUND)
    assert modelled_tokens_per_s(CASE_93, COSTS, "chain") == pytest.approx(8 / (3 * FULL_ROUND))


def test_the_oracle_drafts_what_is_accepted() -> None:
    """No level and no row too many; the host's work of drafting stays where there is a draft."""
    nothing, two = 10 + 0.5, 12 + 0.75 + 2
    assert oracle_s(CASE_93, COSTS, "chain") == pytest.approx(FULL_ROUND + nothing + two)
    rate = oracle_tokens_per_s(CASE_93, COSTS, "chain")
    assert rate == pytest.approx(8 / (FULL_ROUND + nothing + two))


def test_trees_are_priced_by_nodes_and_cut_by_level() -> None:
    tree = statistics(round_of(1, widths=(1, 2, 2), draft_rows=(1, 3)))
    assert modelled_s(tree, COSTS, "chain") == pytest.approx(14 + 0.75 + 1 + 2)
    assert oracle_s(tree, COSTS, "chain") == pytest.approx(12 + 0.75 + 1)


def test_the_oracle_of_a_chain_wastes_nothing_and_emits_as_much() -> None:
    """Case 93: 9 draft passes for 5 tokens, in the same rounds."""
    oracle = oracle_rounds(CASE_93)
    assert (CASE_93.draft_passes, CASE_93.wasted_tokens) == (9, 4)
    assert (oracle.draft_passes, oracle.wasted_tokens, oracle.target_passes) == (5, 0, 3)
    assert oracle.mean_acceptance_length == CASE_93.mean_acceptance_length
    assert oracle.completion_tokens == CASE_93.completion_tokens


def test_the_oracle_of_a_tree_still_has_its_other_branches() -> None:
    tree = statistics(round_of(1, widths=(1, 2, 2), draft_rows=(1, 3)))
    assert (tree.wasted_tokens, oracle_rounds(tree).wasted_tokens) == (3, 1)


def test_totals_of_the_oracle_are_its_tokens_and_seconds() -> None:
    answers = [answer_of("chain", *CASE_93.rounds)] * 2
    assert oracle_totals(COSTS)(answers) == pytest.approx((16, 2 * (FULL_ROUND + 10.5 + 14.75)))
    assert oracle_totals(COSTS)([answer_of("unknown", *CASE_93.rounds)])[1] == 0


def test_a_cut_round_costs_all_of_it_and_gives_what_was_emitted() -> None:
    cut = statistics(round_of(3, emitted=1, **CHAIN))
    assert modelled_tokens_per_s(cut, COSTS, "chain") == pytest.approx(1 / FULL_ROUND)


def test_rounds_without_drafts_cost_one_row() -> None:
    plain = statistics(round_of(), round_of())
    assert modelled_s(plain, COSTS, "plain") == pytest.approx(2 * 10.5)
    assert oracle_s(plain, COSTS, "plain") == modelled_s(plain, COSTS, "plain")


def test_a_drafter_without_a_model_and_an_entry_has_no_host_work() -> None:
    lookup = statistics(round_of(2, widths=(1, 1, 1)))
    assert modelled_s(lookup, COSTS, "suffix") == pytest.approx(12.5)
    assert modelled_s(lookup, COSTS, "ngram") == pytest.approx(12.75)
    assert modelled_s(lookup, COSTS, "ngram:depth=10") == pytest.approx(12.75)


def test_of_peers_passes_alone_are_priced() -> None:
    """What our host work takes, in rounds and in drafts, tells nothing about theirs."""
    plain = statistics(round_of(), round_of(), stages=("target",))
    assert modelled_s(plain, COSTS, "hf") == pytest.approx(2 * 10)
    rounds = [round_of(accepted, **CHAIN) for accepted in (3, 0, 2)]
    assisted = statistics(*rounds, stages=("draft", "target"))
    assert modelled_s(assisted, COSTS, "chain") == pytest.approx(3 * (13 + 3))
    assert oracle_s(assisted, COSTS, "chain") == pytest.approx((13 + 3) + 10 + (12 + 2))


def test_what_the_table_cannot_price_has_no_price() -> None:
    unseen = statistics(round_of(), stages=())
    assert modelled_s(unseen, COSTS, "llama.cpp") is None
    assert oracle_tokens_per_s(unseen, COSTS, "llama.cpp") is None
    assert modelled_s(CASE_93, COSTS, "hf-assisted") is None, "its draft model is in no entry"
    assert modelled_s(CASE_93, COSTS, "ngram") is None, "whose entry holds no passes"
    useless = statistics(round_of(), round_of(0, **CHAIN))
    assert oracle_s(useless, COSTS, "another") is None, "though its drafts would be empty"
    assert modelled_tokens_per_s(CASE_93, None, "chain") is None
    assert modelled_tokens_per_s(statistics(), COSTS, "chain") is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), min_size=1, max_size=8))
def test_hindsight_is_never_dearer(rounds: list[tuple[int, int]]) -> None:
    stats = statistics(
        *(
            round_of(accepted, widths=(1, 4, 4, 2), draft_rows=(1, 4, 4), context=context)
            for accepted, context in rounds
        )
    )
    modelled, oracle = modelled_s(stats, COSTS, "chain"), oracle_s(stats, COSTS, "chain")
    assert modelled is not None
    assert oracle is not None
    assert oracle <= modelled


# --- tables named on the command line ----------------------------------------------------------------


def test_a_run_is_priced_by_the_named_table_or_else_by_its_own() -> None:
    record = prompt_of(answer_of("chain", *CASE_93.rounds))
    own = pricing_of(run_of(record, costs=COSTS), None)
    assert own is not None
    assert (own.table, own.source) == (COSTS, "costs.json")
    flat = pricing_of(run_of(record, costs=COSTS), "flat:level=0.2")
    assert flat is not None
    assert flat.source == "flat:level=0.2"
    assert modelled_s(CASE_93, flat.table, "chain") == pytest.approx(3 * FLAT_PASS_S * 1.6)
    assert pricing_of(run_of(record), None) is None


def test_the_flat_table_prices_passes_alike() -> None:
    costs = read_costs("flat", ["chain"])
    seconds = modelled_s(CASE_93, costs, "chain")
    assert seconds == pytest.approx(3 * FLAT_PASS_S * (1 + 3 * 0.1))
    dear = modelled_s(CASE_93, read_costs("flat:level=0.5", ["chain"]), "chain")
    assert dear == pytest.approx(3 * FLAT_PASS_S * (1 + 3 * 0.5))


def test_a_table_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(COSTS.as_dict()))
    assert read_costs(str(file), []).as_dict() == COSTS.as_dict()


@pytest.mark.parametrize(
    "text",
    ["flat:level=0", "flat:level=-1", "flat:level=x", "flat:level=inf", "flat:depth=2", "flat:0.1"],
)
def test_a_level_that_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write flat:level=0\.1"):
        read_costs(text, [])


def test_files_that_hold_no_table_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json.*foredraft calibrate"):
        read_costs(str(tmp_path / "nowhere.json"), [])
    file = tmp_path / "costs.json"
    file.write_text("no JSON")
    with pytest.raises(ConfigError, match="no readable cost table"):
        read_costs(str(file), [])
    file.write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="this is no cost table"):
        read_costs(str(file), [])
