"""The figures of quality: differences from plain decoding on the same prompts, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from foredraft.bench.folder import Run
from foredraft.bench.intervals import Floats, Interval, difference_interval, mean_interval, named
from foredraft.bench.pairing import same_turns
from foredraft.bench.plan import PLAIN
from foredraft.bench.quality.contexts import RootChoices
from foredraft.bench.quality.roots import emitted_law, total_variation
from foredraft.bench.quality.tasks import Task, is_right
from foredraft.bench.records import AnswerRecord
from foredraft.bench.scoring import Score, Scores
from foredraft.verifiers.multi_root import RootChoice

FIGURES: Mapping[str, Callable[[Score], float | None]] = {
    "greedy_agreement": lambda score: score.greedy,
    "log_prob": lambda score: score.log_prob,
    "tempered_log_prob": lambda score: score.tempered_log_prob,
}
"""Sums over an answer's tokens; each is reported per token."""


def answer_quality(run: Run, scores: Scores, method: str) -> dict[str, Any]:
    """What the target thinks of a method's tokens, and of plain decoding's on the same turns.

    Every figure is per emitted token: `greedy_agreement` the share that is the argmax of the target's law
    given the text before, `log_prob` by the raw law, `tempered_log_prob` at the request's temperature.
    `.._difference` is the method's less plain decoding's, and two-sided; prompts are resampled.
    """
    figures: dict[str, Any] = {}
    for name, read in FIGURES.items():
        mine, plain = _sums(run, scores, method, read)
        figures[name] = _per_token(mine)
        figures |= named(f"{name}_difference", _difference(mine, plain))
    return figures


def accuracy(run: Run, scores: Scores, method: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """The share of tasks that a method solves, and what plain decoding solves less, on the same tasks.

    A task counts where both answers are scored: what is not scored has no text to judge.
    """
    known = {task.id: task for task in tasks}
    pairs = []
    for record in run.records:
        answers = [record.of(name) for name in (method, PLAIN)]
        if all(answers) and record.id in known:
            found = [scores.of(answer[0]) for answer in answers]
            texts = [entry.text for entry in found if entry is not None]
            if len(texts) == len(found):
                pairs.append([is_right(known[record.id], text) for text in texts])
    solved = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return {
        "tasks": len(solved),
        "accuracy": float(solved[:, 0].mean()) if len(solved) else None,
        **named("accuracy_difference", mean_interval((solved[:, 0] - solved[:, 1]).tolist())),
    }


def root_quality(
    choices: Sequence[RootChoices], drafter: str, num_roots: int, roots: RootChoice
) -> dict[str, Any]:
    """The total variation of the emitted root's law from the target's: the mean over questions.

    Both are laws over the candidates; `tail` is the mean probability of all other tokens. Contexts of one
    question are averaged first, and questions are what is resampled.
    """
    mine = [found for found in choices if found.drafter == drafter]
    changes = _by_question(mine, lambda found: _change(found, num_roots, roots))
    tails = _by_question(mine, lambda found: found.tail)
    return {
        "contexts": len(mine),
        "questions": len(changes),
        **named("root_tv", mean_interval(changes)),
        "root_tv_tail": float(np.mean(tails)) if tails else None,
    }


def _by_question(
    choices: Sequence[RootChoices], read: Callable[[RootChoices], float]
) -> list[float]:
    """The mean of each question's contexts."""
    groups: dict[str, list[float]] = {}
    for found in choices:
        groups.setdefault(found.question, []).append(read(found))
    return [float(np.mean(values)) for values in groups.values()]


def _change(found: RootChoices, num_roots: int, roots: RootChoice) -> float:
    p = np.array(found.probs)
    p = p / p.sum()
    return total_variation(p, emitted_law(p, np.array(found.lengths), num_roots, roots))


def _sums(
    run: Run, scores: Scores, method: str, read: Callable[[Score], float | None]
) -> tuple[Floats, Floats]:
    """[2, P] sums and tokens of each prompt that a method and plain decoding answered, of either."""
    mine, plain = [], []
    for record in run.records:
        pairs = list(same_turns(record.of(method), record.of(PLAIN)))
        sides = [_total([pair[i] for pair in pairs], scores, read) for i in (0, 1)]
        if all(sides):
            mine.append(sides[0])
            plain.append(sides[1])
    return _columns(mine), _columns(plain)


def _total(
    answers: Sequence[AnswerRecord], scores: Scores, read: Callable[[Score], float | None]
) -> tuple[float, float] | None:
    """The sum and the tokens of a prompt's answers; None where one of them has no score."""
    found = [entry.score for answer in answers if (entry := scores.of(answer))]
    values = [value for score in found if (value := read(score)) is not None]
    if not answers or len(values) < len(answers):
        return None
    return sum(values), float(sum(score.tokens for score in found))


def _columns(sums: Sequence[Any]) -> Floats:
    return np.array(sums, dtype=np.float64).reshape(-1, 2).T


def _per_token(sums: Floats) -> float | None:
    return float(sums[0].sum() / sums[1].sum()) if sums.shape[1] else None


def _difference(mine: Floats, plain: Floats) -> Interval | None:
    def statistic(a: Any, tokens: Any, b: Any, others: Any, axis: int) -> Any:
        return a.sum(axis) / tokens.sum(axis) - b.sum(axis) / others.sum(axis)

    return difference_interval((*mine, *plain), statistic)
