"""The law of whole answers: the real engine, driven through every outcome of its randomness.

Three parts: what the answers should follow, worked out without Foredraft's own processing; Gumbel noise
with finitely many values that is exact for every law the target can face; and the walk over the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.engine.decoder import decode
from foredraft.protocols import (
    DraftLimits,
    Frontier,
    PolicyKind,
    RoundOutcome,
    Verdict,
    Verifier,
)
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree
from tests.enumeration import EnumeratingRandomness, Noise, enumerate_outcomes

LAW_ATOL = 1e-9
"""Sums of a few thousand float64 products; a wrong rule is off by more than `BREAK`."""
BREAK = 1e-2
"""What a negative control must be off by at least: far from rounding, so that it is caught for its fault."""

PROMPT = (0, 1, 0, 2, 0)
"""Repeats itself, so that n-grams match from the first round on."""

Answer = tuple[int, ...]
Law = dict[Answer, float]


# --- what the answers should follow -----------------------------------------------------------------


def random_table(vocab_size: int, order: int, seed: int) -> np.ndarray:
    """Random laws, float64 [V] * order + [V]; no token is rarer than a few percent."""
    weights = np.random.default_rng(seed).uniform(0.1, 1.0, (vocab_size,) * (order + 1))
    return weights / weights.sum(-1, keepdims=True)


def table_model(table: np.ndarray) -> TableModel:
    """The model that answers with these laws."""
    return TableModel(torch.from_numpy(table))


class Reference:
    """The target's processed law after each answer so far, and the joint law of whole answers."""

    def __init__(
        self, table: np.ndarray, options: GenerationOptions, prompt: Sequence[int] = PROMPT
    ) -> None:
        self.table, self.options, self.prompt = table, options, tuple(prompt)

    def law(self, answer: Answer) -> np.ndarray:
        """float64 [V]: penalties over the whole text, then temperature, then top-p."""
        text, options = (*self.prompt, *answer), self.options
        order = self.table.ndim - 1
        with np.errstate(divide="ignore"):
            scores = np.log(self.table[((0,) * order + text)[-order:]])
        for token in set(text):
            penalty = options.repetition_penalty
            scores[token] *= penalty if scores[token] < 0 else 1 / penalty
        for token in answer:
            scores[token] -= options.frequency_penalty
        return nucleus(softmax(scores / options.temperature), options.top_p)

    def answers(self, answer: Answer = ()) -> Law:
        """Answer -> probability, of all that begin with `answer`, given that beginning."""
        if self._ends(answer):
            return {answer: 1.0}
        return {
            longer: float(p) * weight
            for token, p in enumerate(self.law(answer))
            if p > 0
            for longer, weight in self.answers((*answer, token)).items()
        }

    def laws_at(self, length: int) -> np.ndarray:
        """Every law that the token after `length` answer tokens may have, [L, V]."""
        tokens = range(self.table.shape[-1])
        laws = [self.law(answer) for answer in product(tokens, repeat=length)]
        return np.unique(np.round(laws, 15), axis=0)

    def _ends(self, answer: Answer) -> bool:
        return len(answer) == self.options.max_new_tokens or (
            bool(answer) and answer[-1] in (self.options.eos_token_ids or ())
        )


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def nucleus(law: np.ndarray, top_p: float) -> np.ndarray:
    """The most likely tokens, as many as it takes to reach `top_p`."""
    if top_p == 1:
        return law
    likely_first = np.argsort(-law)
    count = int(np.searchsorted(law[likely_first].cumsum(), top_p)) + 1
    kept = np.zeros_like(law)
    kept[likely_first[:count]] = law[likely_first[:count]]
    return kept / kept.sum()


# --- exact noise with few values --------------------------------------------------------------------


class ExactNoise:
    """Noise with finitely many values under which `argmax(log p + g)` follows p exactly.

    It does so for every law p that the target can have at a position, and positions are independent:
    so plain decoding follows the target's law exactly, and what is built on the same noise has to.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self.values = cache(self._values)

    def __call__(self, random: EnumeratingRandomness, position: int, vocab_size: int) -> Tensor:
        rows, weights = self.values(position - len(self._reference.prompt))
        return rows[random.choose(weights)]

    def _values(self, length: int) -> tuple[Tensor, list[float]]:
        rows, weights = quadrature(self._reference.laws_at(length))
        return torch.from_numpy(rows), weights.tolist()


def quadrature(laws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Noise vectors [A, V] and weights [A] that choose token i after law p with probability p_i.

    Weights of random Gumbel vectors, as few as a vertex of the linear program has: at most one for
    each equation, of which each of the laws [L, V] adds V.
    """
    for count in (300, 1200, 5000):
        generator = np.random.default_rng(count)
        rows = generator.gumbel(size=(count, laws.shape[1]))
        equations = _chosen(laws, rows)
        program = linprog(generator.random(count), A_eq=equations, b_eq=laws.ravel())
        if program.success:
            used = program.x > 1e-7
            return rows[used], _solve(equations[:, used], laws.ravel())
    raise AssertionError("no combination of these noise vectors is exact; try more of them")


