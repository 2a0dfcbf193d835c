"""A traced round as it is shown: names, texts, probabilities and times, ready for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from foredraft.engine.trace.names import TokenNames
from foredraft.engine.trace.rounds import TokenKind, TracedRound
from foredraft.results import RoundRecord

Stage = Literal["draft", "target", "verify", "other"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Times = dict[Stage, float]


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of a draft tree; the root is the last token of the text before it."""

    parent: int
    token_id: int
    name: str
    """The token by itself."""
    p: float | None
    """The target's probability of this token after its parent: the softmax of logits / temperature (1 when
    greedy), before penalties and filters; None for the root."""
    q: float | None
    """The drafter's, likewise; None for the root and from drafters without a law."""
    accepted: bool
    """Whether it became part of the answer; the root always is part of the text."""


@dataclass(frozen=True, slots=True)
class TraceToken:
    """An emitted token."""

    token_id: int
    kind: TokenKind
    name: str
    """The token by itself."""
    text: str
    """What it adds to the answer. A token that holds a part of a character adds nothing, and the one that
    completes it adds all of it."""
    p: float | None
    """The target's probability of it, as in `TraceNode`; None where the logits are not finite."""


@dataclass(frozen=True, slots=True)
class TraceRound:
    """One draft and one target pass."""

    nodes: tuple[TraceNode, ...]
    """[N] in level order."""
    tokens: tuple[TraceToken, ...]
    last: int
    """The node that the last token follows: where a recovered, bonus or plain token hangs."""
    cut: bool
    """Whether a stop or a limit cut off tokens that were verified."""
    draft_passes: int
    """Passes of the drafter's model."""
    times: Times
    """Milliseconds by stage."""


def show_round(
    seen: TracedRound, record: RoundRecord, texts: Sequence[str], names: TokenNames
) -> TraceRound:
    """A round with names and texts.

    Args:
        seen: what was read of it.
        record: the engine's count of it.
        texts: what each of its tokens adds to the answer.
        names: of tokens.
    """
    return TraceRound(
        nodes=_nodes(seen, names),
        tokens=tuple(
            TraceToken(token, kind, names(token), text, p)
            for (token, kind, p), text in zip(seen.emitted, texts, strict=True)
        ),
        last=seen.last,
        cut=record.cut,
        draft_passes=len(record.draft_rows),
        times=times_of(record),
    )


def _nodes(seen: TracedRound, names: TokenNames) -> tuple[TraceNode, ...]:
    columns = zip(seen.parents, seen.token_ids, seen.p, seen.q, strict=True)
    return tuple(
        TraceNode(parent, token, names(token), p, q, node in seen.accepted)
        for node, (parent, token, p, q) in enumerate(columns)
    )


def times_of(record: RoundRecord) -> Times:
    """Milliseconds of a round by stage."""
    stages = record.draft_s, record.target_s, record.verify_s
    draft, target, verify, other = (
        round(1000 * seconds, 4) for seconds in (*stages, record.total_s - sum(stages))
    )
    return {"draft": draft, "target": target, "verify": verify, "other": other}
