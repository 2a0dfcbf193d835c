"""Answers decoded side by side are those that each prompt gets alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends import hf
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.costs import PassCosts
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.batch import Batch, stream_batch
from foredraft.errors import ConfigError, NumericsError, PromptError
from foredraft.methods import parse_method
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.prices import Prices
from tests.drafters.eagle_rounds import make_head
from tests.tiny_models import TREE_MODELS, tiny_bloom, tiny_llama

MODEL = tiny_llama()
TARGET = HFTarget(MODEL)
DRAFT = HFTarget(tiny_llama(seed=3))
HEAD = make_head(MODEL, "eagle3")
PROMPTS = ([5], [7, 8, 9] * 6, [3, 14, 15, 92, 6, 5, 35], list(range(40, 90)), [11, 12] * 9)
METHODS: dict[str, Any] = {
    "autoregressive": None,
    "ngram": None,
    "hybrid": HEAD,
    "speculative": DRAFT,
    "mcsd:tree=3,2,1": DRAFT,
    "mcsd-improved": DRAFT,
    "eagle-chain-3": HEAD,
    "eagle2:depth=3:nodes=6": HEAD,
    "adaptive": HEAD,
}
REQUESTS = [
    GenerationOptions(
        max_new_tokens=3 + 5 * place, temperature=temperature, seed=place, top_p=top_p
    )
    for place, (temperature, top_p) in enumerate([(0, 1), (1, 1), (0.7, 0.9), (0, 1), (1.2, 1)])
]
"""Of different lengths, so that rows end at different times."""


def engine(method: str, target: Any = TARGET, model: Any = None, **chosen: Any) -> Engine:
    parts = parse_method(method).build(METHODS[method] if model is None else model, **chosen)
    return Engine(target, parts.drafter, parts.policy, parts.verifier)


@pytest.mark.parametrize("max_batch", [2, 8])
@pytest.mark.parametrize("method", METHODS)
def test_every_row_is_its_solo_answer(method: str, max_batch: int) -> None:
    """With every drafter, in greedy and sampled requests side by side; the next prompt joins in between."""
    made = engine(method)
    alone = [made.generate(p, o) for p, o in zip(PROMPTS, REQUESTS, strict=True)]
    together = made.generate_batch(PROMPTS, REQUESTS, max_batch=max_batch)
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.finish_reason for r in together] == [r.finish_reason for r in alone]
    if method != "adaptive":  # whose shapes heed the company
        records = [[r.widths for r in result.stats.rounds] for result in together]
        assert records == [[r.widths for r in result.stats.rounds] for result in alone]


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
def test_verification_that_keeps_the_law_gives_the_same_draws(verifier: str) -> None:
    made = engine("mcsd:tree=3,2,1", verifier=verifier)
    alone = [made.generate(p, o).token_ids for p, o in zip(PROMPTS, REQUESTS, strict=True)]
    assert [r.token_ids for r in made.generate_batch(PROMPTS, REQUESTS)] == alone


def test_open_roots_decode_side_by_side() -> None:
    made = engine("mcsd-improved-lossy", model=DRAFT)
    alone = [made.generate(p, o).token_ids for p, o in zip(PROMPTS, REQUESTS, strict=True)]
    assert [r.token_ids for r in made.generate_batch(PROMPTS, REQUESTS)] == alone


@pytest.mark.parametrize("name", TREE_MODELS)
def test_models_of_every_kind(name: str) -> None:
    """Windows, tied and eager attention among them."""
    made = engine("ngram", HFTarget(TREE_MODELS[name]()))
    alone = [made.generate(p, max_new_tokens=20).token_ids for p in PROMPTS]
    assert [r.token_ids for r in made.generate_batch(PROMPTS, max_new_tokens=20)] == alone


@pytest.mark.parametrize("target", [HFTarget(tiny_bloom()), TableModel.random(97, 2, seed=1)])
def test_targets_that_join_nothing(target: Any) -> None:
    made = Engine(target)
    alone = [made.generate(p, max_new_tokens=9).token_ids for p in PROMPTS]
    assert [r.token_ids for r in made.generate_batch(PROMPTS, max_new_tokens=9)] == alone


@settings(max_examples=20, deadline=None)
@given(
    joins=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=6),
    leaves=st.dictionaries(st.integers(0, 5), st.integers(0, 8), max_size=3),
)
def test_rows_join_and_leave_between_rounds(
    joins: list[tuple[int, int]], leaves: dict[int, int]
) -> None:
    """Whoever stays gets its answer, whenever others come, go and end."""
    made = engine("speculative")
    wanted = [made.generate([5 + i], max_new_tokens=n).token_ids for i, (_, n) in enumerate(joins)]
    batch, streams, got = Batch(TARGET), {}, {i: [] for i in range(len(joins))}
    numbers = {}
    for turn in itertools.count():
        for place, (start, length) in enumerate(joins):
            if start == turn:
                streams[place] = made.stream([5 + place], max_new_tokens=length)
                numbers[id(streams[place])] = place
                batch.join(streams[place])
        for place, turn_of in leaves.items():
            if turn_of == turn and place in streams:
                batch.leave(streams[place])
        for progress in batch.round():
            assert progress.error is None
            if progress.step is not None:
                got[numbers[id(progress.stream)]] += progress.step.token_ids
        if turn > 6 and not len(batch):
            break
    for place, tokens in got.items():
        stayed = place not in leaves
        assert tuple(tokens) == (wanted[place] if stayed else wanted[place][: len(tokens)])


def test_who_comes_or_goes_in_the_middle_of_a_round_is_not_forgotten() -> None:
    """From a callback of a member, say: who comes is answered, and who goes stays away."""
    made, batch, events = engine("ngram"), Batch(TARGET), []
    leaves = made.stream([7], max_new_tokens=50, ignore_eos=True)
    comes = made.stream([9], max_new_tokens=6)

    def calls(token_id: int) -> bool:
        if not events:
            events.append(token_id)
            batch.leave(leaves)
            batch.join(comes)
        return False

    calling = made.stream([5], max_new_tokens=12, ignore_eos=True, criterion=calls)
    for stream in (leaves, calling):
        batch.join(stream)
    batch.round()
    assert len(batch) == 2
    while len(batch):
        assert all(p.stream is not leaves and p.error is None for p in batch.round())
    assert comes.result().token_ids == made.generate([9], max_new_tokens=6).token_ids
    assert len(calling.result().token_ids) == 12


class Watched:
    """Counts the rows of the target's passes, in place of `ForwardPass`."""

    def __init__(self, target: HFTarget) -> None:
        self._forward, self.rows = target.forward, []
        target.forward = self  # type: ignore[assignment]

    def __call__(self, token_ids: Sequence[int], **given: Any) -> Tensor:
        self.rows.append(len(token_ids))
        return self._forward(token_ids, **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)


