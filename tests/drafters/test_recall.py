"""What is remembered of the target's laws, and how it is mixed into a drafter's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.drafters.recall import TOP, Recall, RecallWeights, contexts_of
from foredraft.methods import parse_method
from foredraft.tree import DraftTree, Proposal, TreeBuilder

VOCAB = 12


def logits_of(seed: int, rows: int = 3, columns: int = VOCAB) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def fork(open_roots: bool = False) -> DraftTree:
    """Root 5 with children 6 and 7."""
    builder = TreeBuilder(5, open_roots=open_roots)
    for token in (6, 7):
        builder.add(0, token, Proposal.DETERMINISTIC)
    return builder.build()


def remembered(row: Tensor) -> Tensor:
    """The law of logits [C] without all but its best tokens, not renormalised."""
    law = row.softmax(-1)
    return torch.where(law >= law.topk(min(TOP, len(row))).values[-1], law, 0.0)


@pytest.mark.parametrize(
    ("context", "row", "share"),
    [((5, 6), 1, 0.7), ((5, 7), 2, 0.7), ((4, 5), 0, 0.7), ((9, 6), 1, 0.5), ((3, 5), 0, 0.5)],
)
def test_a_law_comes_back_after_the_same_two_tokens_or_else_the_same_one(
    context: tuple[int, int], row: int, share: float
) -> None:
    memory = Recall(RecallWeights(0.7, 0.5, 0.0))
    said, drafted = logits_of(0), logits_of(1, rows=1)
    memory.note(fork(), said, [3, 4, 5])
    mixed = memory.blend(drafted, [context], None)
    expected = (1 - share) * drafted[0].softmax(-1) + share * remembered(said[row])
    torch.testing.assert_close(mixed[0].exp(), expected)


def test_nodes_that_were_not_taken_are_remembered_too() -> None:
    """Nothing tells the memory which path was accepted."""
    memory = Recall(RecallWeights(1.0, 0.0, 0.0))
    said = logits_of(0)
    memory.note(fork(), said, [4, 5])
    for context, row in (((5, 6), 1), ((5, 7), 2)):
        mixed = memory.blend(logits_of(1, rows=1), [context], None)
        torch.testing.assert_close(mixed[0].exp(), remembered(said[row]))


def test_what_is_unknown_leaves_the_drafters_logits_as_they_are() -> None:
    memory = Recall(RecallWeights())
    drafted = logits_of(1, rows=2)
    memory.note(fork(), logits_of(0), [4, 5])
    assert memory.blend(drafted, [(1, 2), (2, 3)], None) is drafted


def test_the_latest_law_counts() -> None:
    memory = Recall(RecallWeights(1.0, 1.0, 0.0))
    memory.note(fork(), logits_of(0), [4, 5])
    memory.note(fork(), logits_of(2), [4, 5])
    mixed = memory.blend(logits_of(1, rows=1), [(5, 7)], None)
    torch.testing.assert_close(mixed[0].exp(), remembered(logits_of(2)[2]))


@given(st.integers(0, 1000), st.integers(1, VOCAB))
def test_a_reduced_vocabulary_recalls_its_own_columns(seed: int, count: int) -> None:
    """Of the law over the drafter's tokens, whatever mass the target has elsewhere; a token that the target
    lacks does no harm."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCAB, generator=generator)[:count]
    memory = Recall(RecallWeights(1.0, 1.0, 0.0))
    said = logits_of(seed)
    memory.note(fork(), said, [4, 5])
    with_stranger = torch.cat([ids, torch.tensor([VOCAB + 7])])
    mixed = memory.blend(logits_of(1, rows=1, columns=count + 1), [(5, 6)], with_stranger)[0]
    assert mixed.shape == (count + 1,)
    best = ids[said[1][ids].argmax()]
    assert mixed[:count].argmax() == (ids == best).nonzero()[0, 0]


@pytest.mark.parametrize("open_roots", [False, True])
def test_contexts_are_the_last_tokens_of_each_path(open_roots: bool) -> None:
    text = [3, 4] if open_roots else [3, 4, 5]
    found = contexts_of(fork(open_roots), range(3), text)
    assert found == [(4, 5), (5, 6), (5, 7)]
    assert contexts_of(fork(), [0], [5]) == [(5,)]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 29))
def test_the_text_tells_what_followed_the_same_two_tokens_last(text: list[int], cut: int) -> None:
    """Whether it is indexed at once or as it grows."""
    memory = Recall(RecallWeights(0.0, 0.0, 0.4))
    memory.index(text[:cut])
    memory.index(text)
    drafted = logits_of(1, rows=1)
    for context in {tuple(text[i : i + 2]) for i in range(len(text) - 1)}:
        followers = [text[i] for i in range(2, len(text)) if tuple(text[i - 2 : i]) == context]
        mixed = memory.blend(drafted, [context], None)
        if not followers:
            assert mixed is drafted
            continue
        expected = 0.6 * drafted[0].softmax(-1)
        expected[followers[-1]] += 0.4
        torch.testing.assert_close(mixed[0].exp(), expected)


def test_a_token_of_the_text_that_the_drafter_lacks_has_no_share() -> None:
    memory = Recall(RecallWeights(0.0, 0.0, 0.4))
    memory.index([1, 2, 9, 1, 2])
    drafted = logits_of(1, rows=1, columns=2)
    assert memory.blend(drafted, [(1, 2)], torch.tensor([3, 4])) is drafted
    grown = memory.blend(logits_of(1, rows=1, columns=3), [(1, 2)], torch.tensor([3, 4, 9]))
    expected = 0.6 * logits_of(1, rows=1, columns=3)[0].softmax(-1)
    expected[2] += 0.4
    torch.testing.assert_close(grown[0].exp(), expected)


@pytest.mark.parametrize("weights", [{"pair": 1.1}, {"single": -0.1}, {"pair": float("nan")}])
def test_shares_that_are_none_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="give 0 to 1"):
        RecallWeights(**weights)


def test_without_shares_it_is_mcsd() -> None:
    """The ablation: the same drafts, tokens and rounds as the method without the target's information."""
    target, draft = TableModel.random(9, 2, seed=0), TableModel.random(9, 1, seed=1)
    answers = []
    for name in ("mcsd:tree=3,2", "mcsd-improved:tree=3,2:pair=0:single=0:text=0"):
        parts = parse_method(name).build(draft)
        engine = Engine(target, parts.drafter, parts.policy, parts.verifier)
        options = GenerationOptions(max_new_tokens=30, temperature=1.0, seed=3)
        result = engine.generate([1, 2, 3], options)
        answers.append((result.token_ids, [r.num_accepted for r in result.stats.rounds]))
    assert answers[0] == answers[1]


def test_recalled_laws_are_accepted_more_often() -> None:
    """A draft model that knows nothing, of a target whose laws follow from two tokens."""
    target = TableModel.random(6, 2, seed=0, sharpness=3.0)
    draft = TableModel(torch.full((6, 6), 1 / 6, dtype=torch.float64))
    lengths = []
    for shares in ("pair=0:single=0:text=0", "pair=0.7:single=0.5:text=0"):
        parts = parse_method(f"mcsd-improved:tree=2,2,1:{shares}").build(draft)
        engine = Engine(target, parts.drafter, parts.policy, parts.verifier)
        options = GenerationOptions(max_new_tokens=300, temperature=1.0, seed=3)
        length = engine.generate([1, 2, 3], options).stats.mean_acceptance_length
        assert length is not None
        lengths.append(length)
    assert lengths[1] > 1.3 * lengths[0]
