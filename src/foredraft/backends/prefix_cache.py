"""What is known of texts that were read before, so that the same leading tokens are not computed twice.

Texts are cut into blocks of `BLOCK_ROWS` tokens, which form a tree: the children of a block are the blocks
that came next in some text. Each holds copies of its tokens' keys and values, and of their hidden states
where a text was tapped. A block is found by its own tokens and by those of every block before it, compared
one by one: nothing is hashed down to a number that another text could share.

When memory is short, the block that was not used for longest goes first, among those with no block behind
them, so that what is left is whole texts from their first token on.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

from torch import Tensor

from foredraft.backends.kv_cache import BLOCK_ROWS, KVRows
from foredraft.errors import ConfigError

MEGABYTE = 2**20


def bytes_of(prefix_cache_mb: float) -> int:
    """What this many megabytes, of 2**20 bytes each, are.

    Raises:
        ConfigError: not a number above 0.
    """
    is_number = isinstance(prefix_cache_mb, Real) and not isinstance(prefix_cache_mb, bool)
    if not is_number or not 0 < prefix_cache_mb < math.inf:
        raise ConfigError(
            f"prefix_cache_mb={prefix_cache_mb!r} is not allowed; give a number of megabytes above 0"
        )
    return int(prefix_cache_mb * MEGABYTE)


@dataclass(eq=False, slots=True)
class Block:
    """Tokens behind others, and what was computed of them. Its tensors are never written."""

    token_ids: tuple[int, ...] = ()
    parent: Block | None = None
    rows: KVRows = ()
    states: dict[int, Tensor] = field(default_factory=dict)
    """Tap -> hidden states [BLOCK_ROWS, h]."""
    num_bytes: int = 0
    children: dict[tuple[int, ...], Block] = field(default_factory=dict)
    is_kept: bool = True
    """Whether it is still part of the tree."""

    def shows(self, taps: Sequence[int]) -> bool:
        """Whether the hidden states of all these taps are there."""
        return all(tap in self.states for tap in taps)


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """What a prefix cache has done since it was made, and what it holds.

    Attributes:
        lookups: texts that were begun.
        hits: those of which some tokens were known.
        restored_tokens: tokens that were not computed, in all hits.
        stored_blocks: blocks that were added.
        evicted_blocks: blocks that were dropped for want of room.
        blocks, num_bytes: held now. Bytes are those of tensors.
        max_bytes: the limit.
    """

    lookups: int
    hits: int
    restored_tokens: int
    stored_blocks: int
    evicted_blocks: int
    blocks: int
    num_bytes: int
    max_bytes: int


class PrefixCache:
    """The known texts of one model; any number of threads may use it.

    Args:
        max_bytes: memory at most; that of tensors counts.
        row_bytes: of one token's keys and values.
    """

    def __init__(self, max_bytes: int, row_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._block_bytes = BLOCK_ROWS * row_bytes
        self.root = Block()
        self._lock = threading.Lock()
        self._by_use: OrderedDict[Block, None] = OrderedDict()  # the last used one last
        self._num_bytes = 0  # of blocks, and of copies in the making
        self._lookups = self._hits = self._restored = self._stored = self._evicted = 0

    def find(self, token_ids: Sequence[int], taps: Sequence[int] = ()) -> list[Block]:
        """The longest run of blocks that `token_ids` begins with, all with the states of these taps."""
        with self._lock:
            found, block = [], self.root
            for start in range(0, len(token_ids) - BLOCK_ROWS + 1, BLOCK_ROWS):
                child = block.children.get(tuple(token_ids[start : start + BLOCK_ROWS]))
                if child is None or not child.shows(taps):
                    break
                found.append(block := child)
            self._use(block)
            self._lookups += 1
            self._hits += bool(found)
            self._restored += len(found) * BLOCK_ROWS
            return found

    def extend(
        self,
        parent: Block,
        token_ids: tuple[int, ...],
        read: Callable[[], KVRows],
        states: Mapping[int, Tensor],
    ) -> Block | None:
        """The block of these tokens behind another; what it lacks is copied, if there is room.

        Args:
            parent: `root`, or what an earlier call gave.
            token_ids: [BLOCK_ROWS]
            read: gives the keys and values, as tensors of their own.
            states: tap -> hidden states [BLOCK_ROWS, h], which are copied.

        Returns:
            None where there is no room, or where the parent was dropped for others.
        """
        with self._lock:
            if not parent.is_kept:
                return None
            block = parent.children.get(token_ids)
            missing = {t: s for t, s in states.items() if block is None or t not in block.states}
            size = sum(state.nbytes for state in missing.values())
            size += self._block_bytes if block is None else 0
            if not size:
                return block
            if not self._make_room(size, parent, block):
                return None
            self._num_bytes += size  # before anything is copied
        try:
            rows = read() if block is None else None
            copies = {tap: state.clone() for tap, state in missing.items()}
        except BaseException:
            with self._lock:
                self._num_bytes -= size
            raise
        with self._lock:
            self._num_bytes -= size
            return self._keep(parent, token_ids, rows, copies)

    def use(self, block: Block) -> None:
        """Say that this block and those before it were used."""
        with self._lock:
            self._use(block)

    def clear(self) -> None:
        """Forget every text. Sequences that go on add nothing more; what they have restored is their own."""
        with self._lock:
            for block in self._by_use:
                block.is_kept = False
                self._num_bytes -= block.num_bytes
            self._by_use.clear()
            self.root.children.clear()

    def counts(self) -> PrefixCounts:
        """Figures of this moment."""
        with self._lock:
            return PrefixCounts(
                self._lookups,
                self._hits,
                self._restored,
                self._stored,
                self._evicted,
                len(self._by_use),
                self._num_bytes,
                self.max_bytes,
            )

    def _use(self, block: Block) -> None:
        """The blocks before come last, so that each is thought younger than what stands behind it."""
        while block.parent is not None:
            if block.is_kept:
                self._by_use.move_to_end(block)
            block = block.parent

    def _make_room(self, size: int, *spared: Block | None) -> bool:
        """Drop blocks until so many bytes more are allowed; False if that takes more than may be dropped."""
        if size > self.max_bytes:
            return False
        while self._num_bytes + size > self.max_bytes:
            ends = (b for b in self._by_use if not b.children and b not in spared)
            oldest = next(ends, None)
            if oldest is None:
                return False
            self._drop(oldest)
        return True

    def _drop(self, block: Block) -> None:
        assert block.parent is not None
        del block.parent.children[block.token_ids], self._by_use[block]
        block.is_kept = False
        self._num_bytes -= block.num_bytes
        self._evicted += 1

    def _keep(
        self,
        parent: Block,
        token_ids: tuple[int, ...],
        rows: KVRows | None,
        states: Mapping[int, Tensor],
    ) -> Block | None:
        """Add what was copied, unless another thread has been here in the meantime."""
        block = parent.children.get(token_ids) if parent.is_kept else None
        size = 0
        if block is None:
            if rows is None or not parent.is_kept:
                return None
            block = parent.children[token_ids] = Block(token_ids, parent, rows)
            self._by_use[block] = None
            self._stored += 1
            size = sum(keys.nbytes + values.nbytes for keys, values in rows)
        new = {tap: state for tap, state in states.items() if tap not in block.states}
        size += sum(state.nbytes for state in new.values())
        block.states |= new
        block.num_bytes += size
        self._num_bytes += size
        return block
