"""What the loop costs: plain decoding against transformers' `generate`, and host time per pass.

    python benchmarks/overhead/run.py --prompts PROMPTS --out benchmarks/overhead/results.json

Both decode the same prompts greedily in turn; a token's time is the time between two tokens, so
prefill is apart, and the ratio is that of the medians. Host time is a round's time outside the calls
of the model, for plain decoding and for chains and trees of up to 16 nodes of an n-gram
drafter and of a draft model (the target's own first layers).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import SUITES, first_layers, read_prompts, write_results
from transformers.generation.streamers import BaseStreamer

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.methods import parse_method
from foredraft.results import RoundRecord

METHODS = (
    "autoregressive",
    "ngram:min=1:depth=7",
    "ngram:min=1:depth=15",
    "ngram:min=1:tree=3,2,1",
    "speculative:depth=4",
    "speculative:tree=3,2,1",
)
"""Of at most 16 nodes; n-grams of one token too, so that nearly every round has a draft."""
DRAFT_LAYERS = 6


class Timestamps(BaseStreamer):
    """Notes when each token comes; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def hf_intervals(model: Any, prompt_ids: list[int], num_tokens: int) -> list[float]:
    """Seconds between tokens of transformers' own greedy decoding."""
    stamps = Timestamps()
    ids = torch.tensor([prompt_ids])
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num_tokens,
        streamer=stamps,
    )
    return differences(stamps.times[1:])


def own_intervals(engine: foredraft.Engine, prompt_ids: list[int], num_tokens: int) -> list[float]:
    """Seconds between tokens of plain decoding through the loop."""
    times = []
    with engine.stream(prompt_ids, max_new_tokens=num_tokens) as stream:
        for _ in stream:
            times.append(time.perf_counter())
    return differences(times)


def differences(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


@contextmanager
def timed_calls(models: list[Any]) -> Iterator[list[float]]:
    """Seconds of each call of these models inside, in order."""
    seconds: list[float] = []

    def timed(forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            output = forward(*args, **kwargs)
            seconds.append(time.perf_counter() - begin)
            return output

        return call

    for model in models:
        model.forward = timed(model.forward)
    try:
        yield seconds
    finally:
        for model in models:
            del model.forward


def host_share(
    engine: foredraft.Engine, prompts: list[list[int]], num_tokens: int
) -> dict[str, Any]:
    """Median host time of a round over its median target call; rounds without a draft are left out."""
    host, passes, models, nodes = [], [], [], []
    for prompt in prompts:
        for record, calls in _rounds(engine, prompt, num_tokens):
            if record.num_drafted or engine.drafter is None:
                host.append(record.total_s - sum(calls))
                passes.append(calls[-1])  # the target's; the draft model's come before it
                models.append(sum(calls))
                nodes.append(record.num_drafted + 1)
    return {
        "host_ms": 1000 * statistics.median(host),
        "target_call_ms": 1000 * statistics.median(passes),
        "model_calls_ms": 1000 * statistics.median(models),
        "host_share_of_target_call": statistics.median(host) / statistics.median(passes),
        "host_share_of_model_calls": statistics.median(host) / statistics.median(models),
        "mean_nodes": statistics.mean(nodes),
        "max_nodes": max(nodes),
        "rounds": len(nodes),
    }


def _rounds(
    engine: foredraft.Engine, prompt: list[int], num_tokens: int
) -> list[tuple[RoundRecord, list[float]]]:
    """The rounds of one answer after the first (which prefills), with their model calls' seconds."""
    models = [engine.target.model]
    if isinstance(engine.drafter, DraftModelDrafter):
        models.append(engine.drafter.model.model)
    with timed_calls(models) as seconds, engine.stream(prompt, max_new_tokens=num_tokens) as stream:
        ends = [len(seconds) for _ in stream]
        rounds = stream.result().stats.rounds
    spans = itertools.pairwise(ends)
    return [(r, seconds[a:b]) for r, (a, b) in zip(rounds[1:], spans, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--prompts", type=Path, required=True, help="folder of the JSONL question files"
    )
    parser.add_argument("--per-suite", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plain = foredraft.load(args.model, method="autoregressive", dtype=args.dtype, report=print)
    questions = read_prompts(args.prompts, SUITES, args.per_suite)
    prompts = [list(plain.generate(q, max_new_tokens=1).prompt_ids) for _, q in questions]

    draft = HFTarget(first_layers(plain.target.model, DRAFT_LAYERS), plain.tokenizer)

    ours, theirs, rows = [], [], []
    for _ in range(args.repeats):
        for prompt in prompts:
            theirs += hf_intervals(plain.target.model, prompt, args.max_new_tokens)
            ours += own_intervals(plain, prompt, args.max_new_tokens)
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"plain decoding / transformers generate, per token: {ratio:.3f}", flush=True)
    for method in METHODS:
        recipe = parse_method(method)
        parts = recipe.build(draft if recipe.needs_draft_model else None)
        engine = foredraft.Engine(
            plain.target, parts.drafter, parts.policy, tokenizer=plain.tokenizer
        )
        rows.append({"method": method, **host_share(engine, prompts, args.max_new_tokens)})
        print(rows[-1], flush=True)
    write_results(
        args.out,
        rows,
        ratio_to_generate=ratio,
        own_ms=1000 * statistics.median(ours),
        generate_ms=1000 * statistics.median(theirs),
        dtype=args.dtype,
    )


if __name__ == "__main__":
    main()