def test_rounds_share_passes_of_the_target_and_of_the_draft_model() -> None:
    target, draft = HFTarget(tiny_llama()), HFTarget(tiny_llama(seed=3))
    assert target.joining
    assert draft.joining
    made = Engine(target, DraftModelDrafter(draft))  # chains of 4
    batch = Batch(target)
    for place in range(3):
        batch.join(made.stream([5 + place], max_new_tokens=50, ignore_eos=True))
    batch.round()
    of_target, of_draft = Watched(target), Watched(draft)
    batch.round()
    assert of_target.rows == [15]
    assert of_draft.rows[1:] == [3, 3, 3]
    batch.close()


def test_an_error_of_one_row_is_its_own() -> None:
    def fails(ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, torch.nan) if ids.shape[1] > 5 else scores

    made = engine("ngram")
    expected = made.generate(PROMPTS[1], max_new_tokens=20).token_ids
    batch = Batch(TARGET)
    bad = made.stream([1, 2, 3], max_new_tokens=20, logits_processors=[fails])
    good = made.stream(PROMPTS[1], max_new_tokens=20)
    batch.join(bad)
    batch.join(good)
    tokens: list[int] = []
    errors = []
    while len(batch):
        for progress in batch.round():
            if progress.error is not None:
                errors.append(progress.error)
                assert progress.finished
                assert progress.stream is bad
            elif progress.step is not None and progress.stream is good:
                tokens += progress.step.token_ids
    assert len(errors) == 1
    assert isinstance(errors[0], NumericsError)
    assert tuple(tokens) == expected
    assert good.result().token_ids == expected


def test_a_batch_says_which_prompt_was_wrong() -> None:
    made = engine("ngram")
    with pytest.raises(PromptError, match="999") as caught:
        made.generate_batch([[5], [999]])
    assert caught.value.__notes__ == ["prompt 1 of 2 of a batch"]
    fail = GenerationOptions(logits_processors=[lambda ids, scores: scores * torch.nan])
    with pytest.raises(NumericsError) as failed:
        made.generate_batch([[5], [6]], [GenerationOptions(max_new_tokens=3), fail])
    assert failed.value.__notes__ == ["prompt 1 of 2 of a batch"]