def _chosen(laws: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[L * V, A]: 1 where the noise vector of the column chooses token i after the law of the row."""
    with np.errstate(divide="ignore"):
        choices = (np.log(laws)[:, None] + rows).argmax(-1)
    tokens = np.arange(laws.shape[1])
    return (choices[:, None] == tokens[:, None]).reshape(laws.size, len(rows)).astype(float)


def _solve(equations: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The weights to float64 precision: the linear program stops at 1e-7."""
    weights = np.linalg.lstsq(equations, values)[0]
    assert np.abs(equations @ weights - values).max() < 1e-12
    assert weights.min() > 0
    return weights


# --- the walk over all outcomes ---------------------------------------------------------------------


class RoundRandomness(EnumeratingRandomness):
    """Repeats the choices of earlier rounds, then takes those of one more from an enumeration."""

    def __init__(
        self, history: Sequence[int], fresh: EnumeratingRandomness, noise: Noise | None
    ) -> None:
        super().__init__(noise=noise)
        self.choices: list[int] = []
        self._history, self._fresh = history, fresh

    def choose(self, weights: Sequence[float]) -> int:
        made = len(self.choices)
        repeats = made < len(self._history)
        self.choices.append(self._history[made] if repeats else self._fresh.choose(weights))
        return self.choices[-1]

    def noise_from(self, position: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """The noise of tokens still to come that was already read, by a drafter."""
        rows = sorted(self._rows.items(), key=lambda item: item[0])
        return tuple((at, tuple(row.tolist())) for (at, _), row in rows if at >= position)


@dataclass(frozen=True)
class Reached:
    """Where a number of rounds led, and the choices that led there."""

    answer: Answer = ()
    finished: bool = False
    num_rounds: int = 0
    choices: tuple[int, ...] = ()
    noise: tuple[tuple[int, tuple[float, ...]], ...] = ()
    left: tuple[float, ...] | None = None
    """What rejections have left of the law of the next token, where roots are open."""

    @property
    def future(self) -> tuple[object, ...]:
        """All that later rounds depend on, if drafter and policy remember nothing but the text."""
        return (self.answer, self.noise, self.left)


class Noting:
    """A verifier whose last verdict is kept."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.last: Verdict | None = None

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        self.last = self._verifier.verify(tree, laws, random)
        return self.last

    @property
    def left(self) -> tuple[float, ...] | None:
        """Of the last verdict; rounded, so that what differs by the order of sums is one."""
        left = None if self.last is None else self.last.left
        return None if left is None else tuple(left.mul(1e12).round().tolist())


def answer_law(
    engine: Engine,
    options: GenerationOptions,
    prompt: Sequence[int] = PROMPT,
    *,
    noise: Noise | None = None,
    merge: bool = True,
    randomness: Callable[..., RoundRandomness] = RoundRandomness,
) -> Law:
    """Answer -> probability, over every outcome of every round.

    Args:
        noise: the Gumbel noise, if any is read.
        merge: go on once from rounds that led to the same text, instead of once from each; not for
            policies that learn from earlier rounds.
        randomness: replaces the honest one in negative controls.
    """
    law: Law = {}
    waiting: dict[object, tuple[float, Reached]] = {None: (1.0, Reached())}
    while waiting:
        key = min(waiting, key=lambda k: len(waiting[k][1].answer))
        weight, reached = waiting.pop(key)

        def one_more(fresh: EnumeratingRandomness, start: Reached = reached) -> Reached:
            random = randomness(start.choices, fresh, noise)
            return _run(engine, options, prompt, random, start.num_rounds + 1)

        for share, after in enumerate_outcomes(one_more):
            if after.finished:
                law[after.answer] = law.get(after.answer, 0.0) + weight * share
            else:
                key = after.future if merge else after.choices
                so_far = waiting.get(key, (0.0, after))[0]
                waiting[key] = (so_far + weight * share, after)
    return law


def _run(
    engine: Engine,
    options: GenerationOptions,
    prompt: Sequence[int],
    random: RoundRandomness,
    num_rounds: int,
) -> Reached:
    """The first rounds of one request."""
    session = engine.session(prompt, options, random)
    verifier = Noting(engine.verifier)
    rounds = decode(session, verifier)  # type: ignore[arg-type]
    for _ in range(num_rounds):
        next(rounds)
    text, finished = tuple(session.token_ids), session.finish_reason is not None
    rounds.close()
    noise = random.noise_from(len(text))
    answer, choices = text[len(prompt) :], tuple(random.choices)
    return Reached(answer, finished, num_rounds, choices, noise, verifier.left)


def error_between(law: Law, other: Law) -> float:
    """Largest difference of an answer's probability."""
    return max(abs(law.get(a, 0.0) - other.get(a, 0.0)) for a in law.keys() | other.keys())


def error_of(
    engine: Engine,
    reference: Reference,
    *,
    merge: bool = True,
    randomness: Callable[..., RoundRandomness] = RoundRandomness,
) -> float:
    """How far the engine's answers are from the target's law."""
    law = answer_law(
        engine,
        reference.options,
        reference.prompt,
        noise=ExactNoise(reference),
        merge=merge,
        randomness=randomness,
    )
    return error_between(law, reference.answers())


class Rule:
    """A policy made of one function: frontier -> how many children each of its nodes gets."""

    def __init__(
        self,
        grow: Callable[[Frontier], Sequence[int]],
        *,
        branches: bool = True,
        kind: PolicyKind = PolicyKind.GROWS,
    ) -> None:
        self.grow, self.branches, self.kind = grow, branches, kind
        self.max_nodes = 8

    def start(self) -> Rule:
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return limits

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""
