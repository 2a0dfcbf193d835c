"""The EAGLE-1/2 and EAGLE-3 head as a module: one layer, without cache, mask or loop.

Both variants pair the target's feature of token i with the *embedding of token i+1*, and predict token
i+2; the rotary position of that row is i. Deeper steps take their own output in the feature's place.

Papers: EAGLE (arXiv 2401.15077), EAGLE-2 (2406.16858), EAGLE-3 (2503.01840).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foredraft.drafters.eagle.config import HeadConfig, Variant
from foredraft.drafters.eagle.ends import LmRows, TargetEnds
from foredraft.drafters.eagle.layer import Attend, MidLayer, RMSNorm
from foredraft.drafters.eagle.rotary import Rotary, rope_frequencies


class EagleHead(nn.Module):
    """An EAGLE head for one target.

    What it borrows from the target (its embeddings, its language-model head) is held outside the
    module's registration: it is in neither `parameters()` nor `state_dict()`, and `to()` leaves it alone.

    Args:
        config: the architecture.
        ends: what can be borrowed.
        target_ids: int64 [Vd] the target's id of each draft token; None when there is no reduction.
        own_embeddings: whether the head has embeddings of its own, [V, h].
        own_lm_head: whether it has a language-model head of its own, [Vd, h]. Without, it uses the
            target's, or the target's rows `target_ids` (kept as a buffer that is not saved).

    Weights that are its own are uninitialised in the sense of `nn.Linear`: random.
    """

    embed_tokens: nn.Module
    target_ids: Tensor | None
    lm_rows: Tensor | None
    lm_bias: Tensor | None

    def __init__(
        self,
        config: HeadConfig,
        ends: TargetEnds,
        target_ids: Tensor | None = None,
        *,
        own_embeddings: bool = False,
        own_lm_head: bool = False,
    ) -> None:
        super().__init__()
        assert (target_ids is not None) == config.is_reduced
        self.config, self.ends = config, ends
        self.own_embeddings, self.own_lm_head = own_embeddings, own_lm_head
        self.register_buffer("target_ids", target_ids)
        self._add_ends()
        self._add_fusion()
        self.midlayer = MidLayer(config)
        if config.variant == 3:
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._inv_freq, self._rope_scale = rope_frequencies(config)

    @classmethod
    def for_target(cls, target_model: Any, variant: Variant, **choices: Any) -> EagleHead:
        """A head to be trained for a target; see `initial.head_for_target`."""
        from foredraft.drafters.eagle.initial import head_for_target

        return head_for_target(target_model, variant, **choices)

    def _add_ends(self) -> None:
        config = self.config
        if self.own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        else:
            object.__setattr__(self, "embed_tokens", self.ends.embed)
        rows = bias = None
        if self.own_lm_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        elif self.target_ids is not None:
            borrowed = self.ends.rows_of(self.target_ids)
            rows, bias = borrowed.weight, borrowed.bias
        self.register_buffer("lm_rows", rows, persistent=False)
        self.register_buffer("lm_bias", bias, persistent=False)

    def _add_fusion(self) -> None:
        config = self.config
        fused = 2 * config.hidden_size if config.variant == 1 else config.feature_size
        self.fc = nn.Linear(fused, config.hidden_size, bias=config.fc_bias)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(config.feature_size, config.rms_norm_eps)
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in config.taps)
            self.fc_norm = nn.ModuleList(norms)

    @property
    def dtype(self) -> torch.dtype:
        """Of its own weights."""
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where its own weights are."""
        return self.fc.weight.device

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings of target token ids, int64 [..] -> [.., h]."""
        embeds: Tensor = self.embed_tokens(token_ids)
        return embeds.to(self.device)

    def fuse(self, features: Tensor) -> Tensor:
        """What a first step takes as hidden, [.., F] -> [.., h]; with variant 1 the feature itself."""
        config = self.config
        if config.variant == 1:
            return features
        if config.norm_before_fc:
            features = self.input_norm(features)
        if config.fc_norm:
            states = features.chunk(len(config.taps), dim=-1)
            features = torch.cat(
                [norm(state) for norm, state in zip(self.fc_norm, states, strict=True)], dim=-1
            )
        fused: Tensor = self.fc(features)
        return fused

    def rotary(self, positions: Tensor) -> Rotary:
        """Of positions, int64 [B, T] or [T] -> [B, T, D] or [T, D], in the head's dtype."""
        if self._inv_freq.device != positions.device:
            self._inv_freq = self._inv_freq.to(positions.device)
        angles = positions[..., None].float() * self._inv_freq
        cos, sin = (part * self._rope_scale for part in (angles.cos(), angles.sin()))
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return cos.to(self.dtype), sin.to(self.dtype)

    def step(self, embeds: Tensor, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """The layer.

        Args:
            embeds: [B, T, h] embeddings of the tokens that follow the rows.
            hidden: [B, T, h] fused features, or the recycled output of the step before.
            rotary: of the rows' positions.
            attend: the attention of these rows over whatever came before.

        Returns:
            [B, T, h] the output before the final norm.
        """
        layer = self.midlayer
        if self.config.variant == 1:
            residual = attended = self.fc(torch.cat((embeds, hidden), dim=-1))
        else:
            normed = layer.normed_pair(embeds, hidden)
            attended = normed.flatten(-2)
            residual = normed[..., 1, :] if self.config.norm_before_residual else hidden
        output: Tensor = layer(residual, attended, rotary, attend)
        return output

    def recycle(self, output: Tensor) -> Tensor:
        """What the next step takes as hidden, [.., h] -> [.., h]."""
        return self.norm(output) if self.config.norm_output else output

    def final(self, output: Tensor) -> Tensor:
        """What the language-model head reads, [.., h] -> [.., h]."""
        if self.config.variant == 1:
            return output
        hidden: Tensor = self.norm(output)
        return hidden

    def logits(self, output: Tensor, more: LmRows | None = None) -> Tensor:
        """The law of the next token, [.., h] -> [.., Vd], before any softmax.

        Args:
            output: of `step`.
            more: rows of E tokens beside a reduced vocabulary: then the logits are [.., Vd + E].
        """
        return self.project(self.final(output), more)

    def project(self, hidden: Tensor, more: LmRows | None = None) -> Tensor:
        """As `logits`, of what `final` gave."""
        return self.beside(self.products(hidden), hidden, more)

    def products(self, hidden: Tensor) -> Tensor:
        """What `beside` makes logits of, [.., h] -> [.., Vd]: the part of `project` that reads weights."""
        if self.own_lm_head:
            products: Tensor = self.lm_head(hidden)
            return products
        if self.lm_rows is not None:
            return F.linear(hidden, self.lm_rows, self.lm_bias)
        return self.ends.logits(hidden)

    def beside(self, products: Tensor, hidden: Tensor, more: LmRows | None) -> Tensor:
        """Logits [.., Vd + E] from products [.., Vd], and from those of E other rows."""
        if self.own_lm_head or self.lm_rows is not None:
            logits = products if more is None else torch.cat([products, more.logits(hidden)], -1)
            return logits if self.own_lm_head else self.ends.finish(logits)
        return products
