"""Restored rows are computed rows, whatever the texts, the windows, the taps and the memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from foredraft.backends import hf_state, kv_cache
from foredraft.backends.hf import HFState, HFTarget
from foredraft.backends.kv_cache import BLOCK_ROWS, KVRows
from foredraft.backends.prefix_cache import MEGABYTE, Block, PrefixCache
from foredraft.errors import ConfigError
from tests.tiny_models import (
    TREE_MODELS,
    VOCAB_SIZE,
    tiny_bf16_llama,
    tiny_bloom,
    tiny_gpt_neo,
    tiny_llama,
)

PLENTY = 64.0
TREE, TREE_PARENTS = (11, 12, 13, 14, 15, 16), (-1, 0, 0, 1, 2, 2)
ATOL = 1e-5
MODEL = tiny_llama()
TARGETS = {name: HFTarget(TREE_MODELS[name]()) for name in ("llama", "mistral", "gemma3")}
TAPS: dict[str, tuple[tuple[int, ...], int]] = {
    "llama": ((0, 2), 32),
    "mistral": ((1,), 32),
    "gemma3": ((1, 4), 32),
}
"""Of each model, and the size of its states."""


def words(length: int, seed: int = 0) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=random).tolist()


def logits_after(state: HFState, text: Sequence[int]) -> Tensor:
    """Read a text but its last token, then score a tree behind it."""
    state.prefill(text[:-1])
    parents = (-1, 0, 0, 1) if state._target.scores_trees else (-1, 0, 1, 2)
    return state.score([text[-1], 7, 8, 9], parents)


def fake_rows(text: Sequence[int]) -> KVRows:
    """Rows that tell the whole text up to their own token, as real ones do."""
    sums = torch.tensor(text, dtype=torch.float64).cumsum(0)[-BLOCK_ROWS:]
    return ((sums.view(1, 1, 1, -1, 1), -sums.view(1, 1, 1, -1, 1)),)


BLOCK_BYTES = 2 * 8 * BLOCK_ROWS
"""Of a block of fake rows; its states of one tap take half as much."""


def empty(max_bytes: int) -> PrefixCache:
    return PrefixCache(max_bytes, BLOCK_BYTES // BLOCK_ROWS)


def add(prefixes: PrefixCache, text: Sequence[int], taps: Sequence[int] = ()) -> list[Block]:
    """The blocks of a text that were kept, as a sequence would add them."""
    block: Block | None = prefixes.root
    made: list[Block] = []
    for stop in range(BLOCK_ROWS, len(text) + 1, BLOCK_ROWS):
        tokens = tuple(text[stop - BLOCK_ROWS : stop])
        states = {tap: torch.full((BLOCK_ROWS, 1), float(tap * stop)).double() for tap in taps}
        assert block is not None
        block = prefixes.extend(block, tokens, lambda stop=stop: fake_rows(text[:stop]), states)
        if block is None:
            break
        made.append(block)
    if made:
        prefixes.use(made[-1])
    return made


def all_blocks(prefixes: PrefixCache) -> list[Block]:
    """The whole tree, parents first."""
    found, at = [], 0
    waiting = [prefixes.root]
    while at < len(waiting):
        found += waiting[at].children.values()
        waiting += waiting[at].children.values()
        at += 1
    return found


def check_tree(prefixes: PrefixCache) -> None:
    """Bytes are those of the tensors and within the limit; every block is kept and where it belongs."""
    blocks, counts = all_blocks(prefixes), prefixes.counts()
    tensors = [t for b in blocks for pair in b.rows for t in pair]
    tensors += [t for b in blocks for t in b.states.values()]
    assert counts.num_bytes == sum(t.nbytes for t in tensors) == sum(b.num_bytes for b in blocks)
    assert counts.num_bytes <= counts.max_bytes
    assert counts.blocks == len(blocks) == counts.stored_blocks - counts.evicted_blocks
    assert all(b.is_kept and b.parent is not None for b in blocks)
    assert all(b.parent.children[b.token_ids] is b for b in blocks if b.parent is not None)


def text_of(block: Block) -> list[int]:
    """From the first token on."""
    before = [] if block.parent is None else text_of(block.parent)
    return [*before, *block.token_ids]


def known(target: HFTarget, text: Sequence[int], taps: Sequence[int] = ()) -> int:
    assert target.prefix_cache is not None
    return len(target.prefix_cache.find(text, taps)) * BLOCK_ROWS


# --- the tree of blocks -----------------------------------------------------------------------------

PIECES = st.lists(st.integers(0, 2), max_size=6)
"""Texts as blocks of one token each, so that many begin alike."""


def spelled(pieces: Sequence[int], rest: int = 0) -> list[int]:
    return [token for piece in pieces for token in [piece + 1] * BLOCK_ROWS] + [9] * rest


@given(
    st.lists(st.tuples(PIECES, st.integers(0, BLOCK_ROWS - 1), st.sets(st.integers(1, 2)))),
    st.integers(0, 12),
)
def test_what_is_found_was_read_and_memory_is_bounded(
    texts: list[tuple[list[int], int, set[int]]], room: int
) -> None:
    """Rows that are found belong to the text that asks, whatever was dropped in between."""
    prefixes, whole = empty(room * BLOCK_BYTES), empty(10**6)
    for pieces, rest, taps in texts:
        text = spelled(pieces, rest)
        found, all_found = prefixes.find(text, sorted(taps)), whole.find(text, sorted(taps))
        assert len(found) <= len(all_found)
        for number, block in enumerate(found, 1):
            assert text_of(block) == text[: number * BLOCK_ROWS]
            torch.testing.assert_close(block.rows, fake_rows(text[: number * BLOCK_ROWS]))
            assert all(block.states[t][0] == t * number * BLOCK_ROWS for t in taps)
        for cache in (prefixes, whole):
            kept = add(cache, text, sorted(taps))
            assert cache.find(text, sorted(taps)) == kept
            check_tree(cache)
        assert len(kept) == len(pieces)


@given(st.lists(PIECES, min_size=1, max_size=6), PIECES)
def test_the_longest_known_start_is_found(texts: list[list[int]], asked: list[int]) -> None:
    prefixes = empty(10**6)
    for pieces in texts:
        add(prefixes, spelled(pieces, 3))
    longest = max(
        n for n in range(len(asked) + 1) if any(t[:n] == asked[:n] and len(t) >= n for t in texts)
    )
    assert len(prefixes.find(spelled(asked, 5))) == longest


def test_ends_of_texts_go_first_and_the_oldest_of_them() -> None:
    """Two texts share a block; the one that was asked for again stays whole."""
    prefixes = empty(5 * BLOCK_BYTES)
    add(prefixes, spelled([0, 1, 1]))
    add(prefixes, spelled([0, 2, 2]))
    prefixes.find(spelled([0, 1, 1]))
    add(prefixes, spelled([1]))
    assert [len(prefixes.find(spelled(t))) for t in ([0, 1, 1], [0, 2, 2], [1])] == [3, 2, 1]


def test_a_text_that_is_larger_than_the_memory_keeps_its_start() -> None:
    prefixes = empty(3 * BLOCK_BYTES)
    add(prefixes, spelled([2, 2]))
    assert len(add(prefixes, spelled([0] * 8))) == 3
    assert len(prefixes.find(spelled([0] * 8))) == 3


def test_a_block_without_the_states_asked_for_is_no_hit_until_they_are_added() -> None:
    prefixes, text = empty(10**6), spelled([0, 1])
    add(prefixes, text)
    assert len(prefixes.find(text)) == 2
    assert not prefixes.find(text, (1,))
    add(prefixes, text, (1,))
    add(prefixes, text, (2,))
    assert len(prefixes.find(text, (2, 1))) == 2
    assert prefixes.counts().stored_blocks == 2
    check_tree(prefixes)


def test_states_that_do_not_fit_leave_the_rows_as_they_are() -> None:
    prefixes, text = empty(BLOCK_BYTES), spelled([0])
    add(prefixes, text)
    assert not add(prefixes, text, (1,))
    assert len(prefixes.find(text)) == 1
    check_tree(prefixes)


def test_a_dropped_block_takes_nothing_behind_it() -> None:
    """A sequence whose last block was dropped for another text adds no more."""
    prefixes = empty(2 * BLOCK_BYTES)
    tail = add(prefixes, spelled([0]))[-1]
    add(prefixes, spelled([1, 1]))
    assert not tail.is_kept
    behind = tuple(spelled([2]))
    assert prefixes.extend(tail, behind, lambda: fake_rows(behind), {}) is None
    check_tree(prefixes)


def test_memory_that_was_not_to_be_had_is_given_back() -> None:
    prefixes = empty(BLOCK_BYTES)

    def fails() -> KVRows:
        raise MemoryError("no rows")

    with pytest.raises(MemoryError):
        prefixes.extend(prefixes.root, tuple(spelled([0])), fails, {})
    assert len(add(prefixes, spelled([0]))) == 1


def test_clearing_forgets_every_text_and_stops_those_in_progress() -> None:
    prefixes = empty(10**6)
    tail = add(prefixes, spelled([0, 1]))[-1]
    prefixes.clear()
    assert prefixes.counts().num_bytes == prefixes.counts().blocks == 0
    behind = tuple(spelled([2]))
    assert prefixes.extend(tail, behind, lambda: fake_rows(behind), {}) is None
    assert len(add(prefixes, spelled([0, 1]))) == 2


def test_another_thread_may_add_the_same_block_first() -> None:
    prefixes, tokens = empty(10**6), tuple(spelled([0]))

    def late() -> KVRows:
        add(prefixes, tokens)
        return fake_rows(tokens)

    block = prefixes.extend(prefixes.root, tokens, late, {})
    assert prefixes.find(tokens) == [block]
    assert prefixes.counts().num_bytes == BLOCK_BYTES


def test_another_thread_may_drop_the_parent_meanwhile() -> None:
    prefixes, tokens = empty(10**6), tuple(spelled([1]))
    parent = add(prefixes, spelled([0]))[-1]

    def late() -> KVRows:
        prefixes.clear()
        return fake_rows(tokens)

    assert prefixes.extend(parent, tokens, late, {}) is None
    assert prefixes.counts().num_bytes == 0


def test_threads_add_and_find_at_the_same_time() -> None:
    prefixes = empty(7 * BLOCK_BYTES)
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        for _ in range(60):
            text = spelled(torch.randint(3, (4,), generator=random).tolist())
            add(prefixes, text)
            for number, block in enumerate(prefixes.find(text), 1):
                rows, expected = block.rows[0][0], fake_rows(text[: number * BLOCK_ROWS])[0][0]
                wrong.extend([] if torch.equal(rows, expected) else [text])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    check_tree(prefixes)


@pytest.mark.parametrize("megabytes", [0, -1, float("nan"), float("inf"), "much", True])
def test_memory_is_a_number_of_megabytes(megabytes: Any) -> None:
    with pytest.raises(ConfigError, match="give a number of megabytes above 0"):
        HFTarget(MODEL, prefix_cache_mb=megabytes)


# --- sequences of a model ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TREE_MODELS, "bloom", "gpt-neo"])
def test_every_shared_length_scores_as_a_cold_start(name: str) -> None:
    """Windows of 8, smaller than a block, among them: what slid out is restored where it is needed."""
    makes = TREE_MODELS | {"bloom": tiny_bloom, "gpt-neo": lambda: tiny_gpt_neo(64)}
    cold, warm = HFTarget(makes[name]()), HFTarget(makes[name](), prefix_cache_mb=PLENTY)
    first = words(50)
    for shared in (0, 4, 15, 16, 17, 31, 32, 47, 50):
        assert warm.prefix_cache is not None
        warm.prefix_cache.clear()
        before = warm.start(64)
        before.prefill(first)
        before.close()
        text = first[:shared] + words(30, seed=1)
        state = warm.start(64)
        found = logits_after(state, text)
        torch.testing.assert_close(found, logits_after(cold.start(64), text), atol=1e-4, rtol=1e-4)
        assert state.restored == shared // BLOCK_ROWS * BLOCK_ROWS
        assert state.length == len(text) - 1
        state.close()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@settings(max_examples=15)
@given(data=st.data())
def test_rows_of_any_history_are_the_rows_of_its_text(name: str, data: st.DataObject) -> None:
    """Chunks, trees, rollbacks and small buffers: blocks hold what one pass over the text computes."""
    target, (taps, size) = TARGETS[name], TAPS[name]
    prefixes = target.prefix_cache = PrefixCache(10**8, target.layout.row_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_state, "MAX_TREE_NODES", 8)
        patch.setattr(kv_cache, "MAX_TREE_NODES", 8)
        patch.setattr(kv_cache, "GROWTH_ROWS", 16)
        state = target.start_tapped(data.draw(st.integers(1, 64)), taps)
        text = words(data.draw(st.integers(0, 40)))
        state.prefill(text)
        for _ in range(data.draw(st.integers(0, 12))):
            path = data.draw(st.sampled_from([(0, 2, 5), (0, 1, 3), (0, 2, 4), (0,), ()]))
            state.score(TREE, TREE_PARENTS)
            state.commit(path)
            text += [TREE[node] for node in path]
            if data.draw(st.booleans()):
                state.take_features()
        state.close()
    blocks = prefixes.find(text, taps)
    assert len(blocks) == len(text) // BLOCK_ROWS
    check_tree(prefixes)
    if blocks:
        check_rows(target.model, text, blocks, taps, size)


def check_rows(
    model: Any, text: Sequence[int], blocks: Sequence[Block], taps: Sequence[int], size: int
) -> None:
    """Against what the library's own cache holds after one pass over the text."""
    count = len(blocks) * BLOCK_ROWS
    cache = DynamicCache()
    with torch.no_grad():
        output = model(torch.tensor([text[:count]]), cache=cache, output_hidden_states=True)
    arenas = [torch.cat([b.rows[a][0] for b in blocks], 3) for a in range(len(blocks[0].rows))]
    found = sorted((layer for arena in arenas for layer in arena), key=lambda t: float(t.sum()))
    expected = sorted((layer.keys for layer in cache.layers), key=lambda t: float(t.sum()))
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=ATOL)
    for tap in taps:
        states = torch.cat([block.states[tap] for block in blocks])
        assert states.shape == (count, size)
        torch.testing.assert_close(states, output.hidden_states[tap][0], atol=ATOL, rtol=ATOL)


