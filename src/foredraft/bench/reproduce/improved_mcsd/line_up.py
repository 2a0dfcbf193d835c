"""Who takes part: the paper's line-up, and for equal budgets a list of shapes of each family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from foredraft.bench.method_names import chain, cut, lossless, lossy, mcsd, without_target
from foredraft.bench.plan import PLAIN
from foredraft.bench.reproduce.entries import Entry
from foredraft.bench.reproduce.improved_mcsd.published import MCSD, SD, STATIC
from foredraft.errors import ConfigError
from foredraft.policies.decision_rules import RULES

FORK = "8,1,1,1,1,1"
"""The appendix's fork of depth 5, with half of its 16 roots: its pass has 48 rows, not 96."""


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
        Entry("improved, dynamic (2,4,3,1,1)", cut(lossy("2,4,3,1,1"), decision)),
        Entry("improved, dynamic, fork", cut(lossy(FORK), decision)),
    )


# --- equal budgets -----------------------------------------------------------------------------------

CHAINS, TREES, ROOTED = "SD chains", "MCSD trees", "improved, lossy"
KEPT, ABLATED = "improved, lossless", "the same, without the target's laws"
CUT_CHAINS, CUT_TREES = "SD chains, with decision", "MCSD trees, with decision"
_TREES = ("2,1", "4,1", "2,2", "2,1,1", "2,2,1", "3,2,1", "4,1,1", "2,1,1,1", "3,1,1,1", "2,2,1,1")
_ROOTED = ("2,1", "2,2", "2,1,1", "3,1,1", "2,2,1", "2,1,1,1", "3,1,1,1", "2,2,1,1", "2,1,1,1,1")
_KEPT = ("2,1", "2,1,1", "2,1,1,1", "2,2,1", "3,2,1", "4,1,1", "3,1,1,1", "2,2,1,1")
DEEPEST_CHAIN = 8
_CUT_CHAINS, _CUT_TREES = (5, DEEPEST_CHAIN), ("2,1,1,1", "2,2,1,1")
"""Shapes that a decision model ends: few, for each is a method more that answers every prompt."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A method of one shape, and the rows of its target pass."""

    family: str
    method: str
    rows: int


def shapes(budget: int, decision: str | None = None) -> tuple[Shape, ...]:
    """Every shape whose target pass has at most `budget` + 1 rows: so many draft tokens and the root.

    Open roots are candidates too, and counted. A draft that a decision model ends has these rows at most.

    Args:
        budget: draft tokens of a round at most.
        decision: as in `line_up`; None leaves the families with one out.

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
    every = (
        *chains,
        *trees,
        *rooted,
        *kept,
        *ablated,
        *(_cut_shapes(decision) if decision else ()),
    )
    return tuple(shape for shape in every if shape.rows <= budget + 1)


def _cut_shapes(decision: str) -> Iterator[Shape]:
    for depth in _CUT_CHAINS:
        for rule in RULES:
            yield Shape(CUT_CHAINS, cut(chain(depth), decision, rule), depth + 1)
    for tree in _CUT_TREES:
        yield Shape(CUT_TREES, cut(mcsd(tree), decision), 1 + _nodes(tree))


def _nodes(tree: str) -> int:
    from foredraft.tree import parse_k_config  # late: `--help` need not wait for PyTorch

    return sum(accumulate(parse_k_config(tree), mul))
