"""n-gram drafting against plain decoding: paired, interleaved, medians with a bootstrap interval.

python benchmarks/ngram_sum/run.py --prompts PROMPTS --out benchmarks/ngram_sum/results.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import bootstrap_interval, read_prompts, write_results

import foredraft
from foredraft.engine.agreement import compare


def measure(
    engine: foredraft.Engine, name: str, prompt: Any, options: Any, repeats: int
) -> dict[str, Any]:
    """One prompt: plain and drafted in turn; the median decode time of each."""
    plain_engine = engine.without_drafts()
    seconds: dict[str, list[float]] = {"plain": [], "drafted": []}
    for _ in range(repeats):
        plain, drafted = plain_engine.generate(prompt, options), engine.generate(prompt, options)
        seconds["plain"].append(plain.stats.decode_s)
        seconds["drafted"].append(drafted.stats.decode_s)
    per_token = {
        "plain": statistics.median(seconds["plain"]) / plain.stats.completion_tokens,
        "drafted": statistics.median(seconds["drafted"]) / drafted.stats.completion_tokens,
    }
    return {
        "prompt": name,
        "prompt_tokens": plain.stats.prompt_tokens,
        "tokens": drafted.stats.completion_tokens,
        "speedup": per_token["plain"] / per_token["drafted"],
        "tokens_per_pass": drafted.stats.tokens_per_pass,
        "acceptance_rate": drafted.stats.acceptance_rate,
        "loop_share": drafted.stats.loop_share,
        "identical": str(compare(engine, plain, drafted, options)),
        **drafted.stats.ms_per_round(),
        "plain_target_ms": plain.stats.ms_per_round()["target_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--method", default="ngram")
    parser.add_argument(
        "--prompts", type=Path, required=True, help="folder of the JSONL question files"
    )
    parser.add_argument("--suites", default="sum")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    engine = foredraft.load(args.model, method=args.method, dtype=args.dtype, report=print)
    options = foredraft.GenerationOptions(max_new_tokens=args.max_new_tokens)
    prompts = read_prompts(args.prompts, args.suites.split(","), args.limit)
    measure(engine, "warm-up", prompts[0][1], options.replace(max_new_tokens=16), 1)
    rows = []
    for name, prompt in prompts:
        rows.append(measure(engine, name, prompt, options, args.repeats))
        print(f"{name}: {rows[-1]['speedup']:.2f}x, {rows[-1]['identical']}", flush=True)
    ratios = [row["speedup"] for row in rows]
    low, high = bootstrap_interval(ratios)
    summary = {"speedup": statistics.median(ratios), "speedup_low": low, "speedup_high": high}
    write_results(args.out, rows, **summary, dtype=args.dtype, method=args.method)
    print(summary)


if __name__ == "__main__":
    main()
