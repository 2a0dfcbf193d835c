"""The papers' methods as they are written on the command line."""

from __future__ import annotations

LOSSY, LOSSLESS = "mcsd-improved-lossy", "mcsd-improved"


def chain(depth: int) -> str:
    """Speculative decoding as it was published: a sampled chain, verified by rejection."""
    return f"speculative:depth={depth}:verifier=rejection"


def mcsd(tree: str) -> str:
    """Multi-candidate speculative decoding."""
    return f"mcsd:tree={tree}"


def lossy(tree: str) -> str:
    """Target-initialised roots, of which the longest path wins; the first width is how many there are."""
    return f"{LOSSY}:tree={tree}"


def lossless(tree: str) -> str:
    """The improved method that keeps the law: candidates from the target's own earlier laws too."""
    return f"{LOSSLESS}:tree={tree}"


def without_target(tree: str) -> str:
    """The same method with the text's share alone: what is missing is the target's information."""
    return f"{lossless(tree)}:pair=0:single=0"


def cut(method: str, decision: str, rule: str | None = None) -> str:
    """A method whose drafts a decision model ends."""
    return f"{method}:decision={decision}" + (f":rule={rule}" if rule else "")
