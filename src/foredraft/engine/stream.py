"""The steps of one answer as they come."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from foredraft.engine.decoder import decode
from foredraft.engine.session import Session
from foredraft.errors import ConfigError
from foredraft.protocols import Company, Target, Verifier
from foredraft.results import (
    Result,
    RoundRecord,
    Statistics,
    Step,
    TokenLogprob,
    collect,
    count,
)


class Stream:
    """The steps of one answer. Iterate; then `result()`. Closing it early frees the session."""

    def __init__(
        self,
        session: Session,
        target: Target,
        verifier: Verifier,
        prompt_ids: Sequence[int],
        seed: int | None,
        started: float,
    ) -> None:
        self.target = target
        self._session, self._prompt_ids, self._seed = session, prompt_ids, seed
        self._started, self._ttft_s = started, 0.0
        self._steps: list[Step] = []
        self._rounds = decode(session, verifier)
        self._turn = threading.RLock()  # whoever runs the rounds, or ends them

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        try:
            with self._turn:
                step = next(self._rounds)
        finally:
            if not self._session.goes_on:
                self._free()
        if not self._steps:
            self._ttft_s = time.perf_counter() - self._started
        self._steps.append(step)
        return step

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete."""
        return self._session.finish_reason is not None

    def share(self, company: Company) -> None:
        """The next round's passes are shared with these; see `Batch`."""
        self._session.join(company)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop decoding and free the session; does nothing after the last step.

        While another thread waits for a step, the round in progress ends first, and frees it there.
        """
        self._session.cancel()
        self._free()

    def _free(self) -> None:
        """End the rounds, unless one is in progress: who runs it does this when it has ended."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(ValueError):  # a round of this very thread is in progress
                self._rounds.close()  # type: ignore[attr-defined]
                self._session.close()
        finally:
            self._turn.release()

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...]:
        """Of the prompt's tokens, from the first step on; empty if they were not asked for."""
        return self._session.prompt_logprobs

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds so far."""
        return tuple(self._session.rounds)

    @property
    def last_round(self) -> RoundRecord:
        """The round of the last step."""
        return self._session.rounds[-1]

    @property
    def prefill_s(self) -> float:
        """Seconds that the prompt took; 0 before the first step."""
        return self._session.prefill_s

    @property
    def stats(self) -> Statistics:
        """The statistics of the steps so far, of an answer that is closed early too."""
        return count(
            self._steps,
            self._session.rounds[: len(self._steps)],
            prompt_tokens=len(self._prompt_ids),
            prefill_s=self._session.prefill_s,
            ttft_s=self._ttft_s,
            cached_prompt_tokens=self._session.cached_prompt_tokens,
        )

    def result(self) -> Result:
        """The answer, once every step was taken."""
        if self._session.finish_reason is None:
            raise ConfigError(
                "the answer is not finished; iterate over the stream to its end first"
            )
        return collect(
            self._steps,
            self._session.rounds,
            prompt_ids=self._prompt_ids,
            seed=self._seed,
            prefill_s=self._session.prefill_s,
            ttft_s=self._ttft_s,
            prompt_logprobs=self.prompt_logprobs,
            cached_prompt_tokens=self._session.cached_prompt_tokens,
        )
