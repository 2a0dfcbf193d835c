"""Rounds of the real engine, their stages drawn further apart than a `RoundRecord` does."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from foredraft.bench.profile.stopwatch import PASS, Stopwatch, pass_index
from foredraft.bench.profile.timed_models import (
    COMMIT,
    FEATURES,
    TimedDraftModel,
    TimedFeatureTarget,
    TimedShowingModel,
    TimedTarget,
    timed_head,
)
from foredraft.bench.profile.timed_policy import OBSERVE, POLICY, timed_policy
from foredraft.config import GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.engine.decoder import decode
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import Report
from foredraft.protocols import Drafter, FeatureTarget, ShowingTarget, Target
from foredraft.results import RoundRecord

GROWTH, TARGET, VERIFY = "tree growth and candidates", "target pass", "verification"
REST = "caches, stops, text"
"""What is left of a round: the drafter's commit, stop rules, text, counting."""
ORDER = (POLICY, FEATURES, GROWTH, TARGET, VERIFY, COMMIT, OBSERVE, REST)
"""Stages of a round behind its draft passes."""


@dataclass(frozen=True, slots=True)
class TimedRound:
    """One round; its stages sum to `record.total_s`."""

    record: RoundRecord
    stages: Mapping[str, float]

    @classmethod
    def of(cls, record: RoundRecord, charged: Mapping[str, float]) -> TimedRound:
        """Of what the engine's clock and the stopwatch say of the same round."""
        passes = {name: s for name, s in charged.items() if name.startswith(PASS)}
        inside = {**passes, **{n: charged[n] for n in (POLICY, FEATURES) if n in charged}}
        after = {name: charged[name] for name in (COMMIT, OBSERVE) if name in charged}
        seen_s = record.draft_s + record.target_s + record.verify_s + sum(after.values())
        stages = {
            **inside,
            GROWTH: record.draft_s - sum(inside.values()),
            TARGET: record.target_s,
            VERIFY: record.verify_s,
            **after,
            REST: record.total_s - seen_s,
        }
        return cls(record, stages)


