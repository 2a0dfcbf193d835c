"""Captured passes of static shapes, replayed on the CPU as a GPU would: the ordinary pass's numbers.

`EagerReplay` runs the captured function again over its static buffers; only the capture itself is CUDA's.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import Engine, GenerationOptions
from foredraft.backends.graphs import CONTEXT, ROWS, Bucket, CudaCapture, EagerReplay, GraphedPasses
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import ConfigError
from foredraft.policies.fixed import FixedPolicy
from tests.drafters.eagle_rounds import make_head
from tests.tiny_models import VOCAB_SIZE, tiny_eager_llama, tiny_gemma3, tiny_llama

PROMPT = [5, 9, 20, 5, 9, 20, 5, 9]
TOKEN = st.integers(0, VOCAB_SIZE - 1)


def captured(model: Any) -> tuple[HFTarget, EagerReplay]:
    """A target whose passes are captured, and what captured them."""
    target, capture = HFTarget(model), EagerReplay()
    target.capture_passes(capture)
    return target, capture


@given(rows=st.integers(1, 70), before=st.integers(0, 3000), capacity=st.integers(1, 3000))
def test_a_bucket_is_the_smallest_that_holds_the_pass(
    rows: int, before: int, capacity: int
) -> None:
    bucket = Bucket.holding(rows, before, capacity)
    fitting = [size for size in ROWS if size >= rows]
    if not fitting or before + fitting[0] > capacity:
        assert bucket is None
        return
    assert bucket is not None
    assert bucket.rows == fitting[0]
    assert before + bucket.rows <= bucket.context <= capacity
    smaller = bucket.context // 2
    assert bucket.context == CONTEXT or capacity == bucket.context or smaller < before + bucket.rows


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[list[int], list[int], int]]:
    """Trees of tokens and parents, in one pass or two, and how many nodes of the first path are kept."""
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        parents = [-1]
        for node in range(1, draw(st.integers(1, 20))):
            parents.append(draw(st.integers(0, node - 1)))
        tokens = draw(st.lists(TOKEN, min_size=len(parents), max_size=len(parents)))
        drawn.append((tokens, parents, draw(st.integers(0, len(parents)))))
    return drawn


@pytest.mark.parametrize("make", [tiny_llama, tiny_eager_llama], ids=["sdpa", "eager"])
@settings(max_examples=8, deadline=None)
@given(text=st.lists(TOKEN, max_size=40), trees=rounds())
def test_every_pass_is_the_ordinary_one(
    make: Any, text: list[int], trees: list[tuple[list[int], list[int], int]]
) -> None:
    """Logits, cache and hidden states, with drafts in two passes and whole paths kept or dropped."""
    model = make()
    plain, (graphed, capture) = HFTarget(model), captured(model)
    states = [target.start_tapped(64, (0, 2)) for target in (plain, graphed)]
    for state in states:
        state.prefill(text)
    for tokens, parents, cut in trees:
        for part in (slice(0, cut), slice(cut, None)):
            if tokens[part]:
                expected, got = (s.score(tokens[part], parents[part]) for s in states)
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        path = [0]
        while path[-1] in parents[path[-1] + 1 :]:
            path.append(parents.index(path[-1], path[-1] + 1))
        for state in states:
            state.commit(path)
        expected, got = (s.take_features() for s in states)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert capture.num_captured > 0


def drafters(model: Any) -> dict[str, Any]:
    """One that reads nothing of the target, one that reads hidden states, one that is a model itself."""
    draft, _ = captured(tiny_llama(seed=1))
    return {
        "ngram": NgramDrafter(),
        "eagle": EagleDrafter(make_head(model, "eagle3")),
        "model": DraftModelDrafter(draft),
    }


@pytest.mark.parametrize("name", ["ngram", "eagle", "model"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_those_of_plain_decoding(name: str, temperature: float) -> None:
    """Past a growth of the buffers, and in a second request that takes over the first one's."""
    model = tiny_llama()
    options = GenerationOptions(
        max_new_tokens=40, ignore_eos=True, temperature=temperature, seed=3 if temperature else None
    )
    expected = Engine(HFTarget(model)).generate(PROMPT, options)
    target, capture = captured(model)
    policy = None if name == "ngram" else FixedPolicy("3,2,1")
    engine = Engine(target, drafters(model)[name], policy)
    for _ in range(2):
        assert engine.generate(PROMPT, options).token_ids == expected.token_ids
    assert 0 < capture.num_captured <= 2 * len(ROWS)


def test_graphs_are_bounded_and_used_again() -> None:
    target, capture = HFTarget(tiny_llama()), EagerReplay()
    target.graphs = GraphedPasses(
        target.model, target.taps, target.head_inputs, capture, target.device, most_graphs=2
    )
    state = target.start(64)
    for count, expected in ((1, 1), (2, 2), (1, 2), (4, 3), (1, 3), (2, 4)):
        state.score([7] * count, [-1] * count)
        state.commit([])
        assert capture.num_captured == expected
        assert len(target.graphs) <= 2


def test_what_fits_no_bucket_runs_as_ever() -> None:
    model = tiny_llama()
    target, capture = captured(model)
    state, plain = target.start(8), HFTarget(model).start(8)
    tokens, parents = [7] * 65, [-1, *range(64)]
    torch.testing.assert_close(state.score(tokens, parents), plain.score(tokens, parents))
    assert capture.num_captured == 0
    windowed, capture = captured(tiny_gemma3())
    windowed.start(8).score([5, 6], [-1, 0])
    assert capture.num_captured == 0


def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device and the model is on cpu"):
        HFTarget(tiny_llama()).capture_passes()
    with pytest.raises(ConfigError, match="give device='cuda'"):
        CudaCapture(torch.device("cpu"))


class SharedPool(EagerReplay):
    """As graphs that share a pool of memory: what one replay gives lies where the next one writes."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = torch.zeros(0)
        self._capturing = threading.Lock()

    def capture(self, run: Any) -> Any:
        assert self._capturing.acquire(blocking=False), "two threads capture at a time"
        time.sleep(0.01)
        self._capturing.release()
        return lambda: self._replay(super(SharedPool, self).capture(run))

    def _replay(self, run: Any) -> Any:
        logits, *others = run()
        if self._pool.numel() < logits.numel():
            self._pool = torch.zeros(logits.numel())
        shared = self._pool[: logits.numel()].view_as(logits).copy_(logits)
        time.sleep(0.001)
        return shared, *others


def test_requests_in_threads_do_not_disturb_one_another() -> None:
    target = HFTarget(tiny_llama())
    target.capture_passes(SharedPool())
    engine, plain = Engine(target), Engine(HFTarget(tiny_llama()))
    prompts = [[*PROMPT, place] for place in range(4)]
    options = GenerationOptions(max_new_tokens=12, ignore_eos=True)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: engine.generate(prompt, options).token_ids, prompts))
    assert found == [plain.generate(prompt, options).token_ids for prompt in prompts]
