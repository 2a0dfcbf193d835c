"""What passes and rounds cost on this machine: measures a `CostTable` in seconds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from foredraft.config import GenerationOptions
from foredraft.costs import BUDGET_S, CONTEXTS, NODES, CostTable, DraftCosts, check_budget
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.passes import HeadPasses
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.engine.engine import Engine
from foredraft.engine.host_costs import (
    GREEDY,
    beyond_plain_s,
    draft_host_s,
    drafted_rounds,
    host_s,
    plain_rounds,
)
from foredraft.engine.pass_costs import (
    MAX_REPEATS,
    MIN_REPEATS,
    QUANTILE,
    PassTimes,
    Report,
    time_passes,
)
from foredraft.errors import ConfigError
from foredraft.protocols import Target

DECODE_SHARE = 0.2
"""Of the budget; the rest is for passes."""


def calibrate(
    target: Target,
    engines: Mapping[str, Engine],
    options: GenerationOptions = GREEDY,
    *,
    nodes: Sequence[int] = NODES,
    contexts: Sequence[int] = CONTEXTS,
    budget_s: float = BUDGET_S,
    decode_share: float = DECODE_SHARE,
    repeats: tuple[int, int] = (MIN_REPEATS, MAX_REPEATS),
    report: Report = lambda message: None,
) -> CostTable:
    """The cost table of a target and of the methods that draft for it.

    Args:
        target: measured once, as is every distinct draft model and head.
        engines: methods by name; each has this target. One without a drafter has no entry in the table.
        options: the request whose host work is timed: softmax, filters, draws and rejections are those of
            its temperature, `top_p` and `top_k`.
        nodes, contexts: as in `measure_passes`.
        budget_s: seconds for all of it together.
        decode_share: of the budget, for timing the host's work in short answers.
        repeats: of every pass at least and at most.
        report: called with what is measured next.

    Raises:
        ConfigError: an engine with another target, or as in `measure_passes`.
    """
    check_budget(budget_s)
    _check_targets(target, engines)
    drafting = {name: engine for name, engine in engines.items() if engine.drafter is not None}
    models = [target, *filter(None, map(draft_model, drafting.values()))]
    distinct = {_identity(model): model for model in models}
    share_s = budget_s * (1 - decode_share) / len(distinct)
    times = {
        key: time_passes(model, nodes, contexts, share_s, repeats=repeats, report=report)
        for key, model in distinct.items()
    }
    passes = {key: measured.costs() for key, measured in times.items()}
    share_s = budget_s * decode_share / (len(drafting) + 1)
    report("timing rounds of plain decoding")
    plain = plain_rounds(next(iter(engines.values()), Engine(target)), share_s, options)
    drafts = {}
    for name, engine in drafting.items():
        report(f"timing drafts of {name}")
        own_passes = passes.get(_identity(draft_model(engine)))
        rounds = drafted_rounds(engine, share_s, options)
        own_s = draft_host_s(rounds, own_passes) + beyond_plain_s(rounds, plain)
        drafts[name] = DraftCosts(own_s, own_passes)
    provenance = _provenance(times[_identity(target)], options)
    return CostTable(passes[_identity(target)], host_s(plain), drafts, provenance)


def draft_model(engine: Engine) -> Target | None:
    """The model whose passes are the engine's draft levels: its drafter's `model`, or its head."""
    drafter = engine.drafter
    if isinstance(drafter, HybridDrafter):
        drafter = drafter.model
    if isinstance(drafter, EagleDrafter):
        return HeadPasses(drafter.head, drafter.window)
    model = getattr(drafter, "model", None)
    return model if isinstance(model, Target) else None


def _identity(model: Target | None) -> Hashable:
    """The same for models whose passes are the same."""
    return model if isinstance(model, HeadPasses) else id(model)


def _provenance(times: PassTimes, options: GenerationOptions) -> dict[str, Any]:
    return {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "repeats": len(times.seconds),
        "spread": times.spread(),
        "quantile": QUANTILE,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _check_targets(target: Target, engines: Mapping[str, Engine]) -> None:
    for name, engine in engines.items():
        if engine.target is not target:
            raise ConfigError(f"engine {name!r} has another target; calibrate it on its own")
