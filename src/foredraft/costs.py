"""What passes cost on a machine, and what a round of decoding would cost by that table.

Counted rounds priced by a table give *modelled time*: the same on every run, so that the structures of
drafts compare without noise, and on machines other than the one they were counted on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError
from foredraft.results import RoundRecord

FORMAT = 1
"""Version of the JSON form."""

NODES = (1, 2, 4, 8, 16, 32, 64)
"""Rows at which passes are measured when nothing else is asked for."""
CONTEXTS = (64, 512, 2048)
"""Cached tokens behind which passes are measured when nothing else is asked for."""
BUDGET_S = 15.0
"""Seconds that a whole measurement may take when nothing else is asked for."""
BUSY_SPREAD = 0.25
"""Repeats of one pass that differ by more than this say little about the machine when it is quiet."""


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of one pass of a model, by its rows and by the tokens cached before it.

    Between grid points costs are interpolated linearly in both; past the last ones the last slope
    goes on where it rises, before the first ones the first value holds. So where measured costs rise
    along an axis, prices do, as long as the other axis is not left: past its end, where the slopes of
    two points differ, lines may cross.

    Attributes:
        nodes: [N] increasing numbers of rows, the first 1.
        contexts: [C] increasing numbers of cached tokens.
        seconds: [C][N].

    Raises:
        ConfigError: the grid is not increasing, has another shape, or holds a cost that is not positive.
    """

    nodes: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name, axis in (("nodes", self.nodes), ("contexts", self.contexts)):
            if not axis or any(a >= b for a, b in pairwise(axis)) or axis[0] < 0:
                raise ConfigError(
                    f"{name}={list(axis)} of a cost table must be whole numbers that increase"
                )
        if self.nodes[0] != 1:
            raise ConfigError(
                f"nodes={list(self.nodes)} of a cost table must start with 1, the pass of plain decoding"
            )
        shape = {len(row) for row in self.seconds}
        if len(self.seconds) != len(self.contexts) or shape != {len(self.nodes)}:
            raise ConfigError(
                f"a cost table of {len(self.contexts)} contexts and {len(self.nodes)} node counts needs "
                "one row of seconds per context, one value per node count"
            )
        if not all(0 < value < math.inf for row in self.seconds for value in row):
            raise ConfigError("a cost table holds a pass that takes no time, or no finite time")

    def __call__(self, nodes: int, context: int) -> float:
        """Seconds of a pass over `nodes` rows behind `context` cached tokens."""
        by_context = [_interpolate(self.nodes, row, nodes) for row in self.seconds]
        return _interpolate(self.contexts, by_context, context)


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Seconds that drafting adds to a round: host work, and one pass a level for drafters with a model.

    Attributes:
        host_s: of drafting beside its passes, and of all that comes after the target's pass, verification
            above all, what plain decoding does not take.
        passes: of the draft model or head.

    Raises:
        ConfigError: `host_s` is negative or not finite.
    """

    host_s: float
    passes: PassCosts | None = None

    def __post_init__(self) -> None:
        _check_host(self.host_s)

    def __call__(self, draft_rows: Sequence[int], context: int) -> float:
        """Seconds of a draft made with passes of these rows."""
        if self.passes is None:
            return self.host_s
        return self.host_s + sum(self.passes(rows, context) for rows in draft_rows)


@dataclass(frozen=True, slots=True)
class CostTable:
    """The measured costs of one target, with its drafters, on one machine.

    Attributes:
        target: passes of the target.
        host_s: what else a round of plain decoding takes: drawing a token, stop rules, text, cache commits.
        drafts: the cost of drafting by method, as named on the command line.
        provenance: where and how it was measured.

    Raises:
        ConfigError: `host_s` is negative or not finite.
    """

    target: PassCosts
    host_s: float
    drafts: Mapping[str, DraftCosts] = field(default_factory=lambda: MappingProxyType({}))
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        _check_host(self.host_s)

    def draft_costs(self, method: str | None) -> DraftCosts | None:
        """The entry of a method by its full name, or else by its name without options; None without one."""
        name = method or ""
        return self.drafts.get(name) or self.drafts.get(name.partition(":")[0])

    def passes_s(self, record: RoundRecord, method: str | None = None) -> float | None:
        """Seconds of a round's passes, of the target and of the draft model, by this table.

        Args:
            record: its widths, draft passes and context are what is priced.
            method: whose draft model it was.

        Returns:
            None where the round had draft passes and this table holds no price of them.
        """
        target_s = self._target_s(record)
        if not record.draft_rows:
            return target_s
        draft = self.draft_costs(method)
        if draft is None or draft.passes is None:
            return None
        return target_s + sum(draft.passes(rows, record.context) for rows in record.draft_rows)

    def _target_s(self, record: RoundRecord) -> float:
        """Seconds of the target's passes: one over the tree, if any, and others of one row."""
        if not record.target_passes:
            return 0.0
        others = (record.target_passes - 1) * self.target(1, record.context)
        return self.target(sum(record.widths), record.context) + others

    def round_s(self, record: RoundRecord, method: str | None = None) -> float | None:
        """Seconds of a round of decoding: its passes, and the host's work beside them.

        Args:
            record: its widths, draft passes and context are what is priced.
            method: whose drafting it was; None, or a method that has no entry, drafts without host work.

        Returns:
            None as in `passes_s`.
        """
        passes_s = self.passes_s(record, method)
        if passes_s is None:
            return None
        draft = self.draft_costs(method)
        return passes_s + (draft.host_s if draft else 0.0) + self.host_s

    @classmethod
    def flat(cls, pass_s: float, level_s: float, methods: Sequence[str] = ()) -> CostTable:
        """A table like that of a large GPU: every pass costs the same, whatever its width and context."""
        flat = PassCosts((1,), (0,), ((pass_s,),))
        level = PassCosts((1,), (0,), ((level_s,),))
        return cls(flat, 0.0, {name: DraftCosts(0.0, level) for name in methods})

    def as_dict(self) -> dict[str, Any]:
        """The table ready for JSON."""
        return {
            "format": FORMAT,
            "provenance": dict(self.provenance),
            "target": _passes_as_dict(self.target),
            "host_s": self.host_s,
            "drafts": {
                name: {
                    "host_s": costs.host_s,
                    "passes": costs.passes and _passes_as_dict(costs.passes),
                }
                for name, costs in self.drafts.items()
            },
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> CostTable:
        """Read what `as_dict` gave.

        Raises:
            ConfigError: it is no cost table, or one of another format.
        """
        try:
            if document["format"] != FORMAT:
                raise ConfigError(
                    f"this cost table has format {document['format']!r} and {FORMAT} is read; "
                    "measure it again with `foredraft calibrate`"
                )
            return cls(
                _passes(document["target"]),
                _number(document["host_s"]),
                {name: _draft(costs) for name, costs in document["drafts"].items()},
                _mapping(document["provenance"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"this is no cost table ({type(error).__name__}: {error}); "
                "`foredraft calibrate --out FILE` writes one"
            ) from None


def check_grid(
    nodes: Sequence[int], contexts: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The points at which to measure: sorted, each once, and 1 node always among them.

    Args:
        nodes: rows of a pass, 1 to `MAX_TREE_NODES`.
        contexts: cached tokens before it, 0 or more.

    Raises:
        ConfigError: an empty list, or a number out of its range.
    """
    ranges = (("nodes", nodes, 1, MAX_TREE_NODES), ("contexts", contexts, 0, math.inf))
    for name, points, least, most in ranges:
        if not points:
            raise ConfigError(f"{name} is empty; give at least one number")
        for point in points:
            if not least <= point <= most:
                bounds = f"{least} to {most}" if most < math.inf else f"{least} or more"
                raise ConfigError(f"{name}={list(points)} holds {point}; give numbers of {bounds}")
    return tuple(sorted({1, *nodes})), tuple(sorted(set(contexts)))


def check_budget(budget_s: float) -> None:
    """Raise a `ConfigError` unless these are seconds that a measurement may take."""
    if not 0 < budget_s < math.inf:
        raise ConfigError(f"a budget of {budget_s} seconds is not allowed; give more than 0")


def _check_host(seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"host_s={seconds} of a cost table must be a finite number of 0 or more")


def _passes_as_dict(costs: PassCosts) -> dict[str, Any]:
    return {
        "nodes": list(costs.nodes),
        "contexts": list(costs.contexts),
        "seconds": [list(row) for row in costs.seconds],
    }


def _passes(document: Mapping[str, Any]) -> PassCosts:
    return PassCosts(
        tuple(map(_whole, document["nodes"])),
        tuple(map(_whole, document["contexts"])),
        tuple(tuple(map(_number, row)) for row in document["seconds"]),
    )


def _draft(document: Mapping[str, Any]) -> DraftCosts:
    passes = document["passes"]
    return DraftCosts(_number(document["host_s"]), None if passes is None else _passes(passes))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is not an object")
    return dict(value)


def _interpolate(axis: Sequence[int], values: Sequence[float], at: float) -> float:
    """Linear between points, the last slope past the last one (never falling), the first value before."""
    if len(axis) == 1 or at <= axis[0]:
        return values[0]
    i = min(bisect_right(axis, at), len(axis) - 1)
    slope = (values[i] - values[i - 1]) / (axis[i] - axis[i - 1])
    if at > axis[-1]:
        return values[-1] + max(slope, 0.0) * (at - axis[-1])
    return values[i - 1] + slope * (at - axis[i - 1])
