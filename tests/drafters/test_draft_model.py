"""An independent draft model: its cache through every kind of round, and models unlike the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel, TableState
from foredraft.drafters.draft_model import CATCH_UP_ROWS, DraftModelDrafter
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers import verifier
from tests.drafters.contexts import context, draft
from tests.scripted import Watched, checked_rounds
from tests.tiny_models import build, tiny_bloom, tiny_llama

VOCAB_SIZE = 6
NOISE_STD = 0.03
PROMPT = (3, 4, 5, 6, 3, 4)
every_kind = pytest.mark.parametrize("kind", list(Proposal), ids=lambda kind: kind.value)


# --- the cache --------------------------------------------------------------------------------------


class RecordedModel(TableModel):
    """A table whose states can be looked at."""

    def start(self, capacity: int) -> TableState:
        self.states = [*getattr(self, "states", []), super().start(capacity)]
        return self.states[-1]


class Rounds:
    """Plays rounds with a draft model by hand; what a round accepts is the test's choice."""

    def __init__(self, kind: Proposal, text: Sequence[int] = (1, 2)) -> None:
        self.model = RecordedModel.random(VOCAB_SIZE, 2, seed=1)
        self.drafter = DraftModelDrafter(self.model, kind)
        self.state = self.drafter.start(100)
        self.text = list(text)

    @property
    def cached(self) -> list[int]:
        """Committed tokens of the draft cache."""
        return self.model.states[0].committed

    def draft(self, widths: str) -> DraftTree:
        return draft(self.state, self.text, widths, vocab_size=VOCAB_SIZE, temperature=1.0)

    def drafted_from_scratch(self, widths: str) -> DraftTree:
        """What a drafter that never saw another text proposes here."""
        fresh = self.drafter.start(100)
        return draft(fresh, self.text, widths, vocab_size=VOCAB_SIZE, temperature=1.0)

    def take(self, tree: DraftTree, leaf: int) -> None:
        """Accept the path to `leaf`, and one token more."""
        self.state.commit(tree.path(leaf))
        self.text += [*tree.path_tokens(leaf), (tree.token_ids[leaf] + 1) % VOCAB_SIZE]

    def take_undrafted(self) -> None:
        """A round in which nothing was asked of the drafter."""
        self.take(DraftTree.root_only(self.text[-1]), 0)


@every_kind
@pytest.mark.parametrize("length", range(1, 9))
def test_a_chain_accepted_to_any_length(kind: Proposal, length: int) -> None:
    """The cache is what was accepted: all of the chain but its last token, which was never scored."""
    for num_accepted in range(length + 1):
        rounds = Rounds(kind)
        tree = rounds.draft(",".join(["1"] * length))
        rounds.take(tree, num_accepted)
        assert rounds.cached == rounds.text[: 2 + min(num_accepted, length - 1)]


@every_kind
@given(st.data())
def test_the_cache_holds_accepted_text_alone(kind: Proposal, data: st.DataObject) -> None:
    """Full and partial acceptance, rounds without a draft, and gaps past what one pass catches up."""
    rounds = Rounds(kind)
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.sampled_from([0, 1, 2, CATCH_UP_ROWS, CATCH_UP_ROWS + 5]))):
            rounds.take_undrafted()
        tree = rounds.draft(data.draw(st.sampled_from(["1", "1,1,1", "3", "2,2,1", "3,1,2"])))
        rounds.take(tree, data.draw(st.integers(0, len(tree) - 1)))
        assert rounds.cached == rounds.text[: rounds.state.length]
        assert len(rounds.text) - 2 <= rounds.state.length < len(rounds.text)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, CATCH_UP_ROWS + 2))
def test_a_used_cache_drafts_as_a_fresh_one(leaves: list[int], gap: int) -> None:
    """Case 6: a stale or missing row would change what is proposed."""
    rounds = Rounds(Proposal.DETERMINISTIC)
    for leaf in leaves:
        rounds.take(rounds.draft("2,2"), leaf)
    for _ in range(gap):
        rounds.take_undrafted()
    assert rounds.draft("2,2,2") == rounds.drafted_from_scratch("2,2,2")


@every_kind
@given(st.data())
def test_the_cache_is_right_after_a_selection(kind: Proposal, data: st.DataObject) -> None:
    """Rows of candidates that were not kept, or have moved, are told apart from those of the draft."""
    rounds = Rounds(kind)
    for _ in range(data.draw(st.integers(1, 5))):
        policy = DynamicTreePolicy(depth=3, nodes=data.draw(st.integers(1, 8)), top_k=3)
        seen = context(rounds.text, vocab_size=VOCAB_SIZE, temperature=1.0)
        tree = rounds.state.draft(seen, policy.start())
        rounds.take(tree, data.draw(st.integers(0, len(tree) - 1)))
        assert rounds.cached == rounds.text[: rounds.state.length]
        assert len(rounds.text) - 2 <= rounds.state.length < len(rounds.text)


