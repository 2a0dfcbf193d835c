"""The rounds that drafts of given lengths would make, walked along labelled texts.

A round whose draft has k tokens accepts min(k, label) of them and emits one more; the next round begins
there. So what a predictor, a fixed length or an oracle would do is counted without drafting again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foredraft.policies.length_net import LengthNet, Past
from foredraft.train.length_labels import Labels


@dataclass(frozen=True, slots=True)
class Requests:
    """Labelled positions as answers: each a stretch of one text. N positions, S answers.

    Attributes:
        inputs: [N, inputs] of the net.
        lengths: float32 [N].
        places: int64 [N].
        firsts, stops: int64 [S], where each answer's positions begin and end.
    """

    inputs: Tensor
    lengths: Tensor
    places: Tensor
    firsts: Tensor
    stops: Tensor

    @classmethod
    def of(cls, labels: Labels, inputs: Tensor, chosen: Tensor, k_max: int) -> Requests:
        """Those of chosen positions, bool [N], whole texts. A gap that no draft spans begins a new answer."""
        lengths, places, samples = (
            of[chosen] for of in (labels.lengths, labels.places, labels.samples)
        )
        gap = (places.diff() > k_max + 1) | (samples.diff() != 0)
        begins = gap.nonzero()[:, 0] + 1
        firsts = torch.cat([begins.new_zeros(1), begins])
        stops = torch.cat([begins, begins.new_tensor([len(places)])])
        return cls(inputs[chosen], lengths, places, firsts, stops)

    def to(self, device: torch.device) -> Requests:
        """The same elsewhere."""
        return Requests(
            *(
                of.to(device)
                for of in (self.inputs, self.lengths, self.places, self.firsts, self.stops)
            )
        )

    def next(self, at: Tensor, accepted: Tensor) -> Tensor:
        """The position that a round at `at` leads to, int64 [B] each: the first labelled one from there on.

        Behind an answer's last position it is that of the next answer.
        """
        reached = self.places[at] + accepted + 1
        found = at
        for _ in range(int(accepted.max()) + 1 if len(at) else 0):
            later = (found + 1).clamp_max(len(self.places) - 1)
            here = (self.places[later] <= reached) & (self.places[later] > self.places[found])
            found = torch.where(here & (self.places[found] < reached), later, found)
        # of positions that are not labelled, the one behind them
        short = self.places[found] < reached
        return torch.where(short, found + 1, found)


Choose = Callable[[Tensor], Tensor]
"""Positions int64 [B] -> drafted lengths int64 [B]."""


@dataclass(frozen=True, slots=True)
class Walk:
    """R rounds.

    Attributes:
        at: int64 [R] the position of each.
        drafted: int64 [R].
        accepted: int64 [R].
    """

    at: Tensor
    drafted: Tensor
    accepted: Tensor


def walk(requests: Requests, net: LengthNet) -> Walk:
    """The rounds of a predictor."""
    past: list[Past | None] = [None]

    def step(at: Tensor, alive: Tensor) -> Tensor:
        if past[0] is not None:
            past[0] = Past(past[0].state[alive], past[0].outcome[alive])
        output, state = net(requests.inputs[at], past[0])
        drafted = net.lengths(output)
        if state is not None:
            accepted = torch.minimum(drafted.float(), requests.lengths[at])
            past[0] = Past(state, net.outcome(accepted, drafted.float()))
        return drafted

    return _walk(requests, step)


def walk_by(requests: Requests, choose: Choose) -> Walk:
    """The rounds of lengths that hang on the position alone."""
    return _walk(requests, lambda at, alive: choose(at))


@torch.no_grad()
def _walk(requests: Requests, step: Callable[[Tensor, Tensor], Tensor]) -> Walk:
    """All answers side by side; `step` is also told which of its last positions are still there."""
    at, stops = requests.firsts, requests.stops
    alive = torch.ones_like(at, dtype=torch.bool)
    rounds: list[tuple[Tensor, Tensor, Tensor]] = []
    while len(at):
        drafted = step(at, alive)
        accepted = torch.minimum(drafted, requests.lengths[at].long())
        rounds.append((at, drafted, accepted))
        after = requests.next(at, accepted)
        alive = after < stops
        at, stops = after[alive], stops[alive]
    return Walk(*(torch.cat(column) for column in zip(*rounds, strict=True)))


@dataclass(frozen=True, slots=True)
class Counts:
    """What rounds came to, as the paper counts."""

    rounds: int
    """Passes of the target."""
    emitted: int
    drafted: int
    """Passes of the drafter, one a token."""
    wasted: int
    """Drafted and not accepted."""
    tokens_per_pass_time: float | None
    """In the time of a target pass; None where nobody said what drafts cost."""

    @classmethod
    def of(cls, walked: Walk, draft_cost: float | None) -> Counts:
        """Those of a walk; a level of the draft costs `draft_cost` passes of the target."""
        rounds, drafted = len(walked.at), int(walked.drafted.sum())
        accepted = int(walked.accepted.sum())
        emitted = accepted + rounds
        time = None if draft_cost is None else emitted / (rounds + draft_cost * drafted)
        return cls(rounds, emitted, drafted, drafted - accepted, time)

    def as_dict(self) -> dict[str, Any]:
        """Rounded, for files."""
        return {
            k: round(v, 4) if isinstance(v, float) else v
            for k, v in asdict(self).items()
            if v is not None
        }


def comparison(requests: Requests, net: LengthNet, draft_cost: float | None) -> dict[str, Any]:
    """Counts of the predictor, of each fixed length 1 to k_max, and of the oracle that knows the labels."""
    k_max = net.config.k_max
    fixed = {
        str(k): Counts.of(
            walk_by(requests, lambda at, k=k: torch.full_like(at, k)),  # type: ignore[misc]
            draft_cost,
        ).as_dict()
        for k in range(1, k_max + 1)
    }
    oracle = walk_by(requests, lambda at: requests.lengths[at].long())
    return {
        "predictor": Counts.of(walk(requests, net), draft_cost).as_dict(),
        "fixed": fixed,
        "oracle": Counts.of(oracle, draft_cost).as_dict(),
    }
