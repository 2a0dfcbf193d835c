"""A toy corpus in memory and a toy objective, for tests of the training loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foredraft.train.corpus import Sample
from foredraft.train.objective import Batch, LossReport
from foredraft.train.options import TrainOptions

VOCAB_SIZE = 23


class ToyCorpus:
    """Samples in memory, in shards of a given size."""

    def __init__(self, samples: Sequence[Sample], shard_size: int = 10**6) -> None:
        self._samples = samples
        sizes = [len(samples[i : i + shard_size]) for i in range(0, len(samples), shard_size)]
        self.manifest: dict[str, Any] = {
            "vocab_size": VOCAB_SIZE,
            "shards": [{"samples": size} for size in sizes],
        }
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        self.read.append(index)
        return self._samples[index]

    @property
    def lengths(self) -> Any:
        """int64 [S]."""
        return np.array([len(sample.token_ids) for sample in self._samples], np.int64)


def sample(token_ids: Sequence[int], *spans: tuple[int, int]) -> Sample:
    """A sample; without spans, everything but the first token is the assistant's."""
    return Sample(np.array(token_ids, np.uint16), spans or ((1, len(token_ids)),))


def counting_corpus(num_samples: int = 40, seed: int = 0, **options: Any) -> ToyCorpus:
    """Texts in which each token is the one before plus a step of the text's own, modulo the vocabulary."""
    random = np.random.default_rng(seed)
    samples = []
    for _ in range(num_samples):
        length, first, step = (
            random.integers(4, 20),
            random.integers(VOCAB_SIZE),
            random.integers(1, 3),
        )
        samples.append(sample(((first + step * np.arange(length)) % VOCAB_SIZE).tolist()))
    return ToyCorpus(samples, **options)


class ToyObjective:
    """Predict the next token from the last two; with dropout, so that random states matter."""

    def __init__(self, *, dropout: float = 0.1, depths: int = 2, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self._depths = depths
        self.module = nn.ModuleDict(
            {
                "embed": nn.Embedding(VOCAB_SIZE, 8),
                "head": nn.Linear(16, VOCAB_SIZE),
                "drop": nn.Dropout(dropout),
            }
        )

    def __call__(self, batch: Batch) -> LossReport:
        logits, labels, counted = self.predict(batch)
        losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
        weights = counted.flatten().float()
        hits = ((logits.argmax(-1) == labels) & counted).sum().float()
        total = weights.sum()
        return LossReport(
            (losses * weights).sum() / total.clamp_min(1),
            torch.stack([hits, hits / 2, *[hits * 0] * (self._depths - 2)][: self._depths]),
            total.expand(self._depths),
        )

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, T - 1, V], labels and which count [B, T - 1]."""
        embedded = self.module["drop"](self.module["embed"](batch.token_ids))
        before = F.pad(embedded, (0, 0, 1, 0))[:, :-1]
        logits = self.module["head"](torch.cat([embedded, before], -1))[:, :-1]
        return logits, batch.token_ids[:, 1:], batch.labelled[:, 1:]

    def save(self, folder: Path) -> None:
        """The weights as JSON."""
        weights = {name: tensor.tolist() for name, tensor in self.module.state_dict().items()}
        (folder / "toy.json").write_text(json.dumps(weights))


def toy_options(**changes: Any) -> TrainOptions:
    """Small batches, float32, a file line each step."""
    values: dict[str, Any] = {
        "steps": 12,
        "tokens_per_batch": 64,
        "precision": "float32",
        "warmup_steps": 2,
        "lr": 0.01,
        "held_out": 0.1,
        "log_steps": 2,
        "eval_steps": 4,
        "checkpoint_minutes": None,
    }
    return TrainOptions(**values | changes)
