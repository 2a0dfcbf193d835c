"""What the loop costs: plain decoding against transformers' `generate`, and host time per pass.

    python benchmarks/overhead/run.py --prompts PROMPTS --out benchmarks/overhead/results.json

Both decode the same prompts greedily in turn; a token's time is the time between two tokens, so
prefill is apart, and the ratio is that of the medians. Host time is a round's time outside the calls
of the model, for plain decoding and for n-gram chains and trees of up to 16 nodes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import SUITES, read_prompts, write_results
from transformers.generation.streamers import BaseStreamer

import foredraft
import foredraft.methods

METHODS = ("autoregressive", "ngram:depth=7", "ngram:depth=15", "ngram:tree=3,2,1")


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
    return [b - a for a, b in zip(times, times[1:], strict=False)]


@contextmanager
def timed_calls(model: Any) -> Iterator[list[float]]:
    """Seconds of each call of the model inside."""
    seconds: list[float] = []
    forward = model.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        output = forward(*args, **kwargs)
        seconds.append(time.perf_counter() - begin)
        return output

    model.forward = timed
    try:
        yield seconds
    finally:
        del model.forward


def host_share(
    engine: foredraft.Engine, prompts: list[list[int]], num_tokens: int
) -> dict[str, Any]:
    """Median host time of a round over the median time of its model call."""
    host, calls, nodes = [], [], []
    for prompt in prompts:
        with timed_calls(engine.target.model) as seconds:
            result = engine.generate(prompt, max_new_tokens=num_tokens)
        rounds = result.stats.rounds
        passes = seconds[-len(rounds) :]
        host += [r.total_s - s for r, s in zip(rounds, passes, strict=True)]
        calls += passes
        nodes += [r.num_drafted + 1 for r in rounds]
    return {
        "host_ms": 1000 * statistics.median(host),
        "model_call_ms": 1000 * statistics.median(calls),
        "host_share": statistics.median(host) / statistics.median(calls),
        "mean_nodes": statistics.mean(nodes),
        "max_nodes": max(nodes),
    }


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

    ours, theirs, rows = [], [], []
    for _ in range(args.repeats):
        for prompt in prompts:
            theirs += hf_intervals(plain.target.model, prompt, args.max_new_tokens)
            ours += own_intervals(plain, prompt, args.max_new_tokens)
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"plain decoding / transformers generate, per token: {ratio:.3f}", flush=True)
    for method in METHODS:
        parts = foredraft.methods.parse_method(method).build()
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
