"""What stop rules make of one head's chains: fixed lengths, rules and the oracle: one walk over the answers.

    python benchmarks/stop-rules/run.py --costs benchmarks/heads/costs.json --out results.json

At temperature 0 the answer, and the chain behind each of its positions, are the same whatever was drafted
before. So the whole chain is drafted once at every position, and each rule walks on its own from round to
round: it is asked of the levels of the chains where it has a round, is told how its part of the chain fared,
and goes on behind the accepted tokens. Rounds are then priced by cost tables: nothing here is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from common import write_results

from foredraft.bench.intervals import named, ratio_interval
from foredraft.bench.suites import read_suites
from foredraft.costs import CostTable
from foredraft.engine.draft_stops import read_stop
from foredraft.engine.engine import Engine
from foredraft.engine.load import load_models
from foredraft.engine.prompts import encode_prompt
from foredraft.methods import parse_method
from foredraft.policies.stopping import StopState
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree
from foredraft.verifiers.exact import ExactVerifier

LONGEST = 8
PLAIN, ORACLE = "plain", "oracle"
RULES = (
    *("confidence@0.2", "confidence@0.3", "confidence@0.4", "confidence@0.5", "confidence@0.6"),
    *("cumulative@-0.3", "cumulative@-0.6", "cumulative@-1", "cumulative@-1.5", "cumulative@-2"),
    *("svip@0.3", "svip@0.4", "svip@0.5", "svip@0.6", "svip@0.7"),
    *("adaedl@0.2", "adaedl@0.3", "adaedl@0.4", "adaedl@0.5"),
    *("heuristic", "gammatune"),
    *("constant@2+cumulative@-0.6", "constant@2+cumulative@-1", "constant@3+cumulative@-0.6"),
    *("constant@2+confidence@0.4", "constant@2+confidence@0.6", "heuristic/cumulative@-1"),
)


@dataclass
class Walk:
    """One rule's own rounds over one answer."""

    name: str
    state: StopState | None
    at: int
    """Length of the text where its next round begins."""
    depth: int = 0
    """Levels of the chain that it has drafted in this round."""
    going: bool = False
    missed: int = 1
    """Rows of the text that its next draft adds first."""
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def end(self, tree: DraftTree, accepted: int) -> None:
        """Count the round, learn from it, and go behind it."""
        if self.name == ORACLE:
            self.depth = min(accepted, tree.depth)
        kept = min(accepted, self.depth)
        rows = [self.missed, *[1] * (self.depth - 1)] if self.depth else []
        self.rounds.append(
            {"nodes": self.depth + 1, "rows": rows, "context": self.at - 1, "accepted": kept}
        )
        self.missed = kept + 1 + (0 if self.depth else self.missed)
        if self.state is not None:
            stop = self.depth + 1
            cut = DraftTree(tree.token_ids[:stop], tree.parents[:stop], tree.proposals[:stop])
            self.state.observe(RoundOutcome(cut, kept, 0.0, 0.0))
        self.at += kept + 1
        self.depth, self.going = 0, False


class Walks:
    """A policy that drafts whole chains, and a verifier that takes one token of each."""

    kind, branches, max_nodes = PolicyKind.GROWS, False, LONGEST
    proposals, policies = ExactVerifier.proposals, ExactVerifier.policies
    chains_only = reads_rejected = False

    def __init__(self) -> None:
        self.walks: list[Walk] = []
        self.position = 0

    def begin(self, position: int) -> None:
        """Walks of a new answer behind a prompt of so many tokens."""
        names = [PLAIN, *(f"constant@{length}" for length in range(1, LONGEST + 1)), *RULES, ORACLE]
        self.position = position
        self.walks = [
            Walk(
                name,
                None if name in (PLAIN, ORACLE) else read_stop(name, LONGEST).start(),
                position,
            )
            for name in names
        ]

    def start(self) -> Walks:
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        assert len(text) == self.position
        for walk in self._here:
            if walk.state is not None:
                walk.state.begin(text)
                walk.going = True
        return limits

    def grow(self, frontier: Frontier) -> Sequence[int]:
        if frontier.depth == LONGEST:
            return [0]
        for walk in self._here:
            if walk.going and walk.state is not None:
                walk.going = all(walk.state.going_on(frontier))
                walk.depth += walk.going
        return [1]

    def observe(self, outcome: RoundOutcome) -> None:
        pass

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        whole = ExactVerifier().verify(tree, laws, random)
        for walk in self._here:
            walk.depth = min(walk.depth, tree.depth)  # the chain may have ended the text
            walk.end(tree, whole.num_accepted)
        self.position += 1
        return Verdict((0,), whole.token_ids[:1])

    @property
    def _here(self) -> list[Walk]:
        return [walk for walk in self.walks if walk.at == self.position]


