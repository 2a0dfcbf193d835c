"""The ends of a target that its heads borrow: embeddings, and the language-model head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foredraft.backends.quantized import QuantizedHead, rows_of


@dataclass(frozen=True, slots=True)
class LmRows:
    """Rows of a language-model head.

    Attributes:
        weight: [N, h].
        bias: [N], or None.
    """

    weight: Tensor
    bias: Tensor | None

    def then(self, others: LmRows) -> LmRows:
        """These and others behind them, of the same head."""
        bias = self.bias
        if bias is not None and others.bias is not None:
            bias = torch.cat([bias, others.bias])
        return LmRows(torch.cat([self.weight, others.weight]), bias)

    def last(self, count: int) -> LmRows:
        """The last `count` of them."""
        return LmRows(self.weight[-count:], None if self.bias is None else self.bias[-count:])

    def to(self, device: torch.device, dtype: torch.dtype) -> LmRows:
        """The same elsewhere."""
        bias = None if self.bias is None else self.bias.to(device, dtype)
        return LmRows(self.weight.to(device, dtype), bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """[.., h] -> [.., N]"""
        return F.linear(hidden, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """The two ends of the target that a head may borrow, and what its logits go through after the head.

    Attributes:
        embed: token ids -> embeddings, scaled where the model's own module does that (Gemma).
        lm_head: hidden states after the final norm -> logits.
        logit_scale: what logits are multiplied by (Cohere, Granite).
        softcap: c of `c * tanh(logits / c)` (Gemma 2), or None.
    """

    embed: nn.Module
    lm_head: nn.Module
    logit_scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: Any) -> TargetEnds:
        """The ends of a Hugging Face causal language model."""
        config = model.config.get_text_config(decoder=True)
        scale = getattr(config, "logit_scale", None) or 1.0
        scale /= getattr(config, "logits_scaling", None) or 1.0
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(model.get_input_embeddings(), model.get_output_embeddings(), scale, softcap)

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        return self._embed_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._embed_weight.dtype

    @property
    def hidden_size(self) -> int:
        """Width of the embeddings."""
        return self._embed_weight.shape[1]

    @property
    def lm_rows(self) -> Tensor:
        """[rows, hidden] the language-model head's weight."""
        weight = self.lm_head.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def head_device(self) -> torch.device:
        """Where the language-model head is."""
        if isinstance(self.lm_head, QuantizedHead):
            return self.lm_head.device
        return self.lm_rows.device

    @property
    def lm_bias(self) -> Tensor | None:
        """[rows] the language-model head's bias, if it has one."""
        bias = getattr(self.lm_head, "bias", None)
        assert bias is None or isinstance(bias, Tensor)
        return bias

    def rows_of(self, token_ids: Tensor) -> LmRows:
        """The rows of these tokens, int64 [N], where the target is and of its dtype."""
        ids = token_ids.to(self.head_device)
        bias = None if self.lm_bias is None else self.lm_bias.detach()[ids]
        return LmRows(rows_of(self.lm_head, ids), bias)

    @property
    def _embed_weight(self) -> Tensor:
        weight = self.embed.weight
        assert isinstance(weight, Tensor)
        return weight

    def logits(self, hidden: Tensor) -> Tensor:
        """[.., h] -> [.., rows], where and of what dtype `hidden` is, whatever the target's are."""
        logits: Tensor = self.lm_head(hidden.to(self.head_device, self.dtype)).to(hidden)
        return self.finish(logits)

    def finish(self, logits: Tensor) -> Tensor:
        """What the model does to the product of hidden state and head."""
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
