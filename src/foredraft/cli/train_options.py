"""The flags that every kind of training has: one for each field of `TrainOptions`, with its default."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer

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


def takes_train_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `options`, values by name, takes a flag for each of `TrainOptions`."""

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in FLAGS}
        command(**given, options=chosen)

    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        p.replace(annotation=hints[name]) for name, p in own.parameters.items() if name != "options"
    ]
    added = [_parameter(name, kind, text) for name, (kind, text) in FLAGS.items()]
    with_flags.__signature__ = inspect.Signature([*parameters, *added])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in [*parameters, *added]}
    return with_flags


def train_options(chosen: Mapping[str, Any]) -> TrainOptions:
    """The options of the flags. Errors as in `TrainOptions`."""
    values: dict[str, Any] = {k: None if k in OPTIONAL and not v else v for k, v in chosen.items()}
    return TrainOptions(**values)


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    default = default_of(TrainOptions, name)
    if name in OPTIONAL and default is None:
        default = kind(0)
    annotation = Annotated[kind, typer.Option(help=text)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)
