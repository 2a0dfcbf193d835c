"""States that are read from disk are those that a pass gives, and none is read that was not written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.errors import ConfigError
from foredraft.train import state_cache
from foredraft.train.batches import collate
from foredraft.train.corpus import Corpus, CorpusWriter, Sample
from foredraft.train.features import TargetFeatures
from foredraft.train.objective import Batch
from foredraft.train.state_cache import ShardTokens, StateCache
from tests.tiny_models import tiny_llama

LENGTHS = np.array([7, 3, 12, 5])


def samples() -> list[Sample]:
    random = np.random.default_rng(0)
    return [Sample(random.integers(3, 97, n), ((1, int(n)),)) for n in LENGTHS]


def batch(*indices: int, max_length: int = 100) -> Batch:
    chosen = [samples()[i] for i in indices]
    return collate(chosen, max_length, np.array(indices))


def shards(*digests: str) -> list[ShardTokens]:
    """The samples in two shards, or in as many as there are digests."""
    parts = np.array_split(LENGTHS, len(digests))
    return [ShardTokens(d, part) for d, part in zip(digests, parts, strict=True)]


def cache(folder: Path, digests: tuple[str, ...] = ("a", "b"), **key: Any) -> StateCache:
    return StateCache(folder, {"target": 1, **key}, shards(*digests), 32, torch.float32)


class CountingPasses(TargetFeatures):
    passes = 0

    def _computed(self, batch: Batch) -> dict[int, torch.Tensor]:
        self.passes += 1
        return super()._computed(batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_second_reading_needs_no_pass_and_gives_the_same(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    model = tiny_llama(dtype=dtype)
    kept = StateCache(tmp_path, {}, shards("a", "b"), 32, dtype)
    features = CountingPasses(model, (1, 0), kept)
    first = features(batch(0, 2, 1))
    again = features(batch(0, 2, 1))
    assert features.passes == 1
    for length, row in ((7, 0), (12, 1), (3, 2)):
        assert torch.equal(first.features[row, :length], again.features[row, :length])
        assert torch.equal(first.final[row, :length], again.final[row, :length])
    assert again.features.shape == first.features.shape
    assert not again.features[2, 3:].any()


def test_states_do_not_depend_on_batch_order_or_company(tmp_path: Path) -> None:
    model = tiny_llama()
    features = CountingPasses(model, (1,), cache(tmp_path))
    features(batch(0, 1, 2))
    features(batch(3))
    mixed = features(batch(3, 1, 0))
    assert features.passes == 2
    plain = TargetFeatures(model, (1,))
    for row, i in enumerate((3, 1, 0)):
        alone = plain(batch(i))
        length = LENGTHS[i]
        torch.testing.assert_close(mixed.features[row, :length], alone.features[0])
        torch.testing.assert_close(mixed.final[row, :length], alone.final[0])


def test_a_longer_cut_is_computed_anew_and_a_shorter_one_is_there(tmp_path: Path) -> None:
    features = CountingPasses(tiny_llama(), (1,), cache(tmp_path))
    features(batch(2, max_length=6))
    features(batch(2, max_length=4))
    assert features.passes == 1
    features(batch(2, max_length=12))
    assert features.passes == 2


def test_another_run_reads_what_this_one_kept_and_another_target_does_not(tmp_path: Path) -> None:
    model = tiny_llama()
    TargetFeatures(model, (0, 1), cache(tmp_path))(batch(0, 1))
    again = CountingPasses(model, (1,), cache(tmp_path))
    again(batch(1, 0))
    assert again.passes == 0
    other = CountingPasses(model, (1,), cache(tmp_path, target=2))
    other(batch(1, 0))
    assert other.passes == 1


def test_the_final_state_gives_the_targets_logits(tmp_path: Path) -> None:
    """Features and labels come from one and the same state, after the final norm."""
    model = tiny_llama()
    features = TargetFeatures(model, (2,), cache(tmp_path))
    for _ in range(2):
        states = features(batch(0, 3))
        assert torch.equal(states.features, states.final)
        logits = model(torch.from_numpy(samples()[0].token_ids)[None]).logits[0]
        torch.testing.assert_close(model.lm_head(states.final[0, :7]), logits)


def test_a_corpus_that_grows_keeps_its_states_and_a_changed_shard_does_not(tmp_path: Path) -> None:
    model = tiny_llama()
    first = StateCache(tmp_path, {}, shards("a", "b")[:1], 32, torch.float32)
    TargetFeatures(model, (1,), first)(batch(0, 1))
    grown = CountingPasses(
        model, (1,), StateCache(tmp_path, {}, shards("a", "b"), 32, torch.float32)
    )
    grown(batch(0, 1))
    assert grown.passes == 0
    grown(batch(1, 2))
    assert grown.passes == 1
    changed = StateCache(tmp_path, {}, shards("c", "b"), 32, torch.float32)
    other = CountingPasses(model, (1,), changed)
    other(batch(0, 1))
    assert other.passes == 1


def test_shards_are_told_apart_by_their_tokens(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path, {"vocab_size": 97})
    first = [Sample(np.array([1, 2, 3]), ()), Sample(np.array([4]), ())]
    moved = [Sample(np.array([1, 2]), ()), Sample(np.array([3, 4]), ())]
    for shard in (first, moved, first):
        writer.add_shard(shard)
    read = ShardTokens.all_of(Corpus(tmp_path))
    assert [shard.lengths.tolist() for shard in read] == [[3, 1], [2, 2], [3, 1]]
    assert read[0].digest == read[2].digest != read[1].digest


def test_states_that_were_deleted_are_not_read(tmp_path: Path) -> None:
    model = tiny_llama()
    before = TargetFeatures(model, (1,), cache(tmp_path))(batch(0, 1))
    for file in tmp_path.rglob("*.states"):
        file.unlink()
    again = CountingPasses(model, (1,), cache(tmp_path))
    after = again(batch(0, 1))
    assert again.passes == 1
    assert torch.equal(before.final[0, :7], after.final[0, :7])


def test_a_full_disk_is_found_before_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="--no-keep-states"):
        TargetFeatures(tiny_llama(), (1,), cache(tmp_path))(batch(0))
    assert not list(tmp_path.rglob("*.states"))


def test_the_disk_is_taken_at_once(tmp_path: Path) -> None:
    cache(tmp_path).has((1,), torch.tensor([0]), torch.tensor([1]))
    (file,) = tmp_path.rglob("*.states")
    assert file.stat().st_blocks * state_cache.BLOCK >= LENGTHS[:2].sum() * 32 * 4


def test_states_that_are_kept_are_not_written_again(tmp_path: Path) -> None:
    """A batch of which only a part is kept is computed whole; files may be shared with other corpora."""
    kept = cache(tmp_path)
    first, second = torch.tensor([0]), torch.tensor([0, 1])
    states = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    kept.write(1, first, torch.tensor([7]), states[:1])
    kept.write(1, second, torch.tensor([7, 3]), states + 1)
    read = kept.read(1, second, torch.tensor([7, 3]))
    assert torch.equal(read[0], states[0])
    assert torch.equal(read[1, :3], states[1, :3] + 1)
    kept.write(1, first, torch.tensor([7]), states[:1] + 2)
    assert torch.equal(kept.read(1, first, torch.tensor([7]))[0], states[0])


def test_files_can_be_read_by_whom_the_user_lets(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        cache(tmp_path).reserve([1])
        CorpusWriter(tmp_path, {"vocab_size": 97}).add_shard(samples())
    finally:
        os.umask(before)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".states", ".held", ".json", ".safetensors"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}
