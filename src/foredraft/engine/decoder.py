"""The decoding loop. Plain decoding is the same loop with an empty tree."""

from __future__ import annotations

from collections.abc import Iterator

from foredraft.engine.session import Session
from foredraft.protocols import Verifier
from foredraft.results import Step


def decode(session: Session, verifier: Verifier) -> Iterator[Step]:
    """Rounds of draft, score, verify and take, until a stop, a limit or a cancel. Closes the session."""
    try:
        session.prefill()
        while session.goes_on:
            with session.clock.stage("draft"):
                tree = session.draft()
            with session.clock.stage("target"):
                logits = session.score(tree)
            with session.clock.stage("verify"):
                verdict = verifier.verify(tree, session.laws(tree, logits), session.random)
            yield session.take(tree, verdict)
            session.clock.restart()
    finally:
        session.close()
