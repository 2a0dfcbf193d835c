"""Stages of a round: exclusive, complete, and of rounds that are the engine's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.backends.hf import HFTarget
from foredraft.bench.profile.rounds import (
    GROWTH,
    TARGET,
    TimedRound,
    rounds_in_turn,
    summary,
    timed_engine,
)
from foredraft.bench.profile.stopwatch import PASS, Stopwatch, pass_name
from foredraft.bench.profile.timed_policy import OBSERVE, POLICY
from foredraft.config import GenerationOptions
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.engine import Engine
from foredraft.methods import parse_method
from foredraft.results import RoundRecord
from tests.tiny_models import tiny_llama

PROMPT = [5, 9, 11, 5, 9, 11, 5, 9]
GREEDY = GenerationOptions(max_new_tokens=200, ignore_eos=True)
SAMPLED = GREEDY.replace(temperature=1.0, top_p=0.95, seed=3)
METHODS = ("ngram", "speculative", "mcsd", "eagle-chain-3", "eagle2:nodes=6", "hybrid:nodes=6")

Stage = tuple[str, list[Any]]
STAGES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.just([])),
    lambda inner: st.tuples(st.sampled_from("abc"), st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(st.lists(STAGES, max_size=4))
def test_nested_stages_sum_to_the_time_that_was_charged(stages: list[Stage]) -> None:
    ticks = itertools.count()
    watch = Stopwatch(clock=lambda: float(next(ticks)))
    expected: dict[str, float] = {}

    def run(stage: Stage) -> None:
        name, inner = stage
        with watch.charge(name):
            for one in inner:
                run(one)
        # two readings, and one more on either side of each stage within
        expected[name] = expected.get(name, 0.0) + 1 + len(inner)

    for stage in stages:
        run(stage)
    assert watch.take() == expected
    assert watch.take() == {}


def test_pieces_of_a_draft_pass_go_together_and_each_round_counts_anew() -> None:
    watch = Stopwatch(clock=iter(map(float, range(100))).__next__)
    for ends in (False, True, True):
        with watch.draft_pass(ends):
            pass
    assert watch.take() == {pass_name(0): 2.0, pass_name(1): 1.0}
    with watch.draft_pass(ends=True):
        pass
    assert watch.take() == {pass_name(0): 1.0}


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return HFTarget(tiny_llama())


@pytest.fixture(scope="module")
def build(target: HFTarget) -> Callable[[str], Engine]:
    draft = HFTarget(tiny_llama(seed=1, num_hidden_layers=1))
    head = EagleHead.for_target(target.model, 3)

    def made(name: str) -> Engine:
        method = parse_method(name)
        drafter = {"draft model": draft, "head": head}.get(method.needs or "")
        parts = method.build(drafter)
        return Engine(target, parts.drafter, parts.policy, parts.verifier)

    return made


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", METHODS)
def test_stages_sum_to_the_round(
    build: Callable[[str], Engine], name: str, options: GenerationOptions
) -> None:
    found = rounds_in_turn({"it": (build(name), options)}, PROMPT, 6)["it"]
    assert len(found) == 6
    for timed in found:
        assert sum(timed.stages.values()) == pytest.approx(timed.record.total_s)
        assert min(timed.stages.values()) >= 0
        passes = [stage for stage in timed.stages if stage.startswith(PASS)]
        assert len(passes) == len(timed.record.draft_rows)
        assert timed.stages[TARGET] == timed.record.target_s


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", METHODS)
def test_timing_changes_neither_text_nor_rounds(
    build: Callable[[str], Engine], name: str, options: GenerationOptions
) -> None:
    engine, options = build(name), options.replace(max_new_tokens=24)
    plain = engine.generate(PROMPT, options)
    timed = timed_engine(engine, Stopwatch()).generate(PROMPT, options)
    assert timed.token_ids == plain.token_ids
    shapes = [
        [(r.widths, r.draft_rows, r.num_accepted) for r in result.stats.rounds]
        for result in (plain, timed)
    ]
    assert shapes[0] == shapes[1]


def test_the_head_itself_is_left_alone(target: HFTarget) -> None:
    head = EagleHead.for_target(target.model, 3)
    parts = parse_method("eagle-chain-2").build(head)
    engine = Engine(target, parts.drafter, parts.policy, parts.verifier)
    timed = timed_engine(engine, Stopwatch())
    assert type(head) is EagleHead
    assert timed.drafter.head is not head  # type: ignore[union-attr]
    assert timed.drafter.head.fc is head.fc  # type: ignore[union-attr]


def record(draft_s: float = 0.0, draft_rows: tuple[int, ...] = ()) -> RoundRecord:
    return RoundRecord(
        context=8,
        widths=(1, 2),
        draft_rows=draft_rows,
        num_accepted=1,
        num_emitted=2,
        cut=False,
        draft_s=draft_s,
        target_s=0.02,
        verify_s=0.01,
        total_s=draft_s + 0.04,
    )


def test_a_summary_of_known_rounds() -> None:
    charged = {pass_name(0): 0.03, pass_name(1): 0.01, POLICY: 0.005, OBSERVE: 0.002}
    rounds = [
        TimedRound.of(record(0.06, (3, 4)), charged),
        TimedRound.of(record(0.06, (1,)), {pass_name(0): 0.05, POLICY: 0.01}),
    ]
    found = summary(rounds)
    assert found is not None
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert list(stages)[:2] == [pass_name(0), pass_name(1)]
    assert stages[pass_name(0)]["median_ms"] == pytest.approx(40)
    assert stages[pass_name(0)]["rows"] == 2
    assert (stages[pass_name(1)]["rounds"], stages[pass_name(1)]["rows"]) == (1, 4)
    assert stages[GROWTH]["share"] == pytest.approx(0.015 / 0.2)
    assert sum(stage["share"] for stage in found["stages"]) == pytest.approx(1)
    assert found["draft_pass_share"] == pytest.approx(0.09 / 0.2)
    assert found["verify_share"] == pytest.approx(0.02 / 0.2)
    assert found["host_share"] == pytest.approx(1 - 0.09 / 0.2 - 0.04 / 0.2)
    assert (found["tokens_per_round"], found["nodes"]) == (2, 3)


def test_plain_decoding_has_no_stages_of_drafts(target: HFTarget) -> None:
    rounds = rounds_in_turn({"plain": (Engine(target), GREEDY)}, PROMPT, 3)["plain"]
    found = summary(rounds)
    assert found is not None
    names = [stage["name"] for stage in found["stages"]]
    assert not any(name.startswith(PASS) or name in (POLICY, OBSERVE) for name in names)
    assert found["draft_pass_share"] == 0


def test_no_round_has_no_summary(target: HFTarget) -> None:
    short = GREEDY.replace(max_new_tokens=1)  # its only round warms up
    found = rounds_in_turn({"plain": (Engine(target), short)}, PROMPT, 3)
    assert found == {"plain": ()}
    assert summary(found["plain"]) is None
