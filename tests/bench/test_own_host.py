"""The host's work from a run's own rounds, in place of what calibration found."""

from __future__ import annotations

import dataclasses

import pytest

from foredraft.bench.folder import Run
from foredraft.bench.own_host import with_own_host
from foredraft.bench.plan import PLAIN
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.results import RoundRecord
from tests.bench.synthetic_runs import answer_of, prompt_of, round_of, run_of

PASSES = PassCosts((1,), (0,), ((0.02,),))
LEVEL = PassCosts((1,), (0,), ((0.003,),))
TABLE = CostTable(PASSES, 0.5, {"mine": DraftCosts(0.9, LEVEL), "absent": DraftCosts(0.7, LEVEL)})
PLAIN_ROUND = dataclasses.replace(
    round_of(), draft_s=0.0, target_s=0.02, verify_s=0.001, total_s=0.022
)


def drafted(host_s: float) -> RoundRecord:
    """Two levels of 3 ms each; 1 ms more than plain decoding behind the target's pass."""
    return dataclasses.replace(
        round_of(widths=(1, 1, 1), draft_rows=(1, 1)),
        draft_s=0.006 + host_s,
        target_s=0.02,
        verify_s=0.002,
        total_s=0.029 + host_s,
    )


def run_with(*hosts: float) -> Run:
    answers = (
        answer_of(PLAIN, *[PLAIN_ROUND] * 4),
        answer_of("mine", *map(drafted, hosts)),
    )
    return dataclasses.replace(run_of(prompt_of(*answers)), costs=TABLE)


def test_the_host_is_what_rounds_took_beside_passes_and_beyond_plain_decoding() -> None:
    table = with_own_host(run_with(0.002, 0.002, 0.002, 0.002)).costs
    assert table is not None
    assert table.drafts["mine"].host_s == pytest.approx(0.002 + 0.001)
    assert table.host_s == pytest.approx(0.002)
    assert table.drafts["mine"].passes == LEVEL
    assert table.target == PASSES


def test_a_stall_does_not_show() -> None:
    table = with_own_host(run_with(0.002, 0.002, 0.002, 0.9)).costs
    assert table is not None
    assert table.drafts["mine"].host_s == pytest.approx(0.003)


def test_methods_without_rounds_keep_what_was_measured() -> None:
    table = with_own_host(run_with(0.002)).costs
    assert table is not None
    assert table.drafts["absent"] == TABLE.drafts["absent"]


def test_a_run_without_costs_is_left_as_it_is() -> None:
    run = dataclasses.replace(run_with(0.002), costs=None)
    assert with_own_host(run) is run
