"""What the target itself thinks of an answer: one teacher-forced pass over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.field import enter_field
from foredraft.bench.json_lines import JsonLines
from foredraft.bench.plan import BenchPlan
from foredraft.bench.records import Answer, AnswerRecord, digest
from foredraft.config import MAX_TREE_NODES, GenerationOptions
from foredraft.engine.load import Models
from foredraft.protocols import Target

SCORES = "scores.jsonl"


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over the tokens of one answer.

    Attributes:
        tokens: emitted tokens, the end token included.
        greedy: how many of them are the argmax of the target's law given the text before.
        log_prob: log p, in nats, by the target's raw law.
        tempered_log_prob: the same at the request's temperature; None when greedy.
    """

    tokens: int
    greedy: int
    log_prob: float
    tempered_log_prob: float | None


def score_answer(
    target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float
) -> Score:
    """Score an answer under the target, in one pass where it has no more than `MAX_TREE_NODES` tokens.

    Args:
        target: the model that judges, whose cache and masks are those of decoding.
        prompt_ids: [P] the prompt, at least one token.
        token_ids: [T] the answer.
        temperature: of the request.
    """
    parts = []
    state = target.start(len(prompt_ids) + len(token_ids))
    try:
        state.prefill(prompt_ids[:-1])
        inputs = [prompt_ids[-1], *token_ids[:-1]]
        for start in range(0, len(token_ids), MAX_TREE_NODES):
            rows = inputs[start : start + MAX_TREE_NODES]
            logits = state.score(rows, range(-1, len(rows) - 1))
            parts.append(_sums(logits, token_ids[start : start + len(rows)], temperature))
            state.commit(range(len(rows)))
    finally:
        state.close()
    greedy, raw, tempered = (sum(values) for values in zip(*parts, strict=True))
    return Score(len(token_ids), int(greedy), raw, tempered if temperature > 0 else None)


def _sums(logits: Tensor, token_ids: Sequence[int], temperature: float) -> tuple[int, float, float]:
    """Argmax hits, and sums of log p raw and tempered, of tokens [T] after logits [T, V]."""
    scores = logits.float()
    tokens = torch.tensor(token_ids, device=scores.device)[:, None]
    hits = int((scores.argmax(-1, keepdim=True) == tokens).sum())
    raw = float(scores.log_softmax(-1).gather(-1, tokens).double().sum())
    if temperature == 0:
        return hits, raw, 0.0
    tempered = (scores / temperature).log_softmax(-1).gather(-1, tokens)
    return hits, raw, float(tempered.double().sum())


# --- scores beside a run -----------------------------------------------------------------------------

Key = tuple[str, str]
"""Digests of the prompt and of the answer: a score depends on nothing else of a run."""


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """An answer's text and score, found by its tokens."""

    prompt: str
    answer: str
    text: str
    score: Score

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> ScoredAnswer:
        """What `asdict` gave."""
        return cls(**{**document, "score": Score(**document["score"])})


class Scores:
    """The scores of a run's answers, in a file beside its records; each answer is scored once."""

    def __init__(self, folder: Path) -> None:
        self._lines = JsonLines(folder / SCORES, "a score of an answer", "the answer has none")
        self._known = {
            (entry.prompt, entry.answer): entry
            for entry in self._lines.read(ScoredAnswer.from_dict)
        }

    def keep(
        self,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
        make: Callable[[], tuple[str, Score]],
    ) -> None:
        """Score an answer unless it is known; `make` gives its text and score."""
        key = digest(prompt_ids), digest(token_ids)
        if key in self._known:
            return
        entry = ScoredAnswer(*key, *make())
        self._lines.append(asdict(entry))
        self._known[key] = entry

    def of(self, answer: AnswerRecord) -> ScoredAnswer | None:
        """The score of a recorded answer; None where the file has none."""
        return self._known.get((answer.prompt, answer.digest))


class ScoredContender(EngineContender):
    """A method whose answers are scored after their time was taken."""

    def __init__(self, inner: EngineContender, scores: Scores) -> None:
        super().__init__(inner.name, inner.engine)
        self._scores = scores

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        """The whole answer; its statistics know nothing of the scoring."""
        answer = super().answer(prompt_ids, options)
        engine, ids = self.engine, answer.token_ids

        def score() -> tuple[str, Score]:
            found = score_answer(engine.target, prompt_ids, ids, options.temperature)
            return engine.decode(ids), found

        self._scores.keep(prompt_ids, ids, score)
        return answer


def enter_scored(scores: Scores) -> Callable[..., list[Contender]]:
    """`enter_field`, with every method of this project scored; for `BenchRun`."""

    def enter(
        plan: BenchPlan,
        models: Models,
        note: Callable[[str], None],
        report: Callable[[str], None],
    ) -> list[Contender]:
        return [
            ScoredContender(contender, scores)
            if isinstance(contender, EngineContender)
            else contender
            for contender in enter_field(plan, models, note, report)
        ]

    return enter
