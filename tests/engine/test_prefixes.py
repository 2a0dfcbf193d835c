"""Answers, drafts and acceptance are those of a cold start, whatever was read before."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from foredraft import Engine, GenerationOptions, load
from foredraft.backends.hf import HFTarget
from foredraft.backends.kv_cache import BLOCK_ROWS
from foredraft.backends.prefix_cache import MEGABYTE
from foredraft.backends.table import TableModel
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.engine.prefixes import keep_prefixes, prefix_counts
from foredraft.engine.trace.watch import Watch, watched
from foredraft.errors import ConfigError
from foredraft.methods import parse_method
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.predicted_length import LengthRule
from foredraft.policies.stopping import StoppingPolicy
from foredraft.results import Result
from tests.drafters.eagle_rounds import make_head
from tests.policies.length_nets import length_net
from tests.tiny_models import TREE_MODELS, VOCAB_SIZE, tiny_llama

PLENTY = 64.0
MODEL = tiny_llama()
DRAFT_MODEL = tiny_llama(seed=3)
HEAD = make_head(MODEL, "eagle3")
DRAFTERS: dict[str, Any] = {
    "autoregressive": None,
    "ngram": None,
    "speculative": "draft model",
    "mcsd:tree=3,2,1": "draft model",
    "hybrid": "head",
    "eagle-chain-3": "head",
    "eagle:tree=2,2": "head",
    "eagle2:depth=3:nodes=6": "head",
    "mcsd-improved-lossy": "draft model",
    "adaptive:refine=no": "head",
}


def words(length: int, seed: int = 0) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=random).tolist()


def engine(method: str, megabytes: float | None = None, model: Any = MODEL) -> Engine:
    """A fresh target and drafter, so that nothing is known but what this engine has read."""
    kind = DRAFTERS[method]
    drafter = {"draft model": lambda: HFTarget(DRAFT_MODEL), "head": lambda: HEAD}.get(kind)
    parts = parse_method(method).build(drafter and drafter())
    made = Engine(HFTarget(model), parts.drafter, parts.policy, parts.verifier)
    if megabytes is not None:
        keep_prefixes(made, megabytes)
    return made


def rounds_of(result: Result) -> list[Any]:
    """What every round drafted and accepted."""
    return [
        (r.context, r.widths, r.num_accepted, r.num_emitted, r.draft_rows)
        for r in result.stats.rounds
    ]


@pytest.mark.parametrize("method", DRAFTERS)
def test_a_warm_answer_is_the_cold_one_round_by_round(method: str) -> None:
    """Case 74: shared lengths from nothing to all, and the next turn; greedy and sampled by turns."""
    warm, cold, first = engine(method, PLENTY), engine(method), words(40)
    options = GenerationOptions(max_new_tokens=9, seed=4, ignore_eos=True)
    answer = warm.generate(first, options)
    texts = [first[:shared] + words(9, seed=1) for shared in (7, 16, 33)]
    texts += [first, [*first, *answer.token_ids, *words(5, seed=2)]]
    for number, text in enumerate(texts):
        asked = options.replace(temperature=number % 2)
        found, expected = warm.generate(text, asked), cold.generate(text, asked)
        assert found.token_ids == expected.token_ids
        assert rounds_of(found) == rounds_of(expected)
        assert expected.stats.cached_prompt_tokens == 0
    assert found.stats.cached_prompt_tokens == 48 == (40 + 8) // BLOCK_ROWS * BLOCK_ROWS


def test_a_conversation_reads_each_turn_once() -> None:
    """Answers become part of the prompt: what is left to read is the new turn, and less than a block."""
    warm, text = engine("eagle2:depth=3:nodes=6", PLENTY), words(20)
    for turn in range(4):
        result = warm.generate(text, max_new_tokens=30, ignore_eos=True)
        spared = result.stats.cached_prompt_tokens
        known = 0 if not turn else len(text) - 21  # the new turn, and the last token of the answer
        assert spared == known // BLOCK_ROWS * BLOCK_ROWS
        text = [*text, *result.token_ids, *words(20, seed=turn + 1)]


@pytest.mark.parametrize("window", [6, 24])
def test_past_the_heads_window(window: int) -> None:
    """What a head no longer sees is restored all the same; it drafts as after a cold start."""
    policy = FixedPolicy("2,1,1")
    drafter = EagleDrafter(HEAD, window=window)
    warm, cold = (Engine(HFTarget(MODEL), drafter, policy) for _ in range(2))
    keep_prefixes(warm, PLENTY)
    text = words(70)
    first = warm.generate(text, max_new_tokens=20, ignore_eos=True)
    text = [*text, *first.token_ids, *words(4, seed=1)]
    found, expected = (e.generate(text, max_new_tokens=20, ignore_eos=True) for e in (warm, cold))
    assert found.stats.cached_prompt_tokens == 80
    assert found.token_ids == expected.token_ids
    assert rounds_of(found) == rounds_of(expected)


def test_a_policy_that_reads_hidden_states_plans_alike() -> None:
    net = length_net(hidden_size=32, taps=(0, 2))
    policy = StoppingPolicy(FixedPolicy.chain(5), LengthRule(net))
    warm, cold = (Engine(HFTarget(MODEL), EagleDrafter(HEAD), policy) for _ in range(2))
    keep_prefixes(warm, PLENTY)
    text = words(40)
    warm.generate(text, max_new_tokens=4)
    found, expected = (e.generate(text, max_new_tokens=20, ignore_eos=True) for e in (warm, cold))
    assert found.stats.cached_prompt_tokens == 32
    assert rounds_of(found) == rounds_of(expected)
    assert len({r.depth for r in found.stats.rounds}) > 1


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_models_with_windows(name: str) -> None:
    """Answers longer than the window, which later prompts go on from."""
    model, text = TREE_MODELS[name](), words(20)
    warm, cold = engine("ngram", PLENTY, model), engine("ngram", model=model)
    for _ in range(2):
        found, expected = (e.generate(text, max_new_tokens=40) for e in (warm, cold))
        assert found.token_ids == expected.token_ids
        text = [*text, *found.token_ids, *words(3, seed=1)]
    assert found.stats.cached_prompt_tokens > 20


def test_memory_for_little_drops_texts_and_changes_none() -> None:
    """Case 73: long, short, long again. What was dropped is read anew; nothing of one text is in another."""
    method = "speculative"
    room = 5 * BLOCK_ROWS * 2 * HFTarget(MODEL).layout.row_bytes / MEGABYTE
    warm, cold = engine(method, room), engine(method)
    for text in (words(70), words(20, seed=1), words(70), words(90, seed=2), words(20, seed=1)):
        found, expected = (e.generate(text, max_new_tokens=12) for e in (warm, cold))
        assert found.token_ids == expected.token_ids
        assert rounds_of(found) == rounds_of(expected)
    for counts in prefix_counts(warm).values():
        assert counts.num_bytes <= counts.max_bytes
        assert counts.evicted_blocks > 0


def test_requests_in_several_threads() -> None:
    warm, cold = engine("eagle-chain-3", PLENTY / 1000), engine("eagle-chain-3")
    texts = [words(40)[:shared] + words(20, seed=shared) for shared in (0, 16, 32, 40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: warm.generate(text, max_new_tokens=12), texts * 3))
    for text, result in zip(texts * 3, found, strict=True):
        assert result.token_ids == cold.generate(text, max_new_tokens=12).token_ids
    counts = prefix_counts(warm)["target"]
    assert counts.num_bytes <= counts.max_bytes


def test_a_batch_shares_what_its_prompts_have_in_common() -> None:
    """The first member's prompt is known to the next ones already."""
    warm, cold = engine("eagle2:depth=3:nodes=6", PLENTY), engine("eagle2:depth=3:nodes=6")
    texts = [words(40) + words(5, seed=seed) for seed in range(3)]
    found, expected = (e.generate_batch(texts, max_new_tokens=12) for e in (warm, cold))
    assert [r.stats.cached_prompt_tokens for r in found] == [0, 32, 32]
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


