"""Decoding many sequences at once, in cohorts: the sequences of a cohort are always equally long.

All cohorts share the model's matrix products, one row a sequence; each has keys and values of its own in
one contiguous block, so that a step needs no padding and no mask of its own a row. (On a CPU, attention
over padded cache rows copies them first, which costs more than the products.) Sequences that have ended
are taken out, and new cohorts join at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from foredraft.backends.hf_probe import relative_error, tolerance
from foredraft.backends.hf_taps import Taps
from foredraft.errors import ModelError

ATTENTION = "foredraft_lockstep"
CHECK_TOKENS = 10
ROUNDING = 3
"""Another attention may differ by so many times what another order of sums may."""
BUCKET = 32
"""Positions by which the block of a cohort grows."""


class Cohort:
    """Equally long sequences: keys and values [R, H, capacity, D] of each layer."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows, self.length = num_rows, 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def layers(self) -> int:
        """How many layers have attended."""
        return len(self._layers)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: _Options
    ) -> Tensor:
        """Write N new rows of a layer and attend from them: [R, Hq, N, D] -> [R, Hq, N, D]."""
        self._write(layer, key, value)
        if query.shape[2] > 1:
            assert self.length == 0, "only the start of a cohort has several tokens"
            return options.causal(query, key, value)
        return options.one_row(query, *self._layers[layer], self.length)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop every sequence that is not among `rows` (increasing indices)."""
        for layer, (keys, values) in self._layers.items():
            index = torch.tensor(rows, device=keys.device)
            self._layers[layer] = keys[index], values[index]
        self.num_rows = len(rows)

    def _write(self, layer: int, key: Tensor, value: Tensor) -> None:
        first, stop = self.length, self.length + key.shape[2]
        block = self._layers.get(layer)
        if block is None or block[0].shape[2] < stop:
            capacity = -(-stop // BUCKET) * BUCKET
            old = block or (None, None)
            block = _grown(old[0], key, capacity), _grown(old[1], value, capacity)
            self._layers[layer] = block
        block[0][:, :, first:stop] = key
        block[1][:, :, first:stop] = value


class LockstepDecoder:
    """Steps cohorts of sequences of one model. Use it inside `lockstep_attention(model)`.

    Args:
        model: a `transformers` causal language model.
        taps: its hidden states that are read in each pass; None reads none.

    Attributes:
        states: tap -> [R, N, h] of the last pass; empty where none are read.
    """

    def __init__(self, model: Any, taps: Taps | None = None) -> None:
        self._model, self._taps = model, taps
        self.states: Mapping[int, Tensor] = {}
        config = model.config.get_text_config(decoder=True)
        self._cache = _NoCache([_NoLayer() for _ in range(config.num_hidden_layers)])

    def start(self, token_ids: Tensor) -> Cohort:
        """A new cohort.

        Args:
            token_ids: int64 [R, N] what its sequences begin with; N may be 0.
        """
        cohort = Cohort(token_ids.shape[0])
        self.states = {}
        if token_ids.shape[1]:
            self._forward([cohort], token_ids)
        return cohort

    def step(self, cohorts: Sequence[Cohort], token_ids: Tensor) -> Tensor:
        """Append one token to every sequence.

        Args:
            cohorts: each with sequences; at least one.
            token_ids: int64 [R, 1], the rows of the cohorts one after the other.

        Returns:
            Logits [R, V].
        """
        return self._forward(cohorts, token_ids)

    @torch.inference_mode()
    def _forward(self, cohorts: Sequence[Cohort], token_ids: Tensor) -> Tensor:
        count = token_ids.shape[1]
        starts = torch.tensor([cohort.length for cohort in cohorts for _ in range(cohort.num_rows)])
        positions = starts[:, None] + torch.arange(count)
        with self._collecting() as self.states:
            logits: Tensor = self._model(
                input_ids=token_ids,
                position_ids=positions.to(token_ids.device),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=1,
                lockstep_cohorts=cohorts,
            ).logits[:, -1]
        for cohort in cohorts:
            cohort.length += count
        return logits

    def _collecting(self) -> AbstractContextManager[dict[int, Tensor]]:
        return nullcontext({}) if self._taps is None else self._taps.collecting()


@contextmanager
def lockstep_attention(model: Any) -> Iterator[None]:
    """Inside, the model attends within cohorts.

    Raises:
        ModelError: the model's attention cannot be exchanged, or computes something else then.
    """
    before = model.config._attn_implementation
    expected = _plainly(model)
    AttentionInterface.register(ATTENTION, _cohort_attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
    model.set_attn_implementation(ATTENTION)
    try:
        _check_exchanged(model, expected)
        yield
    finally:
        model.set_attn_implementation(before)


@torch.inference_mode()
def _plainly(model: Any) -> Tensor:
    """Logits [1, V] after the test tokens, by the model's own attention, in the same steps.

    In half precision another way to step changes the logits of some texts more than a fault would.
    """
    cache, ids = DynamicCache(config=model.config), _check_ids(model)
    logits: Tensor = model(input_ids=ids[:, :2], cache=cache, use_cache=True).logits
    for column in range(2, ids.shape[1]):
        logits = model(input_ids=ids[:, column : column + 1], cache=cache, use_cache=True).logits
    return logits[:, -1]


def _check_ids(model: Any) -> Tensor:
    """Random tokens: texts of special ones alone are chaotic in half precision."""
    weight = model.get_input_embeddings().weight
    random = torch.Generator().manual_seed(0)
    return torch.randint(len(weight), (1, CHECK_TOKENS), generator=random).to(weight.device)


def _check_exchanged(model: Any, expected: Tensor) -> None:
    """Whether this attention is really the one that is called, and gives the model's own logits."""
    name = type(model).__name__
    decoder, ids = LockstepDecoder(model), _check_ids(model)
    try:
        cohort = decoder.start(ids[:, :2])
        for column in range(2, ids.shape[1]):
            logits = decoder.step([cohort], ids[:, column : column + 1])
    except Exception as error:
        raise ModelError(
            f"{name} cannot write many texts at once ({error}); give answers of your own"
        ) from error
    difference = relative_error(logits, expected)
    if cohort.layers != model.config.get_text_config(decoder=True).num_hidden_layers:
        difference = math.inf
    if not difference <= ROUNDING * tolerance(model.dtype):
        raise ModelError(
            f"{name} does not use an exchangeable attention, so it cannot write many texts at once; "
            "give answers of your own"
        )


