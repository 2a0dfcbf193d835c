"""Tapped hidden states are those of the committed text, whatever was scored and dropped on the way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft import Engine
from foredraft.backends import hf_state
from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_taps import FeatureBuffer
from foredraft.errors import CacheError, ModelError
from foredraft.protocols import FeatureState, FeatureTarget
from tests.tiny_models import TREE_MODELS, VOCAB_SIZE, tiny_bf16_llama, tiny_llama

TREE, TREE_PARENTS = (11, 12, 13, 14, 15, 16), (-1, 0, 0, 1, 2, 2)
ATOL = 2e-4


def own_features(model: Any, text: Sequence[int], taps: Sequence[int]) -> Tensor:
    """What the model itself calls its hidden states, [T, F]."""
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.cat([states[tap][0] for tap in taps], -1)


def same(features: Tensor, expected: Tensor) -> bool:
    torch.testing.assert_close(features, expected, atol=ATOL, rtol=ATOL)
    return True


def play(state: FeatureState, text: list[int]) -> list[Tensor]:
    """Prefill, a partial path, a rollback, a whole path and a chain; what each gave."""
    taken = []
    state.prefill(text)
    taken.append(state.take_features())
    for path in ((0, 2, 5), (), (0, 1, 3)):
        state.score(TREE, TREE_PARENTS)
        state.commit(path)
        text += [TREE[node] for node in path]
        taken.append(state.take_features())
    state.score((7, 8), (-1, 0))
    state.score((9,), (1,))
    state.commit((0, 1, 2))
    text += [7, 8, 9]
    return [*taken, state.take_features()]


@pytest.mark.parametrize("name", TREE_MODELS)
def test_features_are_the_hidden_states_of_the_committed_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last index is the state after the final norm, the first the embeddings as the model has them."""
    monkeypatch.setattr(hf_state, "MAX_TREE_NODES", 4)  # a prompt in chunks
    model = TREE_MODELS[name]()
    taps = range(model.config.get_text_config().num_hidden_layers + 1)
    state = HFTarget(model).start_tapped(64, taps)
    text = [3, 4, 5, 6, 3, 4, 9, 10, 11]
    taken = play(state, text)
    assert [len(features) for features in taken] == [9, 3, 0, 3, 3]
    assert same(torch.cat(taken), own_features(model, text, taps))


def test_taps_stand_in_the_order_in_which_they_were_asked_for() -> None:
    model = tiny_llama()
    state = HFTarget(model).start_tapped(64, (2, 0))
    state.prefill([3, 4, 5])
    assert same(state.take_features(), own_features(model, [3, 4, 5], (2, 0)))


def test_features_wait_until_they_are_taken_and_are_taken_once() -> None:
    model = tiny_llama()
    state = HFTarget(model).start_tapped(64, (1,))
    assert state.take_features().shape == (0, 32)
    state.prefill([3, 4])
    state.score((5,), (-1,))
    state.commit((0,))
    assert same(state.take_features(), own_features(model, [3, 4, 5], (1,)))
    assert state.take_features().shape == (0, 32)


def test_features_have_the_models_dtype() -> None:
    state = HFTarget(tiny_bf16_llama()).start_tapped(64, (0, 2))
    assert state.take_features().dtype == torch.bfloat16
    state.prefill([3, 4])
    assert state.take_features().dtype == torch.bfloat16


def test_tapped_decoding_scores_as_untapped_does() -> None:
    target = HFTarget(tiny_llama())
    states = [target.start(64), target.start_tapped(64, (1,))]
    for state in states:
        state.prefill([3, 4, 5])
    assert torch.equal(*(state.score(TREE, TREE_PARENTS) for state in states))


@pytest.mark.parametrize("tap", [-1, 3])
def test_a_tap_outside_the_model_is_refused(tap: int) -> None:
    with pytest.raises(ModelError, match=f"tap {tap} is not among .* 0 to 2"):
        HFTarget(tiny_llama()).start_tapped(64, (1, tap))


def test_a_layer_that_is_fed_something_else_is_refused() -> None:
    """What enters the second layer is not what the model reports as its hidden state."""
    model = tiny_llama()
    model.model.layers[1].register_forward_pre_hook(lambda module, args: (2 * args[0], *args[1:]))
    target = HFTarget(model)
    with pytest.raises(ModelError, match="not what it calls hidden state 1"):
        target.start_tapped(64, (1,))
    assert isinstance(target.start_tapped(64, (0,)), FeatureState)


def test_a_refused_tap_leaves_no_hook() -> None:
    model = tiny_llama()
    model.model.layers[1].register_forward_pre_hook(lambda module, args: (2 * args[0], *args[1:]))
    before = len(model.model.layers[1]._forward_pre_hooks)
    with pytest.raises(ModelError):
        HFTarget(model).start_tapped(64, (1,))
    assert len(model.model.layers[1]._forward_pre_hooks) == before


def test_hooks_are_put_in_once_and_only_when_asked_for() -> None:
    model = tiny_llama()
    target, layer = HFTarget(model), model.model.layers[1]
    Engine(target).generate([3, 4, 5], max_new_tokens=4)
    assert not layer._forward_pre_hooks
    for _ in range(3):
        target.start_tapped(64, (1,)).close()
    assert len(layer._forward_pre_hooks) == 1


def test_threads_that_share_a_model_read_their_own_text() -> None:
    """Passes overlap; features of one sequence must never reach another, tapped or not."""
    model = tiny_llama()
    target = HFTarget(model)
    barrier, results = threading.Barrier(4), {}

    def work(index: int) -> None:
        text = [3 + index] * 5 + list(range(20 + index, 40 + index))
        barrier.wait()
        if index == 3:
            Engine(target).generate(text, max_new_tokens=12, ignore_eos=True)
            return
        state = target.start_tapped(64, (0, 1, 2) if index else (1,))
        results[index] = (text, torch.cat(play(state, text)))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2]
    for index, (text, features) in results.items():
        assert same(features, own_features(model, text, (0, 1, 2) if index else (1,)))


def test_a_pass_that_shows_too_little_is_an_error() -> None:
    buffer = FeatureBuffer((0, 1), 8, torch.device("cpu"), torch.float32)
    with pytest.raises(CacheError, match="did not show hidden state 1"):
        buffer.add({0: torch.zeros(1, 3, 4)}, 3)
    with pytest.raises(CacheError, match="did not show hidden state 1"):
        buffer.add({0: torch.zeros(1, 3, 4), 1: torch.zeros(1, 2, 4)}, 3)


def test_an_hf_target_is_a_feature_target() -> None:
    target = HFTarget(tiny_llama())
    assert isinstance(target, FeatureTarget)
    assert target.vocab_size == VOCAB_SIZE
