"""`foredraft train`: drafters that know their target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.cli.flags import Flag, given, takes_flags
from foredraft.cli.taps import taps_of
from foredraft.cli.threads import wait_briefly
from foredraft.cli.train_decision import decision
from foredraft.cli.train_length import length_predictor
from foredraft.cli.train_options import takes_train_options, train_options
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.train.objective import Objective
    from foredraft.train.setting import Setting

app = typer.Typer(no_args_is_help=True, help="Train drafters for a model, on a corpus of its own.")
app.callback()(wait_briefly)
app.command()(decision)
app.command("length-predictor")(length_predictor)

Data = Annotated[
    Path, typer.Option(help="Folder of a corpus; `foredraft data generate` makes one.")
]
Out = Annotated[
    Path,
    common.out_folder("Folder of the run, and of the drafter that comes of it."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
]
DraftVocab = Annotated[
    int | None,
    typer.Option(
        show_default="8192", help="Tokens of the drafter's head, the most frequent ones; 0 for all."
    ),
]
OwnHead = Annotated[
    bool | None,
    typer.Option(
        "--own-head/--target-head",
        show_default="own-head",
        help="Train a language-model head, or draft with the model's own rows.",
    ),
]
KeepStates = Annotated[
    bool,
    typer.Option(help="Keep the model's hidden states beside the corpus: later epochs are faster."),
]
StartFrom = Annotated[
    Path | None, typer.Option(help="Begin with the weights of a drafter that was trained before.")
]


@app.command("draft-model")
@takes_train_options
def draft_model(
    data: Data,
    out: Out,
    options: dict[str, Any],
    model: common.Model = "smollm2",
    layers: Annotated[
        int | None, typer.Option(show_default="2", help="Layers, taken from the model.")
    ] = None,
    take: Annotated[
        str | None, typer.Option(show_default="first", help="Which ones: first, even or last.")
    ] = None,
    draft_vocab: DraftVocab = None,
    own_head: OwnHead = None,
    int8: Annotated[
        bool, typer.Option("--int8/--bfloat16", help="How weights are stored in the end.")
    ] = True,
    start_from: StartFrom = None,
    keep_states: KeepStates = True,
    resume: Resume = False,
    dtype: common.Dtype = None,
) -> None:
    """Train a small model of some of the model's layers to draft for it."""
    from foredraft.cli.train_run import train

    def objective(setting: Setting) -> tuple[Objective, dict[str, Any]]:
        from foredraft.train.draft_setting import draft_model_objective

        return draft_model_objective(
            setting,
            layers=layers,
            take=take,
            draft_vocab=draft_vocab,
            own_head=own_head,
            int8=int8,
            start_from=start_from,
        )

    with clear_failures():
        chosen = train_options(options)
        train(objective, chosen, data, out, model, dtype, start_from, resume, keep_states)


LOSSES: Mapping[int, dict[str, Flag]] = {
    3: {
        "steps_ahead": Flag(int | None, "EAGLE-3: steps of the training-time test.", shown="4"),
        "decay": Flag(float | None, "EAGLE-3: weight of each step over the last.", shown="0.8"),
        "later_share": Flag(
            float | None, "EAGLE-3: share of the rows that later steps use.", shown="0.5"
        ),
        "sharpen": Flag(float | None, "EAGLE-3: exponent of the law that is taught.", shown="1.0"),
    },
    1: {
        "feature": Flag(float | None, "EAGLE-1: weight of the feature loss.", shown="1.0"),
        "soft_label": Flag(float | None, "EAGLE-1: weight of the soft-label loss.", shown="0.1"),
        "noise": Flag(float | None, "EAGLE-1: width of the noise on features.", shown="0.2"),
    },
}
"""The losses of each variant."""


@app.command()
@takes_train_options
@takes_flags("losses", LOSSES[3] | LOSSES[1])
def eagle(
    data: Data,
    out: Out,
    options: dict[str, Any],
    losses: dict[str, Any],
    model: common.Model = "smollm2",
    variant: Annotated[int, typer.Option(help="1 (of EAGLE-1 and 2) or 3.")] = 3,
    draft_vocab: DraftVocab = None,
    taps: Annotated[
        str | None, typer.Option(help="EAGLE-3: hidden states that are fused, such as 2,15,27.")
    ] = None,
    own_head: OwnHead = None,
    init: Annotated[
        str | None,
        typer.Option(
            show_default="EAGLE-3 last-layer, EAGLE-1 random",
            help="Weights to begin with: last-layer (the model's) or random.",
        ),
    ] = None,
    start_from: StartFrom = None,
    keep_states: KeepStates = True,
    resume: Resume = False,
    dtype: common.Dtype = None,
) -> None:
    """Train an EAGLE head: one layer that reads the model's hidden states."""
    from foredraft.cli.train_run import train

    def objective(setting: Setting) -> tuple[Objective, dict[str, Any]]:
        from foredraft.train.eagle_setting import eagle_objective

        return eagle_objective(
            setting,
            variant,
            given(losses),
            draft_vocab=draft_vocab,
            taps=taps_of(taps),
            init=init,
            start_from=start_from,
            max_length=options["max_length"],
            own_head=own_head,
        )

    with clear_failures():
        _check_variant(variant, losses | {"taps": taps, "own_head": own_head})
        chosen = train_options(options)
        train(objective, chosen, data, out, model, dtype, start_from, resume, keep_states)


def _check_variant(variant: int, chosen: Mapping[str, Any]) -> None:
    """Refuse an option that the variant has no use for."""
    if variant not in LOSSES:
        raise ConfigError(f"--variant {variant} is not known; give 1 (EAGLE-1 and 2) or 3")
    for name in given(chosen):
        owner = 1 if name in LOSSES[1] else 3
        if owner != variant:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for EAGLE-{owner}, and this is EAGLE-{variant}; leave it out"
            )
