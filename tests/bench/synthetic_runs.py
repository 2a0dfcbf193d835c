"""Runs made of numbers: what a benchmark would have kept, with noise whose law is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foredraft.bench.folder import Run
from foredraft.bench.records import Answer, AnswerRecord, PromptRecord, digest, record_of
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.results import STAGES, RoundRecord, Statistics

PASS_S = 0.02
TOKENS = 60
STALL_FACTOR, STALL_SHARE = 3.0, 0.02
DRIFT = 0.02
"""Standard deviation of a step of the machine's speed from one prompt to the next, in logs."""


@dataclass(frozen=True)
class Noise:
    """Log-normal noise of every answer, its deviation drawn between `low` and `high`; drift; stalls."""

    low: float = 0.05
    high: float = 0.10
    drift: float = DRIFT
    stalls: float = STALL_SHARE


SILENCE = Noise(0.0, 0.0, 0.0, 0.0)


def round_of(
    accepted: int = 0,
    *,
    widths: Sequence[int] = (1,),
    draft_rows: Sequence[int] = (),
    emitted: int | None = None,
    seconds: float = PASS_S,
    context: int = 100,
) -> RoundRecord:
    """A round; of its time 20 % is drafting, if it drafted, and 10 % each are verification and the rest."""
    num_emitted = accepted + 1 if emitted is None else emitted
    draft_s = 0.2 * seconds if len(widths) > 1 else 0.0
    return RoundRecord(
        context=context,
        widths=tuple(widths),
        draft_rows=tuple(draft_rows),
        num_accepted=accepted,
        num_emitted=num_emitted,
        cut=num_emitted < accepted + 1,
        draft_s=draft_s,
        target_s=0.8 * seconds - draft_s,
        verify_s=0.1 * seconds,
        total_s=seconds,
    )


def statistics(*rounds: RoundRecord, **changes: Any) -> Statistics:
    """What a request of these rounds reports."""
    values: dict[str, Any] = {
        "prompt_tokens": 20,
        "in_loop": (False,) * len(rounds),
        "loop_tokens": 0,
        "prefill_s": 0.1,
        "ttft_s": 0.2,
    }
    return Statistics(rounds=rounds, **values | changes)


def answer_of(
    method: str,
    *rounds: RoundRecord,
    turn: int = 0,
    identical: str = "yes",
    repeats_s: Sequence[float] = (),
    prompt: int = 0,
    first_tokens: int = 0,
    **changes: Any,
) -> AnswerRecord:
    """The record of one answer; its tokens are 0, 1, 2, .., of which prefill gave `first_tokens`.

    The prompt is one token, `prompt`, whatever its length is said to be.
    """
    stats = statistics(*rounds, **changes)
    count = stats.completion_tokens + first_tokens
    seconds = tuple(repeats_s) or (stats.decode_s,)
    return AnswerRecord(
        method, turn, digest((prompt,)), identical, digest(range(count)), count, seconds, stats
    )


def prompt_of(
    *answers: AnswerRecord, suite: str = "chat", id: str = "0", category: str = "chat"
) -> PromptRecord:
    """A finished prompt."""
    return PromptRecord(suite, id, category, answers)


def run_of(*records: PromptRecord, costs: CostTable | None = None, **plan: Any) -> Run:
    """A run of these records, methods and suites in the order in which they appear."""
    methods = dict.fromkeys(answer.method for record in records for answer in record.answers)
    settings: dict[str, Any] = {
        "methods": list(methods),
        "suites": list(dict.fromkeys(record.suite for record in records)),
        "model": "toy",
        "drafter": None,
        "dtype": None,
        "max_new_tokens": TOKENS,
        "temperature": 0.0,
        "repeats": 1,
        "limit": None,
        "comparable": dict.fromkeys(methods),
        "notes": [],
        "resumed": [],
        "provenance": {
            "command": "foredraft bench run --suite chat --out run",
            "date": "2026-01-02T03:04:05+00:00",
            "revision": "0123456789ab",
            "cpu": "a processor",
            "threads": 2,
            "device": "cpu",
            "dtype": "float32",
            "packages": {"torch": "2.13.0"},
        },
    }
    return Run(settings | plan, records, costs, "run")


def noisy_run(
    seed: int,
    slowness: Mapping[str, float],
    *,
    prompts: int = 40,
    suites: Sequence[str] = ("chat",),
    noise: Noise | None = None,
    repeats: int = 1,
) -> Run:
    """Plain decoding and methods of a single round an answer, with noise.

    Args:
        seed: of all noise of this run.
        slowness: by method, seconds a token in units of plain decoding's. Methods are named in order.
        prompts: dealt to the suites in turn.
        noise: None is the noise of a shared machine.
        repeats: answers of each method to each prompt.
    """
    noise = noise or Noise()
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(0, noise.drift, prompts))
    shape = (prompts, len(slowness), repeats)
    logs = rng.normal(0, 1, shape) * rng.uniform(noise.low, noise.high, shape)
    stalled = np.where(rng.random(shape) < noise.stalls, STALL_FACTOR, 1.0)
    factors = np.exp(drift[:, None, None] + logs) * stalled
    return run_of(
        *(
            prompt_of(
                *(
                    _repeated(method, slow * factors[i, j])
                    for j, (method, slow) in enumerate(slowness.items())
                ),
                suite=suites[i % len(suites)],
                id=str(i),
            )
            for i in range(prompts)
        )
    )


