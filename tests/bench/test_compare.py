"""Comparisons of two runs: noise is called noise, changes are found, and swapping mirrors."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from foredraft.bench import noise
from foredraft.bench.compare import ABSOLUTE, Change, Comparison, compare_runs, read_pairs
from foredraft.bench.comparison import render_comparison
from foredraft.bench.folder import Run
from foredraft.bench.noise import NO_DIFFERENCE
from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import ALL
from foredraft.errors import ConfigError
from tests.bench.synthetic_runs import (
    SILENCE,
    Noise,
    answer_of,
    costs_of,
    noisy_run,
    prompt_of,
    round_of,
    run_of,
    whole_run,
)

SEEDS = 200
LEAST_SILENT = 0.97
"""Of comparisons of a run with itself, those in which no row may say that anything changed."""
LEAST_FOUND = 0.95
METHOD = {PLAIN: 1.0, "m": 0.6}
SLOWED = {PLAIN: 1.0, "m": 0.6 / 0.9}
"""10 % fewer tokens per second."""


def relative(comparison: Comparison) -> list[Change]:
    """Every row but absolute times."""
    return [change for change in comparison.changes if change.reference]


def change_of(comparison: Comparison, method: str, suite: str = ALL) -> Change:
    """One row."""
    return next(c for c in comparison.changes if (c.method, c.suite) == (method, suite))


def pairs_of_runs(
    first: dict[str, float], second: dict[str, float], **settings: Any
) -> Iterator[Comparison]:
    """Comparisons of runs whose noise has nothing in common."""
    for seed in range(SEEDS):
        a = noisy_run(2 * seed, first, **settings)
        b = noisy_run(2 * seed + 1, second, **settings)
        yield compare_runs(a, b)


# --- the laws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "suites"),
    [(METHOD, ["chat"]), (METHOD | {"n": 0.8, "hf": 1.1}, ["chat", "code"])],
    ids=["one method", "several, in two suites"],
)
def test_methods_compared_with_themselves_show_no_difference(
    methods: dict[str, float], suites: list[str]
) -> None:
    """Noise of 5 to 10 % an answer, a machine that drifts, and one answer in 50 stalled."""
    silent = sum(
        all(change.verdict == NO_DIFFERENCE for change in relative(comparison))
        for comparison in pairs_of_runs(methods, methods, suites=suites)
    )
    assert silent / SEEDS >= LEAST_SILENT


@pytest.mark.parametrize(
    ("noise_of_answers", "repeats"),
    [(Noise(), 1), (Noise(), 2), (Noise(0.1, 0.1), 3)],
    ids=["5 to 10 %, once", "5 to 10 %, twice", "10 %, three times"],
)
def test_a_tenth_slower_is_found_with_40_prompts(noise_of_answers: Noise, repeats: int) -> None:
    comparisons = pairs_of_runs(METHOD, SLOWED, noise=noise_of_answers, repeats=repeats)
    found = sum(change_of(c, "m").verdict.endswith("% slower") for c in comparisons)
    assert found / SEEDS >= LEAST_FOUND


@pytest.mark.parametrize("slowness", [METHOD, SLOWED], ids=["same", "slower"])
def test_swapping_the_runs_mirrors_every_row(slowness: dict[str, float]) -> None:
    for seed in range(10):
        a = noisy_run(seed, METHOD, suites=("chat", "code"))
        b = noisy_run(seed + 100, slowness, suites=("chat", "code"))
        there, back = compare_runs(a, b), compare_runs(b, a)
        for one, other in zip(there.changes, back.changes, strict=True):
            assert one.estimate.ratio == pytest.approx(1 / other.estimate.ratio)
            assert one.estimate.low == pytest.approx(1 / (other.estimate.high or 0))
            assert one.p_value == pytest.approx(other.p_value)
            words = [change.verdict.split()[-1] for change in (one, other)]
            assert sorted(words) in (["difference", "difference"], ["faster", "slower"])


def test_the_estimate_is_the_planted_change() -> None:
    comparisons = islice(pairs_of_runs(METHOD, SLOWED, repeats=3), 30)
    ratios = [change_of(comparison, "m").estimate.ratio for comparison in comparisons]
    assert np.mean(ratios) == pytest.approx(0.9, abs=0.01)


# --- verdicts by hand ----------------------------------------------------------------------------------


def test_without_noise_the_figure_is_exact() -> None:
    a, b = noisy_run(0, METHOD, noise=SILENCE), noisy_run(0, SLOWED, noise=SILENCE)
    change = change_of(compare_runs(a, b), "m")
    assert change.estimate.ratio == pytest.approx(0.9)
    assert (change.verdict, change.reference) == ("10 % slower", PLAIN)
    assert change_of(compare_runs(b, a), "m").verdict == "11 % faster"


def test_a_machine_of_another_speed_changes_nothing() -> None:
    quick = {PLAIN: 0.25, "m": 0.15}
    a, b = noisy_run(0, METHOD, noise=SILENCE), noisy_run(0, quick, noise=SILENCE)
    assert change_of(compare_runs(a, b), "m").verdict == NO_DIFFERENCE


def test_an_effect_as_small_as_two_runs_differ_by_is_none() -> None:
    a = noisy_run(0, METHOD, noise=SILENCE)
    b = noisy_run(0, {PLAIN: 1.0, "m": 0.6 * 1.025}, noise=SILENCE)
    found = change_of(compare_runs(a, b), "m")
    assert found.p_value < noise.ALPHA
    assert found.verdict == NO_DIFFERENCE


def test_a_run_and_itself_are_the_same() -> None:
    run = noisy_run(0, METHOD)
    change = change_of(compare_runs(run, run), "m")
    assert (change.estimate.ratio, change.p_value, change.verdict) == (1, 1, NO_DIFFERENCE)


def test_stalls_are_set_aside_and_a_change_of_one_suite_is_not() -> None:
    """A suite twice as fast is no outlier, though most prompts did not change."""
    suites = np.array(["chat"] * 30 + ["code"] * 10)
    logs = np.where(suites == "code", np.log(2.0), 0.001)
    logs[3] = np.log(3.0)
    found = noise.estimate(logs, suites.tolist())
    assert (found.prompts, found.set_aside) == (39, 1)
    assert found.ratio == pytest.approx(np.exp((10 * np.log(2) + 29 * 0.001) / 39))


def test_moderate_differences_between_prompts_are_no_stalls() -> None:
    logs = np.array([0.0] * 20 + [0.3, 0.35, -0.3])
    assert noise.estimate(logs, ["chat"] * 23).set_aside == 0


def test_one_common_prompt_says_that_it_tells_nothing() -> None:
    a, b = noisy_run(0, METHOD, prompts=1), noisy_run(1, SLOWED, prompts=1)
    comparison = compare_runs(a, b)
    assert change_of(comparison, "m").verdict == NO_DIFFERENCE
    assert change_of(comparison, "m").estimate.low is None
    assert "only one prompt is common" in comparison.notes[0]


def test_plain_decoding_is_held_against_hf_and_else_absolute() -> None:
    alone = compare_runs(noisy_run(0, METHOD), noisy_run(1, METHOD))
    assert change_of(alone, PLAIN).reference is None
    assert f"{PLAIN}: {ABSOLUTE}" in alone.notes
    with_hf = METHOD | {"hf": 1.1}
    both = compare_runs(noisy_run(0, with_hf), noisy_run(1, with_hf))
    assert change_of(both, PLAIN).reference == "hf"
    assert not any(ABSOLUTE in note for note in both.notes)


# --- what is compared ------------------------------------------------------------------------------------


def test_only_common_prompts_count_and_ids_of_other_prompts_do_not() -> None:
    def run(*prompts: tuple[str, int]) -> Run:
        return run_of(
            *(
                prompt_of(
                    answer_of(PLAIN, round_of(), prompt_tokens=tokens),
                    answer_of("m", round_of(), prompt_tokens=tokens),
                    id=name,
                )
                for name, tokens in prompts
            )
        )

    a, b = run(("0", 20), ("1", 20), ("2", 20)), run(("1", 20), ("2", 33), ("3", 20))
    assert compare_runs(a, b).prompts == 1
    with pytest.raises(ConfigError, match="no prompt in common"):
        compare_runs(a, run(("3", 20)))


def test_methods_can_be_paired_by_name() -> None:
    a = noisy_run(0, {PLAIN: 1.0, "eagle:depth=5": 0.6, "n": 0.7}, noise=SILENCE)
    b = noisy_run(0, {PLAIN: 1.0, "eagle:depth=6": 0.5, "n": 0.7}, noise=SILENCE)
    pairs = read_pairs(["eagle:depth=5=eagle:depth=6"], a, b)
    assert pairs == {"eagle:depth=5": "eagle:depth=6"}
    comparison = compare_runs(a, b, pairs)
    change = change_of(comparison, "eagle:depth=5")
    assert (change.other, change.verdict) == ("eagle:depth=6", "20 % faster")
    assert {c.method for c in comparison.changes} == {PLAIN, "eagle:depth=5", "n"}


def test_pairs_and_methods_that_did_not_run_are_said() -> None:
    a, b = noisy_run(0, METHOD), noisy_run(0, {"x": 1.0})
    with pytest.raises(ConfigError, match=r"pair 'm=y'.*the second x"):
        read_pairs(["m=y"], a, b)
    with pytest.raises(ConfigError, match="'y' in the second"):
        compare_runs(a, b, {"m": "y"})
    with pytest.raises(ConfigError, match="no method in common"):
        compare_runs(a, b)


def test_settings_that_differ_are_listed() -> None:
    a = noisy_run(0, METHOD)
    made = {**a.plan["provenance"], "date": "2027", "cpu": "another", "packages": {"torch": "3"}}
    plan = a.plan | {"loaded_dtype": "bfloat16", "repeats": 3, "provenance": made}
    b = dataclasses.replace(a, plan=plan)
    found = {d.name: (d.first, d.second) for d in compare_runs(a, b).settings}
    assert found == {
        "loaded_dtype": ("float32", "bfloat16"),
        "cpu": ("a processor", "another"),
        "torch": ("2.13.0", "3"),
    }
    assert compare_runs(a, a).settings == ()


def test_facts_count_equal_answers_and_rounds() -> None:
    """The second run answers one prompt by other rounds, and another one with other tokens."""
    tree = {"widths": (1, 2), "draft_rows": (1,)}
    plain = answer_of(PLAIN, round_of(), round_of())
    draft = answer_of("m", round_of(1, **tree))
    other_rounds = answer_of("m", round_of(), round_of())
    longer = answer_of("m", round_of(1, **tree), round_of(0, **tree))
    a = run_of(*(prompt_of(plain, draft, id=i) for i in "012"), costs=costs_of(["m"]))
    b = run_of(
        *(
            prompt_of(plain, x, id=i)
            for i, x in zip("012", (draft, other_rounds, longer), strict=True)
        )
    )
    fact = compare_runs(a, b).facts[1]
    assert (fact.method, fact.answers, fact.equal_answers, fact.equal_rounds) == ("m", 3, 2, 1)
    assert fact.mean_acceptance_length == pytest.approx((2, 1 + 2 / 5))
    assert fact.acceptance_rate == pytest.approx((3 / 6, 2 / 6))
    assert None not in fact.modelled_tokens_per_s, "both priced by the first run's table"


# --- how it looks --------------------------------------------------------------------------------------


def shown(comparison: Comparison) -> str:
    """A comparison as printed."""
    console = Console(file=io.StringIO(), width=140)
    console.print(render_comparison(comparison))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_the_whole_of_it_is_shown() -> None:
    a, b = whole_run(prompts=2, suites=("chat", "code")), whole_run(prompts=2, seed=1)
    b = dataclasses.replace(b, plan=b.plan | {"max_new_tokens": 7, "model": "a [red]model"})
    text = shown(compare_runs(a, b))
    for piece in (
        "settings that differ",
        "max_new_tokens",
        "a [red]model",
        "speed over all prompts",
    ):
        assert piece in text
    assert text.index("settings that differ") < text.index("speed over all prompts")
    assert text.index("speed over all prompts") < text.index("speed by suite")
    assert "eagle2:depth=5:nodes=24" in text
    assert NO_DIFFERENCE in text


def test_the_json_form_says_the_same() -> None:
    a, b = noisy_run(0, METHOD, noise=SILENCE), noisy_run(0, SLOWED, noise=SILENCE)
    document = json.loads(json.dumps(compare_runs(a, b).as_dict(), allow_nan=False))
    change = next(c for c in document["changes"] if c["method"] == "m")
    assert change["verdict"] == "10 % slower"
    assert "10 % slower" in shown(compare_runs(a, b))
