"""A run's cost table with the host's work as the run's own rounds show it.

Calibration times the host in a few rounds of each method, which a busy machine spoils, and in which drafts
are not as deep as in real answers. A run has hundreds of rounds of each, all in turn; their lower quartile is
steadier.
"""

from __future__ import annotations

import dataclasses

from foredraft.bench.folder import Run
from foredraft.bench.plan import PLAIN
from foredraft.costs import CostTable, DraftCosts
from foredraft.engine.host_costs import beyond_plain_s, draft_host_s, host_s
from foredraft.results import RoundRecord


def with_own_host(run: Run) -> Run:
    """The run with a cost table whose `host_s` are of its own rounds.

    As it is where it has no table, or where plain decoding, which they are held against, did not run.
    Methods whose stages are not seen keep what calibration found.
    """
    plain = _rounds(run, PLAIN)
    if run.costs is None or not plain:
        return run
    drafts = {
        name: _own(costs, _rounds(run, name), plain) for name, costs in run.costs.drafts.items()
    }
    table = CostTable(run.costs.target, host_s(plain), drafts, run.costs.provenance)
    return dataclasses.replace(run, costs=table)


def _own(costs: DraftCosts, rounds: list[RoundRecord], plain: list[RoundRecord]) -> DraftCosts:
    if not rounds:
        return costs
    own_s = draft_host_s(rounds, costs.passes) + beyond_plain_s(rounds, plain)
    return DraftCosts(own_s, costs.passes)


def _rounds(run: Run, method: str) -> list[RoundRecord]:
    """The rounds of one method, of all its answers whose stages are seen."""
    return [
        r
        for record in run.records
        for answer in record.of(method)
        if "verify" in answer.stats.stages
        for r in answer.stats.rounds
    ]