# --- with real attention ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> HFTarget:
    return HFTarget(tiny_llama())


def similar_llama() -> HFTarget:
    """The same weights with some noise: right about as often as it is wrong."""
    model = tiny_llama()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += NOISE_STD * torch.randn_like(parameter)
    return HFTarget(model)


@pytest.mark.parametrize("widths", ["1,1,1,1", "2,2,1"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_that_is_the_target_is_never_rejected(
    llama: HFTarget, widths: str, temperature: float
) -> None:
    """Case 7: 200 tokens in float32, every round accepted whole; a lagging cache would show."""
    drafter = Watched(DraftModelDrafter(llama))
    engine = Engine(llama, drafter, FixedPolicy(widths))
    options = GenerationOptions(
        max_new_tokens=200, temperature=temperature, seed=1, ignore_eos=True
    )
    steps = list(checked_rounds(engine, PROMPT, options))
    depths = [tree.depth for tree in drafter.drafts]
    assert [step.num_accepted for step in steps[: len(depths)]] == depths


def test_a_used_attention_cache_drafts_as_a_fresh_one(llama: HFTarget) -> None:
    """Case 6 with real attention: every draft equals that of a drafter which has just begun."""
    drafter = DraftModelDrafter(similar_llama())
    used = Watched(drafter)
    engine = Engine(llama, used, FixedPolicy("2,2,1"))
    options = GenerationOptions(max_new_tokens=40, ignore_eos=True)
    text, accepted = list(PROMPT), set()
    for step in checked_rounds(engine, PROMPT, options):
        room = DraftLimits(max_depth=len(PROMPT) + 40 - len(text) - 1)
        text += step.token_ids
        accepted.add(step.num_accepted)
        if step.num_drafted:
            before = text[: -len(step.token_ids)]
            fresh = draft(drafter.start(100), before, "2,2,1", vocab_size=97, limits=room)
            assert used.drafts[-1] == fresh
    assert accepted == {0, 1, 2, 3}


def test_a_request_drafts_from_its_own_text_alone(llama: HFTarget) -> None:
    """Case 73: a long request, a short one in its buffers, and the long one again."""
    drafter = Watched(DraftModelDrafter(similar_llama()))
    engine = Engine(llama, drafter, FixedPolicy("2,1"))
    long, short = [*PROMPT] * 20, [9, 8]

    def drafts(prompt: list[int]) -> list[DraftTree]:
        engine.generate(prompt, max_new_tokens=12, ignore_eos=True)
        return drafter.states[-1].drafts

    first, between, again = drafts(long), drafts(short), drafts(long)
    fresh = Watched(DraftModelDrafter(similar_llama()))
    Engine(llama, fresh, FixedPolicy("2,1")).generate(short, max_new_tokens=12, ignore_eos=True)
    assert between == fresh.drafts
    assert again == first


# --- models unlike the target -----------------------------------------------------------------------


class Tokenizer:
    """Knows a number of ids, and nothing about them."""

    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
    eos_token_id = None

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def padded(rows: int, known: int, seed: int) -> HFTarget:
    """A model of `rows` embeddings, of which the tokenizer knows the first `known`."""
    model = tiny_llama(vocab_size=rows, seed=seed, eos_token_id=None)
    return HFTarget(model, Tokenizer(known))  # type: ignore[arg-type]


@every_kind
@pytest.mark.parametrize(("target_rows", "draft_rows"), [(128, 120), (120, 128)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_of_either_model_is_neither_drafted_nor_emitted(
    kind: Proposal, target_rows: int, draft_rows: int, temperature: float
) -> None:
    """Case 60: 110 tokens, padded to different sizes."""
    target, draft_model = padded(target_rows, 110, 0), HFTarget(tiny_llama(vocab_size=draft_rows))
    drafter = Watched(DraftModelDrafter(draft_model, kind))
    engine = Engine(target, drafter, FixedPolicy("3,2"))
    options = GenerationOptions(max_new_tokens=24, temperature=temperature, seed=2)
    result = engine.generate(PROMPT, options)
    assert result.token_ids == engine.without_drafts().generate(PROMPT, options).token_ids
    assert max(result.token_ids) < 110
    assert all(max(tree.token_ids) < 110 for tree in drafter.drafts)


def test_tokens_that_the_draft_model_lacks_are_no_obstacle() -> None:
    """Case 60: the prompt and the answer hold ids of which the draft model has no row."""
    target, draft_model = HFTarget(tiny_llama(vocab_size=128)), HFTarget(tiny_llama(vocab_size=60))
    drafter = Watched(DraftModelDrafter(draft_model))
    engine = Engine(target, drafter)
    options = GenerationOptions(max_new_tokens=40, ignore_eos=True)
    result = engine.generate([3, 120, 4], options)
    assert result.token_ids == engine.without_drafts().generate([3, 120, 4], options).token_ids
    assert max(result.token_ids) >= 60
    assert all(tree.num_drafted for tree in drafter.drafts)


@pytest.mark.parametrize("width", [4, 9])
@pytest.mark.parametrize("name", ["rejection", "traversal"])
def test_draft_laws_of_another_width_are_laws_over_the_targets_tokens(
    width: int, name: str
) -> None:
    """Case 60 with sampled drafts: q sums to 1 on the tokens that both have."""
    target = TableModel.random(VOCAB_SIZE, seed=1)
    drafter = Watched(DraftModelDrafter(TableModel.random(width, seed=2), Proposal.SAMPLED))
    engine = Engine(target, drafter, FixedPolicy("2,2"), verifier(name))
    engine.generate([1, 2], max_new_tokens=12, temperature=1.0, seed=1)
    laws = [law for tree in drafter.drafts for law in tree.laws.values()]
    assert laws
    for law in laws:
        assert law.shape == (VOCAB_SIZE,)
        assert float(law.sum()) == pytest.approx(1)
        assert float(law[width:].sum()) == 0


def test_a_draft_models_shorter_context_ends_its_drafts(llama: HFTarget) -> None:
    """Past 24 tokens its learned positions would end in an index error."""
    shape = {"n_embd": 32, "n_layer": 1, "n_head": 4}
    small = HFTarget(build(GPT2Config(vocab_size=97, n_positions=24, **shape)))
    drafter = Watched(DraftModelDrafter(small))
    engine = Engine(llama, drafter, FixedPolicy("2,2,1"))
    options = GenerationOptions(max_new_tokens=40, ignore_eos=True)
    result = engine.generate(PROMPT, options)
    assert result.token_ids == engine.without_drafts().generate(PROMPT, options).token_ids
    drafted = [tree.num_drafted > 0 for tree in drafter.drafts]
    assert drafted == sorted(drafted, reverse=True)
    assert any(drafted)
    assert not drafted[-1]


@pytest.mark.parametrize("length", range(22, 27))
def test_the_last_level_is_drawn_and_not_scored(llama: HFTarget, length: int) -> None:
    """A text of 24 tokens still fits a context of 24, and one level can be drawn from it."""
    model = HFTarget(tiny_llama(max_position_embeddings=24))
    text = [i % 90 for i in range(length)]
    tree = draft(DraftModelDrafter(model).start(64), text, "1,1,1", vocab_size=97)
    assert tree.depth == max(0, min(3, 25 - length))


def test_a_draft_model_that_cannot_score_trees_drafts_chains(llama: HFTarget) -> None:
    """The target could score the tree that is asked for; the draft model's masks do not count."""
    drafter = Watched(DraftModelDrafter(HFTarget(tiny_bloom())))
    engine = Engine(llama, drafter, FixedPolicy("2,2"))
    options = GenerationOptions(max_new_tokens=12, ignore_eos=True)
    result = engine.generate(PROMPT, options)
    assert result.token_ids == engine.without_drafts().generate(PROMPT, options).token_ids
    assert [tree.depth for tree in drafter.drafts[:2]] == [2, 2]
    assert all(tree.is_chain for tree in drafter.drafts)


# --- laws that are no laws --------------------------------------------------------------------------


class Broken(TableModel):
    """Its logits after token 1 are all of one value."""

    value = math.nan

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        logits = super().logits_after(token_ids)
        return torch.full_like(logits, self.value) if token_ids[-1] == 1 else logits


@every_kind
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_a_node_whose_law_is_not_finite_gets_no_children(kind: Proposal, value: float) -> None:
    """Case 45 (b): its siblings get theirs."""
    seen = context([2], vocab_size=VOCAB_SIZE, limits=DraftLimits(2), temperature=1.0)
    model = Broken.random(VOCAB_SIZE, seed=2)
    model.value = value
    tree = DraftModelDrafter(model, kind).start(100).draft(seen, FixedPolicy("6,1"))
    level = tree.children[0]
    for node in level:
        assert len(tree.children[node]) == (0 if tree.token_ids[node] == 1 else 1)


@every_kind
def test_a_root_whose_law_is_not_finite_gives_no_draft(kind: Proposal) -> None:
    seen = context([1], vocab_size=VOCAB_SIZE, temperature=1.0)
    state = DraftModelDrafter(Broken.random(VOCAB_SIZE, seed=2), kind).start(100)
    assert state.draft(seen, FixedPolicy("3,1")).num_drafted == 0