class _Options:
    """What a layer asks of its attention: scale, window, soft cap."""

    def __init__(self, width: int, given: dict[str, Any]) -> None:
        if given.get("s_aux") is not None:
            raise ModelError("attention sinks are not supported")
        self._scale = given.get("scaling") or 1 / math.sqrt(width)
        self._window: int | None = given.get("sliding_window")
        self._softcap: float | None = given.get("softcap")

    def causal(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """N rows that see those before them."""
        count = query.shape[2]
        if self._softcap is None and (self._window is None or count <= self._window):
            return scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._scale, enable_gqa=True
            )
        rows = [
            self.one_row(query[:, :, i : i + 1], key[:, :, : i + 1], value[:, :, : i + 1], i)
            for i in range(count)
        ]
        return torch.cat(rows, 2)

    def one_row(self, query: Tensor, keys: Tensor, values: Tensor, position: int) -> Tensor:
        """A row that sees all before it; the queries of a key-value head are rows of one product."""
        rows, heads, _, width = query.shape
        groups = query.reshape(rows, keys.shape[1], heads // keys.shape[1], width)
        scores = torch.matmul(groups * self._scale, keys.transpose(-1, -2))
        if self._softcap is not None:
            scores = (scores / self._softcap).tanh() * self._softcap
        scores[..., position + 1 :] = -torch.inf
        if self._window is not None:
            scores[..., : max(0, position + 1 - self._window)] = -torch.inf
        mixed = torch.matmul(scores.softmax(-1), values)
        return mixed.reshape(rows, heads, 1, values.shape[-1])


def _cohort_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """The attention function: [R, Hq, N, D] -> [R, N, Hq, D], each cohort on its own."""
    cohorts: Sequence[Cohort] = options["lockstep_cohorts"]
    asked = _Options(query.shape[-1], options)
    parts, first = [], 0
    for cohort in cohorts:
        rows = slice(first, first + cohort.num_rows)
        parts.append(cohort.attend(module.layer_idx, query[rows], key[rows], value[rows], asked))
        first += cohort.num_rows
    return torch.cat(parts).transpose(1, 2).contiguous(), None


class _NoLayer(CacheLayerMixin):  # type: ignore[misc]
    """Hands new rows through; the cohorts keep them."""

    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """The rows themselves."""
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """No rows but the new ones."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Nothing is kept."""
        return 0

    def get_max_length(self) -> int:
        """-1: without a limit."""
        return -1


class _NoCache(Cache):  # type: ignore[misc]
    def __init__(self, layers: list[_NoLayer]) -> None:
        super().__init__(layers=layers)


def _grown(old: Tensor | None, new: Tensor, capacity: int) -> Tensor:
    """A buffer of `capacity` positions that begins with the old one; zeros behind, which are masked."""
    rows, heads, _, width = new.shape
    buffer = new.new_zeros(rows, heads, capacity, width)
    if old is not None:
        buffer[:, :, : old.shape[2]] = old
    return buffer
