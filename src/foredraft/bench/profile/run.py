"""Measures all parts of a profile, one after another, in one process with one engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn

from foredraft.backends.hf import HFTarget
from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.peers.common import Shared
from foredraft.bench.peers.hf import HFContender
from foredraft.bench.profile import floor
from foredraft.bench.profile.headlines import headlines
from foredraft.bench.profile.memory import memory_use
from foredraft.bench.profile.operator_times import grouped, profile_operators
from foredraft.bench.profile.plan import ProfilePlan
from foredraft.bench.profile.prompts import prompt_of
from foredraft.bench.profile.rounds import rounds_in_turn, summary
from foredraft.bench.profile.samples import Times, ratio, rows_of
from foredraft.bench.profile.turns import (
    Contestant,
    HFPass,
    draft_name,
    own_name,
    own_passes,
    take_turns,
)
from foredraft.bench.provenance import provenance
from foredraft.config import GenerationOptions
from foredraft.engine.calibration import draft_model
from foredraft.engine.cost_files import dtype_of
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import Report
from foredraft.errors import ModelError
from foredraft.protocols import Target

HF, PLAIN, GREEDY, SAMPLED = "hf", "plain", "greedy", "sampled"
DRAFT_ROWS = (1, 8)
"""Of the draft passes that take turns with the target's."""
DECODED = 32
"""Tokens of an answer whose speed is held against transformers'."""
DECODE_REPEATS = 5
SAMPLING = {"temperature": 1.0, "top_p": 0.95, "seed": 0}


def run_profile(
    plan: ProfilePlan, engine: Engine, method: str, report: Report = lambda message: None
) -> dict[str, Any]:
    """The whole profile, ready for JSON; docs/profiling.md tells what each figure means.

    Args:
        plan: what is asked for.
        engine: loaded as the plan says.
        method: its name, as the user knows it.
        report: called with what is measured next.

    Raises:
        ConfigError: the context leaves the model no room.
        ModelError: the target is no `transformers` model.
    """
    target = engine.target
    if not isinstance(target, HFTarget):
        raise ModelError(
            f"{type(target).__name__} is no transformers model, which a profile is of; give an HFTarget"
        )
    plan.check_room(target)
    document = {
        "model": plan.model,
        "method": method,
        "context": plan.context,
        "repeats": plan.repeats,
        "loading": {name: value for name, value in plan.loading.items() if value is not None},
        **_passes(plan, engine, target, report),
        "decoding": _decoding(plan, engine, target, report),
        "rounds": _rounds(plan, engine, report),
        "memory": _memory(plan, report),
        "provenance": {**provenance(target.device), "dtype": dtype_of(target)},
    }
    return {"headlines": headlines(document), **document}


def _passes(plan: ProfilePlan, engine: Engine, target: HFTarget, report: Report) -> dict[str, Any]:
    """Passes in turn between two measurements of bandwidth, and the target's by groups of operators."""
    before = _bandwidth(target, report)
    drafts = draft_model(engine)
    with ExitStack() as stack:
        own = own_passes(target, plan.context, plan.rows, stack)
        behind = _draft_context(drafts, plan.context)
        draft = {} if drafts is None else own_passes(drafts, behind, DRAFT_ROWS, stack)
        contestants: dict[str, Contestant] = {
            **{own_name(rows): one for rows, one in own.items()},
            HF: HFPass(target, plan.context),
            **{draft_name(rows): one for rows, one in draft.items()},
        }
        times = take_turns(contestants, plan.repeats, report)
        operators = [_operators(target.model, rows, one, report) for rows, one in own.items()]
    bandwidth = max(before, _bandwidth(target, report), key=lambda one: one.bytes_per_s)
    bases = {HF: times[HF], "own_one": times[own_name(1)]}
    floors = _floors(plan, target, drafts, behind, bandwidth)
    drafted = {draft_name(rows) for rows in draft}
    rows = [
        row
        | _over(floors["draft_floor" if row["name"] in drafted else "floor"], times[row["name"]])
        for row in rows_of(times, bases)
    ]
    return {"bandwidth": bandwidth.as_dict(), **floors, "passes": rows, "operators": operators}


def _bandwidth(target: HFTarget, report: Report) -> floor.Bandwidth:
    report("measuring bandwidth")
    return floor.measure_bandwidth(target.device, target.model.dtype, target.synchronize)


