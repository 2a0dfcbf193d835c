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
from foredraft.bench.changes import Change, Outlier
from foredraft.bench.compare import ABSOLUTE, Comparison, compare_runs, read_pairs
from foredraft.bench.folder import Run
from foredraft.bench.noise import CANNOT_TELL, NO_DIFFERENCE
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.bench.rows import ALL
from foredraft.cli.show_comparison import render_comparison
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
LEAST_SURE = 0.90
"""Of those with 40 prompts, those in which the method shows no difference, and not that one cannot tell."""
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
    ("methods", "suites", "runs"),
    [(METHOD, ["chat"], SEEDS), (METHOD | {"n": 0.8, "hf": 1.1}, ["chat", "code"], SEEDS // 2)],
    ids=["one method", "several, in two suites"],
)
def test_methods_compared_with_themselves_show_no_difference(
    methods: dict[str, float], suites: list[str], runs: int
) -> None:
    """Noise of 5 to 10 % an answer, a machine that drifts, and one answer in 50 stalled."""
    silent = sure = 0
    for comparison in islice(pairs_of_runs(methods, methods, suites=suites), runs):
        verdicts = {change.verdict for change in relative(comparison)}
        silent += verdicts <= {NO_DIFFERENCE, CANNOT_TELL}
        sure += change_of(comparison, "m").verdict == NO_DIFFERENCE
    assert silent / runs >= LEAST_SILENT
    assert sure / runs >= LEAST_SURE


def test_noise_of_a_tenth_is_no_reason_not_to_tell() -> None:
    comparisons = pairs_of_runs(METHOD, METHOD, noise=Noise(0.1, 0.1, stalls=0.0))
    half = list(islice(comparisons, SEEDS // 2))
    sure = sum(change_of(c, "m").verdict == NO_DIFFERENCE for c in half)
    assert sure / len(half) >= LEAST_SURE


@pytest.mark.parametrize(
    ("noise_of_answers", "repeats"),
    [(Noise(), 1), (Noise(0.1, 0.1), 3)],
    ids=["5 to 10 %, once", "10 %, three times"],
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
            same = words[0] == words[1] and words[0] in ("difference", "tell")
            assert same or sorted(words) == ["faster", "slower"]


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
    assert found.estimate.high is not None
    assert found.estimate.high < 1
    assert found.verdict == NO_DIFFERENCE


def test_a_run_and_itself_are_the_same() -> None:
    run = noisy_run(0, METHOD)
    change = change_of(compare_runs(run, run), "m")
    assert (change.estimate.ratio, change.p_value, change.verdict) == (1, 1, NO_DIFFERENCE)


def test_a_change_of_one_suite_is_no_outlier() -> None:
    """Though most prompts did not change; one that is three times as fast as its own suite is one."""
    suites = np.array(["chat"] * 30 + ["code"] * 10)
    logs = np.where(suites == "code", np.log(2.0), 0.001)
    logs[3] = np.log(3.0)
    assert np.flatnonzero(noise.outliers(logs, suites.tolist())).tolist() == [3]


def test_moderate_differences_between_prompts_are_no_outliers() -> None:
    logs = np.array([0.0] * 20 + [0.3, 0.35, -0.3])
    assert not noise.outliers(logs, ["chat"] * 23).any()


# --- what cannot be told -------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompts", "verdict"), [(6, CANNOT_TELL), (7, "50 % slower")])
def test_fewer_prompts_than_the_test_needs_tell_nothing(prompts: int, verdict: str) -> None:
    """Signs of six prompts are all alike once in 32 times, of seven once in 64; the level is 1 in 50."""
    slowed = {PLAIN: 1.0, "m": 1.2}
    runs = [noisy_run(i, m, prompts=prompts) for i, m in enumerate((METHOD, slowed))]
    change = change_of(compare_runs(*runs), "m")
    assert change.p_value == pytest.approx(noise.smallest_p(prompts))
    assert change.verdict.split()[-1] == verdict.split()[-1]


def test_the_smallest_p_is_that_of_the_signed_rank_test() -> None:
    for prompts in range(2, 12):
        logs = np.linspace(0.1, 0.2, prompts)
        assert noise.estimate(logs).p_value == pytest.approx(noise.smallest_p(prompts))


def test_many_rows_beside_it_can_put_the_level_out_of_reach() -> None:
    """Eight prompts could show one change alone, and cannot where nine other methods show none."""
    alike = np.array([0.02, -0.02, 0.01, -0.01, 0.03, -0.03, 0.015, -0.015])
    found = noise.estimate(alike)
    assert [one.verdict for one in noise.judge([found])] == [NO_DIFFERENCE]
    assert {one.verdict for one in noise.judge([found] * 10)} == {CANNOT_TELL}


@pytest.mark.parametrize(("scale", "verdict"), [(0.2, NO_DIFFERENCE), (0.3, CANNOT_TELL)])
def test_an_interval_in_which_a_tenth_can_hide_tells_nothing(scale: float, verdict: str) -> None:
    """Of 30 prompts with a standard deviation of 0.2 the interval reaches 9 % up and down."""
    logs = np.linspace(-1, 1, 30)
    logs *= scale / logs.std(ddof=1)
    assert noise.judge([noise.estimate(logs)])[0].verdict == verdict


def test_a_change_that_only_the_test_or_only_the_interval_shows_cannot_be_told() -> None:
    by_test = noise.Estimate(ratio=0.94, low=0.88, high=1.004, p_value=0.001, prompts=40)
    by_interval = noise.Estimate(ratio=0.94, low=0.89, high=0.99, p_value=0.2, prompts=40)
    neither = noise.Estimate(ratio=0.94, low=0.88, high=1.004, p_value=0.2, prompts=40)
    both = noise.Estimate(ratio=0.94, low=0.89, high=0.99, p_value=0.001, prompts=40)
    verdicts = [noise.verdict(e, e.p_value, 1e-9) for e in (by_test, by_interval, neither, both)]
    assert verdicts == [CANNOT_TELL, CANNOT_TELL, NO_DIFFERENCE, "6 % slower"]


def test_it_is_said_that_more_prompts_are_needed() -> None:
    few = compare_runs(*(noisy_run(seed, METHOD, prompts=4) for seed in (0, 1)))
    assert any(note.startswith("cannot tell: ") for note in few.notes)
    many = compare_runs(*(noisy_run(seed, METHOD, noise=Noise(stalls=0)) for seed in (0, 1)))
    assert not any("cannot tell" in note for note in many.notes)


def test_one_common_prompt_says_that_it_tells_nothing() -> None:
    a, b = noisy_run(0, METHOD, prompts=1), noisy_run(1, SLOWED, prompts=1)
    comparison = compare_runs(a, b)
    assert change_of(comparison, "m").verdict == CANNOT_TELL
    assert change_of(comparison, "m").estimate.low is None
    assert "only one prompt is common" in comparison.notes[0]


# --- outliers ------------------------------------------------------------------------------------------


def with_slow(ratio: float, slow: dict[int, float], rounds: dict[int, int] | None = None) -> Run:
    """40 prompts; the method takes 1 / ratio, but `slow` times as long in some, or another count of rounds.

    Its times vary by 2 % from prompt to prompt, so that there is noise to tell outliers from.
    """

    def prompt(i: int) -> PromptRecord:
        seconds = (1 + 0.02 * (-1) ** i) / ratio * slow.get(i, 1.0)
        count = (rounds or {}).get(i, 1)
        own = [round_of(emitted=60 // count, seconds=seconds / count)] * count
        return prompt_of(answer_of(PLAIN, round_of(emitted=60)), answer_of("m", *own), id=str(i))

    return run_of(*map(prompt, range(40)))


def outlier_notes(comparison: Comparison) -> list[str]:
    """Notes on outliers."""
    return [note for note in comparison.notes if "outlier" in note]


def test_a_stall_is_set_aside_and_named() -> None:
    comparison = compare_runs(with_slow(1.0, {}), with_slow(1.0, {7: 3.0}))
    change = change_of(comparison, "m")
    assert change.outliers == (Outlier("chat/7", pytest.approx(1 / 3), stall=True),)
    assert (change.estimate.prompts, change.verdict) == (39, NO_DIFFERENCE)
    assert change.estimate.ratio == pytest.approx(1)
    (note,) = outlier_notes(comparison)
    assert note == "m: set aside as stalls, outliers in the same rounds: chat/7 (0.33)"


def test_a_prompt_whose_rounds_differ_is_never_set_aside() -> None:
    """It is slower because of what was done, and not because the machine was."""
    comparison = compare_runs(with_slow(1.0, {}), with_slow(1.0, {7: 3.0}, {7: 3}))
    change = change_of(comparison, "m")
    assert change.outliers == (Outlier("chat/7", pytest.approx(1 / 3), stall=False),)
    assert change.estimate.prompts == 40
    assert change.estimate.ratio == pytest.approx(3 ** (-1 / 40))
    (note,) = outlier_notes(comparison)
    assert note == "m: outliers in other rounds, which count: chat/7 (0.33)"


def test_other_rounds_of_the_reference_are_no_stall_either() -> None:
    slow = with_slow(1.0, {7: 3.0})
    plain = answer_of(PLAIN, *[round_of(emitted=30, seconds=0.01)] * 2)
    records = list(slow.records)
    records[7] = prompt_of(plain, *records[7].of("m"), id="7")
    comparison = compare_runs(with_slow(1.0, {}), run_of(*records))
    assert [outlier.stall for outlier in change_of(comparison, "m").outliers] == [False]


def test_a_verdict_that_hangs_on_stalls_is_that_of_all_prompts() -> None:
    """4 % slower in 38 prompts and twice as fast in two, in the same rounds."""
    comparison = compare_runs(with_slow(1.0, {}), with_slow(0.96, {3: 0.6, 8: 0.6}))
    change = change_of(comparison, "m")
    assert (change.without_stalls, change.with_stalls) == ("4 % slower", NO_DIFFERENCE)
    assert change.is_contested
    assert change.verdict == NO_DIFFERENCE
    assert change.estimate.prompts == 40
    (note,) = outlier_notes(comparison)
    assert "the verdict hangs on outliers in the same rounds: chat/3 (1.60), chat/8 (1.60)" in note
    assert "4 % slower without them, and no difference with them, which is shown" in note


def test_with_stalls_the_noise_may_hide_what_is_clear_without() -> None:
    slow = dict.fromkeys((3, 8, 11, 20), 4.0) | dict.fromkeys((4, 9, 12, 22), 0.25)
    comparison = compare_runs(with_slow(1.0, {}), with_slow(0.9, slow))
    change = change_of(comparison, "m")
    assert (change.verdict, change.with_stalls) == ("10 % slower", CANNOT_TELL)
    (note,) = outlier_notes(comparison)
    assert note.endswith("; with them: cannot tell")


def test_plain_decoding_is_held_against_hf_and_else_absolute() -> None:
    alone = compare_runs(noisy_run(0, METHOD), noisy_run(1, METHOD))
    assert change_of(alone, PLAIN).reference is None
    assert f"{PLAIN}: {ABSOLUTE}" in alone.notes
    with_hf = METHOD | {"hf": 1.1}
    both = compare_runs(noisy_run(0, with_hf), noisy_run(1, with_hf))
    assert change_of(both, PLAIN).reference == "hf"
    assert not any(ABSOLUTE in note for note in both.notes)


@pytest.mark.parametrize(("device", "told"), [("cpu", False), ("cuda:0 (H)", True)])
def test_absolute_times_tell_a_difference_on_a_device_of_ones_own_alone(
    device: str, told: bool
) -> None:
    def plain_run(seconds: float) -> Run:
        rounds = round_of(emitted=10, seconds=seconds)
        records = [prompt_of(answer_of(PLAIN, rounds), id=str(i)) for i in range(40)]
        made = run_of(*records)
        provenance = {**made.plan.get("provenance", {}), "device": device}
        return dataclasses.replace(made, plan={**made.plan, "provenance": provenance})

    change = change_of(compare_runs(plain_run(1.0), plain_run(1.3)), PLAIN)
    assert change.reference is None
    assert change.verdict.endswith("% slower") if told else change.verdict == CANNOT_TELL


# --- what is compared ------------------------------------------------------------------------------------


def talk(id: str, *prompts: int) -> PromptRecord:
    """A conversation of plain decoding and a method: a turn for each of these prompts."""

    def answers(turn: int, prompt: int) -> tuple[AnswerRecord, ...]:
        return tuple(answer_of(m, round_of(), turn=turn, prompt=prompt) for m in (PLAIN, "m"))

    return prompt_of(*(a for turn in enumerate(prompts) for a in answers(*turn)), id=id)


def test_only_common_prompts_count_and_names_of_other_prompts_do_not() -> None:
    a = run_of(talk("0", 5), talk("1", 6), talk("2", 7))
    b = run_of(talk("1", 6), talk("2", 8), talk("3", 5))
    comparison = compare_runs(a, b)
    assert (comparison.prompts, comparison.turns_left_out) == (1, 1)
    assert comparison.notes[0].startswith("1 turn was left out, for in the two runs the token ids")
    assert [fact.answers for fact in comparison.facts] == [1, 1]
    with pytest.raises(ConfigError, match=r"no prompt in common \(suites chat, and chat\)"):
        compare_runs(a, run_of(talk("3", 5)))
    with pytest.raises(ConfigError, match=r"the token ids of all 1 turns .* differ"):
        compare_runs(a, run_of(talk("2", 8)))


def test_first_turns_pair_where_later_ones_became_other_prompts() -> None:
    a, b = run_of(talk("0", 1, 2, 3), talk("1", 4)), run_of(talk("0", 1, 9, 8), talk("1", 4))
    comparison = compare_runs(a, b)
    assert (comparison.prompts, comparison.turns_left_out) == (2, 2)
    assert [fact.answers for fact in comparison.facts] == [2, 2]
    assert not any("left out" in note for note in compare_runs(a, a).notes)


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
    changed = {"date": "2027", "cpu": "another", "dtype": "bfloat16", "packages": {"torch": "3"}}
    plan = a.plan | {"dtype": "auto", "repeats": 3, "provenance": a.plan["provenance"] | changed}
    b = dataclasses.replace(a, plan=plan)
    found = {d.name: (d.first, d.second) for d in compare_runs(a, b).settings}
    assert found == {
        "dtype": ("float32", "bfloat16"),
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
    assert CANNOT_TELL in text, "with two prompts a suite"


def test_the_json_form_says_the_same() -> None:
    a, b = noisy_run(0, METHOD, noise=SILENCE), noisy_run(0, SLOWED, noise=SILENCE)
    document = json.loads(json.dumps(compare_runs(a, b).as_dict(), allow_nan=False))
    change = next(c for c in document["changes"] if c["method"] == "m")
    assert change["verdict"] == "10 % slower"
    assert "10 % slower" in shown(compare_runs(a, b))
