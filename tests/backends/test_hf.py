"""Any Hugging Face model as a target: every row of a tree equals the row of its path alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, DynamicCache, StaticCache

from foredraft.backends.hf import HFState, HFTarget
from foredraft.backends.kv_cache import _ArenaLayer
from foredraft.config import MAX_TREE_NODES
from foredraft.errors import CacheError, ModelError, VocabularyError
from foredraft.protocols import Target
from tests.tiny_models import (
    TREE_MODELS,
    VOCAB_SIZE,
    WINDOW,
    tiny_bf16_llama,
    tiny_bloom,
    tiny_gpt_neo,
    tiny_hybrid,
    tiny_llama,
    tiny_mistral,
    tiny_rope,
)

ATOL = 1e-5  # float32 sums in another order; a wrong mask or position is off by more than 1e-1
TREE = [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 4, 4, 7]
"""Three siblings a level, and more nodes than a window of 8 holds."""


@pytest.fixture(scope="module")
def targets() -> dict[str, HFTarget]:
    return {name: HFTarget(make()) for name, make in TREE_MODELS.items()}


@pytest.fixture(scope="module")
def llama(targets: dict[str, HFTarget]) -> HFTarget:
    return targets["llama"]


every_model = pytest.mark.parametrize("name", TREE_MODELS)


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, VOCAB_SIZE) for _ in range(count)]


def path_to(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@torch.inference_mode()
def alone(target: HFTarget, ids: Sequence[int]) -> Tensor:
    """The last row, by the library and without a cache."""
    logits: Tensor = target.model(input_ids=torch.tensor([ids]), use_cache=False).logits
    return logits[0, -1, : target.vocab_size]


def path_rows(
    target: HFTarget, text: Sequence[int], ids: Sequence[int], parents: Sequence[int]
) -> Tensor:
    paths = [path_to(parents, node) for node in range(len(parents))]
    return torch.stack([alone(target, [*text, *(ids[n] for n in path)]) for path in paths])


def assert_equal_rows(rows: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(rows, expected, rtol=0, atol=ATOL)


def started(target: HFTarget, text: Sequence[int], capacity: int = 64) -> HFState:
    state = target.start(capacity)
    state.prefill(text)
    return state


# --- trees ------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("length", [0, 1, 4, 8, 9, 40])
def test_tree_rows_equal_their_paths(targets: dict[str, HFTarget], name: str, length: int) -> None:
    target, text, ids = targets[name], tokens(length), tokens(len(TREE), seed=1)
    assert target.scores_trees
    state = started(target, text)
    assert_equal_rows(state.score(ids, TREE), path_rows(target, text, ids, TREE))


@settings(max_examples=25)
@given(
    st.sampled_from(["llama", "gemma3"]),
    st.integers(0, 12),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=14),
)
def test_any_tree(
    targets: dict[str, HFTarget], name: str, length: int, choices: list[float]
) -> None:
    parents = [int(choice * (node + 1)) - 1 for node, choice in enumerate(choices)]
    target, text, ids = targets[name], tokens(length), tokens(len(parents), seed=2)
    state = started(target, text)
    assert_equal_rows(state.score(ids, parents), path_rows(target, text, ids, parents))


@every_model
def test_the_order_of_nodes_changes_no_row(targets: dict[str, HFTarget], name: str) -> None:
    target, ids = targets[name], tokens(len(TREE), seed=3)
    order = [0, 3, 2, 1, 7, 9, 12, 8, 6, 5, 4, 11, 10]  # parents still come first
    parents = [order.index(TREE[node]) if node else -1 for node in order]
    state = started(target, tokens(10))
    rows = state.score(ids, TREE)
    state.commit([])
    assert_equal_rows(state.score([ids[n] for n in order], parents), rows[order])


@every_model
def test_a_tree_scored_level_by_level_equals_one_pass(
    targets: dict[str, HFTarget], name: str
) -> None:
    target, text, ids = targets[name], tokens(9), tokens(len(TREE), seed=4)
    state = started(target, text)
    levels = [(0, 1), (1, 4), (4, 10), (10, 13)]
    rows = torch.cat([state.score(ids[a:b], TREE[a:b]) for a, b in levels])
    assert_equal_rows(rows, path_rows(target, text, ids, TREE))
    state.commit([0, 2, 7])
    assert_equal_rows(state.score([5], [-1])[0], alone(target, [*text, ids[0], ids[2], ids[7], 5]))


@every_model
def test_rounds_of_score_commit_and_rollback(targets: dict[str, HFTarget], name: str) -> None:
    target, generator = targets[name], random.Random(5)
    text = tokens(3)
    state = started(target, text, capacity=8)
    for seed in range(25):
        parents = [generator.randrange(-1, node) for node in range(generator.randrange(1, 12))]
        ids = tokens(len(parents), seed)
        rows = state.score(ids, parents)
        node = generator.randrange(len(parents))
        path = path_to(parents, node)
        assert_equal_rows(rows[node], alone(target, text + [ids[n] for n in path]))
        kept = generator.choice([path, path, []])
        state.commit(kept)
        text += [ids[n] for n in kept]
        assert state.length == len(text)


def test_trees_in_bfloat16() -> None:
    target = HFTarget(tiny_bf16_llama())
    text, ids = tokens(9), tokens(len(TREE))
    rows = started(target, text).score(ids, TREE)
    assert rows.dtype == torch.bfloat16
    # One bfloat16 step at the scale of these logits.
    torch.testing.assert_close(rows, path_rows(target, text, ids, TREE), rtol=2e-2, atol=6e-2)


# --- prompts, growth, windows -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "eager", "gemma3", "mistral"])
def test_prompts_longer_than_a_chunk(targets: dict[str, HFTarget], name: str) -> None:
    target, text = targets[name], tokens(2 * MAX_TREE_NODES + 60)
    state = started(target, text)
    assert state.length == len(text)
    ids, parents = tokens(4, seed=1), [-1, 0, 0, 2]
    # Sums over a thousand columns round more than the short ones.
    torch.testing.assert_close(
        state.score(ids, parents), path_rows(target, text, ids, parents), rtol=0, atol=1e-4
    )


def test_growing_past_the_capacity(llama: HFTarget) -> None:
    text = tokens(500)
    state = llama.start(1)
    for start in range(0, 500, 100):
        state.prefill(text[start : start + 100])
        state.score([1, 2, 3], [-1, 0, 0])
        state.commit([])
    for step in range(300):
        token = tokens(1, seed=step)[0]
        rows = state.score([token], [-1])
        state.commit([0])
        text.append(token)
    assert_equal_rows(rows[0], alone(llama, text))


def test_windowed_layers_stay_within_window_and_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    target, sizes = HFTarget(tiny_mistral()), []
    update = _ArenaLayer.update

    def recorded(self: _ArenaLayer, *arguments: Any, **options: Any) -> Any:
        keys, values = update(self, *arguments, **options)
        sizes.append(keys.shape[-2])
        return keys, values

    monkeypatch.setattr(_ArenaLayer, "update", recorded)
    state = started(target, tokens(5))
    while state.length < 500:
        state.score(tokens(6), [-1, 0, 1, 2, 3, 4])
        state.commit([0, 1, 2])
    assert max(sizes) == WINDOW - 1 + 6


def test_positions_of_a_one_token_prompt(llama: HFTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[int] = []
    forward = llama.model.forward

    def recorded(**arguments: Any) -> Any:
        positions.extend(arguments["position_ids"][0].tolist())
        return forward(**arguments)

    state = llama.start(16)  # the one token is the root: nothing to prefill
    monkeypatch.setattr(llama.model, "forward", recorded)
    for _ in range(3):
        state.score([7, 8], [-1, 0])
        state.commit([0, 1])
    assert positions == list(range(6))


# --- models that cannot, and wrong use --------------------------------------------------------------


def test_alibi_keeps_to_chains() -> None:
    target = HFTarget(tiny_bloom())
    assert not target.scores_trees
    text, ids, chain = tokens(6), tokens(4, seed=1), [-1, 0, 1, 2]
    state = started(target, text)
    assert_equal_rows(state.score(ids, chain), path_rows(target, text, ids, chain))
    state.commit([0, 1])
    assert_equal_rows(state.score([5], [-1])[0], alone(target, [*text, *ids[:2], 5]))
    state.commit([])
    with pytest.raises(AssertionError, match="chains only"):
        state.score([5, 6], [-1, -1])


@pytest.mark.parametrize("window", [8, 32, 256])
def test_a_window_that_the_model_keeps_by_slot_keeps_to_chains(window: int) -> None:
    """A longer one than the probe's text would show nothing there, and answer wrongly behind it."""
    target = HFTarget(tiny_gpt_neo(window))
    assert not target.scores_trees
    text, ids, chain = tokens(40), tokens(4, seed=1), [-1, 0, 1, 2]
    assert_equal_rows(started(target, text).score(ids, chain), path_rows(target, text, ids, chain))


