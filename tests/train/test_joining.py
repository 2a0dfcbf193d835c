"""Several corpora as one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from foredraft.cli.main import app
from foredraft.errors import ConfigError, DataError
from foredraft.train import joining
from foredraft.train.corpus import MANIFEST, Corpus, CorpusWriter, Sample
from foredraft.train.joining import join_corpora
from foredraft.train.state_cache import STATES, ShardTokens, StateCache


def _corpus(folder: Path, firsts: list[int], **facts: object) -> Path:
    """A corpus of one shard for each of `firsts`, two samples each."""
    writer = CorpusWriter(folder, {"vocab_size": 300, "model": "toy", "answers": "keep", **facts})
    for first in firsts:
        ids = np.arange(first, first + 6)
        writer.add_shard([Sample(ids, ((2, 4), (5, 6))), Sample(ids[:3] + 50, ((1, 3),))])
    return folder


def _texts(corpus: Corpus) -> list[tuple[list[int], tuple[tuple[int, int], ...]]]:
    return [(sample.token_ids.tolist(), sample.spans) for sample in corpus]


def test_holds_all_samples_in_order(tmp_path: Path) -> None:
    parts = [
        _corpus(tmp_path / "a", [1, 9], seed=0),
        _corpus(tmp_path / "b", [20], seed=1),
        _corpus(tmp_path / "c", [30, 40], seed=2),
    ]
    join_corpora(parts, tmp_path / "whole")
    whole = Corpus(tmp_path / "whole")
    assert _texts(whole) == [text for part in parts for text in _texts(Corpus(part))]
    assert whole.num_tokens == sum(Corpus(part).num_tokens for part in parts)
    assert whole.num_labelled == sum(Corpus(part).num_labelled for part in parts)
    assert [made["seed"] for made in whole.manifest["joined"]] == [0, 1, 2]
    assert whole.manifest["model"] == "toy"


def test_shards_keep_what_names_their_states(tmp_path: Path) -> None:
    a, b = _corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [20])
    join_corpora([a, b], tmp_path / "whole")
    parts = [shard.digest for part in (a, b) for shard in ShardTokens.all_of(Corpus(part))]
    assert [s.digest for s in ShardTokens.all_of(Corpus(tmp_path / "whole"))] == parts


@pytest.mark.parametrize("links", [True, False])
def test_hidden_states_go_with_their_shards(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(errno.EXDEV, "another disk")

    def cache(folder: Path) -> StateCache:
        shards = ShardTokens.all_of(Corpus(folder))
        return StateCache(folder / STATES, {"weights": "w"}, shards, 4, torch.float32)

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    parts = [_corpus(tmp_path / "a", [1, 9]), _corpus(tmp_path / "b", [20])]
    count, length = torch.arange(4), torch.tensor([6, 3, 6, 3])
    states = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(0))
    cache(parts[0]).write(7, count, length, states)  # the other has none
    join_corpora(parts, tmp_path / "whole")
    whole = cache(tmp_path / "whole")
    assert whole.has([7], count, length)
    assert not whole.has([7], torch.tensor([4]), torch.tensor([6]))
    assert torch.equal(whole.read(7, count[:1], length[:1])[0], states[0])
    files = [next(folder.glob("states/*/*.states")) for folder in (parts[0], tmp_path / "whole")]
    assert files[0].samefile(files[1]) == links


def test_joining_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that are linked already are no hindrance."""
    parts = [_corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [20])]
    shards = ShardTokens.all_of(Corpus(parts[0]))
    StateCache(parts[0] / STATES, {}, shards, 4, torch.float32).reserve([7])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(joining, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        join_corpora(parts, tmp_path / "whole")
    monkeypatch.undo()
    join_corpora(parts, tmp_path / "whole")
    assert len(Corpus(tmp_path / "whole")) == 4


def test_a_name_that_differs_is_left_out(tmp_path: Path) -> None:
    a = _corpus(tmp_path / "a", [1])
    b = _corpus(tmp_path / "b", [2], model="tox", answers="generate")
    manifest = join_corpora([a, b], tmp_path / "whole")
    assert "model" not in manifest
    assert "answers" not in manifest


@pytest.mark.parametrize(
    ("name", "value"), [("vocab_size", 301), ("tokenizer", "other"), ("end_ids", [7])]
)
def test_corpora_of_different_tokenizers_are_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    a, b = _corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [2], **{name: value})
    with pytest.raises(ConfigError, match=f"{name}="):
        join_corpora([a, b], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_the_same_questions_are_refused(tmp_path: Path) -> None:
    made = {"answers": "generate", "weights": "w"}
    a = _corpus(tmp_path / "a", [1], seed=3, **made)
    b = _corpus(tmp_path / "b", [2], seed=3, more_turns=0.1, **made)
    other = _corpus(tmp_path / "other", [3], seed=4, **made)
    with pytest.raises(ConfigError, match="another --seed"):
        join_corpora([a, b], tmp_path / "whole")
    join_corpora([a, other], tmp_path / "two")
    with pytest.raises(ConfigError, match="another --seed"):
        join_corpora([tmp_path / "two", b], tmp_path / "whole")


def test_the_same_conversations_are_refused(tmp_path: Path) -> None:
    a, b = _corpus(tmp_path / "a", [1, 5]), _corpus(tmp_path / "b", [7, 5], prompts="p")
    with pytest.raises(ConfigError, match="same conversations"):
        join_corpora([a, b], tmp_path / "whole")
    with pytest.raises(ConfigError, match="same conversations"):
        join_corpora([a, a], tmp_path / "whole")


def test_refuses_a_folder_that_holds_a_corpus(tmp_path: Path) -> None:
    a, b = _corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [2])
    with pytest.raises(ConfigError, match="holds a corpus already"):
        join_corpora([a, b], b)
    assert len(Corpus(b)) == 2


def test_refuses_one_corpus_and_no_corpus(tmp_path: Path) -> None:
    a = _corpus(tmp_path / "a", [1])
    with pytest.raises(ConfigError, match="two corpora"):
        join_corpora([a], tmp_path / "whole")
    with pytest.raises(DataError, match="holds no corpus"):
        join_corpora([a, tmp_path / "nothing"], tmp_path / "whole")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    a, b = _corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [2])
    (b / "shard-00000.safetensors").unlink()
    command = ["data", "join", str(a), str(b), "--out", str(tmp_path / "whole")]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert result.exit_code == 1
    assert "shard-00000.safetensors" in result.output
    assert "Traceback" not in result.output


def test_command(tmp_path: Path) -> None:
    a, b = _corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [2])
    whole = tmp_path / "whole"
    result = CliRunner().invoke(app, ["data", "join", str(a), str(b), "--out", str(whole)])
    assert result.exit_code == 0, result.output
    assert "18" in result.output  # tokens
    assert len(json.loads((whole / MANIFEST).read_text())["shards"]) == 2
    again = CliRunner().invoke(app, ["data", "join", str(a), str(b), "--out", str(whole)])
    assert again.exit_code != 0


def test_shards_without_a_sample_repeat_nothing(tmp_path: Path) -> None:
    """A shard of which every conversation was dropped is like any other such shard."""
    a, b = _corpus(tmp_path / "a", [1]), _corpus(tmp_path / "b", [2])
    for folder in (a, b):
        facts = {"vocab_size": 300, "model": "toy", "answers": "keep"}
        CorpusWriter(folder, facts).add_shard([], dropped=8)
    join_corpora([a, b], tmp_path / "whole")
    assert len(Corpus(tmp_path / "whole")) == 4
