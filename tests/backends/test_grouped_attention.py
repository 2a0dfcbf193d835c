"""Attention with folded query heads is attention, and is used in passes of ours alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from foredraft.backends import grouped_attention
from foredraft.backends.hf import HFTarget
from foredraft.backends.own_pass import in_own_pass, own_pass
from tests.tiny_models import (
    tiny_gemma3,
    tiny_gpt2,
    tiny_granite,
    tiny_llama,
    tiny_qwen3,
)


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


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3, tiny_qwen3, tiny_granite, tiny_gpt2])
def test_outside_of_our_passes_it_is_the_librarys_own(make: Any) -> None:
    """Bit by bit, with several rows of logits too, and by its own name."""
    model, ids = make(), torch.tensor([[5, 9, 20]])
    before = [model(input_ids=ids, logits_to_keep=keep).logits for keep in (0, 2)]
    name = model.config._attn_implementation
    HFTarget(model)
    assert model.config._attn_implementation == name
    after = [model(input_ids=ids, logits_to_keep=keep).logits for keep in (0, 2)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_inside_of_our_passes_heads_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = []
    real = grouped_attention.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        folded.append(args[0].shape)
        return real(*args, **kwargs)

    model = tiny_llama()
    target = HFTarget(model)
    expected = model(input_ids=torch.tensor([[5, 9, 20]])).logits[0, -1, : target.vocab_size]
    state = target.start(16)
    state.prefill([5, 9])
    monkeypatch.setattr(grouped_attention, "scaled_dot_product_attention", watched)
    logits = state.score([20], [-1])
    assert folded == [(1, 2, 2, 8)] * model.config.num_hidden_layers
    torch.testing.assert_close(logits[0], expected, atol=1e-5, rtol=1e-5)


def test_passes_within_passes_end_one_by_one() -> None:
    assert not in_own_pass()
    with own_pass():
        with own_pass():
            assert in_own_pass()
        assert in_own_pass()
    with pytest.raises(KeyError), own_pass():
        raise KeyError
    assert not in_own_pass()
