"""What drafters learn from: the target's hidden states over a batch, computed once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.hf_taps import Taps
from foredraft.train.objective import Batch
from foredraft.train.state_cache import StateCache


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Hidden states of the target.

    Attributes:
        features: [B, T, F] the taps, in their order; none of a token sees a later one.
        final: [B, T, h] after the final norm: what the target's own head reads.
    """

    features: Tensor
    final: Tensor


class TargetFeatures:
    """Reads hidden states off a frozen target.

    Args:
        model: a `transformers` causal language model; it is put in eval mode, and never trained.
        taps: as in `FeatureTarget.start_tapped`.
        cache: where states are kept and read again; None computes them each time.

    Raises:
        ModelError: a tap that the model does not have or that cannot be read.
        ConfigError: the disk has no room for what is to be kept.
    """

    def __init__(self, model: Any, taps: Sequence[int], cache: StateCache | None = None) -> None:
        self._model, self._taps = model.eval(), tuple(taps)
        self._last = model.config.get_text_config(decoder=True).num_hidden_layers
        self._hooks = Taps(model)
        self._read = tuple(sorted({*self._taps, self._last}))
        self._hooks.require(self._read)
        if cache is not None:
            cache.reserve(self._read)
        self._cache = cache
        decoder = model.get_decoder()
        self._decoder = model.model if decoder is model else decoder

    @torch.no_grad()
    def __call__(self, batch: Batch) -> TargetStates:
        """The states of a batch, in the target's own dtype whatever autocast is on.

        Rows are padded on the right, so that causal attention alone keeps padding out.
        """
        states = self._kept(batch) or self._computed(batch)
        features = torch.cat([states[tap] for tap in self._taps], -1)
        return TargetStates(features, states[self._last])

    def _kept(self, batch: Batch) -> dict[int, Tensor] | None:
        """The states by tap, if all of them are on disk."""
        cache, samples = self._cache, batch.samples.cpu()
        if cache is None or not cache.has(self._read, samples, batch.lengths.cpu()):
            return None
        lengths, device = batch.lengths.cpu(), batch.token_ids.device
        return {tap: cache.read(tap, samples, lengths).to(device) for tap in self._read}

    def _computed(self, batch: Batch) -> dict[int, Tensor]:
        """The states by tap, by a pass of the target."""
        device = batch.token_ids.device
        with torch.autocast(device.type, enabled=False), self._hooks.collecting() as states:
            self._decoder(input_ids=batch.token_ids, use_cache=False)
        if self._cache is not None:
            samples, lengths = batch.samples.cpu(), batch.lengths.cpu()
            for tap in self._read:
                self._cache.write(tap, samples, lengths, states[tap])
        return {tap: states[tap].to(device) for tap in self._read}
