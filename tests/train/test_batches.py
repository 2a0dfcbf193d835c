"""Batches: split, bucketing, truncation, shares of processes, and rows that never meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.errors import DataError
from foredraft.train.batches import Batches, collate, is_held_out
from foredraft.train.corpus import OPEN_SHARDS, Corpus, CorpusWriter
from foredraft.train.objective import Batch
from tests.train.toy_training import (
    ToyCorpus,
    ToyObjective,
    counting_corpus,
    sample,
    toy_options,
)

WHOLE = {"held_out": 0.0, "tokens_per_batch": 40}


def rows(batch: Batch) -> list[tuple[int, ...]]:
    """The texts of a batch."""
    return [
        tuple(ids[:length].tolist())
        for ids, length in zip(batch.token_ids, batch.lengths.tolist(), strict=True)
    ]


def epoch_rows(batches: Batches, epoch: int = 0, start: int = 0) -> list[tuple[int, ...]]:
    """The texts of an epoch, in order."""
    return [row for step in batches.epoch(epoch, start) for batch in step for row in rows(batch)]


def own_texts(num_samples: int, shard_size: int = 10**6) -> ToyCorpus:
    """Samples that can be told apart: sample i is [i, i, ...]."""
    lengths = np.random.default_rng(0).integers(3, 15, num_samples)
    texts = [sample([i] * int(n)) for i, n in enumerate(lengths)]
    return ToyCorpus(texts, shard_size)


def test_an_epoch_holds_every_sample_once() -> None:
    corpus = own_texts(200)
    batches = Batches(corpus, toy_options(**WHOLE))
    assert sorted(row[0] for row in epoch_rows(batches)) == list(range(200))


def test_batches_stay_within_their_tokens_and_waste_little() -> None:
    batches = Batches(counting_corpus(400), toy_options(held_out=0, tokens_per_batch=128))
    sizes = [b.token_ids.numel() for step in batches.epoch(0) for b in step]
    read = sum(int(b.lengths.sum()) for step in batches.epoch(0) for b in step)
    assert max(sizes) <= 128
    assert read > 0.9 * sum(sizes)


def test_a_sample_longer_than_a_batch_stands_alone() -> None:
    corpus = ToyCorpus([sample(range(20)), sample(range(4)), sample(range(4))])
    batches = Batches(corpus, toy_options(held_out=0, tokens_per_batch=10))
    assert sorted(len(rows(b)) for step in batches.epoch(0) for b in step) == [1, 2]


def test_order_depends_on_seed_and_epoch_alone() -> None:
    corpus = own_texts(100)
    one, again = (Batches(corpus, toy_options(**WHOLE)) for _ in range(2))
    assert epoch_rows(one) == epoch_rows(again)
    assert epoch_rows(one, epoch=0) != epoch_rows(one, epoch=1)
    assert epoch_rows(one) != epoch_rows(Batches(corpus, toy_options(**WHOLE, seed=1)))


def test_reading_goes_on_from_any_step() -> None:
    batches = Batches(own_texts(100), toy_options(**WHOLE))
    whole = [[rows(b) for b in step] for step in batches.epoch(3)]
    for start in (0, 1, 7, len(whole)):
        assert [[rows(b) for b in step] for step in batches.epoch(3, start)] == whole[start:]


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (3, 2)])
def test_processes_share_an_epoch_in_equal_numbers_of_steps(
    world_size: int, accumulate: int
) -> None:
    options = toy_options(**WHOLE, accumulate=accumulate)
    corpus = own_texts(200)
    shares = [Batches(corpus, options, rank, world_size) for rank in range(world_size)]
    steps = [list(share.epoch(0)) for share in shares]
    assert {len(s) for s in steps} == {shares[0].steps_in_epoch(0)}
    assert all(len(step) == accumulate for s in steps for step in s)
    seen = [row[0] for share in shares for row in epoch_rows(share)]
    assert len(seen) == len(set(seen)), "a sample was read twice"
    batch = max(len(rows(b)) for s in steps for step in s for b in step)
    assert len(seen) > 200 - world_size * accumulate * batch, "more was left out than one step"


def test_a_corpus_of_less_than_one_step_still_makes_one() -> None:
    corpus = ToyCorpus([sample([1, 2, 3])])
    shares = [Batches(corpus, toy_options(**WHOLE, accumulate=2), r, 2) for r in range(2)]
    assert [epoch_rows(share) for share in shares] == [[(1, 2, 3)] * 2] * 2


def test_held_out_samples_are_never_trained_on_and_do_not_depend_on_the_seed() -> None:
    corpus = own_texts(300)
    held = []
    for seed in (0, 1):
        batches = Batches(corpus, toy_options(held_out=0.1, tokens_per_batch=40, seed=seed))
        shares = [
            Batches(corpus, toy_options(held_out=0.1, tokens_per_batch=40, seed=seed), rank, 2)
            for rank in range(2)
        ]
        ours = [row for b in batches.held_out() for row in rows(b)]
        assert sorted(ours) == sorted(row for s in shares for b in s.held_out() for row in rows(b))
        trained = {row[0] for row in epoch_rows(batches)}
        assert trained.isdisjoint(row[0] for row in ours)
        assert len(trained) + len(ours) == 300
        assert 10 < len(ours) < 60
        held.append(ours)
    assert held[0] == held[1]


def test_the_split_of_a_corpus_stays_when_it_grows() -> None:
    assert (is_held_out(5000, 0.05)[:1000] == is_held_out(1000, 0.05)).all()
    assert is_held_out(5, 1e-9).sum() == 1, "a share was asked for, and nothing would be measured"
    assert not is_held_out(5, 0.0).any()


def test_truncation_keeps_marks_with_tokens_and_drops_what_has_none_left() -> None:
    """Case 90: cut with ids and marks aligned; dropped and counted where no answer is left."""
    corpus = ToyCorpus(
        [
            sample(range(10, 22), (2, 4), (6, 12)),  # cut within its second answer
            sample(range(8), (6, 8)),  # its answer is cut away
            sample(range(3), (1, 3)),
            sample([7, 8, 9], (0, 1)),  # the only answer is a token that nothing predicts
        ]
    )
    batches = Batches(corpus, toy_options(held_out=0, max_length=6, tokens_per_batch=1))
    texts = {row[0]: row for row in epoch_rows(batches)}
    assert texts == {10: (10, 11, 12, 13, 14, 15), 0: (0, 1, 2)}
    assert (batches.counts.trained, batches.counts.unlabelled) == (2, 2)
    assert (batches.counts.truncated, batches.counts.tokens, batches.counts.labelled) == (1, 9, 4)
    cut = collate([corpus[0]], 7)
    assert cut.labelled[0].tolist() == [False, False, True, True, False, False, True]


def test_a_corpus_without_answers_is_an_error() -> None:
    with pytest.raises(DataError, match="none of the 2 samples has an answer"):
        Batches(ToyCorpus([sample(range(9), (8, 9))] * 2), toy_options(max_length=4))


def test_rows_are_padded_with_0_and_padding_is_never_labelled() -> None:
    batch = collate([sample([5, 6, 7, 8]), sample([9, 9])], 10)
    assert batch.token_ids.tolist() == [[5, 6, 7, 8], [9, 9, 0, 0]]
    assert batch.labelled.tolist() == [[False, True, True, True], [False, True, False, False]]
    assert batch.lengths.tolist() == [4, 2]


def test_samples_never_meet() -> None:
    """Case 91: nothing that is computed for one sample changes with another one of its batch."""
    first, objective = sample([3, 4, 5, 6]), ToyObjective(dropout=0.0)
    found = [
        objective.predict(collate([first, other], 10))[0][0, :3]
        for other in (sample([9, 9, 9, 9]), sample([1, 2, 3, 4, 5, 6, 7]))
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert {len(rows(b)) for b in [collate([first, first], 10)]} == {2}


def test_few_shards_are_read_at_a_time() -> None:
    corpus = own_texts(200, shard_size=10)
    batches = Batches(corpus, toy_options(**WHOLE))
    corpus.read.clear()
    assert sorted(row[0] for row in epoch_rows(batches)) == list(range(200))
    shards = [index // 10 for index in corpus.read]
    groups = [set(shards[i : i + 10 * OPEN_SHARDS]) for i in range(0, 200, 10 * OPEN_SHARDS)]
    assert all(len(group) == OPEN_SHARDS for group in groups)
    assert shards != sorted(shards)


def test_a_corpus_on_disk_is_read(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path, {"vocab_size": 50})
    writer.add_shard([sample([1, 2, 3]), sample([4, 5, 6, 7], (2, 4))])
    writer.add_shard([sample([8, 9])])
    batches = Batches(Corpus(tmp_path), toy_options(held_out=0, tokens_per_batch=4))
    assert sorted(epoch_rows(batches)) == [(1, 2, 3), (4, 5, 6, 7), (8, 9)]