def _floors(
    plan: ProfilePlan,
    target: HFTarget,
    drafts: Target | None,
    behind: int,
    bandwidth: floor.Bandwidth,
) -> dict[str, dict[str, Any] | None]:
    """Of a target pass, and of a draft pass behind so many tokens."""
    weights = floor.weight_bytes(target.model), floor.kv_bytes(target.layout, plan.context)
    read = None if drafts is None else floor.draft_bytes(drafts, behind)
    return {
        "floor": _floor(*weights, bandwidth),
        "draft_floor": None if read is None else _floor(*read, bandwidth),
    }


def _operators(model: nn.Module, rows: int, one: Contestant, report: Report) -> dict[str, Any]:
    report(f"operators of a pass of {rows}")
    operators, pass_s = profile_operators(model, one)
    return {"rows": rows, "pass_ms": 1000 * pass_s, **grouped(operators, pass_s)}


def _floor(weights: int, kv: int, bandwidth: floor.Bandwidth) -> dict[str, Any]:
    return {
        "weights_mb": weights / 1e6,
        "kv_mb": kv / 1e6,
        "ms": 1000 * (weights + kv) / bandwidth.bytes_per_s,
    }


def _over(least: Mapping[str, Any] | None, times: Times) -> dict[str, float | None]:
    """How many floors a pass takes; None where its floor is not known."""
    return {"vs_floor": None if least is None else 1000 * times.median_s / least["ms"]}


def _draft_context(drafts: Target | None, context: int) -> int:
    """What a draft model with a shorter context has room for."""
    limit = None if drafts is None else drafts.context_length
    return context if limit is None else max(min(context, limit - DRAFT_ROWS[-1]), 0)


def _decoding(
    plan: ProfilePlan, engine: Engine, target: HFTarget, report: Report
) -> dict[str, Any]:
    """Plain decoding and the method beside transformers' `generate`: one answer each in turn."""
    room = (target.context_length or plan.context + DECODED) - plan.context
    options = GenerationOptions(max_new_tokens=max(min(DECODED, room), 2), ignore_eos=True)
    prompt = prompt_of(engine, plan.context)
    shared = Shared(target, engine.tokenizer, None, plan.model)
    contenders: dict[str, Contender] = {
        PLAIN: EngineContender(PLAIN, engine.without_drafts()),
        HF: HFContender(HF, shared),
    }
    if engine.drafter is not None:
        contenders["method"] = EngineContender("method", engine)

    def token_s(contender: Contender) -> float:
        stats = contender.answer(prompt, options).stats
        return stats.decode_s / max(stats.completion_tokens, 1)

    per_token = take_turns(
        {name: (lambda one=one: token_s(one)) for name, one in contenders.items()},  # type: ignore[misc]
        min(plan.repeats, DECODE_REPEATS),
        lambda line: report(line.replace("passes", "answers")),
    )
    rows = [
        {"name": name, **times.as_dict(), **ratio(per_token[HF], times, "speedup_vs_hf")}
        for name, times in per_token.items()
    ]
    return {"tokens": options.max_new_tokens, "rows": rows}


def _rounds(plan: ProfilePlan, engine: Engine, report: Report) -> dict[str, Any]:
    """Rounds of plain decoding, and of the method, greedy and sampled."""
    greedy = GenerationOptions(max_new_tokens=plan.decode_tokens, ignore_eos=True)
    sampled = greedy.replace(**SAMPLING)
    requests = {
        PLAIN: (engine.without_drafts(), greedy),
        "plain sampled": (engine.without_drafts(), sampled),
    }
    if engine.drafter is not None or engine.policy is not None:
        requests |= {GREEDY: (engine, greedy), SAMPLED: (engine, sampled)}
    prompt = prompt_of(engine, plan.context)
    found = rounds_in_turn(requests, prompt, plan.repeats, report)
    return {"sampling": SAMPLING} | {
        name: summary(found.get(name, ())) for name in (PLAIN, "plain sampled", GREEDY, SAMPLED)
    }


def _memory(plan: ProfilePlan, report: Report) -> dict[str, Any] | None:
    if not plan.memory_context:
        return None
    report("memory of a fresh process")
    choices = {"model": plan.model, "method": plan.method, "drafter": plan.drafter, **plan.loading}
    return memory_use(choices, plan.memory_context)
