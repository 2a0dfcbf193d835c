"""The plot of a training run: loss and acceptance against tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foredraft.files import replace_with
from foredraft.train.folder import PLOT, TrainFolder
from foredraft.train.metrics import HELD_OUT, TRAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Okabe and Ito's, one for each depth."""
LIGHT = "#DDDDDD"


def plot(folder: TrainFolder) -> bool:
    """Draw `plot.png` anew; False, and nothing is drawn, without matplotlib or anything to show."""
    lines = list(folder.metrics.read())
    if not lines:
        return False
    try:
        figure = training_plot(lines)
    except ModuleNotFoundError:
        return False
    with replace_with(folder.path / PLOT) as partial:
        figure.savefig(partial, dpi=DPI, bbox_inches="tight", facecolor="white", format="png")
    return True


def training_plot(lines: Sequence[dict[str, Any]]) -> Figure:
    """Two panels over millions of tokens: training lines are thin, held-out ones have markers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    loss, accepted = figure.subplots(1, 2)
    for kind, style in ((TRAIN, {"alpha": 0.4}), (HELD_OUT, {"marker": "o", "markersize": 3})):
        mine = [line for line in lines if line["kind"] == kind]
        shown = [line for line in mine if "loss" in line]
        xs = [line["tokens"] / 1e6 for line in shown]
        loss.plot(xs, [line["loss"] for line in shown], color=COLOURS[0], label=kind, **style)
        xs = [line["tokens"] / 1e6 for line in mine]
        for depth in range(max((len(line["acceptance"]) for line in mine), default=0)):
            ys = [line["acceptance"][depth] for line in mine]
            label = f"depth {depth + 1}" if kind == HELD_OUT else None
            accepted.plot(xs, ys, color=COLOURS[depth % len(COLOURS)], label=label, **style)
    loss.set(ylabel="loss")
    accepted.set(ylabel="share that is the target's best token", ylim=(0, 1))
    for axis in (loss, accepted):
        axis.set_xlabel("million tokens trained on")
        axis.grid(color=LIGHT)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="upper right", frameon=False, fontsize=8)
    return figure
