"""The plots of a run. Figures are built from rows alone, without matplotlib's global state.

A method has the same colour and marker in all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import ALL, Rows
from foredraft.bench.tables import marked
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = Mapping[str, Rows]
"""What `by_group` gives: the rows of all suites, then of each suite or category."""

DPI = 150
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Okabe and Ito's colours, which colour-blind readers can tell apart; the yellow darkened for white paper."""
MARKERS = "osD^vP*Xhp"
"""Methods beyond the eighth repeat colours, but with other markers."""
GREY, LIGHT = "#666666", "#DDDDDD"
STAGES = {"draft_ms": "draft", "target_ms": "target", "verify_ms": "verify", "other_ms": "other"}
REST = "other_ms"
STAGE_COLOURS = ("#E69F00", "#0072B2", "#009E73", "#BBBBBB")
HATCHED: Mapping[str, Any] = {"facecolor": "white", "edgecolor": GREY, "hatch": "////"}
PANELS_PER_ROW = 4
LABEL_WIDTH = 40
"""Letters in a line of a method's label; paths of drafters are longer, and would leave a plot no room."""
LABEL_ROOM = 1.2
"""The axis of speedups ends so far past the largest one, for the figure written beside it."""
ISO_SPEEDUPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def write_plots(folder: Path, groups: Groups) -> list[str]:
    """Draw `speedup.png`, `cost.png`, `depth.png` and `stages.png`; give the names of those drawn.

    A plot that the rows have nothing for is left out, and an old one removed.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    groups = {
        group: [{**row, "method": marked(row)} for row in rows] for group, rows in groups.items()
    }
    drawn = []
    for name, draw in PLOTS.items():
        file = folder / name
        figure = draw(groups)
        file.unlink(missing_ok=True)
        if figure is not None:
            figure.savefig(file, dpi=DPI, bbox_inches="tight", facecolor="white")
            drawn.append(name)
    return drawn


def speedup_plot(groups: Groups) -> Figure | None:
    """A panel for each group: every method's speedup over plain decoding with its interval."""
    known = {name: [r for r in rows if _has_speedup(r)] for name, rows in groups.items()}
    if not any(known.values()):
        return None
    styles = _styles(groups)
    methods = [method for method in styles if method != PLAIN]
    columns = min(len(groups), PANELS_PER_ROW)
    lines = math.ceil(len(groups) / columns)
    row_in = 0.11 + 0.16 * _tallest(methods)
    figure = _figure(1.8 + 2.5 * columns, 0.7 + lines * (0.75 + row_in * len(methods)))
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axis, (name, rows) in zip(axes.flat, known.items(), strict=False):
        _speedup_panel(_bare(axis), rows, methods, styles)
        title = "all prompts" if name == ALL else name
        axis.set_title(title, fontsize=10, loc="left", fontweight="bold")
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    axes.flat[0].set_xlim(0, LABEL_ROOM * max(_high(r) for rows in known.values() for r in rows))
    figure.supxlabel("times as fast as plain decoding (bars: 95 % intervals)", fontsize=10)
    return figure


def cost_plot(groups: Groups) -> Figure | None:
    """What a round gives against what it costs, both measured; lines join equal speedups."""
    pooled = _pooled(groups)
    if PLAIN not in pooled:
        return None
    base = _round_ms(pooled[PLAIN])
    points = {
        name: (_round_ms(row) / base, row["tokens_per_pass"])
        for name, row in pooled.items()
        if row["target_ms"] is not None
    }
    figure = _figure(8.2, 5.0)
    axis = _bare(figure.add_subplot())
    right = 1.12 * max(x for x, _ in points.values())
    top = 1.12 * max(y for _, y in points.values())
    _iso_lines(axis, right, top)
    styles = _styles(groups)
    for name, point in points.items():
        colour, marker = styles[name]
        axis.plot(
            *point, marker, color=colour, markersize=9, label=_label(name), clip_on=False, zorder=3
        )
    axis.set(xlim=(0, right), ylim=(0, top))
    axis.set_xlabel("time of a round, in rounds of plain decoding")
    axis.set_ylabel("emitted tokens per round")
    axis.set_title(
        "What a round costs and gives (measured; lines of equal speedup)",
        loc="left",
        fontweight="bold",
        pad=22,
    )
    _legend(axis)
    return figure


def depth_plot(groups: Groups) -> Figure | None:
    """The share of rounds whose token was accepted at each depth, of those that drafted so deep."""
    lines = {name: row["accepted_per_depth"] for name, row in _pooled(groups).items()}
    if not any(lines.values()):
        return None
    figure = _figure(8.2, 4.4)
    axis = _bare(figure.add_subplot())
    from matplotlib.ticker import MaxNLocator

    styles = _styles(groups)
    for name, shares in lines.items():
        if shares:
            colour, marker = styles[name]
            depths = range(1, len(shares) + 1)
            axis.plot(
                depths, shares, marker=marker, color=colour, label=_label(name), clip_on=False
            )
    axis.set(ylim=(0, 1), xlabel="depth in the draft", ylabel="share of rounds that accepted it")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("Acceptance by depth", loc="left", fontweight="bold")
    axis.grid(axis="y", color=LIGHT)
    _legend(axis)
    return figure


