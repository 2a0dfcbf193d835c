"""A measurement of quality on a tiny model: its parts, its figures, and going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.bench.intervals import Interval, named
from foredraft.bench.papers import Progress
from foredraft.bench.quality.contexts import RootChoices
from foredraft.bench.quality.figures import accuracy, answer_quality, root_quality
from foredraft.bench.quality.plan import QualityPlan
from foredraft.bench.quality.report import interval, write_quality
from foredraft.bench.quality.run import ROOTS_FILE, QualityRun
from foredraft.bench.quality.tasks import make_tasks
from foredraft.bench.scoring import Score, ScoredAnswer
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from tests.bench.synthetic_runs import answer_of, prompt_of, round_of, run_of
from tests.tiny_folders import save_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("models")
    suite = root / "cats.jsonl"
    suite.write_text("\n".join(json.dumps({"prompt": text}) for text in ("the cat", "a mat")))
    target, draft = save_folder(root / "target"), save_folder(root / "draft", hidden_size=16)
    return {"model": str(target), "drafters": (str(draft),), "suites": str(suite)}


def plan_of(folders: dict[str, Any], **changes: Any) -> QualityPlan:
    values: dict[str, Any] = {
        **folders,
        "tree": "2,1",
        "max_roots": 2,
        "contexts": 3,
        "candidates": 4,
        "tasks": 7,
        "max_new_tokens": 8,
        "temperature": 1.0,
        "dtype": "float32",
    }
    return QualityPlan(**values | changes)


def quick(*_: Any) -> CostTable:
    return CostTable.flat(0.02, 0.002, ("mcsd-improved-lossy",))


@pytest.fixture(scope="module")
def done(folders: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quality")
    steps = list(QualityRun(plan_of(folders), out, measure=quick))
    assert [step.part for step in steps] == ["roots"] * 3 + ["answers"] * 2 + ["tasks"] * 7
    assert steps[2] == Progress("roots", 3, 3)
    write_quality(out)
    return out


def test_one_root_changes_nothing_and_two_do(done: Path) -> None:
    document = json.loads((done / "results.json").read_text())
    one, two = document["rows"]
    assert (one["num_roots"], one["lossless"]) == (1, "yes")
    assert one["root_tv"] == pytest.approx(0, abs=1e-9)
    assert two["lossless"] == "no"
    assert two["root_tv"] > 1e-4
    assert two["root_tv_low"] <= two["root_tv"] <= two["root_tv_high"]
    assert 0 < two["root_tv_tail"] < 1
    assert (two["contexts"], two["tasks"]) == (3, 7)
    assert two["tokens_per_pass"] >= 1


def test_every_figure_has_a_two_sided_interval(done: Path) -> None:
    for row in json.loads((done / "results.json").read_text())["rows"]:
        for name in ("greedy_agreement", "log_prob", "tempered_log_prob", "accuracy"):
            low, value, high = (row[f"{name}_difference{end}"] for end in ("_low", "", "_high"))
            assert low <= value <= high, name
    assert "plain" in (done / "report.md").read_text()


def test_going_on_makes_what_is_missing(folders: dict[str, Any], done: Path) -> None:
    plan = plan_of(folders)
    assert list(QualityRun(plan, done, measure=quick)) == []
    file = done / ROOTS_FILE
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    assert [step.part for step in QualityRun(plan, done, measure=quick)] == ["roots"]
    assert file.read_text().splitlines(keepends=True) == lines


def test_another_plan_is_refused(folders: dict[str, Any], done: Path) -> None:
    with pytest.raises(ConfigError, match="contexts=3"):
        QualityRun(plan_of(folders, contexts=4), done, measure=quick)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_roots": 0}, "max_roots=0"),
        ({"tasks": 0}, "tasks=0"),
        ({"candidates": 1}, "candidates=1 are fewer"),
        ({"drafters": ("",)}, "empty name"),
        ({"drafters": ("nowhere",)}, "neither shipped nor a folder"),
        ({"tree": "2,x"}, "not a list of widths"),
        ({"roots": "best"}, "roots='best'"),
    ],
)
def test_mistakes_are_one_sentence(
    folders: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_of(folders, **changes)


def test_no_measurement_is_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no measurement"):
        write_quality(tmp_path)


# --- figures ----------------------------------------------------------------------------------------


class Given:
    """Scores by method, in place of a file's."""

    def __init__(self, **scores: tuple[Score, str]) -> None:
        self._scores = scores

    def of(self, answer: Any) -> ScoredAnswer | None:
        if answer.method not in self._scores:
            return None
        score, text = self._scores[answer.method]
        return ScoredAnswer("", "", text, score)


