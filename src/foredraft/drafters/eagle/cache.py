"""The head's own key-value cache, and what its one layer attends to.

The head has a single layer, so the keys and values of a row follow from that row's inputs alone. Rows
of text whose output nobody reads are written without attending to anything.

```
| committed text, of true features | rows of this round's draft | free |
0                                  length                      capacity
```
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.backends.tree_attention import Topology
from foredraft.drafters.eagle.config import HeadConfig
from foredraft.drafters.eagle.draft_mask import DraftMask

GROWTH_ROWS = 256
"""Buffers are whole multiples of this, and grow by half."""


class HeadCache:
    """Keys and values [1, Hkv, rows, D] of one sequence."""

    def __init__(
        self,
        config: HeadConfig,
        window: int,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`window`: rows of text that a row sees, its own included."""
        self._config, self._window = config, window
        self.length = 0
        """Committed rows."""
        self._drafted = 0
        self._topology = Topology(device)
        self._parents: list[int] = []
        groups = config.num_attention_heads // config.num_key_value_heads
        self._mask = DraftMask(groups, device, dtype)
        self._keys, self._values = (
            torch.empty(
                1,
                config.num_key_value_heads,
                _rounded(capacity),
                config.head_dim,
                device=device,
                dtype=dtype,
            )
            for _ in range(2)
        )

    def roll_back(self) -> None:
        """Drop the rows of the draft."""
        self._drafted, self._parents = 0, []

    def attend_to_text(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Commit rows of text. The last one attends to its window; the others' output is left at zero.

        An `Attend` function: shapes are there.
        """
        assert not self._drafted, "roll back before text is added"
        self._write(k, v, self.length)
        self.length += k.shape[2]
        seen = slice(max(0, self.length - self._window), self.length)
        if q.shape[2] == 1:
            return self._attention(q, seen, None)
        output = torch.zeros_like(q)
        output[:, :, -1:] = self._attention(q[:, :, -1:], seen, None)
        return output

    def hold(self, parents: list[int]) -> None:
        """Say whose rows come next.

        Args:
            parents: for each, the index of its parent among the rows of this draft, -1 for the text.
        """
        self._parents = [*self._parents, *parents]
        self._topology.hold(self._parents)

    def attend_to_draft(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Add the rows of the draft that `hold` announced. Each sees the text and its ancestors."""
        first, stop = self._drafted, len(self._parents)
        assert k.shape[2] == stop - first
        self._write(k, v, self.length + first)
        self._drafted = stop
        begin = max(0, self.length - self._window)
        seen = slice(begin, self.length + stop)
        if stop - first == 1 and self._topology.deepest(first, stop) == first:
            return self._attention(q, seen, None)  # the next node of a chain sees all there is
        mask = self._mask.of(self._topology.rows(first, stop), self.length - begin)
        return self._attention(q, seen, mask)

    def _write(self, k: Tensor, v: Tensor, first: int) -> None:
        stop = first + k.shape[2]
        if stop > self._keys.shape[2]:
            self._grow(stop)
        self._keys[:, :, first:stop] = k
        self._values[:, :, first:stop] = v

    def _grow(self, rows: int) -> None:
        rows = _rounded(max(rows, self._keys.shape[2] * 3 // 2))
        more = rows - self._keys.shape[2]
        self._keys, self._values = (F.pad(b, (0, 0, 0, more)) for b in (self._keys, self._values))

    def _attention(self, q: Tensor, seen: slice, mask: Tensor | None) -> Tensor:
        """Queries [1, Hq, T, D] over cached rows; the queries of a group share their keys as more rows.

        `mask`: additive [Hq / Hkv * T, rows seen], or None where every row sees all of them.
        """
        batch, heads, rows, size = q.shape
        groups = self._config.num_key_value_heads
        folded = q.reshape(batch, groups, heads // groups * rows, size)
        keys, values = self._keys[:, :, seen], self._values[:, :, seen]
        return F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask).view(q.shape)


def _rounded(rows: int) -> int:
    return -(-rows // GROWTH_ROWS) * GROWTH_ROWS