def test_engines_of_one_target_share_its_texts() -> None:
    """A head's engine gives plain decoding its rows; the other way it has to read for its features."""
    drafting, text = engine("eagle-chain-3", PLENTY), words(40)
    plain = drafting.without_drafts()
    assert plain.generate(text, max_new_tokens=4).stats.cached_prompt_tokens == 0
    assert drafting.generate(text, max_new_tokens=4).stats.cached_prompt_tokens == 0
    assert drafting.generate(text, max_new_tokens=4).stats.cached_prompt_tokens == 32
    assert plain.generate(text, max_new_tokens=4).stats.cached_prompt_tokens == 32


def test_a_closed_stream_leaves_what_it_has_read() -> None:
    warm, text = engine("ngram", PLENTY), words(40)
    with warm.stream(text, max_new_tokens=30) as stream:
        next(stream)
    assert warm.generate(text, max_new_tokens=4).stats.cached_prompt_tokens == 32


@pytest.mark.parametrize("method", ["ngram", "eagle-chain-3"])
def test_a_watched_request_is_told_what_was_known(method: str) -> None:
    """As of the trace, which wraps the target."""
    warm, text = engine(method, PLENTY), words(40)
    warm.generate(text, max_new_tokens=4)
    found = watched(warm, Watch()).generate(text, max_new_tokens=4)
    assert found.stats.cached_prompt_tokens == 32
    assert watched(engine(method), Watch()).generate(text).stats.cached_prompt_tokens == 0