def test_a_model_that_ignores_masks_keeps_to_chains() -> None:
    model = tiny_llama()
    forward = model.forward
    model.forward = lambda attention_mask=None, **arguments: forward(**arguments)
    assert not HFTarget(model).scores_trees


def test_a_model_that_forgets_its_cache_is_refused() -> None:
    model = tiny_llama()
    forward = model.forward

    def forgetful(cache: Any = None, **arguments: Any) -> Any:
        own = cache if type(cache) is DynamicCache else None
        return forward(cache=own, **arguments)

    model.forward = forgetful
    with pytest.raises(ModelError, match="cannot decode speculatively: layer 0 wrote 0 rows"):
        HFTarget(model)


def test_a_layer_that_silently_does_not_write_is_an_error(
    llama: HFTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = started(llama, tokens(4))
    layer = state.cache.layers[1]
    monkeypatch.setattr(layer, "update", lambda keys, values, *_, **__: (keys, values))
    with pytest.raises(CacheError, match=r"layer 1 wrote 0 rows .* 1 were expected"):
        state.score([5], [-1])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tiny_hybrid, "LinearAttentionLayer .*cannot forget rejected tokens"),
        (
            lambda: BartForConditionalGeneration(
                BartConfig(
                    vocab_size=64,
                    d_model=16,
                    encoder_layers=1,
                    decoder_layers=1,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    encoder_ffn_dim=16,
                    decoder_ffn_dim=16,
                )
            ),
            "encoder-decoder",
        ),
        (lambda: tiny_llama().to("meta"), "meta device"),
    ],
)
def test_models_that_cannot_be_rolled_back_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        HFTarget(make())


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_length_dependent_rotary_embeddings_end_the_context(kind: str) -> None:
    target = HFTarget(tiny_rope(kind))
    assert target.context_length == 32
    text = tokens(28)
    state = started(target, text)
    for accepted in (0, 1, 2):
        ids = tokens(1 + accepted, seed=accepted)
        rows = state.score(ids, range(-1, accepted))
        state.commit(range(accepted))
        assert_equal_rows(rows[-1], alone(target, text + ids))
        text += ids[:accepted]
    assert len(text) + 1 == target.context_length


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE])
def test_filler_ids_never_reach_the_embedding(llama: HFTarget, wrong: int) -> None:
    state = started(llama, tokens(3))
    with pytest.raises(VocabularyError, match=rf"token id {wrong} is not in .* of {VOCAB_SIZE}"):
        state.score([5, wrong], [-1, 0])
    with pytest.raises(VocabularyError, match=f"token id {wrong}"):
        state.prefill([wrong])
    assert_equal_rows(state.score([5], [-1])[0], alone(llama, [*tokens(3), 5]))


