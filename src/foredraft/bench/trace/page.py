"""A trace as one HTML page that needs nothing else: no network, no files beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from foredraft.bench.trace.document import TraceDocument
from foredraft.engine.trace.rounds import KINDS
from foredraft.engine.trace.shown import STAGES

NUL_PICTURE = "\u2400"
"""Stands in the page's own text for NUL, which HTML cannot hold."""
NONE = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the summary, its unit or name, and what it means."""

    value: str
    name: str
    meaning: str


def render(document: TraceDocument) -> str:
    """The page. Whatever prompt and answer hold, it is shown as text."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["shown"] = lambda text: text.replace("\0", NUL_PICTURE)
    return environment.from_string(_resource("page.html")).render(
        document=document,
        data=document.as_dict(),
        style=Markup(_resource("page.css")),
        script=Markup(_resource("page.js")),
        facts=_facts(document),
        figures=_figures(document.statistics),
        depths=_depths(document.statistics),
        stages=_stages(document),
        counts=_counts(document),
    )


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _facts(document: TraceDocument) -> list[tuple[str, str]]:
    """What was asked for, as names and values."""
    seed = "none (greedy)" if document.seed is None else str(document.seed)
    ending: str = document.finish_reason
    if document.stopped_by is not None:
        ending = f"{ending} ({document.stopped_by})"
    facts = {
        "model": document.model,
        "method": document.method,
        "verifier": document.verifier,
        "dtype": document.dtype,
        "temperature": f"{document.temperature:g}",
        "seed": seed,
        "ended by": ending,
    }
    return [(name, value) for name, value in facts.items() if value]


def _figures(stats: dict[str, Any]) -> list[Figure]:
    drafted, accepted = stats["drafted_tokens"], stats["accepted_tokens"]
    return [
        Figure(str(stats["completion_tokens"]), "tokens", "emitted, the end token included"),
        Figure(str(stats["rounds"]), "target passes", "one a round; prefill apart"),
        Figure(_number(stats["tokens_per_pass"]), "tokens per pass", "1.00 is plain decoding"),
        Figure(
            _percent(stats["acceptance_rate"]),
            "acceptance rate",
            f"{accepted} of {drafted} drafted tokens",
        ),
        Figure(
            _number(stats["mean_acceptance_length"]),
            "τ, mean acceptance length",
            "1 + accepted tokens per whole round",
        ),
        Figure(_number(stats["tokens_per_s"], 1), "tokens per second", "decoding alone"),
        Figure(_number(stats["prefill_ms"], 0), "ms of prefill", "the prompt, but its last token"),
        Figure(_number(stats["ttft_ms"], 0), "ms to the first token", "prefill included"),
    ]


def _depths(stats: dict[str, Any]) -> list[tuple[int, str, float]]:
    """Depth, share as text, and share of the rounds that drafted so deep and had it accepted."""
    shares: Sequence[float] = stats["accepted_per_depth"]
    return [(depth, _percent(share), share) for depth, share in enumerate(shares, 1)]


def _stages(document: TraceDocument) -> list[tuple[str, float]]:
    """Milliseconds of each stage over all rounds."""
    return [(stage, sum(r.times[stage] for r in document.rounds)) for stage in STAGES]


def _counts(document: TraceDocument) -> list[tuple[str, int]]:
    """How many tokens there are of each kind."""
    counts = Counter(token.kind for r in document.rounds for token in r.tokens)
    return [(kind, counts[kind]) for kind in KINDS]


def _number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"
