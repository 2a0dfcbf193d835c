"""The logits processors that `generate` prepared, as one row of the batch meets them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.generation import logits_process as hf

from foredraft.config import LEAST_TEMPERATURE
from foredraft.errors import ConfigError
from foredraft.hf.rows import Row

ROW_WISE = (
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.TemperatureLogitsWarper,
    hf.TopPLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopHLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.InfNanRemoveLogitsProcessor,
    hf.ExponentialDecayLengthPenalty,
    hf.LogitNormalization,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
)
"""Each row of these is a function of that row alone."""
BY_PLACE = (
    hf.EncoderRepetitionPenaltyLogitsProcessor,
    hf.EncoderNoRepeatNGramLogitsProcessor,
)
"""These know something of each row by its place in the batch, and keep nothing between calls."""
WARPERS = {
    hf.MinPLogitsWarper: "min_p",
    hf.TopPLogitsWarper: "top_p",
    hf.TopKLogitsWarper: "top_k",
    hf.TemperatureLogitsWarper: "temperature",
}
"""Those that options of ours stand for, the last one first."""


def split_warpers(processors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Processors without temperature and filters at their end, and the options that give the same.

    So drafters too know the law that is sampled from. What stands in another order stays a processor.
    """
    left, options = list(processors), {"temperature": 1.0}
    for kind, name in WARPERS.items():
        if left and type(left[-1]) is kind and _is_plain(left[-1]):
            options[name] = getattr(left.pop(), name)
    return left, options


def _is_plain(warper: Any) -> bool:
    """Whether it does what our option of the same name does."""
    return (
        getattr(warper, "filter_value", -math.inf) == -math.inf
        and getattr(warper, "min_tokens_to_keep", 1) == 1
        and getattr(warper, "temperature", 1.0) >= LEAST_TEMPERATURE
        and getattr(warper, "top_p", 1.0) > 0
    )


class Kept:
    """What a row's tokens were chosen by, float32 [1, V] each, by the length of the padded text before."""

    def __init__(self) -> None:
        self.logits: dict[int, Tensor] = {}
        self.scores: dict[int, Tensor] = {}

    def until(self, length: int) -> tuple[Tensor, ...]:
        """The scores of all tokens of the answer that stand before this length, in order."""
        return tuple(scores for at, scores in sorted(self.scores.items()) if at < length)


class RowProcessors:
    """All processors of a call as one, for one row.

    They are shown what `generate` shows them: the row with its padding. Those of which it is not known that
    each row counts alone are shown the row in every place of the batch, and its own place is read.

    Args:
        processors: of this row; see `own_processors`.
        row: whose padding and place it is.
        kept: where to note logits and scores; None notes nothing.
    """

    def __init__(self, processors: Sequence[Any], row: Row, kept: Kept | None = None) -> None:
        self._processors, self._row, self._kept = processors, row, kept

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: int64 [1, T], unpadded; scores: float32 [1, V]; gives the like."""
        padding, device = self._row.padding, scores.device
        ids = torch.cat((padding, input_ids.to(padding.device)), 1)
        scores = scores.to(padding.device)
        if self._kept is not None:
            self._kept.logits[ids.shape[1]] = scores.clone()
        for processor in self._processors:
            scores = self._apply(processor, ids, scores)
        if self._kept is not None:
            self._kept.scores[ids.shape[1]] = scores.clone()
        return scores.to(device)

    def _apply(self, processor: Any, ids: Tensor, scores: Tensor) -> Tensor:
        index, count = self._row.index, self._row.count
        if count == 1 or type(processor) in (*ROW_WISE, _OfRow):
            return _checked(processor, processor(ids, scores), scores)
        many = scores.repeat(count, 1)
        given = _checked(processor, processor(ids.repeat(count, 1), many), many)
        return given[index : index + 1]


def own_processors(processors: Sequence[Any], row: Row) -> list[Any]:
    """The processors for one row of a batch: copies of those that may keep something between calls.

    The first row has the originals. Models and tokenizers that a processor holds are not copied.

    Raises:
        ConfigError: one cannot be copied.
    """
    return [_own(processor, row) for processor in processors]


def _own(processor: Any, row: Row) -> Any:
    kind = type(processor)
    if kind is hf.PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        own = hf.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row.index, ids), 1)
        return _OfRow(own)
    if kind is hf.RepetitionPenaltyLogitsProcessor and row.count > 1:
        return _OfRow(_penalty_of(processor, row))
    if row.index == 0 or kind in (*ROW_WISE, *BY_PLACE):
        return processor
    return _copy(processor)


def _penalty_of(processor: Any, row: Row) -> Any:
    """The penalty with what it knows of this row: how many tokens of the prompt to leave alone."""
    ignored = processor.prompt_ignore_length
    if isinstance(ignored, Tensor) and len(ignored) == row.count:
        processor = copy.copy(processor)
        processor.prompt_ignore_length = ignored[row.index : row.index + 1]
    return processor


def _copy(processor: Any) -> Any:
    held = vars(processor).values() if hasattr(processor, "__dict__") else ()
    shared = {id(v): v for v in held if isinstance(v, nn.Module | PreTrainedTokenizerBase)}
    try:
        return copy.deepcopy(processor, shared)
    except Exception as error:  # a lock, a generator, an object of another language
        raise ConfigError(
            f"the logits processor {type(processor).__name__} cannot be copied for each row ({error}); give "
            "it a __deepcopy__, or generate one row at a time"
        ) from error


class _OfRow:
    """A processor that counts for one row and is shown that row alone."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        given: Tensor = self._processor(input_ids, scores)
        return given


def _checked(processor: Any, given: Any, scores: Tensor) -> Tensor:
    if isinstance(given, Tensor) and given.shape == scores.shape:
        return given
    what = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
    raise ConfigError(
        f"the logits processor {type(processor).__name__} returned {what}; it must return a tensor of scores "
        f"{list(scores.shape)}"
    )
