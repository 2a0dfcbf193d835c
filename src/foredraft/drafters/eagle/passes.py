"""A head's passes behind the `Target` protocol, so that calibration can time them like a model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.config import MAX_TREE_NODES
from foredraft.drafters.eagle.cache import HeadCache
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.rotary import RotaryTable


@dataclass(frozen=True)
class HeadPasses:
    """The passes of a head, made from no features: what they cost, not what they say.

    Two of the same head and window are equal, however many methods draft with it.
    """

    head: EagleHead
    window: int
    eos_token_ids = ()
    context_length = None
    scores_trees = True

    @property
    def vocab_size(self) -> int:
        """V: token ids with an embedding."""
        return self.head.config.vocab_size

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        return self.head.device

    def start(self, capacity: int) -> HeadPassesState:
        """A head cache for one sequence."""
        return HeadPassesState(self, capacity)

    def synchronize(self) -> None:
        """Wait for the head's device."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class HeadPassesState:
    """One sequence of rows; see the `ModelState` protocol. Only a rollback is ever committed."""

    def __init__(self, passes: HeadPasses, capacity: int) -> None:
        self._head = passes.head
        head = passes.head
        self._cache = HeadCache(head.config, passes.window, capacity, head.device, head.dtype)
        self._rotary = RotaryTable(head)

    @property
    def length(self) -> int:
        """Committed rows."""
        return self._cache.length

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit rows in chunks."""
        for start in range(0, len(token_ids), MAX_TREE_NODES):
            chunk = token_ids[start : start + MAX_TREE_NODES]
            embeds, hidden = self._inputs(chunk)
            rotary = self._rotary.rows(self.length, self.length + len(chunk))
            self._head.step(embeds, hidden, rotary, self._cache.attend_to_text)

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """One level of a draft: logits [N, Vd] after these rows, whose parents are pending ones or -1."""
        self._cache.hold(list(parents))
        embeds, hidden = self._inputs(token_ids)
        rotary = self._rotary.rows(self.length, self.length + 1)
        output = self._head.step(embeds, hidden, rotary, self._cache.attend_to_draft)
        self._head.recycle(output)
        return self._head.logits(output)[0]

    def commit(self, path: Sequence[int]) -> None:
        """Drop what is pending."""
        assert not path, "rows of a draft are never kept"
        self._cache.roll_back()

    def close(self) -> None:
        """Give the memory back."""
        del self._cache

    def _inputs(self, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Embeddings [1, T, h], and as hidden states the same."""
        head = self._head
        ids = torch.tensor([list(token_ids)], device=head.ends.device)
        embeds = head.embed(ids).to(head.dtype)
        return embeds, embeds
