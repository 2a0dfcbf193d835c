"""What a profile is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.protocols import Target

LEAST_REPEATS = 3
"""With fewer, quartiles say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """A profile of one method.

    Raises:
        ConfigError: a number that cannot be measured.
    """

    model: str = "smollm2"
    method: str | None = None
    """None takes the one that `load` takes."""
    drafter: str | None = None
    loading: Mapping[str, Any] = field(default_factory=dict)
    """What else `load` is given, by its names: `dtype`, `device`, ..; a new choice of loading goes here."""
    context: int = 512
    """Tokens in the cache before a pass or a round."""
    rows: Sequence[int] = (1, 8, 16)
    """Nodes of a target pass. One row is always measured: the others are held against it."""
    repeats: int = 30
    """Turns of every pass, and rounds of every kind."""
    memory_context: int = 1024
    """Tokens to which a fresh process decodes while its memory is watched; 0 leaves that out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted({1, *self.rows})))
        if self.context < 1:
            raise ConfigError(f"context={self.context} is not allowed; give 1 token or more")
        if self.rows[0] < 1 or self.rows[-1] > MAX_TREE_NODES:
            wrong = self.rows[0] if self.rows[0] < 1 else self.rows[-1]
            raise ConfigError(f"rows={wrong} is not allowed; a pass has 1 to {MAX_TREE_NODES} rows")
        if self.repeats < LEAST_REPEATS:
            raise ConfigError(
                f"repeats={self.repeats} is not allowed; give {LEAST_REPEATS} or more"
            )
        if self.memory_context < 0 or self.memory_context == 1:
            raise ConfigError(
                f"memory_context={self.memory_context} is not allowed; give 2 tokens or more, or 0 to "
                "leave memory out"
            )

    @property
    def decode_tokens(self) -> int:
        """Most tokens that are decoded behind the context: of plain answers, and of rounds of drafts."""
        return 16 * (self.repeats + 1)

    def check_room(self, target: Target) -> None:
        """Refuse a context that leaves the model no room for passes and rounds behind it.

        Raises:
            ConfigError: the message names the longest context that works.
        """
        limit = target.context_length
        needed = max(self.rows[-1], self.repeats + 2)
        if limit is not None and self.context + needed > limit:
            raise ConfigError(
                f"context={self.context} leaves no room for {needed} tokens in this model's {limit}; "
                f"give at most {max(limit - needed, 0)}, or fewer rows and repeats"
            )
