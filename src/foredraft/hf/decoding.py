"""One call of `generate`: its rows decode side by side, and become what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from foredraft.config import GenerationOptions
from foredraft.engine.batch import run_streams
from foredraft.engine.engine import Engine
from foredraft.engine.stream import Stream
from foredraft.hf.columns import Columns
from foredraft.hf.criteria import RowCriteria, end_tokens_of, pads, room_of
from foredraft.hf.processors import Kept, RowProcessors, own_processors, split_warpers
from foredraft.hf.rows import Row
from foredraft.results import Result

Start: TypeAlias = Callable[[], Stream]
NO_LIMIT = 1 << 30
"""New tokens where no criterion limits them; the context still does."""


@dataclass(frozen=True, slots=True)
class Call:
    """What `generate` hands over.

    Attributes:
        input_ids: int64 [B, T], padded on the left.
        rows: the same without padding.
        processors, criteria: as prepared.
        config: as prepared.
        columns: where tokens go as they come, if anywhere.
        seed: of the noise of all rows; None decodes greedily.
    """

    input_ids: Tensor
    rows: Sequence[Row]
    processors: Sequence[Any]
    criteria: Sequence[Any]
    config: GenerationConfig
    columns: Columns | None = None
    seed: int | None = None

    @property
    def keeps_scores(self) -> bool:
        """Whether scores or logits are to be returned."""
        asked = self.config.output_scores or self.config.output_logits
        return bool(self.config.return_dict_in_generate and asked)


class Decoding:
    """A call in progress."""

    def __init__(self, engine: Engine, call: Call, max_batch: int) -> None:
        self._engine, self._call, self._max_batch = engine, call, max_batch
        count = len(call.rows)
        self._kept = [Kept() for _ in range(count)] if call.keeps_scores else [None] * count
        self._processors = [own_processors(call.processors, row) for row in call.rows]
        self._options = self._options_of_all()
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self.results: list[Result] = []

    def _options_of_all(self) -> GenerationOptions:
        """What holds for all rows; processors come with each row."""
        call, vocab_size = self._call, self._engine.target.vocab_size
        ends = end_tokens_of(call.criteria, vocab_size)
        return GenerationOptions(
            max_new_tokens=room_of(call.criteria, call.input_ids.shape[1], NO_LIMIT),
            eos_token_ids=ends,
            ignore_eos=not ends,
            temperature=0.0 if call.seed is None else 1.0,
            seed=call.seed,
        )

    def run(self) -> list[list[int]]:
        """The new tokens of every row."""
        self._decode({row.index: self._start_of(row) for row in self._call.rows})
        if not pads(self._call.criteria):
            self._lengthen()
        return self._tokens

    def _start_of(self, row: Row) -> Start:
        criteria = RowCriteria(
            self._call.criteria,
            row,
            self._call.input_ids.device,
            self._kept[row.index] if self._call.config.output_scores else None,
        )
        return lambda: self._engine.stream(
            row.prompt_ids, self._options_of(row), criterion=criteria if len(criteria) else None
        )

    def _options_of(self, row: Row, **changes: Any) -> GenerationOptions:
        kept, processors = self._kept[row.index], self._processors[row.index]
        warping: dict[str, Any] = {}
        if self._call.seed is not None and kept is None:
            processors, warping = split_warpers(processors)
        own = [RowProcessors(processors, row, kept)] if processors or kept is not None else []
        given = {"choice": row.index, "logits_processors": own, **warping, **changes}
        return self._options.replace(**given)

    def _lengthen(self) -> None:
        """Without end tokens `generate` decodes every row until the last one stops."""
        longest = max(map(len, self._tokens))
        most = self._engine.target.context_length or NO_LIMIT
        starts = {
            row.index: self._further(row, longest - len(tokens))
            for row, tokens in zip(self._call.rows, self._tokens, strict=True)
            if len(tokens) < longest and len(row.prompt_ids) + len(tokens) < most
        }
        self._decode(starts)

    def _further(self, row: Row, num_tokens: int) -> Start:
        """More of a row, with noise that it has not used."""
        prompt = (*row.prompt_ids, *self._tokens[row.index])
        options = self._options_of(
            row, max_new_tokens=num_tokens, choice=row.index + len(self._call.rows)
        )
        return lambda: self._engine.stream(prompt, options)

    def _decode(self, starts: dict[int, Start]) -> None:
        indices, columns = list(starts), self._call.columns
        count, target = len(self._call.rows), self._engine.target
        notes = [f"row {index} of {count} of a batch" if count > 1 else None for index in indices]
        streams = run_streams(target, list(starts.values()), self._max_batch, notes)
        for place, progress in streams:
            index = indices[place]
            tokens = () if progress.step is None else progress.step.token_ids
            self._tokens[index] += tokens
            if columns is not None:
                columns.add(index, tokens)
            if progress.finished:
                self._finish(index, progress.stream)

    def _finish(self, index: int, stream: Stream) -> None:
        self.results.append(stream.result())
        if self._call.columns is not None and pads(self._call.criteria):
            self._call.columns.end_row(index)

    def output(self) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate` returns: int64 [B, T + new], in a mapping where it is asked for."""
        call, config = self._call, self._call.config
        sequences = torch.cat((call.input_ids.long(), self._padded()), 1)
        if not config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=self._stacked("scores") if config.output_scores else None,
            logits=self._stacked("logits") if config.output_logits else None,
        )

    def _padded(self) -> Tensor:
        """The new tokens, int64 [B, new]."""
        longest = max(map(len, self._tokens))
        pad = pad_of(self._call.config)
        rows = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in self._tokens]
        return torch.tensor(rows, dtype=torch.int64, device=self._call.input_ids.device)

    def _stacked(self, name: str) -> tuple[Tensor, ...]:
        """Scores or logits of all rows, float32 [B, V] a token; zeros behind the end of a row."""
        length, longest = self._call.input_ids.shape[1], max(map(len, self._tokens))
        empty = torch.zeros(1, self._engine.target.vocab_size, device=self._call.input_ids.device)
        return tuple(
            torch.cat(
                [
                    getattr(kept, name)[at + length] if at < len(tokens) else empty
                    for kept, tokens in zip(self._kept, self._tokens, strict=True)
                ]
            )
            for at in range(longest)
        )


def pad_of(config: GenerationConfig) -> int:
    """The token that rows which have ended are filled with; 0 where none is ever needed."""
    pad = config._pad_token_tensor
    return 0 if pad is None else int(pad)


def draw_seed(config: GenerationConfig) -> int | None:
    """One draw from torch's global generator, which so decides all that a call samples; None when greedy."""
    return int(torch.randint(1 << 62, ())) if config.do_sample else None
