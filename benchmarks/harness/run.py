"""Can the benchmark itself be believed? Its own cost, and whether it tells a difference from noise.

    python benchmarks/harness/run.py --out benchmarks/harness/results.json

- *Overhead:* while a benchmark runs, each of its prompts is also answered by a bare call right after:
  decode seconds as the benchmark keeps them over those of the bare call, paired by prompt. For peers the
  same by wall clock, through the adapter over a bare call of transformers' `generate`.
- *Seams:* what the hooks and the streamer through which transformers is watched take a pass, timed alone on
  a module that does nothing: the paired ratios above cannot show a hundredth of a per cent.
- *Two runs of the same*, and a third whose n-gram method is slowed down by a tenth of its passes,
  compared as `foredraft bench compare` does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import write_results

import foredraft
from foredraft.bench.compare import compare_runs
from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.field import enter_field
from foredraft.bench.folder import RunFolder
from foredraft.bench.peers.hf import EmissionLog
from foredraft.bench.peers.rounds import PassLog
from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.bench.runner import BenchRun
from foredraft.costs import CostTable
from foredraft.engine.load import load_models

METHOD = "ngram"
PEERS = ("hf", "hf-lookup")
SLOWDOWN = 0.10
NUM_PROMPTS, PEER_PROMPTS = 40, 13


class SlowState:
    """A target's memory of one sequence that waits after each pass for a share of that pass's time."""

    def __init__(self, state: Any, share: float) -> None:
        self._state, self._share = state, share
        self.prefill, self.commit, self.close = state.prefill, state.commit, state.close

    @property
    def length(self) -> int:
        return int(self._state.length)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Any:
        begin = time.perf_counter()
        logits = self._state.score(token_ids, parents)
        until = time.perf_counter() + self._share * (time.perf_counter() - begin)
        while time.perf_counter() < until:
            pass
        return logits


class SlowTarget:
    """A target whose passes take longer."""

    def __init__(self, target: Any, share: float) -> None:
        self._target, self._share = target, share
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.eos_token_ids, self.device = target.eos_token_ids, target.device
        self.scores_trees, self.synchronize = target.scores_trees, target.synchronize

    def start(self, capacity: int) -> Any:
        return SlowState(self._target.start(capacity), self._share)


def own_overhead(folder: Path, plan: BenchPlan) -> list[dict[str, Any]]:
    """Decode seconds in a running benchmark over those of a bare call, for plain decoding and n-grams."""
    field: list[Contender] = []

    def enter(*arguments: Any) -> list[Contender]:
        field.extend(enter_field(*arguments))
        return list(field)

    questions = {q.id: q for q in plan.questions[0].questions}
    ratios: dict[str, list[float]] = {name: [] for name in plan.methods}
    for step in BenchRun(plan, RunFolder(folder), print, enter, _no_costs):
        prompt = questions[step.record.id].prompt(())
        for contender in field:
            assert isinstance(contender, EngineContender)
            bare = contender.engine.generate(prompt, plan.options).stats.decode_s
            ratios[contender.name].append(step.record.of(contender.name)[0].stats.decode_s / bare)
    return [_row(name, found) for name, found in ratios.items()]


def peer_overhead(plan: BenchPlan) -> list[dict[str, Any]]:
    """Wall time through a peer's adapter over that of a bare call of `generate`, taking turns."""
    models = load_models(plan.model, report=print)
    rows = []
    for contender in enter_field(plan, models, print, print):
        if isinstance(contender, EngineContender):
            continue
        ratios = []
        for i, question in enumerate(plan.questions[0].questions):
            ids = models.tokenizer.apply_chat_template(  # type: ignore[union-attr]
                list(question.prompt(())), add_generation_prompt=True, return_dict=False
            )
            through = partial(contender.answer, ids, plan.options)
            bare = partial(_generate, models.target.model, contender.name, ids, plan)
            ratios.append(_ratio(through, bare, through_first=bool(i % 2)))
        contender.close()
        rows.append(_row(contender.name, ratios[1:]))  # the first call warms up
    return rows


def _generate(model: Any, name: str, prompt: list[int], plan: BenchPlan) -> None:
    extra = {"prompt_lookup_num_tokens": 10} if name == "hf-lookup" else {}
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    cap = plan.max_new_tokens
    model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=cap, **extra)


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


def seams(calls: int = 20_000) -> dict[str, float]:
    """Microseconds a pass: of the hooks around it, and of a token through the streamer."""
    module, ids, token = torch.nn.Identity(), torch.tensor([[1]]), torch.tensor([1])

    def passes() -> None:
        for _ in range(calls):
            module(ids)

    def watched() -> None:
        log = PassLog(lambda: None)
        with log.watching(module, module):
            passes()

    stream = EmissionLog()

    def tokens() -> None:
        for _ in range(calls):
            stream.put(token)

    alone = min(_timed(passes) for _ in range(3))
    hooks = min(_timed(watched) for _ in range(3)) - alone
    return {
        "hooks_us": 1e6 * hooks / calls,
        "streamer_us": 1e6 * min(_timed(tokens) for _ in range(3)) / calls,
    }


def _row(name: str, ratios: list[float]) -> dict[str, Any]:
    quarters = statistics.quantiles(ratios, n=4)
    row = {
        "method": name,
        "prompts": len(ratios),
        "median_ratio": quarters[1],
        "quartiles": [quarters[0], quarters[2]],
    }
    print(row, flush=True)
    return row


def run(folder: Path, plan: BenchPlan, slowdown: float = 0.0) -> None:
    """One run of plain decoding and n-grams; a slowdown of the latter's passes may be planted."""

    def enter(*arguments: Any) -> list[Contender]:
        field = enter_field(*arguments)
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

    for step in BenchRun(plan, RunFolder(folder), print, enter, _no_costs):
        print(f"{folder.name}: {step.done}/{step.total}", flush=True)


def _no_costs(*_: Any) -> CostTable:
    return CostTable.flat(1.0, 0.1)


def verdicts(folder: Path, other: str) -> list[dict[str, Any]]:
    """What `foredraft bench compare` says of the first run and another one."""
    comparison = compare_runs(RunFolder(folder / "first").read(), RunFolder(folder / other).read())
    print(other, [(c.suite, c.method, c.verdict) for c in comparison.changes], flush=True)
    changes: list[dict[str, Any]] = comparison.as_dict()["changes"]
    return changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    shape = {"limit": NUM_PROMPTS, "max_new_tokens": args.max_new_tokens}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = own_overhead(folder / "overhead", BenchPlan(methods=(PLAIN, METHOD), **shape))
        rows += peer_overhead(BenchPlan(methods=(PLAIN, *PEERS), **shape | {"limit": PEER_PROMPTS}))
        plan = BenchPlan(methods=(PLAIN, METHOD), repeats=args.repeats, **shape)
        run(folder / "first", plan)
        run(folder / "again", plan)
        run(folder / "slow", plan, SLOWDOWN)
        compared = {name: verdicts(folder, name) for name in ("again", "slow")}
    write_results(args.out, rows, seams=seams(), compared=compared, planted=SLOWDOWN)


if __name__ == "__main__":
    main()
