"""What the training of a decision model learns from and measures."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foredraft.errors import DataError
from foredraft.train.decision_figures import Figures
from foredraft.train.decision_gain import Gain
from foredraft.train.decision_objective import Chains, balanced_weights, chains_of
from foredraft.train.decision_options import DecisionOptions
from foredraft.train.decision_rounds import RecordedRows
from foredraft.train.metrics import line_of
from foredraft.tree import parse_k_config


@dataclass(frozen=True, slots=True)
class DecisionMeasure:
    """One line of `metrics.jsonl`: after an epoch, on the rows trained on or on those that choose."""

    kind: str
    step: int
    """Optimizer steps done."""
    epoch: int
    elapsed_s: float
    loss: float
    """What is minimised: cross-entropy, or the negative of `tokens_per_pass_time` of the stochastic rule."""
    ece: float | None
    """None, as is `brier`, of the objective `cost`: its output is no acceptance."""
    brier: float | None
    auc: float | None
    base_rate: float
    tokens_per_pass_time: float | None
    """By the threshold, as `DecisionPolicy` decides; None where no cost is known."""

    def as_dict(self) -> dict[str, Any]:
        """The line."""
        return line_of(asdict(self))


@dataclass(frozen=True, slots=True)
class DecisionExamples:
    """Rows, and the chains of the same rounds, to train on or to measure with."""

    features: Tensor
    labels: Tensor
    weights: Tensor
    chains: Chains

    @classmethod
    def of(cls, rows: RecordedRows, chosen: Tensor, options: DecisionOptions) -> DecisionExamples:
        """Those of chosen rows, bool [R]."""
        labels = rows.labels[chosen]
        hard = options.kind == "hard"
        weights = balanced_weights(labels) if hard else torch.ones_like(labels)
        depth = len(parse_k_config(options.tree))
        return cls(rows.features[chosen], labels, weights, chains_of(rows, chosen, depth))

    def to(self, device: torch.device) -> DecisionExamples:
        """The same elsewhere."""
        chains = Chains(
            *(getattr(self.chains, f.name).to(device) for f in dataclasses.fields(Chains))
        )
        return DecisionExamples(
            self.features.to(device), self.labels.to(device), self.weights.to(device), chains
        )


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """How a training ended.

    Attributes:
        finished: every epoch was made; else it was stopped, and can be gone on with.
        best: the epoch whose weights were kept.
        held_out: figures of these on the prompts that report.
        threshold: to go on above.
        gain: on the prompts that report, with that threshold; None where no cost is known.
    """

    finished: bool
    best: DecisionMeasure
    held_out: Figures
    threshold: float
    gain: Gain | None


def split(rows: RecordedRows, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train on, to choose by and to report on, bool [R] each: whole prompts, evenly spaced.

    The two last are halves of the share: what is chosen by one half (an epoch, a threshold, a depth) looks
    better there than it is, and the other half knows nothing of the choice.

    Raises:
        DataError: one of the three is empty.
    """
    number = rows.prompts.double()
    held_out = ((number + 1) * share).floor() > (number * share).floor()
    prompts, place = torch.unique(rows.prompts[held_out], return_inverse=True)
    if len(prompts) < 2 or bool(held_out.all()):
        raise DataError(
            f"the recorded prompts leave too few to train on, to choose by and to report on at "
            f"held_out={share:g}; record more prompts"
        )
    reporting = torch.zeros_like(held_out)
    reporting[held_out] = place % 2 == 1
    return ~held_out, held_out & ~reporting, reporting
