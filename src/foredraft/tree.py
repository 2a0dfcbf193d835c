"""The draft tree: what a drafter proposes and a target scores in one pass.

Nodes are in level order, so every prefix of whole levels is closed under ancestors. Node 0, the
root, is the session's last token: it is already part of the text, and its row is scored so that its
children can be verified. Every other node is a draft token.

A tree with *open roots* (target-initialised candidates, arXiv 2409.10644) has any number of roots, which
are no text yet: each is a candidate for the next token, taken from the target's own law. They are neither
drafted nor accepted, and one of them becomes text in every round.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError

NO_PARENT = -1


class Proposal(enum.Enum):
    """How a draft token was chosen; which acceptance rules are exact depends on it (design, section 4)."""

    DETERMINISTIC = "deterministic"
    """A function of the context alone: an n-gram match, a top-k set. Its draft law is a point mass."""
    COUPLED = "coupled"
    """Ranked by log q plus the very Gumbel noise that will choose the target's token."""
    SAMPLED = "sampled"
    """Drawn from q without replacement: after each draw its token is removed and q renormalised."""
    RESAMPLED = "resampled"
    """Drawn from q with replacement: siblings are independent and may repeat."""


@dataclass(frozen=True)
class DraftTree:
    """A draft, frozen once grown.

    Attributes:
        token_ids: [N] token of each node; the root's is the session's last token, if it is no open root.
        parents: [N] index of each node's parent, always smaller than its own; -1 for roots.
        proposals: [N] how each node was proposed; those of roots are never read.
        laws: node -> q, float64 [V]: the law its sampled children were drawn from, after
            temperature and filters. Only nodes with sampled children have one.
        open_roots: whether the roots are candidates for the next token. If not there is one root, and it
            is text.
        draft_rows: [L] rows of the model pass that the drafter made for each level, in order; the first
            one's include the text it had to catch up with. Empty for drafters without a model.

    Siblings stand in the order in which they were drawn.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    proposals: tuple[Proposal, ...]
    laws: Mapping[int, Tensor] = field(default_factory=dict)
    open_roots: bool = False
    draft_rows: tuple[int, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.parents) == len(self.proposals) >= 1
        assert all(a <= b for a, b in zip(self.parents, self.parents[1:], strict=False)), (
            "not in level order"
        )
        assert self.num_roots == 1 or (self.num_roots > 1 and self.open_roots)
        assert all(parent < node for node, parent in enumerate(self.parents))

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def num_roots(self) -> int:
        """Nodes without a parent; they come first."""
        return self.parents.count(NO_PARENT)

    @property
    def num_drafted(self) -> int:
        """Draft tokens: every node but the roots."""
        return len(self.token_ids) - self.num_roots

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[N] edges from the root."""
        depths = [0] * len(self)
        for node in range(self.num_roots, len(self)):
            depths[node] = depths[self.parents[node]] + 1
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Edges on the longest path."""
        return self.depths[-1]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """[N] each node's children, in the order in which they were drawn."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(self.num_roots, len(self)):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    @property
    def widths(self) -> tuple[int, ...]:
        """[D + 1] nodes at each depth, the roots first."""
        counts = Counter(self.depths)
        return tuple(counts[depth] for depth in range(self.depth + 1))

    @property
    def is_chain(self) -> bool:
        """Whether there is one root, and no node has more than one child."""
        return self.depth == len(self) - 1

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root to `node`, both included."""
        path = []
        while node != NO_PARENT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of the path to `node` that are no text yet: an open root is one of them."""
        path = self.path(node)
        return tuple(self.token_ids[i] for i in (path if self.open_roots else path[1:]))

    def follow(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Nodes from the root, it included, along these draft tokens as far as the tree holds them.

        Of equal siblings the first is taken. Of trees with one root.
        """
        path = [0]
        for token in token_ids:
            child = next((n for n in self.children[path[-1]] if self.token_ids[n] == token), None)
            if child is None:
                break
            path.append(child)
        return tuple(path)

    def part(self, nodes: Collection[int]) -> DraftTree:
        """The roots and these draft tokens alone, with each its parent; they keep their order."""
        kept = [*range(self.num_roots), *sorted(nodes)]
        new = {old: i for i, old in enumerate(kept)}
        return DraftTree(
            tuple(self.token_ids[n] for n in kept),
            tuple(new.get(self.parents[n], NO_PARENT) for n in kept),
            tuple(self.proposals[n] for n in kept),
            {new[n]: law for n, law in self.laws.items() if n in new},
            self.open_roots,
            self.draft_rows,
        )

    @classmethod
    def root_only(cls, token_id: int) -> DraftTree:
        """The empty draft: plain decoding."""
        return cls((token_id,), (NO_PARENT,), (Proposal.DETERMINISTIC,))


class TreeBuilder:
    """Grows a `DraftTree` level by level. Children are added parent by parent, in draw order.

    Args:
        roots: the session's last token, or any number of open roots.
        open_roots: as in `DraftTree`.

    Attributes:
        token_ids, parents, num_roots: as in `DraftTree`.
        ranks: [N] place of each node among its siblings, 0 first.
        origins: after `keep`, for each node its index before; None as long as nothing was dropped.
    """

    def __init__(self, *roots: int, open_roots: bool = False) -> None:
        self.token_ids = list(roots)
        self.num_roots, self._open_roots = len(roots), open_roots
        self.parents = [NO_PARENT] * len(roots)
        self.ranks = list(range(len(roots)))
        self.origins: list[int] | None = None
        self._proposals = [Proposal.DETERMINISTIC] * len(roots)
        self._laws: dict[int, Tensor] = {}
        self._draft_rows: list[int] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_drafted(self) -> int:
        """Draft tokens so far."""
        return len(self.token_ids) - self.num_roots

    def add(self, parent: int, token_id: int, proposal: Proposal) -> int:
        """Append a child of `parent`; returns its node index."""
        self.ranks.append(self.ranks[-1] + 1 if self.parents[-1] == parent else 0)
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self._proposals.append(proposal)
        return len(self.token_ids) - 1

    def set_law(self, node: int, law: Tensor) -> None:
        """Record q, float64 [V], that the sampled children of `node` are drawn from."""
        self._laws[node] = law

    def count_pass(self, num_rows: int) -> None:
        """Record a model pass that the drafter made for this tree."""
        self._draft_rows.append(num_rows)

    def path_tokens(self, node: int) -> list[int]:
        """The tokens of the path to `node` that are no text yet, as in `DraftTree.path_tokens`."""
        tokens: list[int] = []
        while self.parents[node] != NO_PARENT:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        if self._open_roots:
            tokens.append(self.token_ids[node])
        return tokens[::-1]

    def keep(self, nodes: Sequence[int]) -> None:
        """Drop all but the roots and these nodes, which are then counted anew in the same order.

        Args:
            nodes: increasing indices, with each one its parent.
        """
        roots = range(self.num_roots)
        kept = [*roots, *nodes]
        new = {old: i for i, old in enumerate(kept)}
        self.parents = [NO_PARENT for _ in roots] + [new[self.parents[node]] for node in nodes]
        self.token_ids = [self.token_ids[node] for node in kept]
        self.ranks = [self.ranks[node] for node in kept]
        self._proposals = [self._proposals[node] for node in kept]
        self._laws = {new[node]: law for node, law in self._laws.items() if node in new}
        self.origins = kept

    def build(self) -> DraftTree:
        """The frozen tree."""
        return DraftTree(
            tuple(self.token_ids),
            tuple(self.parents),
            tuple(self._proposals),
            self._laws,
            self._open_roots,
            tuple(self._draft_rows),
        )


def parse_k_config(text: str) -> tuple[int, ...]:
    """Read a k-config such as `"4,2,2,1"`: every node at depth d - 1 gets k_d children (MCSD).

    Raises:
        ConfigError: not a comma list of positive whole numbers, or a tree of too many nodes.
    """
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"tree {text!r} is not a list of widths per depth; write it like 4,2,2,1"
        ) from None
    return check_k_config(widths)


def check_k_config(widths: Sequence[int]) -> tuple[int, ...]:
    """The k-config as a tuple, if it describes a tree that can be drafted; else a `ConfigError`."""
    shown = ",".join(map(str, widths))
    if not widths or any(k < 1 for k in widths):
        raise ConfigError(
            f"tree {shown!r} has a depth without children; every width must be 1 or more"
        )
    nodes = level = 1
    for k in widths:
        level *= k
        nodes += level
        if nodes > MAX_TREE_NODES:
            raise ConfigError(
                f"tree {shown!r} needs more than {MAX_TREE_NODES} nodes; use smaller widths or fewer depths"
            )
    return tuple(widths)
