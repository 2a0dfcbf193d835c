"""Holds every answer against plain decoding's (design, section 4.7)."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.bench.contenders import Contender, EngineContender
from foredraft.bench.records import Answer
from foredraft.config import GenerationOptions
from foredraft.engine.agreement import Agreement, compare_ids, first_difference
from foredraft.engine.engine import Engine

RANK = {"n/a": 0, "yes": 1, "tie": 2, "bug": 3}
"""Of several judgements the worst one stands."""


class Judge:
    """Judges the answers to one prompt. A difference that several contenders share is measured once.

    Args:
        engine: plain decoding; its passes measure the noise.
        prompt_ids: the prompt.
        plain_ids: plain decoding's answer.
        options: the request, with its seed if it was sampled.
    """

    def __init__(
        self,
        engine: Engine,
        prompt_ids: Sequence[int],
        plain_ids: Sequence[int],
        options: GenerationOptions,
    ) -> None:
        self._engine, self._prompt_ids = engine, prompt_ids
        self._plain_ids, self._options = plain_ids, options
        self._known: dict[tuple[int, ...], Agreement] = {}

    def judge(self, contender: Contender, answers: Sequence[Answer]) -> str:
        """The worst judgement over a contender's repeats."""
        if not self._must_agree(contender):
            return "n/a"
        judged = [self._compare(answer.token_ids) for answer in answers]
        return str(max(judged, key=lambda agreement: RANK[agreement.kind]))

    def _must_agree(self, contender: Contender) -> bool:
        """Whether the answer ought to be plain decoding's, token for token."""
        if contender.comparable is not None:
            return False
        if self._options.temperature == 0:
            return True
        return isinstance(contender, EngineContender) and contender.engine.keeps_seeds

    def _compare(self, token_ids: tuple[int, ...]) -> Agreement:
        until = first_difference(self._plain_ids, token_ids) + 1  # what follows does not matter
        key = token_ids[:until]
        if key not in self._known:
            self._known[key] = compare_ids(
                self._engine, self._prompt_ids, self._plain_ids, token_ids, self._options
            )
        return self._known[key]
