"""Calls of a Hugging Face model's own `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.joint_pass import JointPass
from foredraft.backends.kv_cache import KVCache
from foredraft.backends.own_pass import own_pass
from foredraft.errors import VocabularyError


class ForwardPass:
    """Calls the model with the arguments that it understands."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.num_rows: int = model.get_input_embeddings().weight.shape[0]
        known = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in known
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    @torch.inference_mode()
    def __call__(
        self,
        token_ids: Sequence[int],
        *,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        mask: Any = None,
        last_only: bool = False,
        joint: JointPass | None = None,
    ) -> Tensor:
        """Logits [N, rows of the head]; where the model can, only the last row if no more is asked.

        Args:
            token_ids: [N] tokens.
            cache: where to write; None computes without a cache.
            positions: int64 [N]; None counts on from the cache.
            mask: what `TreeMasks.build` gave; None leaves masks to the model.
            last_only: nothing but the last row will be read.
            joint: the sequences whose rows these are, if there are several; it has the cache and the mask.
        """
        arguments: dict[str, Any] = dict(self._last_only) if last_only else {}
        given = cache if joint is None else joint.cache
        mask = mask if joint is None else joint.mask
        if given is not None:
            arguments["cache"] = given
        if positions is not None and self.takes_positions:
            arguments["position_ids"] = positions[None]
        ids = torch.tensor([self.check(token_ids)], device=self.device)
        with own_pass(joint):
            output = self._model(
                input_ids=ids, attention_mask=mask, use_cache=given is not None, **arguments
            )
        logits: Tensor = output.logits[0]
        return logits.to(self.device)

    def check(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens, all of which have an embedding.

        Raises:
            VocabularyError: one has none.
        """
        if min(token_ids) < 0 or max(token_ids) >= self.num_rows:
            wrong = next(i for i in token_ids if not 0 <= i < self.num_rows)
            raise VocabularyError(
                f"token id {wrong} is not in the model's vocabulary of {self.num_rows}; "
                "check that the prompt was made with this model's tokenizer"
            )
        return list(token_ids)
