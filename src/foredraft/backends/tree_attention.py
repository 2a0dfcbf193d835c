"""Attention masks of draft trees: who sees whom, sliced from rows that are built once.

`Topology` keeps the ancestor-or-self matrices of the last few trees of pending nodes. It is the *dynamic
sliced topology-aware mask*: a tree that repeats the parents of a stored one, or a prefix of them, is a
slice of what is stored; a tree that differs keeps the rows before the first difference and appends the
others, row(child) = row(parent) | own bit. `TreeMasks` widens those rows by the committed
columns and narrows them to the windows of the model's layer types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.kv_layout import KVLayout, LayerLayout
from foredraft.backends.split_attention import mark_context

INITIAL_NODES = 64
TREES_KEPT = 4


class Topology:
    """Ancestor rows and depths of a sequence's pending nodes.

    The last few trees are kept: what a draft model scores stands behind the tokens that it has missed, of
    which there may be none, one or two, so that a fixed shape has a few topologies that come by turns.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._trees = [AncestorRows(device)]
        self._held = self._trees[0]

    def hold(self, parents: Sequence[int]) -> None:
        """Make the first `len(parents)` nodes the tree with these parents.

        Args:
            parents: [N] a smaller index for each node, or -1 for the committed text.
        """
        wanted = list(parents)
        for tree in (self._held, *self._trees):
            if tree.parents[: len(wanted)] == wanted:
                self._held = tree
                return
        best = max(self._trees, key=lambda tree: tree.common(wanted))
        if best.common(wanted) < len(best.parents) and len(self._trees) < TREES_KEPT:
            best = AncestorRows(self._device)
            self._trees.append(best)
        best.become(wanted)
        self._held = best

    def rows(self, first: int, stop: int) -> Tensor:
        """Whether nodes first..stop-1 see nodes 0..stop-1: bool [stop - first, stop]."""
        return self._held.rows[first:stop, :stop]

    def depths(self, first: int, stop: int) -> Tensor:
        """Edges between the committed text and each node, less one: int64 [stop - first]."""
        return self._held.depth_row[first:stop]

    def deepest(self, first: int, stop: int) -> int:
        """The largest of `depths(first, stop)`."""
        return max(self._held.depths[first:stop])


class AncestorRows:
    """The stored rows of one tree.

    Attributes:
        parents, depths: [N] of the stored nodes.
        rows: bool [A, A] on the device, A >= N: who sees whom.
        depth_row: int64 [A] `depths` on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._allocate(INITIAL_NODES)

    def common(self, parents: Sequence[int]) -> int:
        """How many first nodes the stored tree shares with this one."""
        pairs = zip(self.parents, parents, strict=False)
        shorter = min(len(self.parents), len(parents))
        return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)

    def become(self, parents: Sequence[int]) -> None:
        """Keep the rows before the first difference, and append the others."""
        known = self.common(parents)
        del self.parents[known:], self.depths[known:]
        self.append(parents[known:])

    def append(self, parents: Sequence[int]) -> None:
        """Add nodes with these parents."""
        first, stop = len(self.parents), len(self.parents) + len(parents)
        if stop > len(self._host_rows):
            self._allocate(max(stop, 2 * len(self._host_rows)))
        rows = self._host_rows.numpy()
        for node, parent in enumerate(parents, first):
            assert -1 <= parent < node, f"node {node} cannot have parent {parent}"
            rows[node] = rows[parent] if parent >= 0 else False
            rows[node, node] = True
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        if self.rows is not self._host_rows:
            self.rows[first:stop] = self._host_rows[first:stop].to(self._device)
        self.depth_row[first:stop] = torch.tensor(self.depths[first:])

    def _allocate(self, nodes: int) -> None:
        """Room for that many nodes. Not in inference mode: the buffers outlive the pass."""
        kept, self.parents, self.depths = self.parents, [], []
        with torch.inference_mode(False):
            self._host_rows = torch.zeros(nodes, nodes, dtype=torch.bool)
            on_host = self._device.type == "cpu"
            self.rows = self._host_rows if on_host else self._host_rows.to(self._device)
            self.depth_row = torch.zeros(nodes, dtype=torch.int64, device=self._device)
        self.append(kept)


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """One way in which a model's layers attend."""

    layer_type: str | None
    """Its name in the config; None if the config does not tell layers apart."""
    layout: LayerLayout
    chunked: bool = False
    """Whether the window is a block of positions instead of the last W."""


