"""Passes that take turns: ours, and transformers' own."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
import torch

from foredraft.backends.hf import HFTarget
from foredraft.backends.own_pass import in_own_pass
from foredraft.bench.profile.samples import Times, ratio, rows_of
from foredraft.bench.profile.turns import HFPass, own_passes, take_turns
from tests.tiny_models import tiny_llama, tiny_mistral


def test_everyone_has_each_turn_and_the_first_is_not_kept() -> None:
    log: list[str] = []
    counts = {name: itertools.count() for name in "abc"}

    def contestant(name: str) -> float:
        log.append(name)
        return float(next(counts[name]))

    found = take_turns({name: (lambda name=name: contestant(name)) for name in "abc"}, 4)  # type: ignore[misc]
    assert all(times.seconds == (1.0, 2.0, 3.0, 4.0) for times in found.values())
    turns = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1


def test_figures_of_known_times() -> None:
    slow, fast = Times((2.0, 4.0, 6.0, 8.0, 10.0)), Times((1.0, 2.0, 3.0, 4.0, 5.0))
    assert slow.as_dict() == {
        "median_ms": 6000,
        "q1_ms": 4000,
        "q3_ms": 8000,
        "repeats": 5,
    }
    found = ratio(slow, fast, "r")
    assert found["r"] == pytest.approx(2)
    assert found["r_low"] == pytest.approx(2)  # turn by turn it is always 2
    rows = {row["name"]: row for row in rows_of({"slow": slow, "fast": fast}, {"fast": fast})}
    assert rows["fast"]["vs_fast"] == 1
    assert rows["slow"]["vs_fast"] == pytest.approx(2)


def test_our_passes_have_their_rows_and_are_rolled_back() -> None:
    target = HFTarget(tiny_llama())
    ticks = itertools.count()
    with ExitStack() as stack:
        passes = own_passes(target, 20, (1, 5), stack, clock=lambda: float(next(ticks)))
        seen: list[tuple[int, bool]] = []
        hook = target.model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append((kwargs["input_ids"].shape[1], in_own_pass())),
            with_kwargs=True,
        )
        assert [passes[rows]() for rows in (1, 5, 1)] == [1.0, 1.0, 1.0]
        hook.remove()
    assert seen == [(1, True), (5, True), (1, True)]


@pytest.mark.parametrize("build", [tiny_llama, tiny_mistral])
def test_transformers_pass_is_its_own_and_starts_behind_the_same_context(build: object) -> None:
    target = HFTarget(build())  # type: ignore[operator]
    ticks = itertools.count()
    one = HFPass(target, 20, clock=lambda: float(next(ticks)))
    seen: list[tuple[int, bool, torch.Tensor]] = []

    def watch(module: object, args: object, kwargs: dict[str, object], output: object) -> None:
        length = kwargs["cache"].get_seq_length()  # type: ignore[attr-defined]
        seen.append((length, in_own_pass(), output.logits))  # type: ignore[attr-defined]

    hook = target.model.register_forward_hook(watch, with_kwargs=True)
    assert [one(), one()] == [1.0, 1.0]
    hook.remove()
    assert [(length, own) for length, own, _ in seen] == [(21, False), (21, False)]
    assert torch.equal(seen[0][2], seen[1][2])