@pytest.mark.parametrize("prompt", [[999], [], "text", [5] * 2048, None])
def test_a_prompt_that_is_wrong_is_found_before_anything_is_decoded(prompt: Any) -> None:
    passes = 0

    def counts(ids: Tensor, scores: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return scores

    options = GenerationOptions(max_new_tokens=2, logits_processors=[counts])
    with pytest.raises((PromptError, ConfigError)) as caught:
        engine("ngram").generate_batch([[5], [6], prompt], options, max_batch=1)
    assert (passes, caught.value.__notes__) == (0, ["prompt 2 of 3 of a batch"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.generate_batch("Hello"), "list of prompts"),
        (lambda e: e.generate_batch([[5]], max_batch=0), "max_batch=0"),
        (lambda e: e.generate_batch([[5]], max_batch=True), "max_batch=True"),
        (lambda e: e.generate_batch([[5]], [GenerationOptions()] * 2), "1 prompts and 2 options"),
        (lambda e: e.generate_batch([[5]], [None]), r"options=\[None\]"),
        (lambda e: e.generate_batch([[5]], {"max_new_tokens": 3}), "options={'max_new_tokens': 3}"),
        (lambda e: e.generate_batch([[5]], "x"), "options='x'"),
        (lambda e: e.generate_batch([[5]], 5), "options=5"),
        (lambda e: e.generate_batch([[5]], iter([GenerationOptions()])), "give GenerationOptions"),
        (lambda e: e.generate_batch([[5]], temprature=1), "temperature"),
        (lambda e: Batch(DRAFT).join(e.stream([5])), "another target"),
    ],
)
def test_mistakes_are_named(call: Callable[[Engine], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(engine("ngram"))


def test_nothing_at_all() -> None:
    assert engine("ngram").generate_batch([]) == []
    assert Batch(TARGET).round() == []


def test_leaving_early_gives_all_memory_back() -> None:
    """A consumer that stops in the middle, and a cancelled stream."""
    target = HFTarget(tiny_llama())
    made = Engine(target)
    steps = stream_batch(made, [[5], [6]], [GenerationOptions(ignore_eos=True)] * 2, 8)
    next(steps)
    steps.close()
    assert len(target._spare) == 2
    batch = Batch(target)
    stream = made.stream([5], ignore_eos=True)
    batch.join(stream)
    batch.round()
    stream.close()
    assert [p.finished for p in batch.round()] == [True]
    assert len(batch) == 0
    assert len(target._spare) == 2


def test_long_texts_of_a_batch_do_not_hold_their_memory_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hf, "SPARE_ROWS", 1500)
    target = HFTarget(tiny_llama())
    Engine(target).generate_batch([[5] * 300] * 4, max_new_tokens=3)
    assert 1 <= len(target._spare) < 3
    assert sum(cache.capacity for cache in target._spare) <= 1500


def test_the_tensors_of_a_batch_serve_later_requests_alone() -> None:
    """A batch runs in inference mode; what it leaves in shared buffers must not."""
    for method in ("ngram", "mcsd-improved", "eagle2:depth=3:nodes=6"):
        made = engine(method)
        made.generate_batch(PROMPTS[:2], max_new_tokens=6)
        alone = made.generate(PROMPTS[1], max_new_tokens=12).token_ids
        assert made.without_drafts().generate(PROMPTS[1], max_new_tokens=12).token_ids == alone


# Rows are nearly free up to 8, and dear beyond.
STEP = PassCosts((1, 8, 64), (0,), ((1.0, 1.05, 8.0),))


def test_adaptive_drafts_are_smaller_in_a_wide_batch() -> None:
    """What is free alone is paid for where others fill the pass; drafts stop short of losing."""
    parts = parse_method("adaptive").build(TARGET)  # its own drafter: always right
    assert isinstance(parts.policy, AdaptivePolicy)
    cheap_level = PassCosts((1,), (0,), ((1e-3,),))
    policy = parts.policy.priced(Prices(STEP, cheap_level))
    made = Engine(TARGET, parts.drafter, policy, parts.verifier)
    options = GenerationOptions(max_new_tokens=60, ignore_eos=True)
    prompts = [[5 + i, 3] for i in range(8)]
    sizes = {}
    for count in (1, 2, 8):
        rounds = [
            record
            for result in made.generate_batch(prompts[:count], options)
            for record in result.stats.rounds
        ]
        sizes[count] = sum(r.num_drafted for r in rounds) / len(rounds)
    assert sizes[1] > 5
    assert sizes[1] > sizes[2] > sizes[8]
