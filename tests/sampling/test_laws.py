"""The target's laws over a tree, and what the request's options make of drafts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers.generation import logits_process as hf

from foredraft.backends.table import TableModel
from foredraft.config import GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import NumericsError
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, DraftLimits
from foredraft.sampling.law import RequestLaw, TargetLaws
from foredraft.sampling.randomness import Randomness, SeededRandomness
from foredraft.tree import NO_PARENT, DraftTree, Proposal, TreeBuilder
from tests.enumeration import enumerate_outcomes

V = 7
END = 6
PROMPT = [1, 2, 1, 2, 3]


class Spy(hf.LogitsProcessor):
    """Records every context it is given, and the scores with it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.scores: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(tuple(input_ids[0].tolist()))
        self.scores.append(scores.clone())
        return scores


def request_law(
    options: GenerationOptions, prompt: Sequence[int] = PROMPT, ends: Sequence[int] = (END,)
) -> RequestLaw:
    return RequestLaw(options, prompt_length=len(prompt), eos_token_ids=ends, vocab_size=V)


def random_tree(seed: int, size: int = 14, *, ends: bool = False) -> DraftTree:
    """A tree of random shape behind the prompt's last token."""
    generator = torch.Generator().manual_seed(seed)
    builder, parent = TreeBuilder(PROMPT[-1]), 0
    while len(builder) < size:
        last = len(builder) - 1
        parent = int(torch.randint(parent, last + 1, (1,), generator=generator))
        token = int(torch.randint(V if ends else END, (1,), generator=generator))
        builder.add(parent, token, Proposal.DETERMINISTIC)
    return builder.build()


def scored(tree: DraftTree, model: TableModel) -> Tensor:
    """Logits [N, V] over the tree."""
    state = model.start(100)
    state.prefill(PROMPT[:-1])
    return state.score(tree.token_ids, tree.parents)


def laws_over(
    tree: DraftTree, options: GenerationOptions, *, ends: Sequence[int] = (END,), seed: int = 0
) -> TargetLaws:
    logits = scored(tree, TableModel.random(V, order=2, seed=1))
    return request_law(options, ends=ends).laws(tree, logits, PROMPT, SeededRandomness(seed))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "bans": {"bad_words": [[2], [3, 4], [1, 2, 3]], "suppress_tokens": [5], "min_new_tokens": 3},
    "sampled": {"temperature": 0.8, "top_k": 5, "top_p": 0.8, "frequency_penalty": 0.4},
}

# --- the target's laws ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_each_node_has_the_scores_of_its_own_path(name: str, seed: int) -> None:
    """Case 32: exactly those of plain decoding at the same prefix, at every node of a tree."""
    options, tree = GenerationOptions(**OPTIONS[name]), random_tree(seed)
    laws, model = laws_over(tree, options), TableModel.random(V, order=2, seed=1)
    for node in reversed(range(len(tree))):
        prefix = [*PROMPT, *tree.path_tokens(node)]
        plain = request_law(options).scores(model.logits_after(prefix), prefix)
        assert torch.equal(laws.scores(node), plain)


def test_processors_see_the_paths_that_are_read_once_each() -> None:
    """Case 34: the last token of every context is the node's own, whatever else is in the tree."""
    spy, tree = Spy(), random_tree(2)
    laws = laws_over(tree, GenerationOptions(temperature=0.7, logits_processors=[spy]))
    read = [0, 3, 5, 3, 0]
    for node in read:
        laws.choose(node)
        laws.probs(node)
    assert spy.seen == [(*PROMPT, *tree.path_tokens(node)) for node in (0, 3, 5)]
    assert [context[-1] for context in spy.seen] == [tree.token_ids[node] for node in (0, 3, 5)]


