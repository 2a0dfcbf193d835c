"""Scores of answers under the target, against one-by-one decoding."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from foredraft.backends.table import TableModel
from foredraft.bench import scoring
from foredraft.bench.contenders import EngineContender
from foredraft.bench.records import record_of
from foredraft.bench.scoring import SCORES, ScoredContender, Scores, score_answer
from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError

PROMPT = [1, 2, 0]
TARGET = TableModel.random(5, order=2, seed=4)


def answer(temperature: float, tokens: int = 9) -> tuple[int, ...]:
    options = GenerationOptions(max_new_tokens=tokens, temperature=temperature, seed=1)
    return Engine(TARGET).generate(PROMPT, options).token_ids


@pytest.mark.parametrize("chunk", [512, 4])
def test_sums_are_those_of_one_token_at_a_time(chunk: int) -> None:
    ids = answer(1.0)
    with patch.object(scoring, "MAX_TREE_NODES", chunk):
        score = score_answer(TARGET, PROMPT, ids, 0.5)
    raw = tempered = hits = 0.0
    for i, token in enumerate(ids):
        logits = TARGET.logits_after([*PROMPT, *ids[:i]])
        raw += float(logits.log_softmax(-1)[token])
        tempered += float((logits / 0.5).log_softmax(-1)[token])
        hits += int(logits.argmax()) == token
    assert (score.tokens, score.greedy) == (9, hits)
    assert score.log_prob == pytest.approx(raw, abs=1e-4)  # float32
    assert score.tempered_log_prob == pytest.approx(tempered, abs=1e-4)


def test_greedy_answers_agree_with_greedy_everywhere() -> None:
    score = score_answer(TARGET, PROMPT, answer(0.0), 0.0)
    assert score.greedy == score.tokens
    assert score.tempered_log_prob is None


def test_answers_are_scored_once_and_found_by_their_tokens(tmp_path: Path) -> None:
    contender = ScoredContender(EngineContender("plain", Engine(TARGET)), Scores(tmp_path))
    options = GenerationOptions(max_new_tokens=6, temperature=1.0, seed=1)
    given = [contender.answer(PROMPT, options) for _ in range(2)]
    assert len((tmp_path / SCORES).read_text().splitlines()) == 1
    record = record_of("plain", 0, PROMPT, "n/a", given)
    found = Scores(tmp_path).of(record)
    assert found is not None
    assert found.score == score_answer(TARGET, PROMPT, given[0].token_ids, 1.0)
    assert Scores(tmp_path).of(record_of("plain", 0, [1], "n/a", given)) is None


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / SCORES).write_text("{}\n")
    with pytest.raises(ConfigError, match=r"line 1 is not a score of an answer"):
        Scores(tmp_path)