# --- facts about the model --------------------------------------------------------------------------


class Tokenizer:
    """As much of a tokenizer as a target reads."""

    added_tokens_decoder = {90: "<end>"}  # noqa: RUF012
    eos_token_id = 90

    def __len__(self) -> int:
        return 85


def test_ids_past_the_tokenizer_are_never_scored() -> None:
    target = HFTarget(tiny_llama(), Tokenizer())
    assert target.vocab_size == 91
    state = started(target, tokens(3))
    assert state.score([5], [-1]).shape == (1, 91)


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ([2, 5], 7, Tokenizer(), (2, 5)),
        (3, 7, Tokenizer(), (3,)),
        (None, 7, Tokenizer(), (7,)),
        (None, None, Tokenizer(), (90,)),
        (None, None, None, ()),
    ],
)
def test_end_tokens(generation: Any, config: Any, tokenizer: Any, expected: tuple[int]) -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id, model.config.eos_token_id = generation, config
    assert HFTarget(model, tokenizer).eos_token_ids == expected


def test_the_target_meets_its_protocol_and_leaves_the_model_alone() -> None:
    """Passes of others give what they gave, bit by bit; see `own_pass` for ours."""
    model, ids = tiny_llama(), torch.tensor([tokens(9)])
    before = model(input_ids=ids).logits
    target = HFTarget(model.train())
    assert isinstance(target, Target)
    assert target.model is model
    assert not model.training
    assert torch.equal(model(input_ids=ids).logits, before)
    target.synchronize()


# --- caches -----------------------------------------------------------------------------------------


def test_a_cache_set_for_generate_is_not_used() -> None:
    """Static and quantised caches cannot be rolled back row by row: the target brings its own."""
    model = tiny_llama()
    model.generation_config.cache_implementation = "static"
    target = HFTarget(model)
    text, ids = tokens(9), tokens(len(TREE))
    state = started(target, text)
    assert not isinstance(state.cache, StaticCache)
    assert_equal_rows(state.score(ids, TREE), path_rows(target, text, ids, TREE))


def test_buffers_are_reused_and_leak_nothing() -> None:
    target = HFTarget(tiny_llama())
    state = started(target, tokens(40))
    state.score(tokens(5), [-1, 0, 0, 1, 2])
    buffers = state.cache
    state.close()
    other = target.start(900)
    assert other.cache is buffers
    assert other.length == 0
    other.prefill([5, 6])
    assert_equal_rows(other.score([7], [-1])[0], alone(target, [5, 6, 7]))


def test_sequences_side_by_side(llama: HFTarget) -> None:
    def answer(seed: int) -> list[int]:
        state, token, found = started(llama, tokens(5 + seed, seed)), seed + 3, []
        for _ in range(20):
            rows = state.score([token, seed + 4, seed + 5], [-1, 0, 0])
            token = int(rows[0].argmax())
            state.commit([0])
            found.append(token)
        state.close()
        return found

    solo = [answer(seed) for seed in range(4)]
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: answer(seed)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == solo
