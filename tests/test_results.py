"""Every metric by hand: rounds that can be counted on fingers, and the figures they must give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine, Statistics
from foredraft.backends.table import TableModel
from foredraft.results import LOOP_NGRAM, RoundRecord, loop_mask
from tests.scripted import Script, ScriptedDrafter, chain

METRICS_PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


def widths(num_drafted: int, depth: int) -> tuple[int, ...]:
    """A tree of that many nodes below the root: the first level takes what the others leave."""
    if depth == 0:
        return (1,)
    return (1, num_drafted - depth + 1, *(1,) * (depth - 1))


def whole(num_drafted: int, num_accepted: int, depth: int | None = None) -> RoundRecord:
    """A round that nothing cut: 1 ms of drafting, 4 of the target, 2 of verification, 8 in all."""
    return RoundRecord(
        context=10,
        widths=widths(num_drafted, num_drafted if depth is None else depth),
        draft_rows=(),
        num_accepted=num_accepted,
        num_emitted=num_accepted + 1,
        cut=False,
        draft_s=0.001,
        target_s=0.004,
        verify_s=0.002,
        total_s=0.008,
    )


def cut(num_drafted: int, num_accepted: int, num_emitted: int) -> RoundRecord:
    """A round of which a stop left `num_emitted` tokens."""
    return RoundRecord(
        10,
        widths(num_drafted, num_drafted),
        (),
        num_accepted,
        num_emitted,
        True,
        0.001,
        0.004,
        0.002,
        0.008,
    )


def statistics(*rounds: RoundRecord, **changes: Any) -> Statistics:
    """What a request of these rounds reports."""
    values: dict[str, Any] = {
        "prompt_tokens": 10,
        "in_loop": (False,) * len(rounds),
        "loop_tokens": 0,
        "prefill_s": 0.1,
        "ttft_s": 0.2,
    }
    return Statistics(rounds=rounds, **values | changes)


SCRIPTED = statistics(whole(3, 3), whole(3, 0), whole(3, 2))
"""Case 93: chains of 3, of which 3, 0 and 2 tokens were accepted."""
TREES = statistics(whole(6, 2, depth=2), whole(2, 1, depth=1), whole(0, 0))
"""A tree of 6 nodes, two siblings, and a round without a draft."""
CUT_SHORT = statistics(whole(3, 2), cut(4, 4, num_emitted=1))
EMPTY = statistics()

# --- acceptance -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 3),
        ("cut_rounds", 0),
        ("prompt_tokens", 10),
        ("completion_tokens", 8),
        ("drafted_tokens", 9),
        ("accepted_tokens", 5),
        ("acceptance_rate", 5 / 9),
        ("mean_acceptance_length", 1 + 5 / 3),
        ("path_acceptance_rate", 5 / 9),
        ("accepted_per_depth", (2 / 3, 2 / 3, 1 / 3)),
        ("accepted_histogram", (1, 0, 1, 1)),
        ("wasted_tokens", 4),
        ("waste", 4 / 8),
        ("draft_passes", 0),
        ("target_passes", 3),
        ("tokens_per_pass", 8 / 3),
    ],
)
def test_three_chains_of_three(name: str, value: Any) -> None:
    """Case 93: 1.67 accepted and 2.67 emitted tokens a round."""
    assert SCRIPTED.as_dict()[name] == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drafted_tokens", 8),
        ("acceptance_rate", 3 / 8),
        ("mean_acceptance_length", 2),
        ("path_acceptance_rate", 3 / 3),
        ("accepted_per_depth", (1, 1)),
        ("accepted_histogram", (1, 1, 1)),
        ("waste", 5 / 6),
    ],
)
def test_trees_count_nodes_and_paths_count_depth(name: str, value: Any) -> None:
    assert TREES.as_dict()[name] == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 2),
        ("cut_rounds", 1),
        ("completion_tokens", 4),
        ("drafted_tokens", 3),
        ("accepted_tokens", 2),
        ("acceptance_rate", 2 / 3),
        ("mean_acceptance_length", 3),
        ("accepted_per_depth", (1, 1, 0)),
        ("accepted_histogram", (0, 0, 1)),
        ("wasted_tokens", 1),
        ("waste", 1 / 3),
        ("tokens_per_pass", 2),
    ],
)
def test_a_cut_round_counts_for_usage_and_not_for_acceptance(name: str, value: Any) -> None:
    assert CUT_SHORT.as_dict()[name] == pytest.approx(value)


def test_the_engine_records_what_the_script_accepts() -> None:
    """Case 93, through the engine: a target that counts up, and drafts right 3, 0 and 2 times."""
    scripts = {1: [2, 3, 4], 5: [0, 0, 0], 6: [7, 8, 0]}
    drafter = ScriptedDrafter(scripted_by_last_token(scripts), max_nodes=3)
    stats = Engine(counting_target(12), drafter).generate([1], eos_token_ids=[9]).stats
    assert stats.mean_acceptance_length == pytest.approx(1 + 5 / 3)
    assert stats.acceptance_rate == pytest.approx(5 / 9)
    assert stats.accepted_per_depth == pytest.approx((2 / 3, 2 / 3, 1 / 3))


def counting_target(vocab_size: int) -> TableModel:
    """After each token comes the next one."""
    return TableModel(torch.eye(vocab_size, dtype=torch.float64).roll(1, dims=1))


def scripted_by_last_token(drafts: dict[int, list[int]]) -> Script:
    return lambda so_far: chain(drafts.get(so_far[-1], [0, 0, 0]))


# --- time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens_per_s", 8 / 0.024),
        ("tpot_ms", 3),
        ("prefill_ms", 100),
        ("ttft_ms", 200),
        ("draft_ms", 1),
        ("target_ms", 4),
        ("verify_ms", 2),
        ("other_ms", 1),
    ],
)
def test_times_of_three_rounds_of_8_ms(name: str, value: float) -> None:
    assert SCRIPTED.as_dict()[name] == pytest.approx(value)


@pytest.mark.parametrize(
    "name",
    [
        "acceptance_rate",
        "mean_acceptance_length",
        "mean_acceptance_length_in_loops",
        "mean_acceptance_length_outside_loops",
        "path_acceptance_rate",
        "loop_share",
        "waste",
        "tokens_per_s",
        "tokens_per_pass",
        "tpot_ms",
    ],
)
def test_a_ratio_of_nothing_is_none(name: str) -> None:
    assert EMPTY.as_dict()[name] is None


# --- pooling ----------------------------------------------------------------------------------------


def test_pooled_rates_are_ratios_of_sums() -> None:
    """One token of one and none of nine is a rate of 1/10, not of 1/2."""
    pooled = Statistics.pool([statistics(whole(1, 1)), statistics(whole(9, 0))])
    assert pooled.acceptance_rate == pytest.approx(1 / 10)
    assert pooled.mean_acceptance_length == pytest.approx(1 + 1 / 2)


def test_pooled_counts_are_sums() -> None:
    pooled = Statistics.pool([SCRIPTED, CUT_SHORT]).as_dict()
    for name in ("rounds", "cut_rounds", "prompt_tokens", "completion_tokens", "drafted_tokens"):
        assert pooled[name] == SCRIPTED.as_dict()[name] + CUT_SHORT.as_dict()[name]


def test_a_pooled_time_to_the_first_token_is_a_mean() -> None:
    pooled = Statistics.pool([statistics(ttft_s=0.1), statistics(ttft_s=0.3)])
    assert pooled.as_dict()["ttft_ms"] == pytest.approx(200)
    assert pooled.as_dict()["prefill_ms"] == pytest.approx(100)


def test_a_pool_of_one_is_that_one() -> None:
    assert Statistics.pool([SCRIPTED]) == SCRIPTED


# --- loops ------------------------------------------------------------------------------------------


def test_a_token_is_in_a_loop_when_its_8_gram_stood_before() -> None:
    """0..7 twice: only the last token ends an 8-gram that was complete once already."""
    once = list(range(LOOP_NGRAM))
    assert loop_mask([*once, *once]) == (False,) * 15 + (True,)


def test_a_run_of_one_token_is_a_loop_from_its_ninth_on() -> None:
    assert loop_mask([5] * 11) == (False,) * 8 + (True,) * 3


def test_text_without_repetition_has_no_loop() -> None:
    assert not any(loop_mask(range(100)))


def test_acceptance_inside_and_outside_loops() -> None:
    """Outside: 0 of 2 and 2 of 2. Inside: 2 of 2; the cut round counts nowhere."""
    rounds = (whole(2, 0), whole(2, 2), whole(2, 2), cut(2, 2, num_emitted=1))
    stats = statistics(*rounds, in_loop=(False, False, True, True), loop_tokens=4)
    shown = stats.as_dict()
    assert shown["mean_acceptance_length_outside_loops"] == pytest.approx(2)
    assert shown["mean_acceptance_length_in_loops"] == pytest.approx(3)
    assert shown["loop_share"] == pytest.approx(4 / 8)


# --- usage ------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.lists(st.integers(0, 11), max_size=3), st.integers(0, 5))
def test_no_count_of_tokens_exceeds_the_total(cap: int, ends: list[int], num_right: int) -> None:
    """Case 26: wherever a stop or the cap falls, derived counts stay within completion tokens."""

    def script(so_far: list[int]) -> list[tuple[int, int]]:
        right = [(so_far[-1] + i) % 12 for i in range(1, num_right + 1)]
        return chain([*right, *[0] * (5 - num_right)])

    engine = Engine(counting_target(12), ScriptedDrafter(script, max_nodes=5))
    result = engine.generate([1], max_new_tokens=cap, eos_token_ids=ends)
    stats = result.stats
    assert stats.completion_tokens == len(result.token_ids) == len(result.accepted) <= cap
    assert stats.accepted_tokens <= sum(result.accepted) <= stats.completion_tokens
    assert stats.loop_tokens <= stats.completion_tokens
    assert stats.cut_rounds <= len(stats.rounds) <= stats.completion_tokens


# --- documentation ----------------------------------------------------------------------------------


def documented_names() -> set[str]:
    """Names in the first column of the table of metrics."""
    rows = re.findall(r"^\| (`.*?) \|", METRICS_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_of_metrics_has_every_metric_and_no_other() -> None:
    assert documented_names() == set(EMPTY.as_dict())
