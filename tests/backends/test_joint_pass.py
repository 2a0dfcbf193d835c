"""A pass over several sequences gives each what a pass of its own gives it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foredraft.backends import joint_pass
from foredraft.backends.hf import HFState, HFTarget
from foredraft.backends.joint_pass import Joining
from foredraft.config import MAX_TREE_NODES
from foredraft.errors import CacheError
from foredraft.meeting import Meeting
from tests.tiny_models import TREE_MODELS, tiny_bloom, tiny_eager_llama, tiny_gpt2, tiny_llama

TREES = ([-1], [-1, 0, 0, 1, 2], [-1, 0, 1], [-1, 0, 0, 0], [-1])
"""Single rows among them: plain decoding beside drafts."""
LENGTHS = (9, 1, 30, 0, 17)
EXACT = {"atol": 2e-5, "rtol": 2e-5}


def started(target: HFTarget, lengths: tuple[int, ...] = LENGTHS) -> list[HFState]:
    states = [target.start(64) for _ in lengths]
    for place, (state, length) in enumerate(zip(states, lengths, strict=True)):
        state.prefill([(7 * place + 3 * i) % 50 + 1 for i in range(length)])
    return states


def scored(states: list[HFState], trees: Any = TREES) -> list[Tensor]:
    def score(place: int) -> Tensor:
        parents = trees[place]
        return states[place].score([(5 * place + i) % 50 + 1 for i in range(len(parents))], parents)

    outcomes = Meeting().run([lambda place=place: score(place) for place in range(len(states))])
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def one_by_one(states: list[HFState], trees: Any = TREES) -> list[Tensor]:
    return [
        state.score([(5 * place + i) % 50 + 1 for i in range(len(tree))], tree)
        for place, (state, tree) in enumerate(zip(states, trees, strict=True))
    ]


@pytest.mark.parametrize("name", TREE_MODELS)
def test_every_sequence_scores_as_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, trees and windows of all kinds; twice, with commits of different paths between."""
    target = HFTarget(TREE_MODELS[name]())
    assert target.joining is not None
    alone, joint = started(target), started(target)
    for path in ([0], []):
        expected = one_by_one(alone)
        with monkeypatch.context() as patched:
            patched.setattr(type(target.passes), "_alone", None)  # one pass or none
            got = scored(joint)
        for rows, wanted in zip(got, expected, strict=True):
            torch.testing.assert_close(rows, wanted, **EXACT)
        for state in (*alone, *joint):
            state.commit(path)
    assert [s.length for s in joint] == [n + 1 for n in LENGTHS]


@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 100, 250, MAX_TREE_NODES]), min_size=1, max_size=5))
def test_a_joint_pass_has_no_more_rows_than_the_largest_tree(sizes: list[int]) -> None:
    """Logits of all rows are in memory at a time: a batch of prompts that are read must not multiply it."""
    target = HFTarget(tiny_llama())
    assert target.joining is not None
    passes: list[int] = []
    forward = target.forward

    class Noting:
        def __call__(self, token_ids: Any, **given: Any) -> Tensor:
            passes.append(len(token_ids))
            return forward(token_ids, **given)

        def __getattr__(self, name: str) -> Any:
            return getattr(forward, name)

    trees = [list(range(-1, size - 1)) for size in sizes]
    alone, joint = (started(target, LENGTHS[: len(sizes)]) for _ in range(2))
    expected = one_by_one(alone, trees)
    target.forward = Noting()  # type: ignore[assignment]
    got = scored(joint, trees)
    for rows, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(rows, wanted, **EXACT)
    assert sum(passes) == sum(sizes)
    assert max(passes) <= MAX_TREE_NODES
    assert all(a + b > MAX_TREE_NODES for a, b in itertools.pairwise(passes))


def test_which_way_models_join() -> None:
    assert HFTarget(tiny_llama()).joining is Joining.APART
    assert HFTarget(tiny_gpt2()).joining is Joining.APART
    assert HFTarget(tiny_eager_llama()).joining is Joining.WHOLE
    assert HFTarget(tiny_bloom()).joining is None


