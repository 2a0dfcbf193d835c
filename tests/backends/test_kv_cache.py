"""The cache as a transaction: rows written, kept, dropped, moved and never leaked."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache, DynamicLayer

from foredraft.backends.kv_cache import GROWTH_ROWS, KVCache
from foredraft.backends.kv_layout import KVLayout, LayerLayout
from foredraft.config import MAX_TREE_NODES
from foredraft.errors import CacheError, ModelError
from tests.tiny_models import tiny_hybrid, tiny_llama

FULL = LayerLayout(2, 4, 3, torch.float32, torch.device("cpu"))
WINDOWED = LayerLayout(1, 4, 4, torch.float32, torch.device("cpu"), window=8)
LAYOUT = KVLayout((FULL, None, WINDOWED, FULL))


def states(layout: LayerLayout, marks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values that carry each token's mark in every feature."""
    column = torch.tensor(marks, dtype=layout.dtype)[:, None]
    keys = column.expand(1, layout.heads, -1, layout.key_dim)
    return keys, -column.expand(1, layout.heads, -1, layout.value_dim)


def write(cache: KVCache, marks: list[int]) -> list[list[int]]:
    """One pass over these tokens; the marks each written layer got back."""
    seen = []
    with cache.writing(len(marks)):
        for index, layout in enumerate(LAYOUT.layers):
            if layout is not None:
                rows = cache.get_mask_sizes(len(marks), index)[0]
                keys, values = cache.update(*states(layout, marks), index)
                assert keys.shape == (1, layout.heads, rows, layout.key_dim)
                assert torch.equal(keys[..., 0], -values[..., 0])
                seen.append(keys[0, -1, :, -1].int().tolist())
    return seen


def test_a_pass_sees_committed_and_pending_rows() -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2, 3])
    assert (cache.length, cache.pending) == (0, 3)
    assert write(cache, [4, 5]) == [[1, 2, 3, 4, 5]] * 3
    cache.commit([0, 2, 4])
    assert (cache.length, cache.pending) == (3, 0)
    assert write(cache, [6]) == [[1, 3, 5, 6]] * 3


def test_an_empty_commit_is_a_rollback() -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2])
    cache.commit([0, 1])
    write(cache, [3, 4, 5])
    cache.commit([])
    assert write(cache, [6]) == [[1, 2, 6]] * 3


def test_a_chain_prefix_is_committed_without_moving_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2, 3])
    moves = []
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: moves.append(1))
    cache.commit([0, 1])
    assert not moves


def test_buffers_are_shared_by_layers_with_one_layout() -> None:
    assert len(KVCache(LAYOUT, 32)._arenas) == 2


def test_growing_keeps_committed_and_pending_rows() -> None:
    cache = KVCache(LAYOUT, 1)
    text: list[int] = []
    while len(text) < 4 * MAX_TREE_NODES:
        block = list(range(len(text), len(text) + 300))
        write(cache, block[:200])
        assert write(cache, block[200:])[0] == text + block
        cache.commit(range(300))
        text += block
    assert all(arena.capacity % GROWTH_ROWS == 0 for arena in cache._arenas)


def test_windows_slide_without_growing() -> None:
    cache = KVCache(LAYOUT, 10_000)
    windowed = next(arena for arena in cache._arenas if arena.layout is WINDOWED)
    capacity = windowed.capacity
    assert capacity < WINDOWED.held(10_000) + 2 * MAX_TREE_NODES + GROWTH_ROWS
    text: list[int] = []
    for mark in range(0, 3 * capacity, 7):
        block = list(range(mark, mark + 7))
        full, sliding, _ = write(cache, block)
        assert full == text + block
        assert sliding == (text[-7:] + block)
        cache.commit([0, 2, 3, 6])
        text += [block[i] for i in (0, 2, 3, 6)]
    assert windowed.capacity == capacity


def test_positions_reported_to_the_model_count_slid_out_rows() -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, list(range(20)))
    cache.commit(range(20))
    assert cache.get_seq_length(2) == 20
    assert cache.get_mask_sizes(3, 0) == (23, 0)
    assert cache.get_mask_sizes(3, 2) == (10, 13)