def test_restored_features_are_handed_out_as_computed_ones() -> None:
    """With taps in another order, and a draft behind them."""
    target, text = HFTarget(MODEL, prefix_cache_mb=PLENTY), words(40)
    first = target.start_tapped(64, (0, 1, 2))
    first.prefill(text)
    state = target.start_tapped(64, (2, 0))
    state.prefill(text)
    assert state.restored == 32
    state.score(TREE, TREE_PARENTS)
    state.commit((0, 2))
    features = state.take_features()
    plain = HFTarget(MODEL).start_tapped(64, (2, 0))
    plain.prefill([*text, 11, 13])
    torch.testing.assert_close(features, plain.take_features(), atol=ATOL, rtol=ATOL)
    assert not len(state.take_features())


def test_a_text_that_was_read_without_taps_is_read_anew_with_them() -> None:
    target, text = HFTarget(MODEL, prefix_cache_mb=PLENTY), words(40)
    target.start(64).prefill(text)
    state = target.start_tapped(64, (1,))
    state.prefill(text)
    assert state.restored == 0
    assert known(target, text, (1,)) == known(target, text) == 32


def test_a_state_in_use_is_not_touched_by_what_is_dropped_or_restored() -> None:
    """Its block goes while it decodes; its buffers are its own all the same."""
    text, room = words(40), 3 * BLOCK_ROWS * HFTarget(MODEL).layout.row_bytes / MEGABYTE
    target, cold = HFTarget(MODEL, prefix_cache_mb=room), HFTarget(MODEL).start(64)
    target.start(64).prefill(text)
    state = target.start(64)
    state.prefill(text)
    other = target.start(64)
    other.prefill(words(60, seed=1))
    assert known(target, text) < 32 == state.restored
    cold.prefill(text)
    for own in (state, cold):
        own.score(TREE, TREE_PARENTS)
        own.commit((0, 2, 5))
    found, expected = state.score([7, 8], (-1, 0)), cold.score([7, 8], (-1, 0))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_nothing_is_kept_of_pending_tokens() -> None:
    target = HFTarget(MODEL, prefix_cache_mb=PLENTY)
    state = target.start(64)
    state.prefill(words(15))
    state.score([5], [-1])
    state.commit(())
    state.score([6], [-1])
    assert not known(target, [*words(15), 5]) + known(target, [*words(15), 6])
    state.commit([0])
    assert known(target, [*words(15), 6]) == 16


def test_a_model_does_not_fill_its_cache_by_being_tried_out() -> None:
    target = HFTarget(MODEL, prefix_cache_mb=PLENTY)
    assert target.joining is not None
    assert target.prefix_cache is not None
    assert target.prefix_cache.counts().lookups == 0


def test_each_dtype_keeps_its_own_rows() -> None:
    target, text = HFTarget(tiny_bf16_llama(), prefix_cache_mb=PLENTY), words(40)
    target.start(64).prefill(text)
    state = target.start(64)
    state.prefill(text)
    assert state.restored == 32
    assert target.prefix_cache is not None
    blocks = target.prefix_cache.find(text)
    assert {t.dtype for block in blocks for pair in block.rows for t in pair} == {torch.bfloat16}
    assert target.prefix_cache.counts().num_bytes == 32 * target.layout.row_bytes