def pair_run(*ids: str) -> Any:
    return run_of(
        *(
            prompt_of(answer_of("autoregressive", round_of()), answer_of("m", round_of()), id=name)
            for name in ids
        )
    )


def test_differences_are_of_tokens_pooled() -> None:
    scores: Any = Given(
        autoregressive=(Score(10, 9, -5.0, -4.0), ""), m=(Score(20, 12, -20.0, -18.0), "")
    )
    found = answer_quality(pair_run("a", "b"), scores, "m")
    assert found["greedy_agreement"] == pytest.approx(0.6)
    assert found["greedy_agreement_difference"] == pytest.approx(-0.3)
    assert found["log_prob_difference"] == pytest.approx(-0.5)
    assert found["tempered_log_prob_difference"] == pytest.approx(-0.5)
    assert found["log_prob_difference_low"] == pytest.approx(-0.5)  # both prompts are alike


def test_accuracy_is_of_the_same_tasks() -> None:
    tasks = make_tasks(2)
    right = tasks[0].answer
    scores: Any = Given(
        autoregressive=(Score(1, 1, 0.0, 0.0), "no idea"), m=(Score(1, 1, 0.0, 0.0), right)
    )
    found = accuracy(pair_run(tasks[0].id), scores, "m", tasks)
    assert (found["tasks"], found["accuracy"], found["accuracy_difference"]) == (1, 1.0, 1.0)
    assert found["accuracy_difference_low"] is None
    unscored: Any = Given(m=(Score(1, 1, 0.0, 0.0), right))
    assert accuracy(pair_run(tasks[0].id), unscored, "m", tasks)["tasks"] == 0
    assert accuracy(pair_run("elsewhere"), scores, "m", tasks)["accuracy"] is None


def test_the_root_figure_is_the_mean_over_contexts() -> None:
    never = ((1.0, 0.0), (1.0, 0.0))
    second = ((1.0, 0.0), (0.0, 1.0))
    choices = [
        RootChoices(f"s/q{i}/{i}", "d", (5, 6), (0.4, 0.4), lengths)
        for i, lengths in enumerate((never, second))
    ]
    found = root_quality(choices, "d", 2, "multinomial")
    assert found["root_tv"] == pytest.approx((0 + 0.5) / 2)
    assert found["root_tv_tail"] == pytest.approx(0.2)
    assert root_quality(choices, "other", 2, "multinomial")["root_tv"] is None


def test_contexts_of_one_question_count_as_one() -> None:
    never, second = ((1.0, 0.0), (1.0, 0.0)), ((1.0, 0.0), (0.0, 1.0))
    choices = [
        RootChoices(name, "d", (5, 6), (0.5, 0.5), lengths)
        for name, lengths in (
            ("s/a/0", never),
            ("s/b/1", second),
            ("s/a/2", second),
            ("s/a/3", never),
        )
    ]
    found = root_quality(choices, "d", 2, "multinomial")
    assert (found["contexts"], found["questions"]) == (4, 2)
    assert found["root_tv"] == pytest.approx((0.5 / 3 + 0.5) / 2)
    alone = root_quality(choices[::2], "d", 2, "multinomial")
    assert alone["root_tv_low"] is None  # one question leaves nothing to resample


def test_the_tail_stands_in_the_table(done: Path) -> None:
    (row, _) = json.loads((done / "results.json").read_text())["rows"]
    report = (done / "report.md").read_text()
    assert "| tail |" in report
    assert f"| {row['root_tv_tail']:.3f} |" in report


def test_cells_have_a_sign_and_an_interval() -> None:
    row = named("x", Interval(0.1, -0.05, 0.25)) | named("root_tv", Interval(0.1, None, None))
    assert interval(row, "x", 2) == "+0.10 [-0.05, +0.25]"
    assert interval(row, "root_tv", 2) == "0.10"
    assert interval({}, "x", 2) == "–"
    assert np.isfinite(row["x"] or 0)
