"""The plot of a length predictor: what it predicted, and what was observed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from foredraft.files import replace_with
from foredraft.train.length_figures import calibration, length_figures
from foredraft.train.plots import COLOURS, DPI, LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = "lengths.png"


def plot_lengths(folder: Path, predicted: Tensor, observed: Tensor, k_max: int) -> bool:
    """Draw `lengths.png`; False without matplotlib."""
    try:
        figure = lengths_plot(predicted, observed, k_max)
    except ModuleNotFoundError:
        return False
    with replace_with(folder / LENGTHS) as partial:
        figure.savefig(partial, dpi=DPI, bbox_inches="tight", facecolor="white", format="png")
    return True


def lengths_plot(predicted: Tensor, observed: Tensor, k_max: int) -> Figure:
    """Rounds by predicted and observed length, with the mean of each prediction; and how often each came."""
    from matplotlib.figure import Figure

    predicted, observed = predicted.cpu(), observed.cpu()
    figure = Figure(figsize=(4.8, 5.8), layout="constrained")
    field, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    edges = [k - 0.5 for k in range(k_max + 2)]
    pairs = predicted.double().numpy(), observed.double().numpy()
    field.hist2d(*pairs, bins=[edges, edges], cmap="Greys", cmin=1)
    field.plot((0, k_max), (0, k_max), color=LIGHT)
    bins = calibration(predicted, observed)
    xs = [part.length for part in bins]
    field.plot(xs, [part.observed for part in bins], color=COLOURS[0], marker="o", label="mean")
    counts.bar(xs, [part.count for part in bins], width=0.7, color=COLOURS[0])
    scored = length_figures(predicted, observed)
    field.set_title(
        f"MAE {scored.mae:.2f}   below {scored.under:.0%}   above {scored.over:.0%}",
        fontsize=9,
        loc="left",
    )
    field.set(ylabel="accepted, were the draft long enough", ylim=(-0.5, k_max + 0.5))
    field.legend(frameon=False, fontsize=8)
    counts.set(xlabel="predicted length (held-out rounds)", ylabel="rounds")
    for axis in (field, counts):
        axis.spines[["top", "right"]].set_visible(False)
    return figure