def test_a_reset_cache_shows_nothing_of_the_sequence_before() -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2, 3])
    cache.commit([0, 1, 2])
    write(cache, [4])
    cache.reset()
    cache.reserve(2_000)
    assert write(cache, [9]) == [[9]] * 3


@pytest.mark.parametrize("times", [0, 2])
def test_a_layer_that_is_not_written_once_is_named(times: int) -> None:
    cache = KVCache(LAYOUT, 32)

    def careless_pass() -> None:
        with cache.writing(3):
            for index, layout in ((0, FULL), (2, WINDOWED), *[(3, FULL)] * times):
                cache.update(*states(layout, [1, 2, 3]), index)

    message = rf"layer 3 wrote {3 * times} rows .* 3 were expected"
    with pytest.raises(CacheError, match=message):
        careless_pass()
    assert cache.pending == 0


def test_too_few_rows_are_not_broadcast() -> None:
    cache = KVCache(LAYOUT, 32)
    with pytest.raises(CacheError, match="layer 0 wrote 1 rows"), cache.writing(3):
        cache.update(*states(FULL, [1]), 0)


def test_a_failed_pass_leaves_the_transaction_as_it_was() -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2])
    with pytest.raises(RuntimeError, match="device lost"), cache.writing(1):
        raise RuntimeError("device lost")
    assert write(cache, [3]) == [[1, 2, 3]] * 3


def test_a_cache_that_could_not_grow_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out between keys and values; the buffers go back to the target all the same."""
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2])
    empty, left = torch.empty, [True]

    def scarce(*shape: int, **place: object) -> torch.Tensor:
        if not left:
            raise torch.OutOfMemoryError("out of memory")
        left.pop()
        return empty(shape, **place)

    monkeypatch.setattr(torch, "empty", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        cache.reserve(5_000)
    monkeypatch.undo()
    cache.commit([0, 1])
    for mark in range(3, 2_000):
        write(cache, [mark])
        cache.commit([0])
    assert write(cache, [0])[0] == [*range(1, 2_000), 0]


@pytest.mark.parametrize("path", [[1, 0], [0, 0], [3], [-1]])
def test_a_path_that_is_not_in_the_pending_rows_is_refused(path: list[int]) -> None:
    cache = KVCache(LAYOUT, 32)
    write(cache, [1, 2, 3])
    with pytest.raises(CacheError, match="increasing indices below 3"):
        cache.commit(path)


def test_buffers_work_in_and_out_of_inference_mode() -> None:
    with torch.inference_mode():
        cache = KVCache(LAYOUT, 32)
        write(cache, [1, 2, 3])
    with torch.no_grad():
        cache.commit([1])
        write(cache, [4, 5])
    with torch.inference_mode():
        cache.commit([1])
        assert write(cache, [6]) == [[2, 5, 6]] * 3


def test_the_layout_is_read_from_a_filled_cache() -> None:
    model = tiny_llama(num_key_value_heads=1)
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([[1, 2]]), cache=cache, use_cache=True)
    expected = LayerLayout(1, 8, 8, torch.float32, torch.device("cpu"))
    assert KVLayout.of(cache) == KVLayout((expected, expected))


def test_a_cache_that_stays_empty_is_refused() -> None:
    with pytest.raises(ModelError, match="keeps no key-value cache"):
        KVLayout.of(DynamicCache(config=tiny_llama().config))


class Quantised(DynamicLayer):  # type: ignore[misc]
    """Stands for the library's quantised layers, which need packages of their own."""


@pytest.mark.parametrize("kind", ["static", "convolution", "quantised"])
def test_layers_that_cannot_roll_back_are_refused(kind: str) -> None:
    config = tiny_llama().config
    cache = {
        "static": lambda: StaticCache(config=config, max_cache_len=8),
        "convolution": lambda: DynamicCache(config=tiny_hybrid().config),
        "quantised": lambda: Cache(layers=[Quantised()]),
    }[kind]()
    with pytest.raises(ModelError, match=r"layer 0 keeps its past in a .*, which cannot forget"):
        KVLayout.of(cache)
