"""The floor of a pass: bytes that are read, once, over a measured bandwidth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from foredraft.backends.hf import HFTarget
from foredraft.backends.joined_linears import join_linears
from foredraft.backends.table import TableModel
from foredraft.bench.profile.floor import (
    ROW_BYTES,
    distinct_bytes,
    draft_bytes,
    held_bytes,
    kv_bytes,
    measure_bandwidth,
    weight_bytes,
)
from foredraft.drafters.eagle.config import Variant
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.passes import HeadPasses
from tests.tiny_models import SMALL, VOCAB_SIZE, WINDOW, tiny_bf16_llama, tiny_llama, tiny_mistral

HIDDEN, INNER = int(SMALL["hidden_size"]), int(SMALL["intermediate_size"])
LAYER = (
    HIDDEN * HIDDEN * 2  # queries and output
    + HIDDEN * HIDDEN  # keys and values of half as many heads
    + HIDDEN * INNER * 3
    + HIDDEN * 2  # norms
)
BODY = 2 * LAYER + HIDDEN
ENDS = VOCAB_SIZE * HIDDEN


def rotary_bytes(model: nn.Module) -> int:
    """The frequencies, which are buffers."""
    return sum(buffer.nbytes for buffer in model.buffers())


def test_embeddings_that_are_only_looked_up_do_not_count() -> None:
    model = tiny_llama()
    assert weight_bytes(model) == 4 * (BODY + ENDS) + rotary_bytes(model)
    assert held_bytes(model) == 4 * (BODY + 2 * ENDS) + rotary_bytes(model)


def test_tied_embeddings_count_once() -> None:
    model = tiny_llama(tie_word_embeddings=True)
    assert weight_bytes(model) == 4 * (BODY + ENDS) + rotary_bytes(model)
    assert held_bytes(model) == weight_bytes(model)


def test_weights_count_in_the_bytes_that_they_have() -> None:
    model = tiny_bf16_llama()
    assert weight_bytes(model) == 2 * (BODY + ENDS) + rotary_bytes(model)


def test_joined_layers_count_once() -> None:
    model = tiny_llama()
    before = weight_bytes(model)
    assert join_linears(model)
    assert weight_bytes(model) == before


def test_quantised_layers_count_by_their_buffers_and_masks_do_not() -> None:
    model = nn.Module()
    model.register_buffer("packed", torch.zeros(6, 8, dtype=torch.int8))
    model.register_buffer("scale", torch.zeros(6, dtype=torch.bfloat16))
    model.register_buffer("mask", torch.zeros(100, dtype=torch.bool))
    assert weight_bytes(model) == 6 * 8 + 6 * 2
    assert weight_bytes(model, torch.zeros(3)) == 6 * 8 + 6 * 2 + 12


class Wrapper(Tensor):
    """A tensor whose numbers are in others, as libraries of quantisation have them."""

    packed: Tensor

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["packed"], None


def test_wrapped_tensors_count_by_what_is_inside() -> None:
    wrapped = torch.zeros(1000).as_subclass(Wrapper)
    wrapped.packed = torch.zeros(10, dtype=torch.uint8)
    assert distinct_bytes([wrapped]) == 10


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8))
def test_shared_bytes_count_once(pieces: list[tuple[int, int]]) -> None:
    block, other = torch.zeros(40, dtype=torch.int16), torch.zeros(7, dtype=torch.int16)
    views = [block[start : start + size] for start, size in pieces]
    covered = {i for start, size in pieces for i in range(start, start + size)}
    assert distinct_bytes([*views, other]) == 2 * (len(covered) + 7)


def test_keys_and_values_of_the_context_count_as_far_as_they_are_seen() -> None:
    full = HFTarget(tiny_llama())
    assert kv_bytes(full.layout, 100) == 2 * 2 * (8 + 8) * 4 * 100
    windowed = HFTarget(tiny_mistral())
    assert kv_bytes(windowed.layout, 100) == 2 * 2 * (8 + 8) * 4 * (WINDOW - 1)


@pytest.mark.parametrize("variant", [1, 3])
def test_a_draft_level_reads_the_heads_layer_and_the_head_that_it_borrows(variant: Variant) -> None:
    target = HFTarget(tiny_llama())
    head = EagleHead.for_target(target.model, variant, own_lm_head=False)
    assert not head.own_lm_head
    layer = head.midlayer
    read = [*layer.parameters(), *target.model.lm_head.parameters()]
    read += [*head.norm.parameters()] if variant == 3 else [*head.fc.parameters()]
    weights = sum(parameter.nbytes for parameter in read)
    buffers = sum(b.nbytes for b in head.buffers() if b.dtype != torch.bool)
    kv = 2 * head.config.num_key_value_heads * head.config.head_dim * 4
    assert draft_bytes(HeadPasses(head, 20), 100) == (weights + buffers, 20 * kv)


def test_a_draft_model_is_a_model_and_a_toy_does_not_tell() -> None:
    target = HFTarget(tiny_llama())
    expected = (weight_bytes(target.model), kv_bytes(target.layout, 50))
    assert draft_bytes(target, 50) == expected
    assert draft_bytes(TableModel.random(5, 1, seed=0), 50) is None


def test_bandwidth_is_that_of_the_fastest_kernel_by_the_median() -> None:
    size = 16 * ROW_BYTES
    waits = []

    def ticks() -> Iterator[float]:
        """Three kernels: 4, 2 and 1 seconds a turn; one turn stalls."""
        now = 0.0
        for turn in itertools.count():
            for took in (4.0, 2.0, 1.0):
                yield now
                now += took * (100 if turn == 2 else 1)
                yield now

    clock = ticks()
    found = measure_bandwidth(
        torch.device("cpu"),
        torch.bfloat16,
        lambda: waits.append(1),
        buffer_bytes=size + 5,
        repeats=3,
        clock=lambda: next(clock),
    )
    assert found.buffer_bytes == size
    assert list(found.kernels) == ["sum float32", "product float32", "product bfloat16"]
    assert list(found.kernels.values()) == [size / 4, size / 2, size]
    assert found.bytes_per_s == size
    assert found.as_dict()["gb_per_s"] == pytest.approx(size / 1e9)
    assert len(waits) == 4 * 3 * 2
