"""What an answer cost, as OpenAI counts it and as Foredraft does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft.results import Result, Statistics

METRICS = (
    "rounds",
    "drafted_tokens",
    "accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "accepted_per_depth",
    "cut_rounds",
    "target_passes",
    "tokens_per_pass",
    "tokens_per_s",
    "prefill_ms",
    "ttft_ms",
    "draft_ms",
    "target_ms",
    "verify_ms",
    "other_ms",
)
"""Statistics that a response tells, by their names in docs/metrics.md."""


def usage_of(
    results: Sequence[Result], prompts: Sequence[Sequence[int]], method: str, lossless: bool
) -> dict[str, Any]:
    """Counts of one request.

    Args:
        results: of all its answers, in the order of the prompts. What of a prompt was known (`cached_tokens`)
            is told by the first answer to it.
        prompts: of the request; each counts once, however many answers it has.
        method: that made them.
        lossless: whether it follows the model's own law.
    """
    pooled = Statistics.pool(result.stats for result in results).as_dict()
    num_prompt = sum(len(prompt) for prompt in prompts)
    choices = max(len(results) // len(prompts), 1)
    restored = sum(result.stats.cached_prompt_tokens for result in results[::choices])
    num_answer = pooled["completion_tokens"]
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        "total_tokens": num_prompt + num_answer,
        "prompt_tokens_details": {"cached_tokens": restored},
        "foredraft": {
            "method": method,
            "lossless": lossless,
            "seed": results[0].seed,
            **{name: pooled[name] for name in METRICS},
        },
    }
