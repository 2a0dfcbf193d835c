"""The plots: what they show, that they hold many methods, and that they are drawn without global state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench import plots
from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import ALL, make_rows
from foredraft.errors import ConfigError
from tests.bench.synthetic_runs import (
    CONTENDERS,
    SUITES,
    answer_of,
    prompt_of,
    round_of,
    run_of,
    whole_run,
)

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Every contender in every suite."""
    return make_rows(whole_run(prompts=2))


def axes(figure: Any) -> list[Any]:
    """The visible panels of a figure."""
    return [axis for axis in figure.axes if axis.get_visible()]


def labels(axis: Any) -> list[str]:
    """What a legend names."""
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_every_suite_has_a_panel_with_every_method(rows: list[dict[str, Any]]) -> None:
    panels = axes(plots.speedup_plot(rows))
    titles = [panel.get_title(loc="left") for panel in panels]
    assert titles == ["all suites", *SUITES]
    methods = [method for method in CONTENDERS if method != PLAIN]
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == methods
    for panel in panels:
        assert len(panel.collections) == len(methods), "an error bar each"


def test_no_point_and_no_error_bar_is_cut_off(rows: list[dict[str, Any]]) -> None:
    figure = plots.speedup_plot(rows)
    right = axes(figure)[0].get_xlim()[1]
    highest = max(row["speedup_vs_plain_high"] for row in rows)
    assert highest < right


def test_points_stand_at_cost_and_tokens_of_a_round(rows: list[dict[str, Any]]) -> None:
    axis = axes(plots.cost_plot(rows))[0]
    points = {
        line.get_label(): line.get_xydata()[0] for line in axis.lines if line.get_marker() != "None"
    }
    assert points[PLAIN].tolist() == pytest.approx([1, 1])
    assert set(points) == set(CONTENDERS) - {"llama.cpp"}, "whose rounds are not seen"
    for row in rows:
        if row["suite"] == ALL and row["method"] in points:
            x, y = points[row["method"]]
            assert y / x == pytest.approx(row["speedup_vs_plain"]), "the line it lies on"


def test_only_drafting_methods_have_a_line_by_depth(rows: list[dict[str, Any]]) -> None:
    axis = axes(plots.depth_plot(rows))[0]
    assert not {PLAIN, "hf", "llama.cpp"} & set(labels(axis))
    lines = {line.get_label(): line.get_ydata() for line in axis.lines}
    eagle = next(row for row in rows if (row["suite"], row["method"]) == (ALL, "eagle"))
    assert list(lines["eagle"]) == list(eagle["accepted_per_depth"])


def test_stages_add_up_to_the_time_of_a_token(rows: list[dict[str, Any]]) -> None:
    axis = axes(plots.stages_plot(rows))[0]
    ends = [max(bar.get_x() + bar.get_width() for bar in axis.patches if round(bar.get_y() + 0.35) == i)
            for i in range(len(CONTENDERS))]  # fmt: skip
    pooled = [row["tpot_ms"] for row in rows if row["suite"] == ALL]
    assert ends == pytest.approx(pooled)
    hatched = [bar for bar in axis.patches if bar.get_hatch()]
    assert len(hatched) == 1, "llama.cpp tells no stages"
    assert labels(axis)[-1] == "not told"


def test_methods_look_different_from_each_other(rows: list[dict[str, Any]]) -> None:
    styles = plots._styles(list(CONTENDERS))
    assert len(set(styles.values())) == len(CONTENDERS)


def test_the_four_plots_are_written_and_old_ones_removed(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    drawn = plots.write_plots(tmp_path, rows)
    assert drawn == ["speedup.png", "cost.png", "depth.png", "stages.png"]
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in drawn)
    plain = make_rows(run_of(prompt_of(answer_of(PLAIN, round_of()))))
    assert plots.write_plots(tmp_path, plain) == ["cost.png", "stages.png"]
    assert not (tmp_path / "depth.png").exists()


def test_one_suite_has_one_panel() -> None:
    run = whole_run((PLAIN, "ngram"), ("code",), prompts=2)
    panels = axes(plots.speedup_plot(make_rows(run)))
    assert [panel.get_title(loc="left") for panel in panels] == ["code"]


def test_a_single_prompt_has_points_without_bars() -> None:
    run = whole_run((PLAIN, "ngram"), ("code",), prompts=1)
    assert not axes(plots.speedup_plot(make_rows(run)))[0].collections


def test_pyplot_is_left_alone() -> None:
    code = (
        "import sys; from tests.bench.synthetic_runs import whole_run;"
        "from foredraft.bench import plots; from foredraft.bench.rows import make_rows;"
        "assert 'matplotlib' not in sys.modules;"
        "plots.stages_plot(make_rows(whole_run(('autoregressive', 'hf'), ('code',), prompts=1)));"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_matplotlib_the_way_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'foredraft\[bench\]'"):
        plots.stages_plot(rows)


def test_without_scipy_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match=r"pip install 'foredraft\[bench\]'"):
        make_rows(whole_run((PLAIN, "ngram"), ("code",), prompts=2))