def test_a_processor_may_keep_and_change_its_context() -> None:
    class Vandal(Spy):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            super().__call__(input_ids, scores)
            input_ids.fill_(0)
            return scores.fill_(1.0)

    vandal, tree = Vandal(), random_tree(2)
    logits = scored(tree, TableModel.random(V, order=2, seed=1))
    before = logits.clone()
    options = GenerationOptions(logits_processors=[vandal])
    laws = request_law(options).laws(tree, logits, PROMPT, SeededRandomness(0))
    for node in range(3):
        laws.scores(node)
    assert vandal.seen == [(*PROMPT, *tree.path_tokens(node)) for node in range(3)]
    assert torch.equal(logits, before)


def test_no_context_is_made_for_filters() -> None:
    law = request_law(GenerationOptions(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1))
    assert not law.reads_context
    assert law.draft.banned_after(PROMPT, []) == frozenset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_batched_argmax_equals_the_one_by_one(dtype: torch.dtype) -> None:
    """Case 37, ties included: the first of equals, as in `generate`."""
    tree = random_tree(0)
    logits = torch.randn(len(tree), V, generator=torch.Generator().manual_seed(5)).round().to(dtype)
    law = request_law(GenerationOptions(), ends=())
    assert law.is_argmax
    laws = law.laws(tree, logits, PROMPT, SeededRandomness(0))
    one_by_one = [int(law.scores(row, PROMPT).argmax()) for row in logits]
    assert [laws.choose(node) for node in range(len(tree))] == one_by_one
    first = [row.index(max(row)) for row in logits.tolist()]
    assert one_by_one == first


def test_choices_follow_the_law() -> None:
    tree, options = DraftTree.root_only(PROMPT[-1]), GenerationOptions(temperature=0.8, top_p=0.8)
    counts: Counter[int] = Counter()
    for seed in range(4000):
        laws = laws_over(tree, options, seed=seed)
        counts[laws.choose(0)] += 1
    probs = laws.probs(0)
    kept = probs.nonzero().flatten().tolist()
    assert counts.keys() <= set(kept)
    expected = [4000 * float(probs[t]) for t in kept]
    assert chisquare([counts[t] for t in kept], expected).pvalue > 1e-4


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_is_read_behind_an_end_token(name: str) -> None:
    """Plain decoding never asks what follows one, so no processor and no check may."""
    spy = Spy()
    options = GenerationOptions(**OPTIONS[name], logits_processors=[spy])
    builder = TreeBuilder(PROMPT[-1])
    end = builder.add(0, END, Proposal.DETERMINISTIC)
    behind = builder.add(end, 1, Proposal.DETERMINISTIC)
    tree = builder.build()
    logits = torch.full((3, V), math.nan)
    for own in (options, options.replace(logits_processors=())):
        laws = request_law(own).laws(tree, logits, PROMPT, SeededRandomness(0))
        for node in (end, behind):
            assert 0 <= laws.choose(node) < V
            assert float(laws.probs(node).sum()) == pytest.approx(1)
    assert spy.seen == []


@pytest.mark.parametrize(
    "bad",
    [{3: math.nan}, {0: math.nan, 5: math.inf}, {1: math.inf}, dict.fromkeys(range(V), -math.inf)],
    ids=str,
)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_broken_row_is_an_error_that_names_its_position(name: str, bad: dict[int, float]) -> None:
    """Case 45 (a), on the batched and on the processed way."""
    builder = TreeBuilder(PROMPT[-1])
    builder.add(0, 4, Proposal.DETERMINISTIC)
    logits = torch.zeros(2, V)
    for token, value in bad.items():
        logits[1, token] = value
    options = GenerationOptions(**OPTIONS[name])
    laws = request_law(options).laws(builder.build(), logits, PROMPT, SeededRandomness(0))
    assert 0 <= laws.choose(0) < V
    with pytest.raises(NumericsError, match=f"position {len(PROMPT) + 1} "):
        laws.choose(1)


# --- draft laws ----------------------------------------------------------------------------------------


