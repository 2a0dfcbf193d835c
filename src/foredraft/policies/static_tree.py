"""Irregular trees of one shape, such as EAGLE-1's: each path named by the ranks of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError, suggestion
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome
from foredraft.tree import NO_PARENT

Path = tuple[int, ...]
"""Ranks from the root down: (0, 2) is the third child of the root's first child."""

TREES = MappingProxyType(
    {
        "mc_sim_7b_63": (
            *((0,), (1,), (2,), (3,)),
            *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
            *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1)),
            *((0, 2, 0), (0, 2, 1), (1, 0, 0)),
            *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
            *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
        )
    }
)
"""Published trees by their names; EAGLE-1's has 25 draft tokens in 5 levels."""


class StaticTreePolicy:
    """The same irregular tree in every round.

    A node that got fewer children than its place asks for (its law has no more support, or the draft no
    more room) leaves the places under the missing ones empty; so does one that ended the text.

    Args:
        paths: one path of ranks for each draft token, in any order; or the name of a published tree.

    Raises:
        ConfigError: an unknown name, no tree, a place whose parent or elder sibling is missing, or too
            many nodes.
    """

    kind = PolicyKind.GROWS

    def __init__(self, paths: Sequence[Sequence[int]] | str = "mc_sim_7b_63") -> None:
        if isinstance(paths, str):
            if paths not in TREES:
                raise ConfigError(f"unknown tree {paths!r}; {suggestion(paths, TREES)}")
            paths = TREES[paths]
        self.paths = _read(paths)
        _check(self.paths)
        self.counts: dict[Path, int] = {}
        for path in self.paths:
            self.counts[path[:-1]] = self.counts.get(path[:-1], 0) + 1
        self.depth = len(self.paths[-1])
        self.max_nodes = len(self.paths)
        self.branches = any(count > 1 for count in self.counts.values())

    def start(self) -> StaticTreeState:
        """State for one request."""
        return StaticTreeState(self.counts)


class StaticTreeState:
    """The place of each node of the draft in progress."""

    def __init__(self, counts: dict[Path, int]) -> None:
        self._counts = counts
        self._places: dict[int, Path] = {}

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The limits as they are; a new draft begins."""
        self._places = {}
        return limits

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """As many children as each node's place has."""
        for node, parent, rank in zip(
            frontier.nodes, frontier.parents, frontier.ranks, strict=True
        ):
            self._places[node] = () if parent == NO_PARENT else (*self._places[parent], rank)
        return [self._counts.get(self._places[node], 0) for node in frontier.nodes]

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""


def _read(paths: Sequence[Sequence[int]]) -> tuple[Path, ...]:
    """The paths level by level, each once."""
    try:
        return tuple(sorted({tuple(path) for path in paths}, key=lambda p: (len(p), p)))
    except TypeError:
        raise ConfigError(
            f"a static tree is a list of paths such as [[0], [1], [0, 0]], not {paths!r:.60}"
        ) from None


def _check(paths: tuple[Path, ...]) -> None:
    if not paths or not all(paths):
        raise ConfigError("a static tree needs at least one path, and every path at least one rank")
    if len(paths) >= MAX_TREE_NODES:
        raise ConfigError(
            f"a static tree of {len(paths)} draft tokens is too large; the limit is {MAX_TREE_NODES - 1}"
        )
    known = {(), *paths}
    for path in paths:
        if any(type(rank) is not int or rank < 0 for rank in path):
            raise ConfigError(f"path {list(path)} of a static tree must hold ranks of 0 or more")
        elder = (*path[:-1], path[-1] - 1)
        for needed in (path[:-1], elder if path[-1] else path[:-1]):
            if needed not in known:
                raise ConfigError(
                    f"path {list(path)} of a static tree needs path {list(needed)}, which is missing"
                )
