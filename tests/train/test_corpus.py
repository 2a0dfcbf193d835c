"""A corpus gives back what was written, is continued by the plan that made it alone, and survives a kill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import ConfigError, DataError
from foredraft.train.corpus import MANIFEST, Corpus, CorpusWriter, Sample

FACTS = {"vocab_size": 1000, "seed": 3}


@st.composite
def conversations(draw: st.DrawFn) -> Sample:
    ids = draw(st.lists(st.integers(0, 999), min_size=1, max_size=30))
    cuts = draw(st.lists(st.integers(0, len(ids)), max_size=6, unique=True).map(sorted))
    spans = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    return Sample(np.array(ids), spans)


def same(a: Sample, b: Sample) -> bool:
    return a.token_ids.tolist() == b.token_ids.tolist() and a.spans == b.spans


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(conversations(), max_size=5), max_size=4))
def test_it_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[Sample]]
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    writer = CorpusWriter(folder, FACTS)
    for shard in shards:
        writer.add_shard(shard)
    written = [sample for shard in shards for sample in shard]
    corpus = Corpus(folder)
    assert len(corpus) == len(written)
    assert all(map(same, corpus, written))
    assert corpus.lengths.tolist() == [len(s.token_ids) for s in written]
    assert corpus.num_tokens == sum(len(s.token_ids) for s in written)
    assert corpus.num_labelled == sum(stop - first for s in written for first, stop in s.spans)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_the_smallest_dtype_that_holds_the_vocabulary(
    tmp_path: Path, vocab_size: int, dtype: type
) -> None:
    writer = CorpusWriter(tmp_path, {"vocab_size": vocab_size})
    writer.add_shard([Sample(np.array([0, vocab_size - 1]), ((1, 2),))])
    sample = Corpus(tmp_path)[0]
    assert sample.token_ids.dtype == dtype
    assert sample.token_ids.tolist() == [0, vocab_size - 1]


def test_a_shard_that_the_manifest_does_not_name_is_written_again(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, FACTS).add_shard([Sample(np.array([1, 2]), ((0, 1),))])
    (tmp_path / "shard-00001.safetensors").write_bytes(b"half a shard")  # a kill in between
    writer = CorpusWriter(tmp_path, FACTS)
    assert writer.num_shards == 1
    writer.add_shard([Sample(np.array([3]), ())])
    assert [s.token_ids.tolist() for s in Corpus(tmp_path)] == [[1, 2], [3]]


def test_another_plan_is_refused_with_the_difference(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, FACTS).add_shard([Sample(np.array([1, 2]), ((0, 1),))])
    with pytest.raises(ConfigError, match=r"seed=3, and this is seed=4"):
        CorpusWriter(tmp_path, {**FACTS, "seed": 4})
    with pytest.raises(ConfigError, match=r"batch=None, and this is batch=8"):
        CorpusWriter(tmp_path, {**FACTS, "batch": 8})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}'])
def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(DataError, match="foredraft data generate"):
        Corpus(tmp_path)
    with pytest.raises(DataError, match="foredraft data generate"):
        Corpus(tmp_path / "missing")


def test_a_shard_that_is_damaged_is_an_error_that_names_it(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, FACTS).add_shard([Sample(np.array([1]), ())])
    (tmp_path / "shard-00000.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"shard-00000\.safetensors is no shard"):
        Corpus(tmp_path)[0]
    with pytest.raises(IndexError):
        Corpus(tmp_path)[1]


def test_a_manifest_without_what_readers_ask_for_is_an_error(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, FACTS).add_shard([Sample(np.array([1]), ())])
    whole = json.loads((tmp_path / MANIFEST).read_text())
    entry = whole["shards"][0]
    for part in (
        {k: v for k, v in whole.items() if k != "shards"},
        {**whole, "vocab_size": "x"},
        {**whole, "shards": [{k: v for k, v in entry.items() if k != "name"}]},
        {**whole, "shards": [{**entry, "samples": None}]},
    ):
        (tmp_path / MANIFEST).write_text(json.dumps(part))
        with pytest.raises(DataError, match="parts of it are missing"):
            Corpus(tmp_path)


@pytest.mark.parametrize("span", [(-1, 1), (0, 4), (2, 1)])
def test_spans_outside_their_sample_are_an_error(tmp_path: Path, span: tuple[int, int]) -> None:
    CorpusWriter(tmp_path, FACTS).add_shard([Sample(np.array([1, 2, 3]), (span,))])
    with pytest.raises(DataError, match="does not hold 1 samples"):
        Corpus(tmp_path)[0]


def test_a_shard_of_other_samples_than_the_manifest_says_is_an_error(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, FACTS).add_shard([Sample(np.array([1]), ())])
    text = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(text.replace('"samples": 1', '"samples": 2'))
    with pytest.raises(DataError, match="does not hold 2 samples"):
        len(Corpus(tmp_path).lengths)
