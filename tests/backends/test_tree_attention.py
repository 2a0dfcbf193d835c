"""Masks against their definition: a node sees the text, its ancestors and itself, within the window."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.backends.kv_layout import KVLayout, LayerLayout
from foredraft.backends.tree_attention import (
    INITIAL_NODES,
    TREES_KEPT,
    AncestorRows,
    AttentionKind,
    Topology,
    TreeMasks,
)
from tests.tiny_models import tiny_gemma3, tiny_llama, tiny_mistral

CPU = torch.device("cpu")
FULL = LayerLayout(1, 4, 4, torch.float32, CPU)


def windowed(window: int) -> LayerLayout:
    return LayerLayout(1, 4, 4, torch.float32, CPU, window)


def random_parents(generator: random.Random, nodes: int) -> list[int]:
    return [generator.randrange(-1, node) for node in range(nodes)]


@st.composite
def trees(draw: st.DrawFn, most: int = 20) -> list[int]:
    """Parents of a forest, in any order that puts them before their children."""
    nodes = draw(st.integers(1, most))
    return [draw(st.integers(-1, node - 1)) for node in range(nodes)]


def ancestors_or_self(parents: list[int], node: int) -> list[int]:
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found


def brute_force(parents: list[int]) -> torch.Tensor:
    rows = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        rows[node, ancestors_or_self(parents, node)] = True
    return rows


def windowed_brute_force(
    parents: list[int], length: int, kind: AttentionKind, first: int
) -> torch.Tensor:
    """[N, L] by the definition, on logical positions."""
    held, window = kind.layout.held(length), kind.layout.window
    depths = [len(ancestors_or_self(parents, node)) - 1 for node in range(len(parents))]
    columns = [*range(length - held, length), *(length + depth for depth in depths)]
    mask = torch.zeros(len(parents) - first, held + len(parents), dtype=torch.bool)
    for node in range(first, len(parents)):
        family = ancestors_or_self(parents, node)
        for column, position in enumerate(columns):
            visible = column < held or column - held in family
            query = length + depths[node]
            if window is not None:
                same_block = position // window == query // window
                visible &= same_block if kind.chunked else position > query - window
            mask[node - first, column] = visible
    return mask


def test_a_thousand_random_trees_in_one_buffer() -> None:
    generator, topology = random.Random(0), Topology(CPU)
    for _ in range(1000):
        parents = random_parents(generator, generator.randrange(1, 40))
        topology.hold(parents)
        assert torch.equal(topology.rows(0, len(parents)), brute_force(parents))
        depths = [len(ancestors_or_self(parents, n)) - 1 for n in range(len(parents))]
        assert topology.depths(0, len(parents)).tolist() == depths


def test_a_repeated_or_shorter_tree_is_a_slice_of_what_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = Topology(CPU)
    parents = random_parents(random.Random(1), 30)
    topology.hold(parents)
    rows = topology.rows(0, 30)
    monkeypatch.setattr(AncestorRows, "append", None)  # would fail if called
    for nodes in (30, 7, 1, 30):
        topology.hold(parents[:nodes])
        assert topology.rows(0, nodes).data_ptr() == rows.data_ptr()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows every call has built."""
    counts: list[int] = []
    append = AncestorRows.append

    def counting(self: AncestorRows, parents: list[int]) -> None:
        if parents:
            counts.append(len(parents))
        append(self, parents)

    monkeypatch.setattr(AncestorRows, "append", counting)
    return counts


def test_trees_that_come_by_turns_are_each_built_once(built: list[int]) -> None:
    """A draft model's levels behind one missed token, and behind two."""
    topology = Topology(CPU)
    for _ in range(3):
        for missed in (1, 2):
            gap = list(range(-1, missed - 1))
            levels = [missed - 1] * 2 + [missed] * 3
            for stop in (missed, missed + 2, missed + 5):
                parents = [*gap, *levels][:stop]
                topology.hold(parents)
                assert torch.equal(topology.rows(0, stop), brute_force(parents))
    assert sum(built) == (1 + 5) + (2 + 5)


