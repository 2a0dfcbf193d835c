"""Who takes part: the paper's line-up, and for equal budgets a list of shapes of each family."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from foredraft.bench.plan import PLAIN
from foredraft.bench.reproduce.published import MCSD, SD, STATIC
from foredraft.errors import ConfigError

LOSSY, LOSSLESS = "mcsd-improved-lossy", "mcsd-improved"
FORK = "8,1,1,1,1,1"
"""The appendix's fork of depth 5, with half of its 16 roots: its pass has 48 rows, not 96."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a line-up: what it is called and the method that it is."""

    label: str
    method: str


def line_up(decision: str | None) -> tuple[Entry, ...]:
    """The paper's methods, with the sizes that it gives them.

    Args:
        decision: the decision model, as the methods' option `decision` takes it; None leaves the rows with
            one out.
    """
    without = (
        Entry("plain decoding", PLAIN),
        Entry(SD, chain(4)),
        Entry(MCSD, mcsd("4,2,2,1")),
        Entry(STATIC, lossy("2,4,3,1,1")),
        Entry("improved, fork, no decision model", lossy(FORK)),
        Entry("improved, one root (1,4,3,1,1)", lossy("1,4,3,1,1")),
        Entry("improved, lossless (4,2,2,1)", lossless("4,2,2,1")),
    )
    if decision is None:
        return without
    return (
        *without,
        Entry("improved, dynamic (2,4,3,1,1)", f"{lossy('2,4,3,1,1')}:decision={decision}"),
        Entry("improved, dynamic, fork", f"{lossy(FORK)}:decision={decision}"),
    )


def chain(depth: int) -> str:
    """Speculative decoding as it was published: a sampled chain, verified by rejection."""
    return f"speculative:depth={depth}:verifier=rejection"


def mcsd(tree: str) -> str:
    """Multi-candidate speculative decoding."""
    return f"mcsd:tree={tree}"


def lossy(tree: str) -> str:
    """Target-initialised roots, of which the longest path wins."""
    return f"{LOSSY}:tree={tree}"


def lossless(tree: str) -> str:
    """The improved method that keeps the law: candidates from the target's own earlier laws too."""
    return f"{LOSSLESS}:tree={tree}"


def without_target(tree: str) -> str:
    """The same method with the text's share alone: what is missing is the target's information."""
    return f"{lossless(tree)}:pair=0:single=0"


# --- equal budgets -----------------------------------------------------------------------------------

CHAINS, TREES, ROOTED = "SD chains", "MCSD trees", "improved, lossy"
KEPT, ABLATED = "improved, lossless", "the same, without the target's laws"
_TREES = ("2,1", "4,1", "2,2", "2,1,1", "2,2,1", "3,2,1", "4,1,1", "2,1,1,1", "3,1,1,1", "2,2,1,1")
_ROOTED = ("2,1", "2,2", "2,1,1", "3,1,1", "2,2,1", "2,1,1,1", "3,1,1,1", "2,2,1,1", "2,1,1,1,1")
_KEPT = ("2,1", "2,1,1", "2,1,1,1", "2,2,1", "3,2,1", "4,1,1", "3,1,1,1", "2,2,1,1")
DEEPEST_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A method of one shape, and the rows of its target pass."""

    family: str
    method: str
    rows: int


def shapes(budget: int) -> tuple[Shape, ...]:
    """Every shape whose target pass has at most `budget` + 1 rows: so many draft tokens and the root.

    Open roots are candidates too, and counted.

    Raises:
        ConfigError: the budget has no room for a draft.
    """
    if budget < 2:
        raise ConfigError(f"a budget of {budget} draft tokens compares nothing; give 2 or more")
    chains = [Shape(CHAINS, chain(d), d + 1) for d in range(1, DEEPEST_CHAIN + 1)]
    trees = [Shape(TREES, mcsd(t), 1 + _nodes(t)) for t in _TREES]
    rooted = [Shape(ROOTED, lossy(t), _nodes(t)) for t in _ROOTED]
    kept = [Shape(KEPT, lossless(t), 1 + _nodes(t)) for t in _KEPT]
    ablated = [Shape(ABLATED, without_target(t), 1 + _nodes(t)) for t in _KEPT]
    every = (*chains, *trees, *rooted, *kept, *ablated)
    return tuple(shape for shape in every if shape.rows <= budget + 1)


def _nodes(tree: str) -> int:
    from foredraft.tree import parse_k_config  # late: `--help` need not wait for PyTorch

    return sum(accumulate(parse_k_config(tree), mul))
