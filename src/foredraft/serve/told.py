"""What a stream tells of its rounds, and the model's card of its server: fields that are Foredraft's own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from foredraft.engine.trace.watch import traceable
from foredraft.serve.jobs import Stepped
from foredraft.serve.service import Service


def told_round(event: Stepped) -> dict[str, Any]:
    """The part of a choice that tells its round; empty if that was not asked for."""
    return {} if event.trace is None else {"foredraft": {"round": asdict(event.trace)}}


def told_server(service: Service) -> dict[str, Any]:
    """What requests to a server may choose among, the method first that answers where none is chosen."""
    first = next(iter(service.engines.values()))
    return {
        "methods": [
            {
                "name": name,
                "plain": engine.drafter is None,
                "lossless": engine.lossless,
                "trace": traceable(engine),
            }
            for name, engine in service.engines.items()
        ],
        "context_length": first.target.context_length,
        "max_tokens": service.settings.max_tokens,
    }
