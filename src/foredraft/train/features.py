"""What drafters learn from: the target's hidden states over a batch, computed once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.hf_taps import Taps
from foredraft.train.objective import Batch


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

    Raises:
        ModelError: a tap that the model does not have or that cannot be read.
    """

    def __init__(self, model: Any, taps: Sequence[int]) -> None:
        self._model, self._taps = model.eval(), tuple(taps)
        self._last = model.config.get_text_config(decoder=True).num_hidden_layers
        self._hooks = Taps(model)
        self._hooks.require((*self._taps, self._last))
        decoder = model.get_decoder()
        self._decoder = model.model if decoder is model else decoder

    @torch.no_grad()
    def __call__(self, batch: Batch) -> TargetStates:
        """The states of a batch, in the target's own dtype whatever autocast is on.

        Rows are padded on the right, so that causal attention alone keeps padding out.
        """
        device = batch.token_ids.device
        with torch.autocast(device.type, enabled=False), self._hooks.collecting() as states:
            self._decoder(input_ids=batch.token_ids, use_cache=False)
        tapped = [states[tap].to(device) for tap in self._taps]
        return TargetStates(torch.cat(tapped, -1), states[self._last].to(device))
