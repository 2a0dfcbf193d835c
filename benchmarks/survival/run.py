"""How likely a head's candidates are to be accepted: what the adaptive policy's `Calibration` is fitted on.

    python benchmarks/survival/run.py --corpus CORPUS --out benchmarks/survival/results.json

The head drafts a tree at every position of greedy answers (each round gives one token, so none is passed
over) to the built-in questions and to prompts of a corpus; each child of a node on the answer's path is an
example. A logistic curve over the logit of q is fitted on the corpus and every other question, and told on
the rest. Nothing of the public question files is read.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import write_results
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.bench.suites import read_suites
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.engine.load import load_models
from foredraft.methods import parse_method
from foredraft.policies.dynamic import DynamicTreePolicy, DynamicTreeState
from foredraft.policies.survival import LEAST_Q, MOST_Q, Calibration
from foredraft.protocols import Candidates, PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.train.corpus import Corpus
from foredraft.train.decision_options import DecisionOptions
from foredraft.train.decision_rounds import prompts_of
from foredraft.tree import DraftTree, Proposal


@dataclass
class Recording:
    """The tree at each position of one answer, and the token that the target chose there."""

    trees: list[tuple[DraftTree, tuple[float, ...]]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)


class RecordingPolicy(DynamicTreePolicy):
    """A dynamic tree whose scores are kept."""

    def __init__(self, recording: Recording, **shape: int) -> None:
        super().__init__(**shape)
        self.recording, self.scores = recording, (0.0,)

    def start(self) -> DynamicTreeState:
        return RecordingState(self)


class RecordingState(DynamicTreeState):
    def __init__(self, policy: RecordingPolicy) -> None:
        super().__init__(policy)
        self._recording_policy = policy

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        kept = sorted(super().select(candidates, max_nodes))
        scores = (0.0, *(candidates.scores[node] for node in kept))
        self._recording_policy.scores = scores
        return kept


class OneToken:
    """Gives the target's token after the root, and accepts no draft."""

    reads_rejected, chains_only = False, False
    proposals, policies = frozenset(Proposal), frozenset(PolicyKind)

    def __init__(self, policy: RecordingPolicy) -> None:
        self._policy = policy

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        token, recording = laws.choose(0), self._policy.recording
        recording.trees.append((tree, self._policy.scores[: len(tree)]))
        recording.chosen.append(token)
        return Verdict((0,), (token,))


@dataclass(frozen=True)
class Example:
    """A candidate whose parent is on the answer's path."""

    log_q: float
    rank: int
    accepted: bool


def examples_of(recording: Recording) -> Iterator[list[Example]]:
    """The children of each node that the answer passes, by node."""
    for start, (tree, scores) in enumerate(recording.trees):
        node = 0
        for token in recording.chosen[start:]:
            children = tree.children[node]
            taken = [child for child in children if tree.token_ids[child] == token]
            if children:
                yield [
                    Example(scores[child] - scores[node], rank, child in taken)
                    for rank, child in enumerate(children)
                ]
            if not taken:
                break
            node = taken[0]


def inputs(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """[E, 3] (1, logit q, whether it is the likeliest child) and [E] labels."""
    qs = [min(max(math.exp(e.log_q), LEAST_Q), MOST_Q) for e in examples]
    rows = [
        (1.0, math.log(q / (1 - q)), float(e.rank == 0)) for q, e in zip(qs, examples, strict=True)
    ]
    labels = [float(e.accepted) for e in examples]
    return torch.tensor(rows, dtype=torch.float64), torch.tensor(labels, dtype=torch.float64)


def fitted(x: Tensor, y: Tensor) -> Tensor:
    """Weights [3] of the likeliest logistic curve."""
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(x @ weights, y)
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach()


def log_loss(logits: Tensor, y: Tensor) -> float:
    return float(torch.nn.functional.binary_cross_entropy_with_logits(logits, y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=60, help="of the corpus")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    models = load_models(args.model, needed=("head",), methods=(parse_method("eagle2"),))
    policy = RecordingPolicy(Recording(), depth=6, nodes=32, top_k=5)
    engine = Engine(
        models.target, EagleDrafter(models.head), policy, OneToken(policy), models.tokenizer
    )
    options = GenerationOptions(max_new_tokens=args.max_new_tokens)

    def record(prompt: object) -> list[list[Example]]:
        policy.recording = Recording()
        engine.generate(prompt, options)  # type: ignore[arg-type]
        return list(examples_of(policy.recording))

    questions = [q for suite in read_suites("builtin", None) for q in suite.questions]
    asked = DecisionOptions(kind="hard", prompts=args.prompts, seed=7, max_prompt=500)
    fit_on = [record(prompt) for prompt in prompts_of(Corpus(args.corpus), asked)]
    fit_on += [record(q.prompt(())) for q in questions[::2]]
    told_on = [record(q.prompt(())) for q in questions[1::2]]
    x, y = inputs([e for answer in fit_on for node in answer for e in node])
    held_x, held_y = inputs([e for answer in told_on for node in answer for e in node])
    weights = fitted(x, y)
    nodes = [node for answer in fit_on for node in answer]
    default = Calibration()
    now = torch.tensor([default.bias, default.slope, default.first], dtype=torch.float64)
    row = {
        "examples": len(y),
        "held_out": len(held_y),
        "bias": float(weights[0]),
        "slope": float(weights[1]),
        "first": float(weights[2]),
        "any_child": sum(any(e.accepted for e in node) for node in nodes) / len(nodes),
        "held_out_log_loss": {
            "law": log_loss(held_x[:, 1], held_y),
            "fitted": log_loss(held_x @ weights, held_y),
            "defaults": log_loss(held_x @ now, held_y),
        },
    }
    write_results(args.out, [row])
    print(row)


if __name__ == "__main__":
    main()
