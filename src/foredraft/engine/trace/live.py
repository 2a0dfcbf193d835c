"""Rounds of one answer, told while it is made."""

from __future__ import annotations

from typing import Any

from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine
from foredraft.engine.prompts import Prompt
from foredraft.engine.stream import Stream
from foredraft.engine.trace.names import TokenNames
from foredraft.engine.trace.rounds import read_round
from foredraft.engine.trace.shown import TraceRound, show_round
from foredraft.engine.trace.watch import Watch, traceable, watched
from foredraft.results import Step


class LiveTrace:
    """One answer that is traced: the same tokens and passes as `engine.stream` has.

    Args:
        engine: answers, and is `traceable`; it is not changed.
        options: the request.
        names: of the engine's tokens.
    """

    def __init__(self, engine: Engine, options: GenerationOptions, names: TokenNames) -> None:
        assert traceable(engine)
        self._engine, self._options, self._names = engine, options, names
        self._watch, self._incoming = Watch(), engine.incremental_text()
        self._ahead = 0  # characters that tokens were said to add and the answer does not have yet

    def stream(self, prompt: Prompt, **changes: Any) -> Stream:
        """The stream, called once. Its passes are of the engine's own target, so it may join a batch of it.

        Args:
            prompt: as in `Engine.stream`.
            **changes: likewise, but for the temperature.

        Raises:
            ConfigError, PromptError: as in `Engine.stream`.
        """
        stream = watched(self._engine, self._watch).stream(prompt, self._options, **changes)
        stream.target = self._engine.target
        return stream

    def read(self, stream: Stream, step: Step) -> TraceRound:
        """The round of a step; called once for each, before the next one is asked for."""
        seen = read_round(step, self._watch.take(), self._options.temperature)
        return show_round(seen, stream.last_round, self._texts(step), self._names)

    def _texts(self, step: Step) -> list[str]:
        """[T] what each token adds to the answer.

        At the answer's end they are held to its text: what a stop string cuts off there is left out, and
        what no token completed goes to the last one.
        """
        texts = [self._incoming.push([token]) for token in step.token_ids]
        room = len(step.text) - self._ahead
        self._ahead = sum(map(len, texts)) - room
        if step.finish_reason is None:
            return texts
        for index, text in enumerate(texts):
            texts[index] = text[: max(room, 0)]
            room -= len(texts[index])
        texts[-1] += step.text[len(step.text) - room :] if room > 0 else ""
        return texts
