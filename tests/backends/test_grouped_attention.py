"""Attention with folded query heads is attention, and is used in passes of ours alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from foredraft.backends import grouped_attention
from foredraft.backends.grouped_attention import NAME, use_grouped_attention
from foredraft.backends.hf import HFTarget
from foredraft.backends.own_pass import in_own_pass, own_pass
from tests.tiny_models import tiny_eager_llama, tiny_gpt2, tiny_llama


class Layer:
    """What the library's function reads of a module."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        self.num_key_value_groups = groups


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    heads=st.integers(1, 3),
    groups=st.integers(1, 4),
    rows=st.integers(1, 40),
    before=st.integers(0, 30),
    additive=st.booleans(),
    masked=st.booleans(),
)
def test_it_is_the_librarys_attention(
    seed: int, heads: int, groups: int, rows: int, before: int, additive: bool, masked: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(1, heads * groups, rows, 8, generator=random)
    keys, values = torch.randn(2, 1, heads, before + rows, 8, generator=random)
    mask = None
    if masked:
        mask = torch.rand(1, 1, rows, before + rows, generator=random) < 0.7
        mask[..., before:] |= torch.eye(rows, dtype=torch.bool)
        if additive:
            mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    layer: Any = Layer(groups)
    given_too = {"scaling": 0.3, "dropout": 0.0}
    expected, _ = sdpa_attention_forward(layer, query, keys, values, mask, **given_too)
    with own_pass():
        got, weights = grouped_attention.grouped_attention(
            layer, query, keys, values, mask, **given_too
        )
    assert weights is None
    assert got.shape == (1, rows, heads * groups, 8)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_outside_of_our_passes_it_is_the_librarys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = []
    real = grouped_attention.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        folded.append(args[0].shape)
        return real(*args, **kwargs)

    monkeypatch.setattr(grouped_attention, "scaled_dot_product_attention", watched)
    model, ids = tiny_llama(), torch.tensor([[5, 9, 20]])
    before = model(input_ids=ids).logits
    target = HFTarget(model)
    assert folded  # the probes
    folded.clear()
    assert torch.equal(model(input_ids=ids).logits, before)
    assert not folded
    state = target.start(16)
    state.prefill([5, 9])
    folded.clear()
    logits = state.score([20], [-1])
    assert folded == [(1, 2, 2, 8)] * model.config.num_hidden_layers
    torch.testing.assert_close(logits[0], before[0, -1, : target.vocab_size], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [tiny_eager_llama, tiny_gpt2])
def test_models_that_attend_otherwise_stay_as_they_are(make: Any) -> None:
    model = make()
    before = model.config._attn_implementation
    use_grouped_attention(model)
    assert model.config._attn_implementation == before != NAME


def test_passes_within_passes_end_one_by_one() -> None:
    assert not in_own_pass()
    with own_pass():
        with own_pass():
            assert in_own_pass()
        assert in_own_pass()
    with pytest.raises(KeyError), own_pass():
        raise KeyError
    assert not in_own_pass()
