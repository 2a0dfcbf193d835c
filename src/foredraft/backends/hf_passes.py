"""Passes of a Hugging Face model that score nodes: over one sequence, or over several together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foredraft.backends.hf_taps import Shown
from foredraft.backends.joint_pass import Joining, JointPass, Masks
from foredraft.config import MAX_TREE_NODES

if TYPE_CHECKING:
    from foredraft.backends.hf import HFTarget
    from foredraft.backends.hf_state import HFState


@dataclass(frozen=True, slots=True)
class Scoring:
    """Nodes of one sequence that are to be scored.

    Attributes:
        state: the sequence; its topology holds the tree.
        token_ids: [n], checked.
        first: how many nodes are pending before them.
    """

    state: HFState
    token_ids: tuple[int, ...]
    first: int

    @property
    def stop(self) -> int:
        """Pending nodes after the pass."""
        return self.first + len(self.token_ids)

    def positions(self) -> Tensor:
        """int64 [n]"""
        state = self.state
        return state.topology.depths(self.first, self.stop) + state.length


class ScoringPasses:
    """Runs what sequences of one target ask for."""

    def __init__(self, target: HFTarget) -> None:
        self._target = target

    def run(self, scorings: Sequence[Scoring]) -> list[Tensor]:
        """Logits [n, rows of the head] of each, in few passes if the model can join sequences.

        Raises:
            CacheError: the model did not write its cache as asked.
        """
        joining = self._target.joining if len(scorings) > 1 else None
        if joining is None:
            return [self._alone(scoring) for scoring in scorings]
        scored: list[Tensor] = []
        for group in _groups(scorings):
            one = len(group) == 1
            scored += [self._alone(group[0])] if one else self.together(group, joining)
        return scored

    def _alone(self, scoring: Scoring) -> Tensor:
        state, masks = scoring.state, self._target.masks
        mask = masks and masks.build(state.topology, state.length, scoring.first, scoring.stop)
        replayed = self._replayed(scoring, mask)
        if replayed is not None:
            return replayed
        return state.run(scoring.token_ids, positions=scoring.positions(), mask=mask)

    def _replayed(self, scoring: Scoring, mask: Any) -> Tensor | None:
        """The pass as it was captured; None where none are captured or this one fits no bucket."""
        graphs, state = self._target.graphs, scoring.state
        if graphs is None or isinstance(mask, dict):
            return None
        given = (scoring.token_ids, state.cache, scoring.positions(), mask, state.reads)
        outputs = graphs.run(*given)
        if outputs is None:
            return None
        logits, *states = [output[None] for output in outputs]
        taps = state.reads.taps
        shown = Shown(dict(zip(taps, states, strict=False)), states[len(taps) :])
        state.hear(shown, len(scoring.token_ids))
        return logits[0]

    def together(self, scorings: Sequence[Scoring], joining: Joining) -> list[Tensor]:
        """As `run`, in one pass joined so."""
        caches = [scoring.state.cache for scoring in scorings]
        rows = [len(scoring.token_ids) for scoring in scorings]
        masks = [self._masks(scoring, joining) for scoring in scorings]
        with ExitStack() as stack:
            for cache, count in zip(caches, rows, strict=True):
                stack.enter_context(cache.writing(count))
            joint = JointPass(caches, rows, masks, joining)
            shown = stack.enter_context(self._target.watching())
            logits = self._target.forward(
                [token for scoring in scorings for token in scoring.token_ids],
                positions=torch.cat([scoring.positions() for scoring in scorings]),
                joint=joint,
            )
        for scoring, part in zip(scorings, joint.parts, strict=True):
            scoring.state.hear(shown.of(part), part.stop - part.start)
        return list(torch.split(logits, rows))

    def _masks(self, scoring: Scoring, joining: Joining) -> Masks:
        """By layer type; None where one row sees all, if that can be said of one sequence."""
        masks, state = self._target.masks, scoring.state
        assert masks is not None  # or nothing could be joined
        place = (state.topology, state.length, scoring.first, scoring.stop)
        if joining is Joining.APART and masks.build(*place) is None:
            return dict.fromkeys(masks.layer_types)
        return masks.by_kind(*place)


def _groups(scorings: Sequence[Scoring]) -> list[list[Scoring]]:
    """Neighbours whose rows are one pass: no more of them than the largest tree has, or one scoring's."""
    groups: list[list[Scoring]] = []
    rows = MAX_TREE_NODES
    for scoring in scorings:
        rows += len(scoring.token_ids)
        if rows > MAX_TREE_NODES:
            groups.append([])
            rows = len(scoring.token_ids)
        groups[-1].append(scoring)
    return groups
