"""Draft lengths by batch size: the cheapest by the table, in the form that vLLM takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.bench.vllm_schedule import Gains, schedule, vllm_config
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.errors import ConfigError

LEVEL = PassCosts((1,), (0,), ((1e-3,),))
ACCEPTED = (0.7, 0.5, 0.3)


def gains(seconds: tuple[float, ...], accepted: tuple[float, ...] = ACCEPTED) -> Gains:
    """Passes of 1, 8 and 64 rows cost this."""
    target = PassCosts((1, 8, 64), (0,), (seconds,))
    return Gains(CostTable(target, 1e-4, {"chain": DraftCosts(1e-4, LEVEL)}), "chain", accepted, 0)


def test_width_that_is_free_is_used_and_width_that_is_dear_is_not() -> None:
    assert schedule(gains((0.02, 0.02, 0.02)), 16) == ((1, 16, 3),)
    assert schedule(gains((0.02, 0.16, 1.28)), 16) == ((1, 16, 0),)


def test_drafts_grow_shorter_where_rows_begin_to_cost() -> None:
    entries = schedule(gains((0.02, 0.02, 0.16)), 32)
    lengths = [length for _, _, length in entries]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 3
    assert lengths[-1] < 3


def test_a_length_is_priced_by_hand() -> None:
    rate = gains((0.02, 0.03, 0.16)).tokens_per_s(2, 3)
    assert rate == pytest.approx(2 * 2.5 / (0.03 + 1e-4 + 1e-4 + 3 * 1e-3))
    assert gains((0.02, 0.03, 0.16)).tokens_per_s(1, 0) == pytest.approx(1 / (0.02 + 1e-4))


@given(
    st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=3).map(sorted),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.integers(1, 70),
)
def test_entries_cover_every_batch_size_once_with_its_best_length(
    seconds: list[float], accepted: list[float], max_batch: int
) -> None:
    priced = gains(tuple(seconds), tuple(sorted(accepted, reverse=True)))
    entries = schedule(priced, max_batch)
    covered = [batch for first, last, _ in entries for batch in range(first, last + 1)]
    assert covered == list(range(1, max_batch + 1))
    for first, last, length in entries:
        for batch in (first, last):
            rates = [priced.tokens_per_s(batch, k) for k in range(len(accepted) + 1)]
            assert rates[length] == max(rates)
    assert all(a[2] != b[2] for a, b in pairwise(entries))


def test_the_document_is_what_vllm_takes() -> None:
    config = vllm_config(((1, 4, 3), (5, 8, 0)), "eagle3", "path/to/head")
    assert config == {
        "method": "eagle3",
        "model": "path/to/head",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 0]],
    }
    never = vllm_config(((1, 8, 0),), "eagle", None)
    assert (never["num_speculative_tokens"], "model" in never) == (1, False)


def test_no_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_batch=0"):
        schedule(gains((0.02, 0.03, 0.04)), 0)
