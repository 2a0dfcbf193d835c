"""Stop rules that compare what the drafter believes of its own tokens with a threshold.

Each reads laws that tokens were drawn from, so it costs no draft pass: the level that a rule ends has been
drawn and stays, and the pass of the next one is saved. A rule that ends a draft before the token it reads the
law of would have paid for that law already.

Laws are the drafter's before temperature and filters, as in `Frontier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.protocols import Frontier, RoundOutcome

CONFIDENCE = 0.4
"""The library's default for assisted generation."""
CUMULATIVE = -0.6
"""AdaEAGLE's choice (arXiv 2412.18910), of -0.2 to -1."""
BEAM_LEVELS = (5, 7, 9)
"""Where Dynamic Depth Decoding looks at the beam (arXiv 2409.00142)."""


class _FromBeliefs:
    """What rules have in common that neither read the text nor learn."""

    def begin(self, text: Sequence[int]) -> None:
        """A new draft; the text is not read."""

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""


# --- probabilities of drawn tokens ------------------------------------------------------------------


class ConfidenceRule:
    """Stops after a token that the drafter thought less likely than a threshold; that token is kept.

    It is the rule of the library's assisted generation, with a threshold that stays. Of coupled proposals
    above temperature 0, the noise that chooses the target's token counts, as in `Frontier.scores`.

    Args:
        threshold: go on from a token that was at least so likely, 0 to 1.

    Raises:
        ConfigError: a threshold outside of 0 .. 1.
    """

    def __init__(self, threshold: float = CONFIDENCE) -> None:
        check_between("threshold", threshold, 0, 1)
        self.threshold = threshold

    def start(self) -> ConfidenceState:
        """State for one request."""
        return ConfidenceState(self.threshold)


class ConfidenceState(_FromBeliefs):
    """The scores of the nodes that had children in the draft in progress."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._scores: dict[int, float] = {}

    def begin(self, text: Sequence[int]) -> None:
        """A new draft."""
        self._scores = {}

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """Whether each node's own token was likely enough; roots go on."""
        scores = scores_of(frontier, "confidence")
        before = [self._scores.get(parent, 0.0) for parent in frontier.parents]
        self._scores |= dict(zip(frontier.nodes, scores, strict=True))
        if frontier.depth == 0:
            return [True] * len(scores)
        return [
            math.exp(min(score - above, 0.0)) >= self._threshold
            for score, above in zip(scores, before, strict=True)
        ]


class CumulativeRule(_FromBeliefs):
    """Stops after a path that the drafter thinks less likely than a threshold (AdaEAGLE's form of DDD).

    Args:
        threshold: go on from a path whose log-probability, a sum of logs of draft probabilities, is at
            least this; 0 or less.

    Raises:
        ConfigError: a threshold above 0.
    """

    def __init__(self, threshold: float = CUMULATIVE) -> None:
        check_between("threshold", threshold, -math.inf, 0)
        self.threshold = threshold

    def start(self) -> CumulativeRule:
        """It keeps no state, so every request shares it."""
        return self

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """Whether the path to each node is likely enough."""
        return [score >= self.threshold for score in scores_of(frontier, "cumulative")]


class BeamRule(_FromBeliefs):
    """Ends a whole tree at set depths if its beam is unlikely (Dynamic Depth Decoding, arXiv 2409.00142).

    The beam is the nodes of a level to which the shape gives children; how likely it is, is the sum of the
    probabilities of their paths.

    Args:
        threshold: the tree ends where log of that sum is below; the paper's values are for its own models,
            so there is no default.
        levels: depths at which the beam is looked at.

    Raises:
        ConfigError: a threshold above 0, or a level below 1.
    """

    def __init__(self, threshold: float, levels: tuple[int, ...] = BEAM_LEVELS) -> None:
        check_between("threshold", threshold, -math.inf, 0)
        if not levels or min(levels) < 1:
            raise ConfigError(f"levels {list(levels)} are not allowed; give depths of 1 or more")
        self.threshold, self.levels = threshold, frozenset(levels)

    def start(self) -> BeamRule:
        """It keeps no state, so every request shares it."""
        return self

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """The same for all nodes of a level."""
        if frontier.depth not in self.levels:
            return [True] * len(frontier.nodes)
        total = sum(math.exp(score) for score in scores_of(frontier, "ddd"))
        return [total >= math.exp(self.threshold)] * len(frontier.nodes)


# --- entropy of laws --------------------------------------------------------------------------------


class SvipRule(_FromBeliefs):
    """Stops after a token from a law of much entropy: where sqrt(scale * H) > threshold (arXiv 2411.18462).

    1 - sqrt(c * H) bounds from below how likely a token drawn from the law is to be accepted.

    Args:
        threshold: h, 0 or more; as published.
        scale: c, 0 or more, for H in nats; as published.

    Raises:
        ConfigError: a number below 0.
    """

    def __init__(self, threshold: float = 0.3, scale: float = 0.15) -> None:
        check_between("threshold", threshold, 0, math.inf)
        check_between("scale", scale, 0, math.inf)
        self.threshold, self.scale = threshold, scale

    def start(self) -> SvipRule:
        """It keeps no state, so every request shares it."""
        return self

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """Whether the law that each node was drawn from was sharp enough; roots go on."""
        entropies = entropies_before(frontier, "svip")
        return [math.sqrt(self.scale * h) <= self.threshold for h in entropies]