def test_of_many_trees_the_nearest_is_changed(built: list[int]) -> None:
    topology = Topology(CPU)
    for last in range(TREES_KEPT):
        topology.hold([-1, 0, 1, 2, last])
    del built[:]
    topology.hold([-1, 0, 0, 1, 1, 4])
    assert built == [4]
    topology.hold([-1, 0, 0, 1, 2])
    assert built == [4, 1]
    assert torch.equal(topology.rows(0, 5), brute_force([-1, 0, 0, 1, 2]))


def test_buffers_grow_with_the_tree() -> None:
    topology = Topology(CPU)
    parents = random_parents(random.Random(2), 5 * INITIAL_NODES)
    for nodes in (3, INITIAL_NODES + 1, len(parents)):
        topology.hold(parents[:nodes])
        assert torch.equal(topology.rows(0, nodes), brute_force(parents[:nodes]))


@settings(max_examples=150, deadline=None)
@given(trees(), st.integers(0, 20), st.integers(2, 12), st.booleans(), st.data())
def test_windows_go_by_position_and_not_by_slot(
    parents: list[int], length: int, window: int, chunked: bool, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(parents) - 1))
    kinds = [
        AttentionKind("full_attention", FULL),
        AttentionKind("windowed", windowed(window), chunked),
    ]
    topology = Topology(CPU)
    topology.hold(parents)
    masks = TreeMasks(kinds, None).build(topology, length, first, len(parents))
    for kind in kinds:
        expected = windowed_brute_force(parents, length, kind, first)
        if masks is None:
            assert expected.all()
        else:
            assert isinstance(masks, dict)
            assert kind.layer_type is not None
            assert torch.equal(masks[kind.layer_type], expected[None, None])


def test_plain_decoding_needs_no_mask() -> None:
    topology = Topology(CPU)
    topology.hold([-1])
    for layout in (FULL, windowed(8)):
        masks = TreeMasks([AttentionKind(None, layout)], None)
        assert masks.build(topology, 100, 0, 1) is None


def test_a_row_with_a_pending_uncle_needs_one() -> None:
    topology = Topology(CPU)
    topology.hold([-1, -1])
    assert TreeMasks([AttentionKind(None, FULL)], None).build(topology, 3, 1, 2) is not None


def test_added_masks_hold_the_lowest_finite_number() -> None:
    topology = Topology(CPU)
    topology.hold([-1, -1])
    kinds = [AttentionKind(None, FULL)]
    mask = TreeMasks(kinds, torch.bfloat16).build(topology, 1, 0, 2)
    lowest = torch.finfo(torch.bfloat16).min
    assert isinstance(mask, torch.Tensor)
    assert mask.dtype == torch.bfloat16
    assert mask[0, 0].tolist() == [[0, 0, lowest], [0, lowest, 0]]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (tiny_llama, [None]),
        (tiny_mistral, [None]),
        (tiny_gemma3, ["sliding_attention", "full_attention"]),
    ],
)
def test_one_mask_or_one_per_layer_type(make: object, names: list[str | None]) -> None:
    config = make().config  # type: ignore[operator]
    windows = {"sliding_attention": windowed(8), "full_attention": FULL}
    types = getattr(config, "layer_types", None) or ["full_attention"]
    layout = KVLayout(tuple(windows[name] for name in types))
    masks = TreeMasks.for_model(config, layout, torch.float32)
    assert masks is not None
    assert [kind.layer_type for kind in masks._kinds] == names


@pytest.mark.parametrize("attention", ["flex_attention", "flash_attention_2"])
def test_attention_that_takes_no_such_mask_gets_none(attention: str) -> None:
    config = tiny_llama().config
    config._attn_implementation_internal = attention
    assert TreeMasks.for_model(config, KVLayout((FULL,)), torch.float32) is None
