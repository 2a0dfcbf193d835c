"""The plots of a decision model: how it was trained, and whether its predictions can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from foredraft.files import replace_with
from foredraft.train.decision_figures import figures, reliability
from foredraft.train.folder import PLOT, TrainFolder
from foredraft.train.metrics import HELD_OUT, TRAIN
from foredraft.train.plots import COLOURS, DPI, LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CALIBRATION = "calibration.png"


def plot_training(folder: TrainFolder) -> bool:
    """Draw `plot.png` anew; False, and nothing is drawn, without matplotlib or anything to show."""
    lines = list(folder.metrics.read())
    return bool(lines) and _drawn(folder.path / PLOT, lambda: training_plot(lines))


def plot_calibration(folder: Path, predicted: Tensor, labels: Tensor) -> bool:
    """Draw `calibration.png`: predictions [R] against labels [R]; False without matplotlib."""
    return _drawn(folder / CALIBRATION, lambda: calibration_plot(predicted, labels))


def training_plot(lines: Sequence[dict[str, Any]]) -> Figure:
    """Loss, and what predictions are worth, by epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    loss, worth = figure.subplots(1, 2)
    for kind, colour in ((TRAIN, COLOURS[1]), (HELD_OUT, COLOURS[0])):
        mine = [line for line in lines if line["kind"] == kind]
        epochs = [line["epoch"] for line in mine]
        loss.plot(
            epochs,
            [line["loss"] for line in mine],
            color=colour,
            marker="o",
            markersize=3,
            label=kind,
        )
    held_out = [line for line in lines if line["kind"] == HELD_OUT]
    for name, colour in (("auc", COLOURS[2]), ("brier", COLOURS[3]), ("ece", COLOURS[4])):
        known = [line for line in held_out if name in line]
        if not known:
            continue
        xs, ys = [line["epoch"] for line in known], [line[name] for line in known]
        worth.plot(xs, ys, color=colour, marker="o", markersize=3, label=f"{name}, held out")
    loss.set(xlabel="epochs", ylabel="loss")
    worth.set(xlabel="epochs", ylim=(0, 1))
    for axis in (loss, worth):
        _bare(axis)
        axis.legend(frameon=False, fontsize=8)
    return figure


def calibration_plot(predicted: Tensor, labels: Tensor) -> Figure:
    """A reliability diagram, and below it how many rows each bin has."""
    from matplotlib.figure import Figure

    predicted, labels = predicted.double().cpu(), labels.double().cpu()
    bins, scored = reliability(predicted, labels), figures(predicted, labels)
    figure = Figure(figsize=(4.8, 5.6), layout="constrained")
    diagram, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    xs = [part.predicted for part in bins]
    diagram.plot((0, 1), (0, 1), color=LIGHT, zorder=1)
    diagram.plot(xs, [part.observed for part in bins], color=COLOURS[0], marker="o")
    counts.bar(xs, [part.count for part in bins], width=0.06, color=COLOURS[0])
    auc = "none" if scored.auc is None else f"{scored.auc:.3f}"
    diagram.set_title(
        f"ECE {scored.ece:.3f}   Brier {scored.brier:.3f}   AUC {auc}   base rate {scored.base_rate:.2f}",
        fontsize=9,
        loc="left",
    )
    diagram.set(xlim=(0, 1), ylim=(0, 1), ylabel="observed acceptance")
    counts.set(xlabel="predicted acceptance (held-out rows)", ylabel="rows")
    for axis in (diagram, counts):
        _bare(axis)
    return figure


def _bare(axis: Axes) -> None:
    axis.grid(color=LIGHT)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _drawn(file: Path, draw: Any) -> bool:
    try:
        figure = draw()
    except ModuleNotFoundError:
        return False
    with replace_with(file) as partial:
        figure.savefig(partial, dpi=DPI, bbox_inches="tight", facecolor="white", format="png")
    return True