def _repeated(method: str, factors: Any) -> AnswerRecord:
    """All answers are alike but for their times; their token ids matter to nothing here."""
    rounds = (
        round_of(emitted=TOKENS, seconds=TOKENS * PASS_S * factor) for factor in factors.tolist()
    )
    return record_of(method, 0, (1,), "yes", [Answer((), statistics(r)) for r in rounds])


# --- a whole benchmark, as one may look --------------------------------------------------------------

CONTENDERS: dict[str, tuple[tuple[int, ...], float, float]] = {
    "autoregressive": ((1,), 0.0, 1.0),
    "ngram": ((1, 1, 1, 1, 1, 1), 0.45, 1.1),
    "eagle": ((1, 4, 4, 2, 2), 0.62, 1.5),
    "eagle2:depth=5:nodes=24": ((1, 4, 8, 8, 2, 2), 0.70, 1.9),
    "mcsd": ((1, 4, 4), 0.66, 1.7),
    "speculative": ((1, 1, 1, 1), 0.55, 2.3),
    "adaeagle": ((1, 4, 4, 2, 2), 0.68, 1.45),
    "hf": ((1,), 0.0, 1.05),
    "hf-lookup": ((1, 1, 1, 1, 1, 1), 0.42, 1.3),
    "llama.cpp": ((1,), 0.0, 0.4),
}
"""Widths of the draft, acceptance of a level, and seconds of a round in passes of one row."""

SEEN: dict[str, tuple[str, ...]] = {"hf": ("target",), "hf-lookup": ("target",), "llama.cpp": ()}
"""The stages that peers let be seen."""

SUITES = {
    "chat": -0.1,
    "code": 0.05,
    "maths": 0.1,
    "qa": 0.0,
    "summaries": 0.15,
    "translation": -0.2,
}
"""What a suite adds to the acceptance of a level."""


def whole_run(
    methods: Sequence[str] = tuple(CONTENDERS),
    suites: Sequence[str] = tuple(SUITES),
    *,
    prompts: int = 8,
    seed: int = 0,
) -> Run:
    """A run of many methods, two turns a prompt in the first suite, ties and a bug among the answers."""
    rng = np.random.default_rng(seed)
    records = [
        prompt_of(
            *(
                _contender(method, SUITES[suite], turn, rng)
                for turn in range(2 if suite == suites[0] else 1)
                for method in methods
            ),
            suite=suite,
            id=str(i),
            category=("short", "long")[i % 2] if suite == suites[0] else suite,
        )
        for suite in suites
        for i in range(prompts)
    ]
    return run_of(
        *records,
        costs=costs_of(methods),
        notes=["economize is not installed"],
        comparable={"llama.cpp": "it computes with weights of its own"},
        repeats=2,
    )


def costs_of(methods: Sequence[str]) -> CostTable:
    """Passes that cost the same to 8 rows and rise beyond; draft passes are a tenth."""
    target = PassCosts((1, 8, 32), (0, 500), ((0.020, 0.022, 0.045), (0.022, 0.025, 0.050)))
    level = PassCosts((1, 8), (0,), ((0.002, 0.003),))
    drafts = {
        name: DraftCosts(0.0005, level if name not in ("ngram", "autoregressive") else None)
        for name in methods
        if not name.startswith(("hf", "llama"))
    }
    return CostTable(target, 0.001, drafts)


def _contender(method: str, easier: float, turn: int, rng: np.random.Generator) -> AnswerRecord:
    widths, acceptance, cost = CONTENDERS[method]
    slow = float(np.exp(rng.normal(0, 0.05)))
    rounds: list[RoundRecord] = []
    while sum(r.num_emitted for r in rounds) < TOKENS:
        kept = rng.random(len(widths) - 1) < acceptance + easier
        accepted = int(np.cumprod(kept).sum())
        room = TOKENS - sum(r.num_emitted for r in rounds)
        passes = widths[:-1] if len(widths) > 1 and "ngram" not in method else ()
        rounds.append(
            round_of(
                accepted,
                widths=widths,
                draft_rows=() if "lookup" in method else passes,
                emitted=min(accepted + 1, room),
                seconds=PASS_S * cost * slow,
            )
        )
    seconds = sum(r.total_s for r in rounds)
    identical = "n/a" if method == "llama.cpp" else "yes"
    if method == "mcsd" and rng.random() < 0.1:
        identical = "tie at token 17"
    return answer_of(
        method,
        *rounds,
        turn=turn,
        identical=identical,
        repeats_s=(seconds, seconds * 1.03),
        stages=SEEN.get(method, STAGES),
    )