def seconds(walk: Walk, table: CostTable, method: str) -> float:
    """The modelled time of one rule's rounds over one answer."""
    draft = table.draft_costs(method)
    assert draft is not None
    return sum(
        table.host_s
        + table.target(r["nodes"], r["context"])
        + (draft(r["rows"], r["context"]) if r["rows"] else 0.0)
        for r in walk.rounds
    )


def row_of(walks: Sequence[Walk]) -> dict[str, Any]:
    """What the rounds of one rule hold, over all answers."""
    rounds = [r for walk in walks for r in walk.rounds]
    drafted, accepted = sum(r["nodes"] - 1 for r in rounds), sum(r["accepted"] for r in rounds)
    return {
        "rule": walks[0].name,
        "rounds": len(rounds),
        "tokens_per_round": 1 + accepted / len(rounds),
        "drafted_per_round": drafted / len(rounds),
        "accepted_share": accepted / drafted if drafted else None,
    }


def ratios(
    answers: Sequence[Sequence[Walk]], table: CostTable, method: str
) -> tuple[str, list[dict[str, Any]]]:
    """The best fixed length, and for each rule its speed in plain decoding's and in that length's."""
    by_rule = list(zip(*answers, strict=True))
    times = {of[0].name: np.array([seconds(walk, table, method) for walk in of]) for of in by_rule}
    fixed = [f"constant@{length}" for length in range(1, LONGEST + 1)]
    best = min(fixed, key=lambda name: float(times[name].sum()))

    def log_ratio(other: Any, own: Any, axis: int) -> Any:
        return np.log(other.sum(axis)) - np.log(own.sum(axis))

    return best, [
        named("speedup", ratio_interval((times[PLAIN], own), log_ratio))
        | {
            f"best_fixed_{key}": value
            for key, value in named("ratio", ratio_interval((times[best], own), log_ratio)).items()
        }
        for own in times.values()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--method", default=f"eagle-chain-{LONGEST}", help="what drafts the chains")
    parser.add_argument("--suite", default="builtin")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--costs", type=Path, required=True, help="of `foredraft calibrate --out`")
    parser.add_argument(
        "--priced-as", default="eagle-chain-3", help="the method of it whose draft costs are taken"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    method = parse_method(args.method)
    models = load_models(args.model, needed=("head",), dtype=args.dtype, report=print)
    walks = Walks()
    engine = Engine(models.target, models.engine(method).drafter, walks, walks, models.tokenizer)
    answers, vocab_size = [], models.target.vocab_size
    for suite in read_suites(args.suite, args.limit):
        for question in suite.questions:
            ids = encode_prompt(list(question.prompt(())), models.tokenizer, vocab_size)
            walks.begin(len(ids))
            engine.generate(ids, max_new_tokens=args.max_new_tokens)
            answers.append(walks.walks)
            print(f"{len(answers)}: {question.id}", flush=True)
    rows = [row_of(of) for of in zip(*answers, strict=True)]
    measured = CostTable.from_dict(json.loads(args.costs.read_text()))
    flat = CostTable.flat(1.0, 0.05, (args.priced_as,))
    best = {}
    for name, table in (("measured", measured), ("flat", flat)):
        best[name], found = ratios(answers, table, args.priced_as)
        for row, figures in zip(rows, found, strict=True):
            row[name] = figures
    settings = {k: str(v) for k, v in vars(args).items() if k != "out"}
    write_results(args.out, rows, settings=settings, prompts=len(answers), best_fixed=best)
    for row in sorted(rows, key=lambda r: -r["measured"]["speedup"]):
        print(
            f"{row['rule']:28} {row['tokens_per_round']:.2f} {row['drafted_per_round']:.2f}  "
            + "  ".join(
                f"{row[t]['speedup']:.3f} {row[t]['best_fixed_ratio']:.3f} "
                f"[{row[t]['best_fixed_ratio_low']:.3f}, {row[t]['best_fixed_ratio_high']:.3f}]"
                for t in best
            )
        )
    print(best)


if __name__ == "__main__":
    main()