@pytest.mark.parametrize("make", [tiny_bloom, tiny_llama])
def test_a_model_that_cannot_join_makes_a_pass_for_each(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot is found out when it is tried, whatever it does."""
    target = HFTarget(make())
    monkeypatch.setattr(type(target.passes), "together", lambda *_: 1 / 0)
    chains = [[-1], [-1, 0, 1], [-1, 0], [-1], [-1]]
    expected, got = one_by_one(started(target), chains), scored(started(target), chains)
    assert target.joining is None
    for rows, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(rows, wanted)


def test_a_model_that_mixes_sequences_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one would whose layers look at a pass as a whole."""
    target = HFTarget(tiny_llama())
    norm = target.model.model.layers[0].input_layernorm
    real = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: real(x) * (1 + (x.shape[1] > 8)))
    assert target.joining is None


def test_taps_and_heads_show_each_sequence_its_own() -> None:
    target = HFTarget(tiny_llama())
    alone, joint = ([target.start_tapped(64, (0, 2)) for _ in range(3)] for _ in range(2))
    showing = target.start_showing(64)
    for states in (alone, joint):
        for place, state in enumerate(states):
            state.prefill(list(range(1, 4 + place)))
            state.take_features()
    ids, parents = [5, 6, 7], [-1, 0, 0]
    for state in alone:
        state.score(ids, parents)
    scored_ids = [lambda s=s: s.score(ids, parents) for s in (*joint, showing)]
    Meeting().run(scored_ids)
    for mine, theirs in zip(joint, alone, strict=True):
        for state in (mine, theirs):
            state.commit([0, 2])
        torch.testing.assert_close(mine.take_features(), theirs.take_features(), **EXACT)
    hidden = showing.last_hidden()
    assert hidden is not None
    assert hidden.shape == (3, target.hidden_size)
    fresh = target.start_showing(64)
    fresh.score(ids, parents)
    expected = fresh.last_hidden()
    assert expected is not None
    torch.testing.assert_close(hidden, expected, **EXACT)


def test_a_failed_pass_leaves_every_sequence_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    target = HFTarget(tiny_llama())
    states = started(target)
    assert target.joining is Joining.APART
    with monkeypatch.context() as patched:
        patched.setattr(target.model.lm_head, "forward", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            scored(states)
    assert [s.length for s in states] == list(LENGTHS)
    assert [s.cache.pending for s in states] == [0] * len(LENGTHS)
    got, expected = scored(states), scored(started(target))
    for rows, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(rows, wanted, **EXACT)


def test_a_token_without_an_embedding_harms_its_own_sequence_alone() -> None:
    target = HFTarget(tiny_llama())
    first, second = target.start(8), target.start(8)
    outcomes = Meeting().run([lambda: first.score([99_999], [-1]), lambda: second.score([5], [-1])])
    assert "99999" in str(outcomes[0].error)
    assert outcomes[1].value is not None


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    lengths=st.lists(st.integers(0, 40), min_size=2, max_size=6),
)
def test_any_lengths_and_trees(data: st.DataObject, lengths: list[int]) -> None:
    target = _TARGET
    trees = []
    for _ in lengths:
        size = data.draw(st.integers(1, 6))
        trees.append([-1, *(data.draw(st.integers(0, node)) for node in range(size - 1))])
    expected = one_by_one(started(target, tuple(lengths)), trees)
    got = scored(started(target, tuple(lengths)), trees)
    for rows, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(rows, wanted, **EXACT)


_TARGET = HFTarget(tiny_llama())


def test_attending_to_something_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as keys that the model computes anew from those it cached."""
    target = HFTarget(tiny_llama())
    assert target.joining is Joining.APART
    real = joint_pass._JointLayer.update

    def other(*args: Any, **given: Any) -> Any:
        keys, values = real(*args, **given)
        return keys * 1.0, values

    states = started(target)
    monkeypatch.setattr(joint_pass._JointLayer, "update", other)
    with pytest.raises(CacheError, match="attend"):
        scored(states)
    assert HFTarget(tiny_llama()).joining is Joining.WHOLE
