"""The flags that every kind of training has: one for each field of `TrainOptions`, with its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.cli.flags import Flag, takes_flags
from foredraft.config import default_of
from foredraft.train.options import OPTIMIZERS, PRECISIONS, TrainOptions

PAIRS = ("betas",)
"""Fields that are not flags."""
OPTIONAL = ("clip_norm", "clip_value", "checkpoint_minutes", "checkpoint_steps")
"""Fields that 0 switches off."""
FLAGS: Mapping[str, tuple[Any, str]] = {
    "minutes": (float | None, "Train so long, earlier runs included."),
    "steps": (int | None, "Or so many optimizer steps."),
    "epochs": (int | None, "Or so often through the corpus; the first limit ends it."),
    "optimizer": (str, f"{' or '.join(OPTIMIZERS)}: muon is for the matrices inside the drafter."),
    "lr": (float, "Learning rate after the warm-up."),
    "lr_floor": (float, "Share of it at the end."),
    "warmup_steps": (int, "Steps in which it rises."),
    "weight_decay": (float, "Share of a weight that is lost in each step, times lr."),
    "clip_norm": (float, "Scale gradients down to this norm; 0 does not."),
    "clip_value": (float, "Cut each gradient to this size; 0 does not."),
    "tokens_per_batch": (int, "Tokens of a micro-batch, padding included."),
    "accumulate": (int, "Micro-batches of a step, on each process."),
    "max_length": (int, "Cut samples after so many tokens."),
    "held_out": (float, "Share of the samples that is only measured."),
    "seed": (int, "Same seed, same order of samples."),
    "precision": (str, f"Arithmetic of the loss: {' or '.join(PRECISIONS)}."),
    "checkpoint_minutes": (float, "Minutes between checkpoints; 0 for none."),
    "checkpoint_steps": (int, "Steps between checkpoints; 0 for none."),
    "log_steps": (int, "Steps between lines of metrics.jsonl."),
    "eval_steps": (int, "Steps between measurements on held-out samples."),
    "eval_tokens": (int, "Held-out tokens of such a measurement, about."),
}


def _flag(name: str, kind: Any, text: str) -> Flag:
    default = default_of(TrainOptions, name)
    if name in OPTIONAL and default is None:
        default = kind(0)
    return Flag(kind, text, default)


takes_train_options = takes_flags(
    "options", {name: _flag(name, kind, text) for name, (kind, text) in FLAGS.items()}
)
"""A command with a parameter `options`, values by name, takes a flag for each of `TrainOptions`."""


def train_options(chosen: Mapping[str, Any]) -> TrainOptions:
    """The options of the flags. Errors as in `TrainOptions`."""
    values: dict[str, Any] = {k: None if k in OPTIONAL and not v else v for k, v in chosen.items()}
    return TrainOptions(**values)
