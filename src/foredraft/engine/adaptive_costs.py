"""What the adaptive policy pays with: prices of this machine, measured at first use and kept.

The table is kept by the weights of the target and of what drafts, and by what changes costs (device, dtype,
threads, versions; see `cost_files`). Measuring takes a few seconds, once; what was measured on a busy machine
is used and not kept.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from foredraft.backends.identity import costs_digest
from foredraft.costs import BUSY_SPREAD, CostTable, DraftCosts
from foredraft.engine.calibration import calibrate, draft_model
from foredraft.engine.cost_files import arithmetic_of, load_costs, save_costs
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import Report, random_tokens
from foredraft.errors import ConfigError
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.prices import Prices
from foredraft.protocols import Target
from foredraft.tree import NO_PARENT

BUDGET_S = 4.0
"""Seconds that measuring at first use may take, as far as the model is fast enough for it."""
GRIDS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]], ...] = (
    ((1, 4, 8, 16, 32, 64), (64, 512), (3, 6)),
    ((1, 8, 16, 32), (64,), (2, 4)),
    ((1, 16), (64,), (1, 2)),
)
"""Rows, contexts and repeats to measure: the first that the budget has time for, else the last."""
COPIES = "copies"
"""The entry of drafts that cost no pass."""


def with_prices(
    engine: Engine, *, report: Report = lambda message: None, keep: bool = True
) -> Engine:
    """The engine with an adaptive policy that knows what passes cost here; others stay as they are.

    Args:
        engine: just built.
        report: called with what is measured.
        keep: read and write the table in the user's cache.
    """
    policy = engine.policy
    if not isinstance(policy, AdaptivePolicy):
        return engine
    key = drafter_key(engine)
    table = _kept(engine, key) if keep else None
    if table is None:
        report("measuring what passes cost on this machine (once)")
        table = _measure(engine, key)
        if keep and table.provenance["spread"] <= BUSY_SPREAD:  # else the next start measures again
            keep_costs(table, engine)
    priced = policy.priced(Prices.of(table, key))
    return Engine(engine.target, engine.drafter, priced, engine.verifier, engine.tokenizer)


def drafter_key(engine: Engine) -> str:
    """The entry of an engine's drafts in a kept table: by the weights of what drafts."""
    model = draft_model(engine)
    if model is None:
        return COPIES
    weights = getattr(model, "head", None) or getattr(model, "model", None)
    return costs_digest(weights) if isinstance(weights, nn.Module) else "draft model"


def keep_costs(table: CostTable, engine: Engine) -> None:
    """Keep a table for later engines of this target; what a table before it knew of other drafts stays.

    A cache that cannot be written costs the next start a few seconds, and no more.

    Args:
        table: with an entry for the drafts of `engine` alone, if for any.
        engine: with an adaptive policy or any other.
    """
    name = _name(engine.target)
    if name is None:
        return
    at = (name, arithmetic_of(engine.target), engine.target.device)
    before = load_costs(*at)
    own = {drafter_key(engine): costs for costs in table.drafts.values()}
    drafts: Mapping[str, DraftCosts] = {**(before.drafts if before else {}), **own}
    try:
        save_costs(dataclasses.replace(table, drafts=drafts), *at)
    except ConfigError:
        return


def _kept(engine: Engine, key: str) -> CostTable | None:
    name = _name(engine.target)
    table = name and load_costs(name, arithmetic_of(engine.target), engine.target.device)
    return table if table and key in table.drafts else None


def _name(target: Target) -> str | None:
    """What a target's table is kept by; None for one whose weights are not known."""
    model: Any = getattr(target, "model", None)
    return costs_digest(model) if isinstance(model, nn.Module) else None


def _measure(engine: Engine, key: str) -> CostTable:
    pass_s = _one_pass_s(engine.target)
    for nodes, contexts, repeats in GRIDS:
        wanted_s = pass_s * len(contexts) * len(nodes) * (1 + repeats[0]) * 2
        if wanted_s <= BUDGET_S:
            break
    return calibrate(
        engine.target,
        {key: engine},
        nodes=nodes,
        contexts=contexts,
        budget_s=BUDGET_S,
        repeats=repeats,
    )


def _one_pass_s(target: Target) -> float:
    """Seconds of a pass of one row, the second of two: the first is a warm-up."""
    state = target.start(2)
    try:
        for token in random_tokens(target, 2):
            target.synchronize()
            began = time.perf_counter()
            state.score([token], [NO_PARENT])
            target.synchronize()
            seconds = time.perf_counter() - began
            state.commit(())
    finally:
        state.close()
    return seconds