def timed_engine(engine: Engine, watch: Stopwatch) -> Engine:
    """The same engine, whose parts charge their work to a stopwatch: same tokens, verdicts and passes."""
    features = isinstance(engine.target, FeatureTarget)
    target = (TimedFeatureTarget if features else TimedTarget)(engine.target, watch)
    drafter = None if engine.drafter is None else _timed_drafter(engine.drafter, watch)
    policy = None if engine.policy is None else timed_policy(engine.policy, watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `engine` gave the same ones when it was built
        return Engine(target, drafter, policy, engine.verifier, engine.tokenizer)


def _timed_drafter(drafter: Drafter, watch: Stopwatch) -> Drafter:
    """A drafter of the same parts whose model's passes are charged; one without a model as it is."""
    if isinstance(drafter, HybridDrafter):
        return cast(Drafter, HybridDrafter(_timed_drafter(drafter.model, watch), drafter.copies))
    if isinstance(drafter, EagleDrafter):
        head = timed_head(drafter.head, watch)
        timed = EagleDrafter(head, drafter.proposal, window=drafter.window, recall=drafter.recall)
        return cast(Drafter, timed)
    if isinstance(drafter, DraftModelDrafter):
        return DraftModelDrafter(
            _timed_model(drafter.model, watch), drafter.proposal, drafter.target_ids, drafter.recall
        )
    return drafter


def _timed_model(model: Target, watch: Stopwatch) -> Target:
    return (TimedShowingModel if isinstance(model, ShowingTarget) else TimedDraftModel)(
        model, watch
    )


def rounds_in_turn(
    engines: Mapping[str, tuple[Engine, GenerationOptions]],
    prompt_ids: Sequence[int],
    repeats: int,
    report: Report = lambda message: None,
) -> dict[str, tuple[TimedRound, ...]]:
    """Rounds of several answers to one prompt, one round of each in turn.

    The first round of each, which warms up, is left out, and so are those that an end cut short.

    Args:
        engines: by name, each with its request.
        prompt_ids: what all of them answer.
        repeats: rounds of each at most; an answer that ends early has fewer.
        report: called with what is decoded.
    """
    found: dict[str, list[TimedRound]] = {name: [] for name in engines}
    with ExitStack() as stack:
        answers = {
            name: stack.enter_context(closing(_answer(engine, prompt_ids, options)))
            for name, (engine, options) in engines.items()
        }
        for turn in range(repeats + 1):
            report(f"rounds in turn: {turn} of {repeats}")
            for name, rounds in answers.items():
                timed = next(rounds, None)
                if turn and timed is not None and not timed.record.cut:
                    found[name].append(timed)
    return {name: tuple(rounds) for name, rounds in found.items()}


def _answer(
    engine: Engine, prompt_ids: Sequence[int], options: GenerationOptions
) -> Generator[TimedRound]:
    """One answer, round by round. The stopwatch of the first holds the prefill as well."""
    watch = Stopwatch(engine.target.synchronize)
    timed = timed_engine(engine, watch)
    session = timed.session(prompt_ids, options, timed.randomness(options.seed))
    for _ in decode(session, timed.verifier):
        yield TimedRound.of(session.rounds[-1], watch.take())


def summary(rounds: Sequence[TimedRound]) -> dict[str, Any] | None:
    """Stages of a round, ready for JSON; None without a round.

    Returns:
        `stages` in the order of a round, each with `median_ms` over the `rounds` that have it, `share` of the
        time of all rounds and, for passes, the median of their `rows`; `round_ms`, the median; `rounds`;
        `tokens_per_round` and `nodes` of a target pass (means); the shares of drafting, of draft passes, of
        verification, and of the host: all that is no pass.
    """
    if not rounds:
        return None
    total_s = sum(r.record.total_s for r in rounds)
    stages = [_stage(name, rounds, total_s) for name in _names(rounds)]
    share = {stage["name"]: stage["share"] for stage in stages}
    passes = sum(s for name, s in share.items() if name.startswith(PASS))
    return {
        "rounds": len(rounds),
        "round_ms": _median_ms([r.record.total_s for r in rounds]),
        "tokens_per_round": float(np.mean([r.record.num_emitted for r in rounds])),
        "nodes": float(np.mean([sum(r.record.widths) for r in rounds])),
        "stages": stages,
        "draft_share": sum(r.record.draft_s for r in rounds) / total_s,
        "draft_pass_share": passes,
        "verify_share": share[VERIFY],
        "host_share": 1 - passes - share[TARGET],
    }


def _names(rounds: Sequence[TimedRound]) -> list[str]:
    """The stages that any round has, in the order of a round."""
    had = {name for r in rounds for name in r.stages}
    passes = [name for name in had if name.startswith(PASS)]
    return [*sorted(passes, key=pass_index), *(name for name in ORDER if name in had)]


def _stage(name: str, rounds: Sequence[TimedRound], total_s: float) -> dict[str, Any]:
    had = [r for r in rounds if name in r.stages]
    seconds = [r.stages[name] for r in had]
    return {
        "name": name,
        "median_ms": _median_ms(seconds),
        "share": sum(seconds) / total_s,
        "rounds": len(had),
        "rows": _median_rows(name, had),
    }


def _median_rows(name: str, rounds: Sequence[TimedRound]) -> float | None:
    """Rows of a draft pass; None for other stages."""
    if not name.startswith(PASS):
        return None
    level = pass_index(name)
    made = [r.record.draft_rows for r in rounds]
    counts = [rows[level] for rows in made if level < len(rows)]
    return float(np.median(counts)) if counts else None


def _median_ms(seconds: Sequence[float]) -> float:
    return 1000 * float(np.median(seconds))
