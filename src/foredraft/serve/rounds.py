"""What the worker needs of those who decode side by side: `foredraft.engine.batch.Batch` is one."""

from __future__ import annotations

from typing import Protocol

from foredraft.engine.batch import Progress
from foredraft.engine.stream import Stream


class Rounds(Protocol):
    """Decodes the streams that have joined. Used from one thread at a time."""

    def join(self, stream: Stream) -> None:
        """Have a fresh stream take part from the next round on."""
        ...

    def leave(self, stream: Stream) -> None:
        """Close a member's stream and drop it, between two rounds."""
        ...

    def round(self) -> list[Progress]:
        """One round of every member. One member's error is its own, and never raised."""
        ...
