"""What takes part in a benchmark: a method of this project, or a peer behind an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foredraft.bench.records import Answer
from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine


class Contender(Protocol):
    """One way of answering prompts. All get the same token ids, options and stop rules."""

    @property
    def name(self) -> str:
        """As named on the command line, options included."""
        ...

    @property
    def comparable(self) -> str | None:
        """None when its greedy answers must be plain decoding's own; otherwise why they need not be."""
        ...

    def refuse(self, options: GenerationOptions) -> str | None:
        """Why it cannot answer with these options; None when it can."""
        ...

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        """Answer one prompt. `options.seed` is set when sampling."""
        ...

    def close(self) -> None:
        """Give memory back and undo whatever was attached to shared models."""
        ...


LOSSY = "it changes the target's law (lossless: no)"
"""Why answers of a lossy method need not be plain decoding's."""


class EngineContender:
    """A method of this project."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.comparable: str | None = None if self.lossless else LOSSY

    @property
    def lossless(self) -> bool:
        """Whether its answers follow the target's law."""
        return self.engine.lossless

    def refuse(self, options: GenerationOptions) -> str | None:
        """Every option is an engine's own."""
        return None

    def answer(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Answer:
        """The whole answer."""
        result = self.engine.generate(list(prompt_ids), options)
        return Answer(result.token_ids, result.stats)

    def close(self) -> None:
        """An engine owns nothing between requests."""
