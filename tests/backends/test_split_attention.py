"""Attention in two parts, joined, is attention under one mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foredraft.backends import grouped_attention, split_attention
from foredraft.backends.hf import HFTarget
from foredraft.backends.split_attention import context_rows, mark_context
from foredraft.backends.tree_attention import Topology, TreeMasks
from tests.tiny_models import tiny_gemma3, tiny_llama

TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 2e-2}
"""Two partial softmaxes are summed where one was, of scores up to some hundreds; in bfloat16 each part is
rounded before the join."""
PARENTS = (-1, 0, 0, 1, 1, 2)


def tree_mask(context: int, groups: int) -> Tensor:
    """Additive [1, 1, groups * N, L] of `PARENTS`."""
    topology = Topology(torch.device("cpu"))
    topology.hold(PARENTS)
    n = len(PARENTS)
    visible = torch.ones(n, context + n, dtype=torch.bool)
    visible[:, context:] = topology.rows(0, n)
    return (
        torch.zeros(visible.shape).masked_fill(~visible, -torch.inf).repeat(groups, 1)[None, None]
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    heads=st.integers(1, 3),
    groups=st.integers(1, 4),
    context=st.integers(1, 200),
    scale=st.sampled_from([None, 0.2, 1.0]),
    size=st.sampled_from([1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_join_is_exact(
    seed: int,
    heads: int,
    groups: int,
    context: int,
    scale: float | None,
    size: float,
    dtype: torch.dtype,
) -> None:
    """Also where one part outweighs the other altogether (large scores)."""
    random = torch.Generator().manual_seed(seed)
    mask = tree_mask(context, groups)
    rows, columns = mask.shape[-2:]
    query = (torch.randn(1, heads, rows, 16, generator=random) * size).to(dtype)
    key, value = torch.randn(2, 1, heads, columns, 16, generator=random).to(dtype)
    exact = [t.double() for t in (query, key, value, mask)]
    expected = scaled_dot_product_attention(*exact, scale=scale)
    got = split_attention.split_attention(query, key, value, mask, context, scale)
    assert got.dtype == dtype
    torch.testing.assert_close(
        got.double(), expected, atol=3 * TOLERANCE[dtype], rtol=3 * TOLERANCE[dtype]
    )


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3])
def test_a_model_scores_the_same_in_two_parts(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose kernels alone are exchanged: gemma3's windows are attended to as before."""
    target = HFTarget(make())
    whole = scored(target)
    calls: list[int] = []
    real = grouped_attention.split_attention

    def watched(*args: Any) -> Tensor:
        calls.append(args[4])
        return real(*args)

    monkeypatch.setattr(grouped_attention, "splits", lambda query, mask: context_rows(mask) > 0)
    monkeypatch.setattr(grouped_attention, "split_attention", watched)
    torch.testing.assert_close(scored(target), whole, atol=1e-5, rtol=1e-5)
    assert set(calls) == {20}


def scored(target: HFTarget) -> Tensor:
    state = target.start(64)
    state.prefill(list(range(3, 23)))
    logits = state.score([5, 9, 20, 7, 8, 6], PARENTS)
    state.close()
    return logits


def test_masks_say_what_every_row_sees() -> None:
    """The committed columns, unless a window hides some of them."""
    target = HFTarget(tiny_gemma3())
    assert isinstance(target.masks, TreeMasks)
    topology = Topology(torch.device("cpu"))
    topology.hold(PARENTS)
    for length in (2, 5, 40):
        masks = target.masks.build(topology, length, 0, len(PARENTS))
        assert isinstance(masks, dict)
        for mask in masks.values():
            seen = context_rows(mask)
            assert seen in (0, mask.shape[-1] - len(PARENTS))
            assert bool(mask[..., :seen].all())
    assert context_rows(None) == 0 == context_rows(torch.ones(2, 2))
    assert context_rows(mark_context(torch.ones(2, 2), 1)) == 1


def test_a_cpu_attends_at_once() -> None:
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    assert not split_attention.splits(query, mark_context(torch.ones(1, 1, 1, 600), 599))
