"""Products with quantised weights: what they compute, for how many rows, and that rows keep to themselves."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.backends.quantized import int4, int8
from foredraft.backends.quantized.digits import Digits
from foredraft.backends.quantized.int4 import KERNEL_ROWS, Int4Block, quantize_groups
from foredraft.backends.quantized.int8 import PACKED_ROWS, Int8Block, quantize_rows
from foredraft.backends.quantized.kernels import (
    FLOAT32_DIGITS,
    HALF_DIGITS,
    Fbgemm,
    OneDnn,
    best_kernel,
)

FLOAT32_ERROR = 2e-6
"""Relative error of a float32 product."""
HALF_ERROR = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
"""The same in half the bits, where the result alone is rounded to them."""
ROWS = (1, 2, 3, PACKED_ROWS, PACKED_ROWS + 1, KERNEL_ROWS, KERNEL_ROWS + 1)
BLOCKS = (Int8Block, Int4Block)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("make", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_those_of_the_weights_that_it_stands_for(make: Any, dtype: Any) -> None:
    block = make(drawn(97, 64) * 0.05)
    weights = block.dequantized().double()
    for count in ROWS:
        rows = drawn(count, 64, seed=count).to(dtype)
        found = block.product(rows)
        assert found.dtype == dtype
        assert found.shape == (count, 97)
        allowed = HALF_ERROR.get(dtype, FLOAT32_ERROR)
        assert relative_error(found, rows.double() @ weights.T) < allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_an_exact_kernel_int8_products_are_the_same(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Int8Block(drawn(96, 64))
    monkeypatch.setattr(int8, "best_kernel", lambda: None)
    block = Int8Block(drawn(96, 64))
    assert torch.equal(block.dequantized(), usual.dequantized())
    for count in ROWS:
        rows = drawn(count, 64, seed=count).to(dtype)
        expected = rows.double() @ usual.dequantized().double().T
        allowed = HALF_ERROR.get(dtype, FLOAT32_ERROR)
        assert relative_error(block.product(rows), expected) < allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_kernel_int4_products_are_the_same(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Int4Block(drawn(96, 64))
    monkeypatch.setattr(int4, "kernel_block", lambda: None)
    block = Int4Block(drawn(96, 64))
    assert torch.equal(block.dequantized(), usual.dequantized())
    rows = drawn(5, 64).to(dtype)
    allowed = HALF_ERROR.get(dtype, FLOAT32_ERROR)
    expected = rows.double() @ usual.dequantized().double().T
    assert relative_error(block.product(rows), expected) < allowed


@pytest.mark.parametrize("seed", range(3))
def test_a_row_in_int8_does_not_depend_on_the_others_at_all(seed: int) -> None:
    """The law that dynamic quantisation breaks: an outlier in one row must not move another."""
    if best_kernel() is None:
        pytest.skip("no int8 kernel of this PyTorch is exact here")
    block = Int8Block(drawn(64, 128))
    rows = drawn(33, 128, seed=seed)
    rows[1:] *= 1e4
    assert torch.equal(block.product(rows)[:1], block.product(rows[:1]))


def test_a_row_in_int4_does_not_depend_on_the_others_but_for_rounding() -> None:
    block = Int4Block(drawn(64, 128))
    rows = drawn(33, 128)
    rows[1:] *= 1e4
    alone = block.product(rows[:1])
    assert relative_error(block.product(rows)[:1], alone.double()) < FLOAT32_ERROR


@settings(max_examples=60)
@given(
    st.sampled_from((*FLOAT32_DIGITS, *HALF_DIGITS)),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12),
)
def test_digits_say_what_the_number_was(digits: Digits, numbers: list[float]) -> None:
    row = torch.tensor([numbers])
    split, worth = digits.split(row)
    assert split.abs().max() <= digits.zero
    assert torch.equal(split, split.round())
    said = (split.double().view(digits.count, 1, -1) * worth.double()).sum(0)
    step = worth[0].double().item()
    assert float((said - row.double()).abs().max()) <= 1.01 * step + 1e-6 * float(row.abs().max())


def test_what_is_no_number_stays_none() -> None:
    """A fault in a model must not turn into plausible text."""
    block = Int8Block(drawn(8, 16))
    rows = drawn(2, 16)
    rows[0, 3] = math.nan
    found = block.product(rows)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_rows_of_zeros_stay_zero() -> None:
    assert torch.equal(Int8Block(drawn(8, 16)).product(torch.zeros(2, 16)), torch.zeros(2, 8))


@pytest.mark.parametrize("make", [Fbgemm, OneDnn])
def test_kernels_give_back_what_they_packed(make: Any) -> None:
    steps = torch.randint(-127, 128, (24, 40), dtype=torch.int8)
    try:
        kernel = make(steps, torch.rand(24))
    except RuntimeError:
        pytest.skip("not in this build of PyTorch")
    digits = torch.randint(-63, 64, (5, 40)).float()
    for other in (kernel, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(other.steps(), steps)
        assert torch.equal(other.product(digits, 64), kernel.product(digits, 64))


def test_int8_errs_no_more_than_with_the_largest_weight_as_its_scale() -> None:
    weight = drawn(32, 256) * torch.logspace(-4, 2, 32)[:, None]
    steps, scale = quantize_rows(weight)
    errors = (steps * scale[:, None] - weight).square().sum(-1)
    plain = weight.abs().amax(-1, keepdim=True) / 127
    usual = ((weight / plain).round() * plain - weight).square().sum(-1)
    assert (errors <= 1.1 * usual).all()
    assert (errors / usual).mean() < 1


@pytest.mark.parametrize("group", [16, 32])
def test_int4_is_nearer_than_the_range_of_each_group_in_fifteen_steps(group: int) -> None:
    weight = drawn(32, 96, seed=group)
    steps, worth = quantize_groups(weight, group)
    assert steps.max() <= 15
    assert worth.shape == (96 // group, 32, 2)
    scale, middle = worth.float().transpose(0, 1).repeat_interleave(group, 1).unbind(-1)
    error = ((steps.float() - 8) * scale + middle - weight).square().sum()
    grouped = weight.view(32, -1, group)
    low = grouped.amin(-1, keepdim=True)
    step = (grouped.amax(-1, keepdim=True) - low) / 15
    usual = (((grouped - low) / step).round() * step + low - grouped).square().sum()
    assert error < 0.95 * usual


@pytest.mark.parametrize("make", BLOCKS)
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_weights_of_one_value_stay_what_they_are(make: Any, value: float) -> None:
    block = make(torch.full((8, 32), value))
    torch.testing.assert_close(block.dequantized(), torch.full((8, 32), value), rtol=4e-3, atol=0)


@pytest.mark.parametrize("make", BLOCKS)
def test_memory_is_that_of_the_bits(make: Any) -> None:
    """What a block registers, and what a kernel holds in its place, is no float copy."""
    block = make(drawn(512, 512))
    held = sum(buffer.nbytes for buffer in block.buffers())
    assert held < 512 * 512 * (1.05 if make is Int8Block else 0.65)