def draft(
    model: TableModel | None, options: GenerationOptions, random: Randomness, **shape: Any
) -> DraftTree:
    """One tree behind the prompt; n-gram copies when there is no model."""
    widths, proposal = shape.get("widths", (1,)), shape.get("proposal", Proposal.SAMPLED)
    text = shape.get("text", PROMPT)
    drafter: Any = NgramDrafter(1, 3) if model is None else DraftModelDrafter(model, proposal)
    law = request_law(options, prompt=text[: shape.get("prompt_length", len(text))]).draft
    context = DraftContext(text, DraftLimits(len(widths)), law, random)
    return drafter.start(100).draft(context, FixedPolicy(widths).start())


FILTERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.7},
    "top-k": {"temperature": 1.0, "top_k": 3},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "min-p": {"temperature": 1.0, "min_p": 0.3},
    "all": {"temperature": 0.6, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
    "bans": {
        "temperature": 1.0,
        "top_k": 3,
        "suppress_tokens": [0, 3],
        "logit_bias": {4: -math.inf},
    },
}


def hf_law(row: Tensor, options: GenerationOptions) -> Tensor:
    """Bans and filters on one row, spelled out: float64 [V]."""
    scores = row.float()[None].clone()
    scores[0, [*options.suppress_tokens, *options.logit_bias]] = -math.inf
    filters: list[Any] = [hf.TemperatureLogitsWarper(options.temperature)]
    filters += [hf.TopKLogitsWarper(options.top_k)] if options.top_k else []
    filters += [hf.TopPLogitsWarper(options.top_p)] if options.top_p < 1 else []
    filters += [hf.MinPLogitsWarper(options.min_p)] if options.min_p else []
    for one in filters:
        scores = one(None, scores)
    return scores[0].double().softmax(-1)


@pytest.mark.parametrize("name", FILTERS)
def test_the_law_reported_is_the_law_drawn_from(name: str) -> None:
    """Case 40: every outcome of two draws without replacement, with its exact probability."""
    model, options = TableModel.random(V, seed=4), GenerationOptions(**FILTERS[name])
    expected = hf_law(model.logits_after(PROMPT), options)
    drawn: Counter[tuple[int, ...]] = Counter()
    for weight, tree in enumerate_outcomes(lambda r: draft(model, options, r, widths=(2,))):
        assert torch.allclose(tree.laws[0], expected, atol=1e-7)
        drawn[tree.token_ids[1:]] += weight  # type: ignore[assignment]
    q = tree.laws[0]
    assert sum(drawn.values()) == pytest.approx(1)
    for (first, second), weight in drawn.items():
        assert weight == pytest.approx(float(q[first] * q[second] / (1 - q[first])))


@pytest.mark.parametrize("proposal", [Proposal.SAMPLED, Proposal.RESAMPLED])
@pytest.mark.parametrize("name", FILTERS)
def test_seeded_draws_follow_the_law_reported(name: str, proposal: Proposal) -> None:
    """Case 40 with the real generator."""
    model, options = TableModel.random(V, seed=4), GenerationOptions(**FILTERS[name])
    trees = [draft(model, options, SeededRandomness(s), proposal=proposal) for s in range(3000)]
    counts, q = Counter(tree.token_ids[1] for tree in trees), trees[0].laws[0]
    kept = q.nonzero().flatten().tolist()
    assert counts.keys() <= set(kept)
    assert chisquare([counts[t] for t in kept], [3000 * float(q[t]) for t in kept]).pvalue > 1e-4


def test_rows_in_a_batch_have_the_laws_of_rows_alone() -> None:
    """Case 37: the drafter's batched filters."""
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(0)).round()
    for changes in FILTERS.values():
        law = request_law(GenerationOptions(**changes)).draft
        alone = torch.cat([law.probs(row[None]) for row in logits])
        assert torch.equal(law.probs(logits), alone)


BANS: dict[str, dict[str, Any]] = {
    "suppressed": {"suppress_tokens": [2]},
    "biased": {"logit_bias": {2: -math.inf}},
    "word": {"bad_words": [[2]]},
    "two tokens over the border": {"bad_words": [[1, 2]]},
    "three tokens over the border": {"bad_words": [[4, 1, 2]]},
    "two tokens inside": {"bad_words": [[2, 3]]},
}
COPIED = [4, 1, 2, 3, 0, 4, 1]
"""What comes next would be copied: 2, 3, 0."""


