"""What a benchmark keeps of every finished prompt, and its JSON form.

Nothing derived is stored: rounds are kept as they were counted and timed, and every figure is computed
from them afterwards, by this version's definitions and by any cost table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.results import RoundRecord, Statistics

TIME_DIGITS = 7
"""Seconds are stored to 0.1 microseconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one contender.

    The rounds of peers begin after their first token: it comes out of the prefill pass, so it counts
    neither as decoded token nor as decoding time.
    """

    token_ids: tuple[int, ...]
    """Emitted tokens, all of them."""
    stats: Statistics


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What is kept of a contender's answers to one turn."""

    method: str
    turn: int
    """0 for the first turn of the conversation."""
    prompt: str
    """A hash of the prompt's token ids: answers are compared across runs where it is the same."""
    identical: str
    """`yes`, `tie at token k`, `bug at token k` or `n/a`, against plain decoding."""
    digest: str
    """A hash of the token ids: equal answers have equal digests."""
    num_tokens: int
    decode_s: tuple[float, ...]
    """[R] decode seconds of every repeat."""
    stats: Statistics
    """Of the repeat with the median decode time (of an even number, the lower one)."""


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """A finished prompt: every contender's answers to each of its turns."""

    suite: str
    id: str
    category: str
    answers: tuple[AnswerRecord, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What a resumed run knows it by."""
        return self.suite, self.id

    def of(self, method: str) -> tuple[AnswerRecord, ...]:
        """The answers of one method, turn by turn; empty when it was not run."""
        return tuple(a for a in self.answers if a.method == method)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "suite": self.suite,
            "id": self.id,
            "category": self.category,
            "answers": [_answer_as_dict(answer) for answer in self.answers],
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PromptRecord:
        """What `as_dict` gave."""
        answers = tuple(_answer(entry) for entry in document["answers"])
        return cls(document["suite"], document["id"], document["category"], answers)


def record_of(
    method: str, turn: int, prompt_ids: Sequence[int], identical: str, repeats: Sequence[Answer]
) -> AnswerRecord:
    """What is kept of a turn's repeated answers."""
    by_time = sorted(repeats, key=lambda answer: answer.stats.decode_s)
    median = by_time[(len(by_time) - 1) // 2]
    return AnswerRecord(
        method=method,
        turn=turn,
        prompt=digest(prompt_ids),
        identical=identical,
        digest=digest(median.token_ids),
        num_tokens=len(median.token_ids),
        decode_s=tuple(answer.stats.decode_s for answer in repeats),
        stats=median.stats,
    )


def digest(token_ids: Sequence[int]) -> str:
    """A short hash of token ids."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def _answer_as_dict(answer: AnswerRecord) -> dict[str, Any]:
    return {
        "method": answer.method,
        "turn": answer.turn,
        "prompt": answer.prompt,
        "identical": answer.identical,
        "digest": answer.digest,
        "num_tokens": answer.num_tokens,
        "decode_s": [round(seconds, TIME_DIGITS) for seconds in answer.decode_s],
        "stats": _statistics_as_dict(answer.stats),
    }


def _answer(entry: dict[str, Any]) -> AnswerRecord:
    return AnswerRecord(
        method=entry["method"],
        turn=entry["turn"],
        prompt=entry["prompt"],
        identical=entry["identical"],
        digest=entry["digest"],
        num_tokens=entry["num_tokens"],
        decode_s=tuple(entry["decode_s"]),
        stats=_statistics(entry["stats"]),
    )


def _statistics_as_dict(stats: Statistics) -> dict[str, Any]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "loop_tokens": stats.loop_tokens,
        "prefill_s": round(stats.prefill_s, TIME_DIGITS),
        "ttft_s": round(stats.ttft_s, TIME_DIGITS),
        "stages": list(stats.stages),
        "in_loop": "".join(str(int(flag)) for flag in stats.in_loop),
        "rounds": [_round_as_list(r) for r in stats.rounds],
        **({"cached_prompt_tokens": cached} if (cached := stats.cached_prompt_tokens) else {}),
    }


def _statistics(entry: dict[str, Any]) -> Statistics:
    return Statistics(
        rounds=tuple(_round(values) for values in entry["rounds"]),
        prompt_tokens=entry["prompt_tokens"],
        in_loop=tuple(flag == "1" for flag in entry["in_loop"]),
        loop_tokens=entry["loop_tokens"],
        prefill_s=entry["prefill_s"],
        ttft_s=entry["ttft_s"],
        stages=tuple(entry["stages"]),
        cached_prompt_tokens=entry.get("cached_prompt_tokens", 0),
    )


def _round_as_list(r: RoundRecord) -> list[Any]:
    """[context, widths, draft rows, accepted, emitted, cut, draft, target, verify and total seconds].

    Passes of the target follow where they are not 1.
    """
    times = (round(s, TIME_DIGITS) for s in (r.draft_s, r.target_s, r.verify_s, r.total_s))
    counts = (r.num_accepted, r.num_emitted, int(r.cut))
    passes = () if r.target_passes == 1 else (r.target_passes,)
    return [r.context, list(r.widths), list(r.draft_rows), *counts, *times, *passes]


def _round(values: list[Any]) -> RoundRecord:
    context, widths, draft_rows, accepted, emitted, cut, *rest = values
    return RoundRecord(
        context, tuple(widths), tuple(draft_rows), accepted, emitted, bool(cut), *rest
    )