def stages_plot(groups: Groups) -> Figure | None:
    """Where the time of an emitted token goes; what cannot be seen of it is hatched."""
    pooled = {name: row for name, row in _pooled(groups).items() if row["tpot_ms"] is not None}
    if not pooled:
        return None
    figure = _figure(8.2, 1.2 + (0.2 + 0.16 * _tallest(pooled)) * len(pooled))
    axis = _bare(figure.add_subplot())
    for place, row in enumerate(pooled.values()):
        _stage_bar(axis, place, row)
    longest = max(row["tpot_ms"] for row in pooled.values())
    axis.set_xlim(0, 1.14 * longest)
    axis.set_yticks(range(len(pooled)), list(map(_label, pooled)))
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds per emitted token")
    axis.set_title("Time by stage", loc="left", fontweight="bold")
    axis.tick_params(axis="y", length=0)
    _stage_legend(axis, hides=any(map(_hides_stages, pooled.values())))
    return figure


PLOTS: Mapping[str, Callable[[Groups], Any]] = {
    "speedup.png": speedup_plot,
    "cost.png": cost_plot,
    "depth.png": depth_plot,
    "stages.png": stages_plot,
}


def _speedup_panel(
    axis: Axes, rows: Rows, methods: Sequence[str], styles: Mapping[str, tuple[str, str]]
) -> None:
    axis.axvline(1, color=GREY, linewidth=1.5, zorder=1)
    for row in rows:
        value, place = row["speedup_vs_plain"], methods.index(row["method"])
        colour, marker = styles[row["method"]]
        low, high = (row[f"speedup_vs_plain_{end}"] for end in ("low", "high"))
        if low is not None:
            axis.hlines(place, low, high, color=colour, linewidth=2)
        axis.plot(value, place, marker, color=colour, markersize=6)
        edge = value if high is None else high
        axis.annotate(
            f"{value:.2f}",
            (edge, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axis.set_yticks(range(len(methods)), list(map(_label, methods)), fontsize=9)
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.grid(axis="x", color=LIGHT)
    axis.set_axisbelow(True)
    axis.tick_params(axis="both", length=0, labelbottom=True)


def _iso_lines(axis: Axes, right: float, top: float) -> None:
    for speedup in ISO_SPEEDUPS:
        x = min(right, top / speedup)
        strong = speedup == 1
        axis.plot(
            (0, x),
            (0, speedup * x),
            "-" if strong else "--",
            color=GREY if strong else LIGHT,
            zorder=1,
        )
        above = speedup * right > top
        axis.annotate(
            f"{speedup:g}×",
            (x, speedup * x),
            (0, 4) if above else (4, 0),
            textcoords="offset points",
            ha="center" if above else "left",
            va="bottom" if above else "center",
            color=GREY,
            fontsize=9,
            annotation_clip=False,
        )


def _stage_bar(axis: Axes, place: int, row: Mapping[str, Any]) -> None:
    """The stages that are seen, and then the rest: hatched where it holds stages that are not."""
    total, left = row["tpot_ms"], 0.0
    for (name, _), colour in zip(STAGES.items(), STAGE_COLOURS, strict=True):
        if name != REST and row[name] is not None:
            length = row[name] / row["tokens_per_pass"]
            axis.barh(place, length, left=left, color=colour, height=0.7)
            left += length
    look = HATCHED if _hides_stages(row) else {"color": STAGE_COLOURS[-1]}
    axis.barh(place, total - left, left=left, height=0.7, **look)
    axis.annotate(
        f"{total:.1f}", (total, place), (4, 0), textcoords="offset points", va="center", fontsize=9
    )


def _hides_stages(row: Mapping[str, Any]) -> bool:
    return any(row[name] is None for name in STAGES)


def _stage_legend(axis: Axes, hides: bool) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=c, label=s) for c, s in zip(STAGE_COLOURS, STAGES.values(), strict=True)]
    if hides:
        patches.append(Patch(label="the rest, stages not seen", **HATCHED))
    axis.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def _label(method: str) -> str:
    """The whole name of a method, in lines that end behind an option or a folder where they can."""
    lines = [""]
    for part in re.findall(f"[^:/]{{1,{LABEL_WIDTH - 1}}}[:/]?|[:/]", method):
        if len(lines[-1]) + len(part) > LABEL_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _tallest(methods: Iterable[str]) -> int:
    """Lines of the tallest label."""
    return max((1 + _label(method).count("\n") for method in methods), default=1)


def _legend(axis: Axes) -> None:
    axis.legend(loc="upper left", bbox_to_anchor=(1.06, 1), frameon=False, fontsize=9)


def _figure(width: float, height: float) -> Figure:
    """An empty figure in inches, with plain axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "plots need matplotlib; install it with pip install 'foredraft[bench]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _bare(axis: Axes) -> Axes:
    """Without the frame's upper and right side."""
    axis.spines[["top", "right"]].set_visible(False)
    return axis


def _styles(groups: Groups) -> dict[str, tuple[str, str]]:
    """Colour and marker of every method, in the order of the pool, which has all of them."""
    return {
        row["method"]: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)])
        for i, row in enumerate(groups[ALL])
    }


def _has_speedup(row: Mapping[str, Any]) -> bool:
    return row["method"] != PLAIN and row["speedup_vs_plain"] is not None


def _high(row: Mapping[str, Any]) -> float:
    return float(row["speedup_vs_plain_high"] or row["speedup_vs_plain"])


def _pooled(groups: Groups) -> dict[str, Mapping[str, Any]]:
    return {row["method"]: row for row in groups[ALL] if row["rounds"]}


def _round_ms(row: Mapping[str, Any]) -> float:
    return float(row["tpot_ms"] * row["tokens_per_pass"])
