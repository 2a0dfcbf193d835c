"""What runs of a paper's methods share: how far they are, and cost tables of many methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foredraft.config import GenerationOptions
from foredraft.costs import BUDGET_S, NODES, CostTable
from foredraft.engine.calibration import DECODE_SHARE, calibrate
from foredraft.engine.engine import Engine
from foredraft.protocols import Target

WIDE_NODES = (*NODES, 45, 82, 128, 192)
"""The papers' shapes are wider than those that pay on a CPU: passes of 45 and of 82 rows are measured."""
METHOD_S, MOST_S = 1.0, 60.0
"""Seconds for the host's work of each method, and at most for the whole table."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a part of a measurement is."""

    part: str
    done: int
    total: int


def measure_wide(
    target: Target, engines: Mapping[str, Engine], options: GenerationOptions
) -> CostTable:
    """`measure_many`, of passes as wide as the trees of multi-candidate papers too."""
    return measure_many(target, engines, options, nodes=WIDE_NODES)


def measure_many(
    target: Target,
    engines: Mapping[str, Engine],
    options: GenerationOptions,
    nodes: Sequence[int] = NODES,
) -> CostTable:
    """The cost table of a line-up: passes have their usual time, and host work what many methods need."""
    budget_s, decode_share = wide_budget(len(engines))
    return calibrate(
        target, engines, options, nodes=nodes, budget_s=budget_s, decode_share=decode_share
    )


def wide_budget(methods: int) -> tuple[float, float]:
    """Seconds for a table of so many methods, and the share of them for their host work."""
    passes_s = BUDGET_S * (1 - DECODE_SHARE)
    budget_s = min(max(BUDGET_S, passes_s + METHOD_S * (methods + 1)), MOST_S)
    return budget_s, 1 - passes_s / budget_s
