"""The few figures of a profile that say how far a method is from what it could be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]


def headlines(document: Document) -> dict[str, Any]:
    """What stands at the top of a profile; None of what was not measured.

    Returns:
        `rows_vs_hf`: by rows of a pass of ours, its time / transformers' pass of one token.
        `plain_speedup_vs_hf`: of whole answers by plain decoding. `method_speedup_vs_hf`: by the method.
        `floors`: time of our pass of one row / its floor.
        `draft_level_share`: a draft pass of one row / our target pass of one row.
        `verify_share`: sampling and verification / a round, at temperature 1 and top-p 0.95.
        `host_share`: all that is no pass / a round, at temperature 0.
        `memory_growth_ratio`: memory after the imports / weights.
    """
    passes = {row["name"]: row for row in document["passes"]}
    answers = {row["name"]: row["speedup_vs_hf"] for row in document["decoding"]["rows"]}
    rounds = document["rounds"]
    memory = document["memory"] or {}
    return {
        "rows_vs_hf": dict(_rows_vs_hf(passes)),
        "floors": passes["target, 1 row"]["vs_floor"],
        "plain_speedup_vs_hf": answers["plain"],
        "method_speedup_vs_hf": answers.get("method"),
        "draft_level_share": passes.get("draft, 1 row", {}).get("vs_own_one"),
        "verify_share": (rounds["sampled"] or rounds["plain sampled"] or {}).get("verify_share"),
        "host_share": (rounds["greedy"] or rounds["plain"] or {}).get("host_share"),
        "memory_growth_ratio": memory.get("growth_ratio"),
    }


def _rows_vs_hf(passes: Mapping[str, Document]) -> Iterator[tuple[str, float]]:
    for name, row in passes.items():
        if name.startswith("target, "):
            yield name.split()[1], row["vs_hf"]
