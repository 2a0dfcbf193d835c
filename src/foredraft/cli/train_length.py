"""`foredraft train length-predictor`: nets that say how long a draft is worth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.cli.flags import Flag, takes_flags
from foredraft.config import default_of
from foredraft.policies.length_rules import ACTIVATIONS, ARCHS, LOSSES
from foredraft.train.length_options import UNDER_WEIGHT, LengthOptions

FLAGS: Mapping[str, tuple[Any, str]] = {
    "arch": (str, f"{' or '.join(ARCHS)}; a GRU remembers the rounds before."),
    "loss": (str, f"{', '.join(LOSSES)}: of a number, or of a class for each length."),
    "under_weight": (float | None, "What an error below the label counts; 1 for no penalty."),
    "k_max": (int, "The longest draft."),
    "width": (int, "Of the layers."),
    "activation": (str, f"Between them: {', '.join(ACTIVATIONS)}."),
    "dropout": (float, "In training."),
    "root": (bool, "Read the embedding of the root too."),
    "temperature": (
        float,
        "Of the acceptance to predict; above 0, of the corpus too (made with --greedy-share 0 --top-p 1).",
    ),
    "positions": (int, "Positions of the corpus to label, about."),
    "max_length": (int, "Cut texts after so many tokens."),
    "tokens_per_batch": (int, "Tokens of a pass that labels, padding included."),
    "epochs": (int, "Times that every position is seen."),
    "batch": (int, "Positions of a step."),
    "lr": (float, "Learning rate of AdamW, falling to 0 along a cosine."),
    "held_out": (float, "Share of the texts that is only measured."),
    "draft_cost": (
        float | None,
        "Cost of a level of the draft in target passes, to price rounds with.",
    ),
    "seed": (int, "Same seed, same order."),
}


def _flag(name: str, kind: Any, text: str) -> Flag:
    shown = f"{UNDER_WEIGHT:g}, with ce 1" if name == "under_weight" else None
    return Flag(kind, text, default_of(LengthOptions, name), shown)


@takes_flags("options", {name: _flag(name, kind, text) for name, (kind, text) in FLAGS.items()})
def length_predictor(
    data: Annotated[
        Path, typer.Option(help="Folder of a corpus; `foredraft data generate` makes one.")
    ],
    out: Annotated[
        Path, common.out_folder("Folder of the run, and of the predictor that comes of it.")
    ],
    options: dict[str, Any],
    model: common.Model = "smollm2",
    drafter: Annotated[
        str | None,
        typer.Option(
            show_default="the head that ships",
            help="A head or a draft model: a name or a folder.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            show_default="OUT/labels",
            help="Folder of the labelled positions; those that are there are used.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
    dtype: common.Dtype = None,
) -> None:
    """Train a small net that says, before a draft, how many of its tokens will be accepted."""
    with clear_failures():
        chosen = LengthOptions(**options)
        from foredraft.cli.train_length_run import train_length

        train_length(chosen, data, out, model, drafter, labels, resume, dtype)
