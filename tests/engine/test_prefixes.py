"""Answers, drafts and acceptance are those of a cold start, whatever was read before."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from foredraft import Engine, GenerationOptions, load
from foredraft.backends.hf import HFTarget
from foredraft.backends.kv_cache import BLOCK_ROWS
from foredraft.backends.table import TableModel
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.engine.prefixes import keep_prefixes, prefix_counts
from foredraft.errors import ConfigError
from foredraft.methods import parse_method
from foredraft.results import Result
from tests.drafters.eagle_rounds import make_head
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


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("method", DRAFTERS)
def test_a_warm_answer_is_the_cold_one_round_by_round(method: str, temperature: float) -> None:
    """Case 74: shared lengths from nothing to all, and the next turn of a conversation."""
    options = GenerationOptions(max_new_tokens=20, temperature=temperature, seed=4, ignore_eos=True)
    warm, cold, first = engine(method, PLENTY), engine(method), words(40)
    answer = warm.generate(first, options)
    texts = [first[:shared] + words(9, seed=1) for shared in (0, 7, 16, 33, 40)]
    texts += [first, [*first, *answer.token_ids, *words(5, seed=2)]]
    for text in texts:
        found, expected = warm.generate(text, options), cold.generate(text, options)
        assert found.token_ids == expected.token_ids
        assert rounds_of(found) == rounds_of(expected)
    assert found.stats.cached_prompt_tokens == (40 + 19) // BLOCK_ROWS * BLOCK_ROWS
    assert expected.stats.cached_prompt_tokens == 0
