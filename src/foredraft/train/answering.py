"""Users' conversations on their way into a corpus: prompts that the target answers, or kept replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from foredraft.errors import ConfigError, DataError
from foredraft.train.conversations import LabelledTokens, Labeller, Tally
from foredraft.train.corpus import CorpusWriter, Sample
from foredraft.train.scripts import Given, Mixture, Script, answers
from foredraft.train.sources import Conversation, Source
from foredraft.train.templates import ChatFrame, prompts_of_turns

KEPT_PER_SHARD = 2048
"""Conversations that a shard of kept replies is made from."""


class Prompter:
    """The scripts of each batch: a batch answers the next conversations of a source.

    Called with batch numbers that only increase, so the source is read once, and is never held whole.
    """

    def __init__(
        self,
        tokenizer: Any,
        source: Source,
        frame: ChatFrame,
        mixture: Mixture,
        seed: int,
        batch: int,
    ) -> None:
        self._tokenizer, self._frame, self._mixture = tokenizer, frame, mixture
        self._seed, self._batch = seed, batch
        self._numbered = enumerate(source)
        self._next = 0

    def __call__(self, batch: int) -> list[Script] | None:
        """The scripts of a batch, or None behind the last conversation.

        Raises:
            DataError: a row of the source is of no known form.
            ConfigError: the chat template refuses a conversation.
        """
        skipped = (batch - self._next) * self._batch
        chosen = list(islice(self._numbered, skipped, skipped + self._batch))
        self._next = batch + 1
        return [self._script(number, said) for number, said in chosen] or None

    def _script(self, number: int, said: Conversation) -> Script:
        users = [turn.user for turn in said.turns]
        try:
            prompts = prompts_of_turns(self._tokenizer, users, said.system)
        except ConfigError as error:
            raise ConfigError(f"{said.place}: {error}") from error
        if len(prompts[0]) >= self._mixture.max_length:
            return _unanswered(prompts[0][0])
        return answers(self._frame, prompts, self._mixture, self._seed, number)


def _unanswered(token_id: int) -> Script:
    """A conversation that leaves no room for a reply: it is begun, and gives nothing."""
    yield Given(token_id)
    return None


class Keeper:
    """Replies as they are given, labelled and cut to the length limit."""

    def __init__(self, tokenizer: Any, source: Source, max_length: int) -> None:
        """Errors as in `Labeller`."""
        self._labeller = Labeller(tokenizer)
        self._source, self._max_length = source, max_length

    def write(
        self,
        writer: CorpusWriter,
        num_tokens: int | None,
        report: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        """Add shards until there are `num_tokens`, or to the end of the source; what is there is kept.

        Raises:
            DataError: a row of the source is of no known form, or has no reply.
            ConfigError: the chat template does not tell which tokens of a conversation are replies.
        """
        rows = iter(self._source)
        if writer.num_shards:
            skipped = writer.num_shards * KEPT_PER_SHARD
            next(islice(rows, skipped, skipped), None)
        while num_tokens is None or writer.num_tokens < num_tokens:
            chosen = list(islice(rows, KEPT_PER_SHARD))
            if not chosen:
                return
            tally = Tally(self._max_length)
            samples = list(self._fitting(chosen, tally, report))
            writer.add_shard(samples, dropped=tally.dropped, truncated=tally.truncated)

    def _fitting(
        self, chosen: list[Conversation], tally: Tally, report: Callable[[int], None]
    ) -> Iterator[Sample]:
        for said in chosen:
            for sample in self._label(said):
                kept = tally.fit(sample)
                if kept is not None:
                    report(len(kept.token_ids))
                    yield Sample(np.array(kept.token_ids, np.int64), kept.spans)

    def _label(self, said: Conversation) -> list[LabelledTokens]:
        if said.turns[0].reply is None:
            raise DataError(
                f"{said.place} has no reply that could be kept; give one, or have the model answer"
            )
        try:
            return self._labeller.label(said.messages())
        except ConfigError as error:
            raise ConfigError(f"{said.place}: {error}") from error
