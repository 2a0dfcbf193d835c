"""Can the benchmark itself be believed? Its own cost, and whether it tells a difference from noise.

    python benchmarks/harness/run.py --out benchmarks/harness/results.json

- *Overhead:* every method answers the same prompts in turn through the benchmark's contender and by a
  bare call (`engine.generate`, or transformers' own `generate`); the ratio of the two wall times, paired.
- *Two runs of the same*, and a third whose n-gram method is slowed down by a tenth (its target waits
  after each pass), compared as `foredraft bench compare` does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from common import write_results

import foredraft
from foredraft.bench.compare import compare_runs
from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.field import enter_field
from foredraft.bench.folder import RunFolder
from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.bench.runner import BenchRun
from foredraft.bench.speedups import bootstrap
from foredraft.engine.load import load_models

METHOD = "ngram"
SLOWDOWN = 0.10
NUM_PROMPTS = 40


class SlowTarget:
    """A target that waits after each pass for a share of that pass's time."""

    def __init__(self, target: Any, share: float) -> None:
        self._target, self._share = target, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def start(self, capacity: int) -> Any:
        return SlowState(self._target.start(capacity), self._share)


class SlowState:
    """Its memory of one sequence."""

    def __init__(self, state: Any, share: float) -> None:
        self._state, self._share = state, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Any:
        begin = time.perf_counter()
        logits = self._state.score(token_ids, parents)
        until = time.perf_counter() + self._share * (time.perf_counter() - begin)
        while time.perf_counter() < until:
            pass
        return logits


def overhead(methods: Sequence[str], num_prompts: int, max_new_tokens: int) -> list[dict[str, Any]]:
    """Wall time through a contender over that of a bare call, for each method."""
    plan = BenchPlan(methods=tuple(methods), limit=num_prompts, max_new_tokens=max_new_tokens)
    models = load_models(plan.model, report=print)
    field = enter_field(plan, models, print, print)
    plain = foredraft.Engine(models.target, tokenizer=models.tokenizer)
    options = plan.options
    prompts = [
        list(plain.generate(q.prompt(()), max_new_tokens=1).prompt_ids)
        for q in plan.questions[0].questions
    ]
    rows = []
    for contender in field:
        bare = _bare_call(contender, models.target.model, options)
        contender.answer(prompts[0], options)
        ratios = []
        for i, prompt in enumerate(prompts):
            through, alone = partial(contender.answer, prompt, options), partial(bare, prompt)
            ratios.append(_ratio(through, alone, through_first=bool(i % 2)))
        found = bootstrap((np.array(ratios),), np.median)
        rows.append(
            {"method": contender.name, "ratio": found.value, "low": found.low, "high": found.high}
        )
        print(rows[-1], flush=True)
        contender.close()
    return rows


def _bare_call(contender: Contender, model: Any, options: Any) -> Callable[[list[int]], Any]:
    if isinstance(contender, EngineContender):
        return lambda prompt: contender.engine.generate(prompt, options)
    extra = {"prompt_lookup_num_tokens": 10} if contender.name == "hf-lookup" else {}

    def generate(prompt: list[int]) -> Any:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        return model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=options.max_new_tokens,
            **extra,
        )

    return generate


def _ratio(one: Callable[[], Any], other: Callable[[], Any], through_first: bool) -> float:
    """Wall time of `one` over that of `other`; they take turns in coming first."""
    if through_first:
        return _timed(one) / _timed(other)
    later = _timed(other)
    return _timed(one) / later


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def run(folder: Path, max_new_tokens: int, slowdown: float = 0.0) -> None:
    """One run of plain decoding and n-grams; `slowdown` of the passes of the latter is planted."""
    plan = BenchPlan(methods=(PLAIN, METHOD), limit=NUM_PROMPTS, max_new_tokens=max_new_tokens)

    def enter(plan: BenchPlan, models: Any, note: Any, report: Any) -> list[Contender]:
        field = enter_field(plan, models, note, report)
        if slowdown:
            engine = field[1].engine  # type: ignore[attr-defined]
            slow = foredraft.Engine(
                SlowTarget(engine.target, slowdown),
                engine.drafter,
                engine.policy,
                tokenizer=engine.tokenizer,
            )
            field[1] = EngineContender(METHOD, slow)
        return field

    for step in BenchRun(plan, RunFolder(folder), print, enter, lambda *_: _no_costs()):
        print(f"{folder.name}: {step.done}/{step.total}", flush=True)


def _no_costs() -> Any:
    from foredraft.costs import CostTable

    return CostTable.flat(1.0, 0.1)


def verdicts(folder: Path, other: str) -> list[dict[str, Any]]:
    """What `foredraft bench compare` says of the first run and another one."""
    comparison = compare_runs(RunFolder(folder / "first").read(), RunFolder(folder / other).read())
    print(other, [(c.suite, c.method, c.verdict) for c in comparison.changes], flush=True)
    return comparison.as_dict()["changes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=18, help="for the overhead")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = overhead((PLAIN, METHOD, "hf", "hf-lookup"), args.prompts, args.max_new_tokens)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(folder / "first", args.max_new_tokens)
        run(folder / "again", args.max_new_tokens)
        run(folder / "slow", args.max_new_tokens, SLOWDOWN)
        compared = {name: verdicts(folder, name) for name in ("again", "slow")}
    write_results(args.out, rows, compared=compared, planted=SLOWDOWN)


if __name__ == "__main__":
    main()
