"""The plots: what they show, that they hold many methods, and that they are drawn without global state."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench import plots
from foredraft.bench.folder import Run
from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import ALL, Rows, by_group, make_rows, results_document
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


def groups_of(run: Run) -> Mapping[str, Rows]:
    """The rows of a run as they are drawn."""
    return by_group(results_document(run, None))


@pytest.fixture(scope="module")
def groups() -> Mapping[str, Rows]:
    """Every contender in every suite."""
    return groups_of(whole_run(prompts=2))


def axes(figure: Any) -> list[Any]:
    """The visible panels of a figure."""
    return [axis for axis in figure.axes if axis.get_visible()]


def labels(axis: Any) -> list[str]:
    """What a legend names."""
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_every_suite_has_a_panel_with_every_method(groups: Mapping[str, Rows]) -> None:
    panels = axes(plots.speedup_plot(groups))
    titles = [panel.get_title(loc="left") for panel in panels]
    assert titles == ["all prompts", *SUITES]
    methods = [method for method in CONTENDERS if method != PLAIN]
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == methods
    for panel in panels:
        assert len(panel.collections) == len(methods), "an error bar each"


def test_no_point_and_no_error_bar_is_cut_off(groups: Mapping[str, Rows]) -> None:
    figure = plots.speedup_plot(groups)
    right = axes(figure)[0].get_xlim()[1]
    highest = max(row["speedup_vs_plain_high"] for rows in groups.values() for row in rows)
    assert highest < right


def test_points_stand_at_cost_and_tokens_of_a_round(groups: Mapping[str, Rows]) -> None:
    axis = axes(plots.cost_plot(groups))[0]
    points = {
        line.get_label(): line.get_xydata()[0] for line in axis.lines if line.get_marker() != "None"
    }
    assert points[PLAIN].tolist() == pytest.approx([1, 1])
    assert set(points) == set(CONTENDERS) - {"llama.cpp"}, "whose rounds are not seen"
    for row in groups[ALL]:
        if row["method"] in points:
            x, y = points[row["method"]]
            assert y / x == pytest.approx(row["speedup_vs_plain"]), "the line it lies on"


def test_only_drafting_methods_have_a_line_by_depth(groups: Mapping[str, Rows]) -> None:
    axis = axes(plots.depth_plot(groups))[0]
    assert not {PLAIN, "hf", "llama.cpp"} & set(labels(axis))
    lines = {line.get_label(): line.get_ydata() for line in axis.lines}
    eagle = next(row for row in groups[ALL] if row["method"] == "eagle")
    assert list(lines["eagle"]) == list(eagle["accepted_per_depth"])


def test_stages_add_up_to_the_time_of_a_token(groups: Mapping[str, Rows]) -> None:
    axis = axes(plots.stages_plot(groups))[0]
    ends = [max(bar.get_x() + bar.get_width() for bar in axis.patches if round(bar.get_y() + 0.35) == i)
            for i in range(len(CONTENDERS))]  # fmt: skip
    assert ends == pytest.approx([row["tpot_ms"] for row in groups[ALL]])


def test_what_cannot_be_seen_is_one_hatched_rest(groups: Mapping[str, Rows]) -> None:
    """All of llama.cpp's time, and hf's but for its target passes."""
    axis = axes(plots.stages_plot(groups))[0]
    rows = {row["method"]: row for row in groups[ALL]}
    names = [tick.get_text() for tick in axis.get_yticklabels()]
    hatched = {
        names[round(bar.get_y() + 0.35)]: bar.get_width() for bar in axis.patches if bar.get_hatch()
    }
    assert set(hatched) == {"hf", "hf-lookup", "llama.cpp"}
    assert hatched["llama.cpp"] == pytest.approx(rows["llama.cpp"]["tpot_ms"])
    seen = rows["hf"]["target_ms"] / rows["hf"]["tokens_per_pass"]
    assert hatched["hf"] == pytest.approx(rows["hf"]["tpot_ms"] - seen)
    assert labels(axis)[-1] == "the rest, stages not seen"


def test_methods_look_different_from_each_other(groups: Mapping[str, Rows]) -> None:
    assert len(set(plots._styles(groups).values())) == len(CONTENDERS)


def test_a_method_has_the_same_colour_in_every_plot() -> None:
    """Also beside one that made no rounds, which is left out of some of them."""
    chain = {"widths": (1, 1, 1), "draft_rows": (1, 1)}
    records = [
        prompt_of(
            answer_of(PLAIN, round_of()),
            answer_of("hf", first_tokens=1),
            answer_of("m", round_of(1, **chain)),
            answer_of("n", round_of(2, **chain)),
            id=str(i),
        )
        for i in range(2)
    ]
    groups = groups_of(run_of(*records))
    colours = []
    for draw in (plots.cost_plot, plots.depth_plot):
        lines = axes(draw(groups))[0].lines
        colours.append({line.get_label(): line.get_color() for line in lines})
    panel = axes(plots.speedup_plot(groups))[0]
    methods = [tick.get_text() for tick in panel.get_yticklabels()]
    points = [line for line in panel.lines if line.get_marker() != "None"]
    colours.append({methods[round(line.get_ydata()[0])]: line.get_color() for line in points})
    for method in ("m", "n"):
        assert len({found[method] for found in colours}) == 1


def test_the_categories_of_the_only_suite_have_panels() -> None:
    groups = groups_of(whole_run((PLAIN, "ngram"), ("chat",), prompts=2))
    titles = [panel.get_title(loc="left") for panel in axes(plots.speedup_plot(groups))]
    assert titles == ["all prompts", "chat/short", "chat/long"]


def test_names_with_paths_are_whole_and_leave_room() -> None:
    long = f"eagle2:drafter=/{'a-long-folder/' * 12}{'x' * 90}:nodes=6"
    drafted = round_of(2, widths=(1, 1, 1), draft_rows=(1, 1))
    both = answer_of(PLAIN, round_of()), answer_of(long, drafted)
    group = groups_of(run_of(*(prompt_of(*both, id=str(i)) for i in range(2))))
    for draw in plots.PLOTS.values():
        figure = draw(group)
        figure.canvas.draw()  # a plot without room warns
        axis = axes(figure)[0]
        shown = [tick.get_text() for tick in axis.get_yticklabels()]
        shown += labels(axis) if axis.get_legend() else []
        assert long in [text.replace("\n", "") for text in shown]
        assert max(len(line) for text in shown for line in text.split("\n")) <= plots.LABEL_WIDTH


def test_the_four_plots_are_written_and_old_ones_removed(
    tmp_path: Path, groups: Mapping[str, Rows]
) -> None:
    drawn = plots.write_plots(tmp_path, groups)
    assert drawn == ["speedup.png", "cost.png", "depth.png", "stages.png"]
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in drawn)
    plain = groups_of(run_of(prompt_of(answer_of(PLAIN, round_of()))))
    assert plots.write_plots(tmp_path, plain) == ["cost.png", "stages.png"]
    assert not (tmp_path / "depth.png").exists()


def test_one_suite_has_one_panel() -> None:
    run = whole_run((PLAIN, "ngram"), ("code",), prompts=1)
    panels = axes(plots.speedup_plot(groups_of(run)))
    assert [panel.get_title(loc="left") for panel in panels] == ["all prompts"]


def test_a_single_prompt_has_points_without_bars() -> None:
    run = whole_run((PLAIN, "ngram"), ("code",), prompts=1)
    assert not axes(plots.speedup_plot(groups_of(run)))[0].collections


def test_pyplot_is_left_alone() -> None:
    code = (
        "import sys; from tests.bench.synthetic_runs import whole_run;"
        "from foredraft.bench import plots; from foredraft.bench.rows import make_rows;"
        "assert 'matplotlib' not in sys.modules;"
        "run = whole_run(('autoregressive', 'hf'), ('code',), prompts=1);"
        "plots.stages_plot({'all': make_rows(run, None)});"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_matplotlib_the_way_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch, groups: Mapping[str, Rows]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'foredraft\[bench\]'"):
        plots.stages_plot(groups)


def test_without_scipy_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match=r"pip install 'foredraft\[bench\]'"):
        make_rows(whole_run((PLAIN, "ngram"), ("code",), prompts=2), None)