def forbidden(text: Sequence[int], options: GenerationOptions) -> bool:
    """Whether the text ends in a token that may not follow the rest."""
    words = [*options.bad_words, *([t] for t in options.suppress_tokens)]
    words += [[t] for t in options.logit_bias]
    return any(list(text[-len(word) :]) == list(word) for word in words)


@pytest.mark.parametrize("name", BANS)
@pytest.mark.parametrize("drafter", ["ngram", *Proposal])
def test_forbidden_tokens_are_never_drafted(name: str, drafter: str | Proposal) -> None:
    """Case 36: cut from copies and top-k sets, masked before draws."""
    for temperature in (0.0, 1.0):
        options = GenerationOptions(temperature=temperature, **BANS[name])
        model = None if drafter == "ngram" else TableModel.random(V, seed=2, sharpness=0.3)
        shape = {"text": COPIED, "widths": (3, 2, 1), "proposal": drafter}
        for seed in range(5):
            tree = draft(model, options, SeededRandomness(seed), **shape)
            paths = [[*COPIED, *tree.path_tokens(node)] for node in range(1, len(tree))]
            assert not any(forbidden(path, options) for path in paths)
            for node, law in tree.laws.items():
                path = [*COPIED, *tree.path_tokens(node)]
                banned = [t for t in range(V) if forbidden([*path, t], options)]
                assert float(law[banned].sum()) == 0


def test_a_copy_is_cut_where_it_is_forbidden() -> None:
    free = draft(None, GenerationOptions(), SeededRandomness(0), text=COPIED, widths=(1,) * 3)
    assert free.token_ids[1:] == (2, 3, 0)
    options = GenerationOptions(bad_words=[[2, 3]])
    cut = draft(None, options, SeededRandomness(0), text=COPIED, widths=(1,) * 3)
    assert cut.token_ids[1:] == (2,)


def test_no_end_token_is_drafted_too_early() -> None:
    """Case 29, for drafts: tokens count, not rounds."""
    text = [1, END, 2, 3, 1]
    for made, first_end in [(0, 2), (1, 1), (2, 0)]:
        law = request_law(
            GenerationOptions(min_new_tokens=2), prompt=text[: len(text) - made]
        ).draft
        for drafted in range(4):
            early = drafted < first_end
            assert law.banned_after(text, [0] * drafted) == (frozenset([END]) if early else set())


@pytest.mark.parametrize("width", [4, 7, 11])
def test_drafters_of_another_width_are_aligned(width: int) -> None:
    aligned = request_law(GenerationOptions()).draft.align(torch.zeros(2, width))
    assert aligned.shape == (2, V)
    assert torch.equal(torch.isfinite(aligned[0]), torch.arange(V) < width)


def test_coupled_candidates_rank_by_the_noise_that_chooses() -> None:
    """With q = p the first candidate is the target's own choice."""
    model, options = TableModel.random(V, order=1, seed=1), GenerationOptions(temperature=1.3)
    for seed in range(50):
        random = SeededRandomness(seed)
        tree = draft(model, options, random, widths=(2,), proposal=Proposal.COUPLED)
        root = DraftTree((PROMPT[-1],), (NO_PARENT,), (Proposal.DETERMINISTIC,))
        logits = model.logits_after(PROMPT)[None]
        laws = request_law(options).laws(root, logits, PROMPT, random)
        assert laws.choose(0) == tree.token_ids[1]


def test_greedy_laws_are_point_masses() -> None:
    laws = laws_over(random_tree(1), GenerationOptions(frequency_penalty=0.3), ends=())
    for node in range(5):
        probs = laws.probs(node)
        assert float(probs.max()) == 1 == float(probs.sum())
        assert int(probs.argmax()) == laws.choose(node)
