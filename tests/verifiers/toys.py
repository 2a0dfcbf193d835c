"""Toy laws and trees whose emitted law can be enumerated whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from foredraft.config import GenerationOptions
from foredraft.protocols import Verdict, Verifier
from foredraft.sampling.law import RequestLaw, TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from tests.enumeration import enumerate_outcomes

LAW_ATOL = 1e-9  # float64 sums over a few thousand outcomes; a wrong rule is off by more than 1e-3
BREAK_ATOL = 1e-3  # what a negative control must exceed
VOCAB_SIZE = 3
ROOT = 0

Grow = Callable[[Randomness], DraftTree]


class Table:
    """A random law, float64 [V], after every path; `zeros` is the share of forbidden tokens."""

    def __init__(self, seed: int, vocab_size: int = VOCAB_SIZE, zeros: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self._seed, self._zeros = seed, zeros
        self.law = cache(self._law)
        self.joint = cache(self._joint)

    def _law(self, path: tuple[int, ...]) -> Tensor:
        digits = (1, *path)
        index = sum(digit * (self.vocab_size + 1) ** i for i, digit in enumerate(digits))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        weights, kept = torch.rand(2, self.vocab_size, generator=generator, dtype=torch.float64)
        weights = weights**2 * (kept >= self._zeros)
        return weights / weights.sum() if weights.any() else self._uniform()

    def _uniform(self) -> Tensor:
        return torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64)

    def _joint(self, path: tuple[int, ...], length: int) -> Tensor:
        """The law of the next `length` tokens, float64 [V] * length."""
        if length == 0:
            return torch.ones((), dtype=torch.float64)
        rows = [p * self.joint((*path, t), length - 1) for t, p in enumerate(self.law(path))]
        return torch.stack(rows)


class DrawnLaws(TargetLaws):
    """Target laws whose coupled choice is one draw from p: what Gumbel noise amounts to."""

    def choose(self, node: int) -> int:
        return self._random.categorical(self.probs(node))


def request(vocab_size: int = VOCAB_SIZE, temperature: float = 1.0) -> RequestLaw:
    options = GenerationOptions(temperature=temperature)
    return RequestLaw(options, prompt_length=1, eos_token_ids=(), vocab_size=vocab_size)


def laws_of(
    target: Table, tree: DraftTree, random: Randomness, temperature: float = 1.0
) -> TargetLaws:
    """The real `TargetLaws` over the table's rows."""
    logits = torch.stack([target.law(tree.path_tokens(node)).log() for node in range(len(tree))])
    return DrawnLaws(request(target.vocab_size, temperature), tree, logits, [ROOT], random)


def draw_children(law: Tensor, count: int, proposal: Proposal, random: Randomness) -> list[int]:
    """Tokens of `count` children (fewer if q has less support), in draw order."""
    if proposal is Proposal.DETERMINISTIC:
        return law.argsort(descending=True)[:count].tolist()
    tokens: list[int] = []
    rest = law.clone()
    while len(tokens) < count and rest.any():
        tokens.append(random.categorical(rest))
        if proposal is Proposal.SAMPLED:
            rest[tokens[-1]] = 0
    return tokens


def grower(draft: Table, widths: Sequence[int], proposal: Proposal) -> Grow:
    """Draws a tree of this k-config from `draft`."""

    def grow(random: Randomness) -> DraftTree:
        builder = TreeBuilder(ROOT)
        frontier = [0]
        for width in widths:
            frontier = [
                child
                for node in frontier
                for child in extend(builder, node, draft, width, proposal, random)
            ]
        return builder.build()

    return grow


def extend(
    builder: TreeBuilder,
    node: int,
    draft: Table,
    count: int,
    proposal: Proposal,
    random: Randomness,
) -> list[int]:
    """Draw children of one node and record their law; returns the new nodes."""
    law = draft.law(tuple(builder.path_tokens(node)))
    if proposal is not Proposal.DETERMINISTIC:
        builder.set_law(node, law)
    tokens = draw_children(law, count, proposal, random)
    return [builder.add(node, token, proposal) for token in tokens]


def verdicts(verifier: Verifier, target: Table, grow: Grow) -> list[tuple[float, Verdict]]:
    """Every outcome of one round with its probability."""

    def round_of(random: Randomness) -> Verdict:
        tree = grow(random)
        return verifier.verify(tree, laws_of(target, tree, random), random)

    return list(enumerate_outcomes(round_of))


def emitted_joint(verifier: Verifier, target: Table, grow: Grow, length: int) -> Tensor:
    """The law of the first `length` tokens, float64 [V] * length: one round, then the target."""
    prefixes: dict[tuple[int, ...], float] = {}
    for weight, verdict in verdicts(verifier, target, grow):
        prefixes[verdict.token_ids] = prefixes.get(verdict.token_ids, 0.0) + weight
    joint = torch.zeros((target.vocab_size,) * length, dtype=torch.float64)
    for prefix, weight in prefixes.items():
        joint[prefix] += weight * target.joint(prefix, length - len(prefix))
    return joint


def error_of(verifier: Verifier, target: Table, grow: Grow, length: int) -> float:
    """Largest error of a joint probability."""
    emitted = emitted_joint(verifier, target, grow, length)
    return float((emitted - target.joint((), length)).abs().max())


def mean_accepted(verifier: Verifier, target: Table, grow: Grow) -> float:
    """Expected number of accepted draft tokens."""
    return sum(weight * v.num_accepted for weight, v in verdicts(verifier, target, grow))
