"""`foredraft train decision`: models that say when a draft ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.cli.flags import Flag, takes_flags
from foredraft.config import default_of
from foredraft.train.decision_options import OBJECTIVES, DecisionOptions

NO_DEFAULT = ("kind",)
FLAGS: Mapping[str, tuple[Any, str]] = {
    "kind": (
        str,
        "soft (reads hidden states, learns min(1, p/q)) or hard (reads laws, learns matches).",
    ),
    "objective": (
        str,
        f"{' or '.join(OBJECTIVES)}: acceptance, or tokens a second at the given costs.",
    ),
    "tree": (str, "Shape of the recorded drafts; the paper's is 10,1."),
    "prompts": (int, "Prompts of the corpus that are answered."),
    "answer_tokens": (int, "Tokens of an answer at most."),
    "max_prompt": (int, "Longer prompts are left out."),
    "temperature": (float | None, "Of recorded answers: 1 (soft), 0 (hard)."),
    "epochs": (int, "Times that every example is seen."),
    "batch": (int, "Rows (bce) or rounds (cost) of a step."),
    "lr": (float, "Learning rate of Adam."),
    "held_out": (float, "Share of the prompts that is only measured."),
    "threshold": (float, "Drafts go on above it, unless it is tuned."),
    "tune_threshold": (
        bool,
        "Take the threshold with the most tokens a second on held-out rounds.",
    ),
    "rule": (
        str,
        "any (a row of the level) or path (the product along a path) is compared with it.",
    ),
    "draft_cost": (float | None, "Cost of a level of the draft, in target passes."),
    "seed": (int, "Same seed, same rounds."),
}


def _flag(name: str, kind: Any, text: str) -> Flag:
    return Flag(kind, text, "soft" if name in NO_DEFAULT else default_of(DecisionOptions, name))


@takes_flags("options", {name: _flag(name, kind, text) for name, (kind, text) in FLAGS.items()})
def decision(
    data: Annotated[
        Path, typer.Option(help="Folder of a corpus; `foredraft data generate` makes one.")
    ],
    out: Annotated[
        Path, common.out_folder("Folder of the run, and of the model that comes of it.")
    ],
    options: dict[str, Any],
    model: common.Model = "smollm2",
    drafter: Annotated[
        str | None,
        typer.Option(
            show_default="the draft model that ships",
            help="A draft model or a head: a name or a folder.",
        ),
    ] = None,
    rounds: Annotated[
        Path | None,
        typer.Option(
            show_default="OUT/rounds",
            help="Folder of the recorded rounds; those that are there are used.",
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="Cost table of `foredraft calibrate`, instead of --draft-cost."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
    dtype: common.Dtype = None,
) -> None:
    """Train a small net that says, level by level, whether a draft goes on."""
    with clear_failures():
        chosen = DecisionOptions(**options)
        from foredraft.cli.train_decision_run import train_decision

        train_decision(chosen, data, out, model, drafter, rounds, costs, resume, dtype)
