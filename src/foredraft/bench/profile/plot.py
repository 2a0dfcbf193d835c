"""The plot of a profile: passes by groups of operators, one bar each, against the floor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.bench.plots import COLOURS, DPI, GREY
from foredraft.bench.profile.turns import own_name
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = "operators.png"
BAR_IN = 0.55


def write_plot(folder: Path, document: Mapping[str, Any]) -> str:
    """Draw `operators.png`; its name.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    operators_plot(document).savefig(folder / PLOT, dpi=DPI, bbox_inches="tight", facecolor="white")
    return PLOT


def operators_plot(document: Mapping[str, Any]) -> Figure:
    """A bar for each pass, stacked by groups; transformers' pass whole; a line where the floor is."""
    bars = {own_name(e["rows"]): e["groups"] for e in document["operators"]}
    hf_ms = next(row["median_ms"] for row in document["passes"] if row["name"] == "hf")
    figure = _figure(8.2, 1.4 + BAR_IN * (len(bars) + 1))
    axis = figure.add_subplot()
    for place, groups in enumerate(bars.values()):
        left = 0.0
        for colour, group in zip((*COLOURS, GREY), groups, strict=True):
            label = group["name"] if place == 0 else None
            axis.barh(place, group["ms"], left=left, color=colour, height=0.7, label=label)
            left += group["ms"]
    axis.barh(
        len(bars), hf_ms, color="white", edgecolor=GREY, height=0.7, label="transformers, whole"
    )
    axis.axvline(
        document["floor"]["ms"], color="red", linestyle="--", label="floor: bytes / bandwidth"
    )
    axis.set_yticks(range(len(bars) + 1), [*bars, "hf, 1 token"])
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("milliseconds of a pass")
    axis.set_title(f"A pass behind {document['context']} tokens", loc="left", fontweight="bold")
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return figure


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "plots need matplotlib; install it with pip install 'foredraft[bench]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")