class TreeMasks:
    """Builds the 4-D masks of one model."""

    def __init__(self, kinds: Sequence[AttentionKind], float_dtype: torch.dtype | None) -> None:
        """Masks are bool (True: may attend), or additive in `float_dtype` where one is given."""
        self._kinds = tuple(kinds)
        self._float_dtype = float_dtype

    @property
    def float_dtype(self) -> torch.dtype | None:
        """Of additive masks; None where masks are bool."""
        return self._float_dtype

    @classmethod
    def for_model(cls, config: Any, layout: KVLayout, dtype: torch.dtype) -> TreeMasks | None:
        """Masks in the form this model reads; None if its attention takes no 4-D mask at all.

        On CPU a bool and a same-dtype float mask cost sdpa the same (ratio 1.01 to 1.02 in bfloat16
        with 8 and 16 rows, 500 columns), which making the float mask would outweigh: sdpa gets bool.
        Eager attention *adds* its mask.
        """
        attention = config._attn_implementation or "eager"
        if attention.startswith(("flash", "flex", "paged")):
            return None
        return cls(_kinds_of(config, layout), None if attention == "sdpa" else dtype)

    @property
    def layer_types(self) -> list[str | None]:
        """Names of the kinds of layers; None of a model that does not tell them apart."""
        return [kind.layer_type for kind in self._kinds]

    def build(
        self, topology: Topology, length: int, first: int, stop: int
    ) -> Tensor | dict[str, Tensor] | None:
        """The mask of a pass over pending nodes first..stop-1 behind `length` committed tokens.

        Returns:
            A mask [1, 1, N, L], L being the rows that the layer's cache hands out; a dict of them
            where the config names layer types; None for a row that sees all there is, as in plain
            decoding.
        """
        if stop - first == 1 and self._sees_all(topology, length, first):
            return None
        masks = self.by_kind(topology, length, first, stop)
        return masks.get(None, masks)  # type: ignore[arg-type]

    def by_kind(
        self, topology: Topology, length: int, first: int, stop: int
    ) -> dict[str | None, Tensor]:
        """The masks by layer type, also for a row that sees all; arguments as in `build`."""
        return {
            kind.layer_type: self._mask(kind, topology, length, first, stop) for kind in self._kinds
        }

    def _sees_all(self, topology: Topology, length: int, node: int) -> bool:
        """Whether one new row may attend to every row that any layer's cache hands out."""
        depth = topology.deepest(node, node + 1)
        windows = [k.layout.window for k in self._kinds if k.layout.window and (node or k.chunked)]
        return depth == node and all(length + depth < window for window in windows)

    def _mask(
        self, kind: AttentionKind, topology: Topology, length: int, first: int, stop: int
    ) -> Tensor:
        rows = topology.rows(first, stop)
        held = kind.layout.held(length)
        visible = rows.new_ones(stop - first, held + stop)
        visible[:, held:] = rows
        window = kind.layout.window
        cut = window is not None and length + topology.deepest(first, stop) >= window
        if cut:
            visible &= _near(kind, topology, length, first, stop)
        if self._float_dtype is None:
            return mark_context(visible[None, None], 0 if cut else held)
        # The lowest finite number, not -inf: eager attention makes NaN of a row of -inf.
        lowest = torch.finfo(self._float_dtype).min
        mask = torch.zeros(visible.shape, dtype=self._float_dtype, device=visible.device)
        return mask.masked_fill_(~visible, lowest)[None, None]


def _near(kind: AttentionKind, topology: Topology, length: int, first: int, stop: int) -> Tensor:
    """The window rule, bool [N, L]. A node's position is length + depth, whatever its slot."""
    window = kind.layout.window
    assert window is not None
    depths = topology.depths(0, stop)
    held = torch.arange(length - kind.layout.held(length), length, device=depths.device)
    keys = torch.cat([held, depths + length])
    queries = (depths[first:] + length)[:, None]
    return keys // window == queries // window if kind.chunked else keys > queries - window


def _kinds_of(config: Any, layout: KVLayout) -> list[AttentionKind]:
    """One kind per layer type the config names; else a single one, which is then every layer's."""
    types = getattr(config, "layer_types", None)
    if types is None:
        first = next(layer for layer in layout.layers if layer is not None)
        chunked = getattr(config, "sliding_window", None) is None
        return [AttentionKind(None, first, chunked=first.window is not None and chunked)]
    layers: dict[str, LayerLayout] = {}
    for name, layer in zip(types, layout.layers, strict=False):
        if layer is not None:
            layers.setdefault(name, layer)
    return [AttentionKind(n, layer, chunked=n.startswith("chunked")) for n, layer in layers.items()]
