"""Randomness that takes every outcome in turn, so that a test sees a whole law instead of samples.

```python
law = torch.zeros(3, dtype=torch.float64)
for weight, token in enumerate_outcomes(lambda random: random.categorical(p)):
    law[token] += weight
```

The function is run once per outcome, from the start. Each run replays the decisions of the run
before it up to the last one with an option left, and takes that option: a depth-first walk over the
tree of decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")


@dataclass
class Decision:
    """One decision of a run: the options of positive probability, and which of them is taken."""

    options: list[int]
    weights: list[float]
    taken: int = 0


class EnumeratingRandomness:
    """`Randomness` that follows one branch of the decision tree.

    Args:
        replayed: decisions to take as they stand; later ones take their first option.
        noise: makes the Gumbel noise of a position from (this object, position, vocabulary size).
            It may branch by calling `choose`; it is asked once a position.
    """

    def __init__(self, replayed: Sequence[Decision] = (), noise: Noise | None = None) -> None:
        self.decisions = list(replayed)
        self.weight = 1.0
        self._num_made = 0
        self._noise = noise
        self._rows: dict[tuple[int, int], Tensor] = {}

    def choose(self, weights: Sequence[float]) -> int:
        """Index of an option, with probability proportional to its weight; never of weight 0."""
        if self._num_made == len(self.decisions):
            options = [i for i, weight in enumerate(weights) if weight > 0]
            total = sum(weights)
            self.decisions.append(Decision(options, [weights[i] / total for i in options]))
        decision = self.decisions[self._num_made]
        self._num_made += 1
        self.weight *= decision.weights[decision.taken]
        return decision.options[decision.taken]

    def bernoulli(self, prob: float) -> bool:
        """True with probability `prob`."""
        assert 0 <= prob <= 1, prob
        return bool(self.choose([1 - prob, prob]))

    def categorical(self, probs: Tensor) -> int:
        """Index drawn from weights [V]."""
        return self.choose(probs.tolist())

    def gumbel(self, position: int, vocab_size: int) -> Tensor:
        """Noise [V] of the token at `position`; the same at every call of a run."""
        assert self._noise is not None, "this enumeration was given no Gumbel noise"
        key = (position, vocab_size)
        if key not in self._rows:
            self._rows[key] = self._noise(self, position, vocab_size)
        return self._rows[key]


Noise = Callable[[EnumeratingRandomness, int, int], Tensor]


def enumerate_outcomes(
    run: Callable[[EnumeratingRandomness], Result], noise: Noise | None = None
) -> Iterator[tuple[float, Result]]:
    """(probability, result) of every run of `run`; the probabilities sum to 1."""
    decisions: list[Decision] = []
    while True:
        random = EnumeratingRandomness(decisions, noise)
        result = run(random)
        yield random.weight, result
        decisions = random.decisions
        while decisions and decisions[-1].taken + 1 == len(decisions[-1].options):
            decisions.pop()
        if not decisions:
            return
        decisions[-1].taken += 1