def test_the_memory_goes_with_the_engine() -> None:
    warm = engine("eagle-chain-3", PLENTY)
    warm.generate(words(40), max_new_tokens=4)
    assert isinstance(warm.target, HFTarget)
    assert warm.target.prefix_cache is not None
    blocks = warm.target.prefix_cache.find(words(40))
    rows = [weakref.ref(tensor) for block in blocks for pair in block.rows for tensor in pair]
    assert len(rows) == 4
    assert all(ref() is not None for ref in rows)
    del warm, blocks
    gc.collect()
    assert not any(ref() is not None for ref in rows)


def test_memory_is_shared_out_by_what_rows_take() -> None:
    """Together they keep to the limit, and both know as many tokens."""
    made = engine("speculative", 2.0)
    made.generate(words(40), max_new_tokens=4)
    counts = prefix_counts(made)
    assert set(counts) == {"target", "draft model"}
    assert sum(c.max_bytes for c in counts.values()) <= 2 * MEGABYTE
    assert counts["target"].blocks == counts["draft model"].blocks == 2
    assert not prefix_counts(engine("speculative"))


def test_load_takes_the_memory() -> None:
    made = load(MODEL, method="autoregressive", prefix_cache_mb=1.0)
    assert prefix_counts(made)["target"].max_bytes == MEGABYTE


def test_a_target_that_keeps_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="TableModel keeps no rows of its texts, so leave it out"):
        load(TableModel.random(11, 2), method="autoregressive", prefix_cache_mb=1.0)


def _written(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(-1)


def _loaded(model: Any) -> None:
    model.load_state_dict(tiny_llama(seed=9).state_dict())


def _exchanged(model: Any) -> None:
    model.model.layers[1] = tiny_llama(seed=9).model.layers[1]


@pytest.mark.parametrize("change", [_written, _loaded, _exchanged])
def test_changed_weights_are_another_model(change: Any) -> None:
    """As in a training that generates between its steps."""
    model = tiny_llama()
    made = engine("ngram", PLENTY, model)
    prompt = words(60)
    before = made.generate(prompt, max_new_tokens=8).token_ids
    change(model)
    after = made.generate(prompt, max_new_tokens=8)
    assert (
        after.token_ids == engine("ngram", None, model).generate(prompt, max_new_tokens=8).token_ids
    )
    assert (after.token_ids != before, after.stats.cached_prompt_tokens) == (True, 0)
    assert made.generate(prompt, max_new_tokens=8).stats.cached_prompt_tokens == 48
