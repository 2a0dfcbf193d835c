"""What copies add to a head's tree: methods over the same greedy answers, in modelled time.

    python benchmarks/hybrid/run.py --costs benchmarks/heads/costs.json --out benchmarks/hybrid/results.json

At temperature 0 an answer does not depend on the drafts. So the target answers each question once, its hidden
states are read in one pass over the answer, and every method then drafts for a target that plays the answer
back. Rounds are priced by a cost table: nothing is timed. A hybrid draft is priced as the head's and a copy's
together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from common import write_results
from torch import Tensor

from foredraft.bench.intervals import named, ratio_interval
from foredraft.bench.suites import read_suites
from foredraft.costs import CostTable, DraftCosts
from foredraft.engine.engine import Engine
from foredraft.engine.load import Models, load_models
from foredraft.engine.prompts import encode_prompt
from foredraft.methods import parse_method
from foredraft.protocols import FeatureState, FeatureTarget
from foredraft.results import RoundRecord
from foredraft.tree import NO_PARENT

PLAIN, TREE = "autoregressive", "eagle2:depth=4:nodes=8:top_k=4"
METHODS = (
    PLAIN,
    "ngram",
    "ngram:depth=15",
    TREE,
    *(f"hybrid:depth={depth}" for depth in (4, 8, 16)),
    *(f"hybrid:depth={d}:least={least}" for d in (8, 16) for least in (0.2, 0.3, 0.5, 0.7)),
    *(f"hybrid:depth=16:least={least}:levels=3:nodes=6" for least in (0.3, 0.5)),
    *(f"hybrid:depth=16:least={least}:levels=2:nodes=4" for least in (0.3, 0.5)),
    "hybrid:depth=16:least=0.3:min=1",
    "hybrid:depth=16:least=0.3:nodes=6",
)


@dataclass(frozen=True)
class Answer:
    """A greedy answer to one question."""

    category: str
    prompt_ids: list[int]
    token_ids: list[int]
    """Prompt and answer."""
    features: Tensor
    """[T - 1, F] of all tokens but the last."""


class Played:
    """A `FeatureTarget` that says one answer, whatever it is given."""

    context_length = None
    eos_token_ids = ()
    scores_trees = True
    device = torch.device("cpu")

    def __init__(self, answer: Answer, taps: Sequence[int], vocab_size: int) -> None:
        self.answer, self.taps, self.vocab_size = answer, tuple(taps), vocab_size

    def start(self, capacity: int) -> PlayedState:
        return PlayedState(self)

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> PlayedState:
        assert tuple(taps) == self.taps
        return PlayedState(self)

    def synchronize(self) -> None:
        """Nothing runs ahead."""


class PlayedState:
    """How far the answer was told."""

    def __init__(self, target: Played) -> None:
        self._target = target
        self.length = self._taken = 0
        self._depths: list[int] = []

    def prefill(self, token_ids: Sequence[int]) -> None:
        self.length += len(token_ids)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        text = self._target.answer.token_ids
        for parent in parents:
            self._depths.append(0 if parent == NO_PARENT else self._depths[parent] + 1)
        logits = torch.zeros(len(token_ids), self._target.vocab_size)
        for row, depth in enumerate(self._depths):
            logits[row, text[min(self.length + depth + 1, len(text) - 1)]] = 1.0
        return logits

    def commit(self, path: Sequence[int]) -> None:
        self.length += len(path)
        self._depths = []

    def take_features(self) -> Tensor:
        new = self._target.answer.features[self._taken : self.length]
        self._taken = self.length
        return new

    def close(self) -> None:
        """Nothing to give back."""


def answers(models: Models, suite: str, limit: int | None, max_new_tokens: int) -> Iterator[Answer]:
    """The target's answers to a suite's first turns, and their hidden states."""
    target, head = models.target, models.head
    assert isinstance(target, FeatureTarget)
    assert head is not None
    engine = models.engine(parse_method(TREE))
    for each in read_suites(suite, limit):
        for question in each.questions:
            prompt = [dict(m) for m in question.prompt(())]
            prompt_ids = encode_prompt(prompt, models.tokenizer, target.vocab_size)
            told = engine.generate(prompt_ids, max_new_tokens=max_new_tokens).token_ids
            text = [*prompt_ids, *told]
            state = target.start_tapped(len(text), head.config.taps)
            assert isinstance(state, FeatureState)
            state.prefill(text[:-1])
            yield Answer(question.category, prompt_ids, text, state.take_features().clone())
            state.close()


def rounds_of(models: Models, method: str, answer: Answer) -> tuple[RoundRecord, ...]:
    """The rounds in which a method tells an answer."""
    parts = parse_method(method).build(None if method.partition(":")[0] in NO_HEAD else models.head)
    taps = models.head.config.taps  # type: ignore[union-attr]
    target = Played(answer, taps, models.target.vocab_size)
    engine = Engine(target, parts.drafter, parts.policy, parts.verifier)
    length = len(answer.token_ids) - len(answer.prompt_ids)
    result = engine.generate(answer.prompt_ids, max_new_tokens=length)
    assert list(result.token_ids) == answer.token_ids[-length:]
    return result.stats.rounds


NO_HEAD = (PLAIN, "ngram")


def with_hybrids(table: CostTable) -> CostTable:
    """The table with the price of a hybrid draft."""
    head, copies = table.draft_costs(TREE), table.draft_costs("ngram")
    assert head is not None
    host_s = head.host_s + (copies.host_s if copies else 0.0)
    drafts: Mapping[str, DraftCosts] = {**table.drafts, "hybrid": DraftCosts(host_s, head.passes)}
    return CostTable(table.target, table.host_s, drafts, table.provenance)


def row_of(method: str, told: Sequence[Sequence[RoundRecord]], seconds: Any) -> dict[str, Any]:
    """What the rounds of one method hold, over all answers."""
    rounds = [r for each in told for r in each]
    tokens = sum(r.num_emitted for r in rounds)
    return {
        "method": method,
        "tokens_per_round": tokens / len(rounds),
        "drafted_per_round": sum(r.num_drafted for r in rounds) / len(rounds),
        "draft_passes_per_round": sum(len(r.draft_rows) for r in rounds) / len(rounds),
        "modelled_tokens_per_s": tokens / float(seconds.sum()),
    }


def log_ratio(other: Any, own: Any, axis: int) -> Any:
    """log of how much faster `own` is, both being seconds."""
    return np.log(other.sum(axis)) - np.log(own.sum(axis))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--suite", default="builtin")
    parser.add_argument("--limit", type=int, default=0, help="questions; 0 takes all")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    table = with_hybrids(CostTable.from_dict(json.loads(args.costs.read_text())))
    models = load_models(args.model, needed=("head",), dtype="auto", report=print)
    told = list(answers(models, args.suite, args.limit or None, args.max_new_tokens))
    rows, times = [], {}
    for method in METHODS:
        rounds = [rounds_of(models, method, answer) for answer in told]
        priced = [[table.round_s(r, method) or 0.0 for r in each] for each in rounds]
        times[method] = np.array([sum(each) for each in priced])
        row = row_of(method, rounds, times[method])
        row |= named("speedup", ratio_interval((times[PLAIN], times[method]), log_ratio))
        if TREE in times:
            row |= named("of_tree", ratio_interval((times[TREE], times[method]), log_ratio))
        row["by_category"] = {
            category: float(times[PLAIN][places].sum() / times[method][places].sum())
            for category in dict.fromkeys(answer.category for answer in told)
            if (places := [i for i, answer in enumerate(told) if answer.category == category])
        }
        rows.append(row)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    questions = {"suite": args.suite, "answers": len(told), "max_new_tokens": args.max_new_tokens}
    write_results(args.out, rows, **questions, costs=args.costs.name, priced=dict(table.provenance))


if __name__ == "__main__":
    main()
