"""The control of every experiment: the same tree in every round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome
from foredraft.tree import check_k_config, parse_k_config


class FixedPolicy:
    """A product tree by k-config: every node at depth d - 1 gets k_d children.

    A chain of K tokens is the k-config of K ones (`FixedPolicy.chain(K)`).

    Args:
        k_config: widths per depth, as numbers or as text such as `"4,2,2,1"`.
        num_roots: how many roots the tree is repeated under, where they are open.

    Raises:
        ConfigError: the k-config does not describe a tree that can be drafted.
    """

    kind = PolicyKind.GROWS

    def __init__(self, k_config: Sequence[int] | str, num_roots: int = 1) -> None:
        is_text = isinstance(k_config, str)
        self.k_config = parse_k_config(k_config) if is_text else check_k_config(k_config)  # type: ignore[arg-type]
        self.num_roots = num_roots
        self.branches = any(k > 1 for k in self.k_config)
        self.max_nodes = num_roots * sum(accumulate(self.k_config, mul))

    @classmethod
    def chain(cls, depth: int) -> FixedPolicy:
        """One candidate a step, `depth` steps."""
        if not 1 <= depth < MAX_TREE_NODES:
            raise ConfigError(
                f"a chain of depth={depth} cannot be drafted; give 1 to {MAX_TREE_NODES - 1}"
            )
        return cls((1,) * depth)

    def start(self) -> FixedPolicy:
        """It keeps no state, so every request shares it."""
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The limits as they are."""
        return limits

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """k_d children for each node; none past the last depth."""
        past_end = frontier.depth >= len(self.k_config)
        return (0 if past_end else self.k_config[frontier.depth],) * len(frontier.nodes)

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""
