"""Tokens per second of answers decoded side by side, against one at a time.

    python benchmarks/batch/run.py [--model smollm2] [--sizes 1,2,4,8] [--methods adaptive] --out DIR

Every repeat answers the same prompts with each method and batch size in turn, so that a busy machine slows
all of them; ratios are of one repeat, and their median is reported with the lowest and highest. Prompts are
the builtin ones of `foredraft bench`. Prefill counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from foredraft.bench.provenance import provenance
from foredraft.bench.suites import read_suites
from foredraft.engine.engine import Engine
from foredraft.engine.load import load_models
from foredraft.methods import parse_method

PLAIN = "autoregressive"


def main() -> None:
    """Measure, print and write."""
    args = _arguments()
    methods = [PLAIN, *args.methods.split(",")]
    sizes = [int(size) for size in args.sizes.split(",")]
    engines = _engines(args.model, methods, args.dtype)
    prompts = _prompts(args.prompts)
    runs: dict[str, list[float]] = {}
    for repeat in range(args.repeats + 1):  # the first one warms up
        for method, engine in engines.items():
            for size in sizes:
                rate = _rate(engine, prompts, size, args.max_new_tokens)
                if repeat:
                    runs.setdefault(f"{method} x{size}", []).append(rate)
                    print(repeat, method, size, round(rate, 1), flush=True)
    document = {
        "provenance": provenance(),
        "arguments": vars(args) | {"out": None},
        "tokens_per_s": runs,
        "ratios": _ratios(runs, methods, sizes),
    }
    print(json.dumps(document["ratios"], indent=1))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n")


def _engines(model: str, methods: list[str], dtype: str | None) -> dict[str, Engine]:
    recipes = [parse_method(name) for name in methods]
    needed = tuple({r.needs_given for r in recipes if r.needs_given is not None})
    models = load_models(model, needed=needed, methods=recipes, dtype=dtype, report=print)
    return {name: models.engine(r) for name, r in zip(methods, recipes, strict=True)}


def _prompts(count: int) -> list[Any]:
    questions = [q for suite in read_suites("builtin", None) for q in suite.questions]
    return [list(q.turns[0]) for q in (questions * count)[:count]]


def _rate(engine: Engine, prompts: list[Any], size: int, tokens: int) -> float:
    began = time.perf_counter()
    results = engine.generate_batch(prompts, max_batch=size, max_new_tokens=tokens, ignore_eos=True)
    return sum(len(r.token_ids) for r in results) / (time.perf_counter() - began)


def _ratios(
    runs: dict[str, list[float]], methods: list[str], sizes: list[int]
) -> dict[str, list[float]]:
    """[median, lowest, highest] of each method and size to plain decoding of one, and of as many."""
    ratios = {}
    for method in methods:
        for size in sizes:
            for base in (1, size):
                own, other = runs[f"{method} x{size}"], runs[f"{PLAIN} x{base}"]
                each = [a / b for a, b in zip(own, other, strict=True)]
                summary = [statistics.median(each), min(each), max(each)]
                ratios[f"{method} x{size} / plain x{base}"] = [round(r, 3) for r in summary]
    return ratios


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--methods", default="adaptive")
    parser.add_argument("--sizes", default="1,2,4,8")
    parser.add_argument("--dtype")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
