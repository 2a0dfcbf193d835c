"""Hidden states that are kept while a model writes are those of a pass over what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.errors import ConfigError, ModelError
from foredraft.train.batches import collate
from foredraft.train.corpus import Corpus, CorpusWriter
from foredraft.train.data import DataPlan
from foredraft.train.features import TargetFeatures
from foredraft.train.generation import generate_corpus
from foredraft.train.objective import Batch
from foredraft.train.recording import CohortStates, StateRecorder
from foredraft.train.scripts import Script, conversation
from foredraft.train.setting import Setting
from tests import tiny_models
from tests.train.test_generation import FRAME, LED, MIXTURE
from tests.train.test_state_cache import CountingPasses

FAMILIES = (tiny_models.tiny_llama, tiny_models.tiny_mistral, tiny_models.tiny_gemma3)
TAPS = (1, 0)


def written(model: Any, folder: Path, num_rows: int, recorder: StateRecorder | None) -> Corpus:
    """Two shards of conversations, some of which give nothing."""

    def scripts(shard: int) -> list[Script]:
        mixture = MIXTURE if shard else LED
        return [conversation(FRAME, mixture, 5, shard * 9 + row) for row in range(9)]

    writer = CorpusWriter(folder, {"vocab_size": 97})
    generate_corpus(model, scripts, writer, 400, num_rows, recorder=recorder)
    assert writer.num_shards > 1
    return Corpus(folder)


def batch_of(corpus: Corpus) -> Batch:
    """All of its samples."""
    return collate(list(corpus), 1000, np.arange(len(corpus)))


@pytest.mark.parametrize("num_rows", [1, 4, 9])
@pytest.mark.parametrize("make", FAMILIES)
def test_training_finds_the_states_of_every_token(
    make: Callable[[], Any], num_rows: int, tmp_path: Path
) -> None:
    """Rows end and are taken out, and others join: each keeps its own states, to the last token."""
    model = make()
    corpus = written(model, tmp_path, num_rows, StateRecorder(model, TAPS))
    batch = batch_of(corpus)
    plain = TargetFeatures(model, TAPS)(batch)
    features = CountingPasses(model, TAPS, Setting(model, None, corpus, keep_states=True).cache)
    kept = features(batch)
    assert features.passes == 0
    for row, length in enumerate(batch.lengths.tolist()):
        for one, other in ((kept.features, plain.features), (kept.final, plain.final)):
            torch.testing.assert_close(one[row, :length], other[row, :length], atol=1e-4, rtol=1e-4)


def test_the_corpus_is_the_same_with_states_and_without(tmp_path: Path) -> None:
    model = tiny_models.tiny_llama()
    with_states = written(model, tmp_path / "with", 4, StateRecorder(model, TAPS))
    without = written(model, tmp_path / "without", 4, None)
    assert with_states.manifest == without.manifest
    assert [s.token_ids.tolist() for s in with_states] == [s.token_ids.tolist() for s in without]


def test_states_of_other_places_are_computed(tmp_path: Path) -> None:
    model = tiny_models.tiny_llama()
    corpus = written(model, tmp_path, 4, StateRecorder(model, (0,)))
    cache = Setting(model, None, corpus, keep_states=True).cache
    features = CountingPasses(model, (1,), cache)
    features(batch_of(corpus))
    assert features.passes == 1


def test_states_of_another_model_are_not_taken(tmp_path: Path) -> None:
    model = tiny_models.tiny_llama()
    corpus = written(model, tmp_path, 4, StateRecorder(model, TAPS))
    other = tiny_models.tiny_llama(seed=1)
    features = CountingPasses(other, TAPS, Setting(other, None, corpus, keep_states=True).cache)
    features(batch_of(corpus))
    assert features.passes == 1


def test_a_place_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ModelError, match="tap 9"):
        StateRecorder(tiny_models.tiny_llama(), (9,))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"taps": (1,)}, "ask for keep_states"),
        ({"keep_states": True, "answers": "keep", "prompts": "x.jsonl"}, "leave keep_states out"),
    ],
)
def test_states_that_nobody_would_keep_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DataPlan(**{"num_tokens": 10, **changes})


def test_buffers_grow_and_keep_what_they_hold() -> None:
    states, random = CohortStates(3), torch.Generator().manual_seed(0)
    rows = torch.randn(3, 400, 5, generator=random)
    states.add([0, 1, 2], 0, {4: rows[:, :2]})
    for i in range(2, 400):
        alive = [0, 2] if i > 130 else [0, 1, 2]
        states.add(alive, i, {4: rows[alive, i : i + 1]})
    assert torch.equal(states.take(1, 131)[4], rows[1, :131])
    assert torch.equal(states.take(2, 400)[4], rows[2])


def test_samples_without_a_reply_leave_no_gap(tmp_path: Path) -> None:
    """The states of those that are kept stand at their own numbers."""
    model = tiny_models.tiny_llama()
    short = replace(MIXTURE, max_user_tokens=2)  # most users do not come to an end

    def scripts(shard: int) -> list[Script]:
        return [conversation(FRAME, short, 5, row) for row in range(12)]

    writer = CorpusWriter(tmp_path, {"vocab_size": 97})
    generate_corpus(model, scripts, writer, 1, 5, recorder=StateRecorder(model, TAPS))
    corpus = Corpus(tmp_path)
    assert 0 < len(corpus) < 12
    features = CountingPasses(model, TAPS, Setting(model, None, corpus, keep_states=True).cache)
    kept, plain = features(batch_of(corpus)), TargetFeatures(model, TAPS)(batch_of(corpus))
    assert features.passes == 0
    torch.testing.assert_close(kept.final[0, :5], plain.final[0, :5], atol=1e-4, rtol=1e-4)
    last = len(corpus) - 1
    torch.testing.assert_close(kept.final[last, :5], plain.final[last, :5], atol=1e-4, rtol=1e-4)


def test_a_kill_leaves_no_shard_without_its_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in the manifest has its states; and states of a shard that never came do no harm."""
    model = tiny_models.tiny_llama()
    recorder = StateRecorder(model, TAPS)
    real = CorpusWriter.add_shard

    def killed(self: CorpusWriter, *args: Any, **notes: Any) -> None:
        if self.num_shards == 1:
            raise KeyboardInterrupt
        real(self, *args, **notes)

    monkeypatch.setattr(CorpusWriter, "add_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        written(model, tmp_path, 4, recorder)
    assert len(Corpus(tmp_path).manifest["shards"]) == 1
    assert recorder.shards_without(Corpus(tmp_path)) == 0
    monkeypatch.undo()
    assert recorder.shards_without(written(model, tmp_path, 4, recorder)) == 0


def test_shards_that_were_written_without_states_are_counted(tmp_path: Path) -> None:
    model = tiny_models.tiny_llama()
    corpus = written(model, tmp_path, 4, None)
    recorder = StateRecorder(model, TAPS)
    assert recorder.shards_without(corpus) == len(corpus.manifest["shards"])
    assert (
        StateRecorder(model, (0,)).shards_without(written(model, tmp_path / "kept", 4, recorder))
        == 0
    )