class AdaEdlRule:
    """AdaEDL (arXiv 2410.18351): stops after a token whose law promises less acceptance than lambda.

    What a law of entropy H promises is 1 - sqrt(scale * H). lambda follows the acceptance seen in a request;
    after each round with a draft

    ```
    rate   <- memory * rate + (1 - memory) * accepted / drafted
    wanted  = lambda + step   if rate < target
              lambda          if not, and a draft of full length was accepted whole
              lambda - step   else
    lambda <- inertia * lambda + (1 - inertia) * wanted
    ```

    Of a tree, its depth counts as what was drafted. A request begins with `rate = target`.

    Args:
        bound: lambda at the start of a request, 0 to 1. The paper says that much hangs on it and gives no
            value for all models; the default is ours.
        scale: gamma, for H in nats.
        memory, inertia: b1 and b2, 0 to 1.
        target: alpha, the acceptance to aim at, 0 to 1.
        step: epsilon, 0 or more.
        longest: levels of a draft of full length; None takes none for one.

    Raises:
        ConfigError: a number out of its range.
    """

    def __init__(
        self,
        bound: float = 0.3,
        scale: float = 0.2,
        memory: float = 0.5,
        inertia: float = 0.9,
        target: float = 0.9,
        step: float = 0.01,
        *,
        longest: int | None = None,
    ) -> None:
        for name, value in {
            "bound": bound,
            "memory": memory,
            "inertia": inertia,
            "target": target,
        }.items():
            check_between(name, value, 0, 1)
        for name, value in {"scale": scale, "step": step}.items():
            check_between(name, value, 0, math.inf)
        self.bound, self.scale, self.memory, self.inertia = bound, scale, memory, inertia
        self.target, self.step, self.longest = target, step, longest

    def start(self) -> AdaEdlState:
        """State for one request."""
        return AdaEdlState(self)


class AdaEdlState:
    """One request's lambda (`bound`) and smoothed rate of acceptance (`rate`)."""

    def __init__(self, rule: AdaEdlRule) -> None:
        self._rule = rule
        self.bound, self.rate = rule.bound, rule.target

    def begin(self, text: Sequence[int]) -> None:
        """A new draft; the text is not read."""

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """Whether the law that each node was drawn from promises enough acceptance; roots go on."""
        entropies = entropies_before(frontier, "adaedl")
        return [1 - math.sqrt(self._rule.scale * h) >= self.bound for h in entropies]

    def observe(self, outcome: RoundOutcome) -> None:
        """Move lambda."""
        drafted, accepted, rule = outcome.tree.depth, outcome.num_accepted, self._rule
        if not drafted:
            return
        self.rate = rule.memory * self.rate + (1 - rule.memory) * accepted / drafted
        if self.rate < rule.target:
            wanted = self.bound + rule.step
        elif accepted != rule.longest:
            wanted = self.bound - rule.step
        else:
            wanted = self.bound
        self.bound = rule.inertia * self.bound + (1 - rule.inertia) * wanted


# --- what rules read --------------------------------------------------------------------------------


def scores_of(frontier: Frontier, rule: str) -> list[float]:
    """The scores of a frontier's nodes.

    Raises:
        ConfigError: the drafter has no laws.
    """
    scores = frontier.scores()
    if scores is None:
        raise _lawless(rule)
    return scores


def entropies_before(frontier: Frontier, rule: str) -> list[float]:
    """Entropy in nats of the law that each node was drawn from, [F]; 0 for roots. One wait for the device.

    Raises:
        ConfigError: the drafter has no laws.
    """
    if frontier.depth == 0:
        return [0.0] * len(frontier.nodes)
    log_probs = frontier.drawn_from()
    if log_probs is None:
        raise _lawless(rule)
    return _entropies(log_probs)


def _entropies(log_probs: Tensor) -> list[float]:
    """[F, C] -> [F]; infinite of a row that is no law."""
    entropies = torch.special.entr(log_probs.exp()).sum(-1).clamp(min=0)
    found: list[float] = entropies.nan_to_num(nan=math.inf).tolist()
    return found


def _lawless(rule: str) -> ConfigError:
    return ConfigError(
        f"the stop rule {rule} reads the drafter's laws, and this drafter has none; leave the rule out, or "
        "draft with a model or a head"
    )


def check_between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number out of its range.

    Raises:
        ConfigError: the message names it and the range.
    """
    if least <= value <= most and not math.isinf(value):
        return
    if math.isinf(least) or math.isinf(most):
        span = f"of {most:g} or less" if math.isinf(least) else f"of {least:g} or more"
    else:
        span = f"from {least:g} to {most:g}"
    raise ConfigError(f"{name} {value!r} is not allowed; give a number {span}")
