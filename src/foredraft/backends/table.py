"""An exact toy model: the next token's law is a table lookup. The reference in tests and docs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.errors import CacheError, ConfigError
from foredraft.tree import NO_PARENT


class TableModel:
    """A Markov chain of some order, as a target or as a draft model.

    Args:
        table: float64 [V] * order + [V]: `table[context]` is the law of the next token, where the
            context is the last `order` tokens (token 0 stands in for those before the start).
        eos_token_ids: its own end tokens.
        context_length: most tokens in a sequence; None for no limit.

    Raises:
        ConfigError: the table is not a law over V tokens for every context.
    """

    scores_trees = True
    device = torch.device("cpu")

    def __init__(
        self,
        table: Tensor,
        *,
        eos_token_ids: Sequence[int] = (),
        context_length: int | None = None,
    ) -> None:
        if table.dim() < 2 or len(set(table.shape)) != 1:
            raise ConfigError(f"a table of shape {tuple(table.shape)} is not [V, .., V, V]")
        if not torch.allclose(table.sum(-1).double(), torch.ones(()).double(), atol=1e-6):
            raise ConfigError("every law in the table must sum to 1")
        self._logits = table.double().log()
        self.order = table.dim() - 1
        self.vocab_size = table.shape[-1]
        self.eos_token_ids = tuple(eos_token_ids)
        self.context_length = context_length

    @classmethod
    def random(
        cls, vocab_size: int, order: int = 1, *, seed: int = 0, sharpness: float = 1.0
    ) -> TableModel:
        """A table of random laws; a larger `sharpness` makes them more peaked."""
        generator = torch.Generator().manual_seed(seed)
        shape = (vocab_size,) * (order + 1)
        logits = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        return cls(logits.softmax(-1))

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        """log p of the next token, float64 [V]."""
        context = ([0] * self.order + list(token_ids))[-self.order :]
        return self._logits[tuple(context)]

    def start(self, capacity: int) -> TableState:
        """Memory for one sequence; a table needs no capacity."""
        return TableState(self)

    def synchronize(self) -> None:
        """Nothing runs ahead of the host."""


class TableState:
    """The tokens of one sequence, committed and pending."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self.committed: list[int] = []
        self._pending: list[tuple[int, int]] = []

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.committed)

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit tokens."""
        if self._pending:
            raise CacheError(f"prefill with {len(self._pending)} nodes pending; commit first")
        self.committed.extend(token_ids)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """log p after each node, float64 [N, V]."""
        first = len(self._pending)
        self._pending.extend(zip(token_ids, parents, strict=True))
        return torch.stack(
            [
                self._model.logits_after(self.committed + self._path(node))
                for node in range(first, len(self._pending))
            ]
        )

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of `path`, drop the rest."""
        for parent, node in zip([NO_PARENT, *path], path, strict=False):
            if self._pending[node][1] != parent:
                raise CacheError(f"path {list(path)} is not a path from the committed text")
        self.committed.extend(self._pending[node][0] for node in path)
        self._pending.clear()

    def close(self) -> None:
        """Forget the sequence."""
        self.committed.clear()
        self._pending.clear()

    def _path(self, node: int) -> list[int]:
        tokens: list[int] = []
        while node != NO_PARENT:
            token, node = self._pending[node]
            tokens.append(token)
        return tokens[::-1]
