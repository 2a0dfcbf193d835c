"""What the training of a decision model learns from and measures."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foredraft.errors import DataError
from foredraft.train.decision_figures import Figures
from foredraft.train.decision_objective import Chains, balanced_weights, chains_of
from foredraft.train.decision_options import DecisionOptions
from foredraft.train.decision_rounds import RecordedRows
from foredraft.train.metrics import line_of
from foredraft.tree import parse_k_config


@dataclass(frozen=True, slots=True)
class DecisionMeasure:
    """One line of `metrics.jsonl`: after an epoch, on the rows trained on or on those held out."""

    kind: str
    step: int
    """Optimizer steps done."""
    epoch: int
    elapsed_s: float
    loss: float
    """What is minimised: cross-entropy, or the negative of `tokens_per_pass_time` of the stochastic rule."""
    ece: float
    brier: float
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
        held_out: figures of these on the held-out rows.
        threshold: to go on above.
        tokens_per_pass_time: on the held-out rounds with that threshold; None where no cost is known.
        whole: the same of drafts of the full depth.
    """

    finished: bool
    best: DecisionMeasure
    held_out: Figures
    threshold: float
    tokens_per_pass_time: float | None
    whole: float | None


def split(rows: RecordedRows, share: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to measure with, bool [R] each: whole prompts, evenly spaced.

    Raises:
        DataError: one of the two is empty.
    """
    number = rows.prompts.double()
    held_out = ((number + 1) * share).floor() > (number * share).floor()
    if not bool(held_out.any()) or bool(held_out.all()):
        raise DataError(
            f"the recorded prompts leave nothing to train on or to measure with at held_out={share:g}; "
            "record more prompts"
        )
    return ~held_out, held_out
