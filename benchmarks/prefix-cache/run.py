"""What the prefix cache saves: time to the first token where a text's start is known, and where it is not.

    python benchmarks/prefix-cache/run.py --out benchmarks/prefix-cache/results.json

Questions of the built-in suite follow the same SHARED tokens. Each is answered three times, in turn: without
a cache (`off`), with an empty one (`filling`: what keeping rows costs), and with one that has read another
question behind the same tokens (`warm`). Each row holds medians, ratios question by question, and how much
was accepted each way, which must not differ.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import write_results

import foredraft
from foredraft import Engine, Result
from foredraft.backends.hf import HFTarget
from foredraft.backends.prefix_cache import PrefixCache
from foredraft.bench.suites import read_suites
from foredraft.engine.prefixes import keep_prefixes, prefix_counts
from foredraft.results import Statistics

WAYS = ("off", "filling", "warm")
METHODS = ("autoregressive", "eagle2")
SHARED = (64, 256, 1024)
MEGABYTES = 1024.0


def texts(engine: Engine, shared: int, count: int) -> list[list[int]]:
    """Token ids of `count` questions, each behind the same `shared` tokens of other questions' text."""
    questions = [
        t for suite in read_suites("builtin", None) for q in suite.questions for t in q.turns
    ]
    words = [engine.tokenizer(f"{text}\n")["input_ids"] for text in map(str, questions)]  # type: ignore[misc]
    rest = itertools.chain.from_iterable(itertools.cycle(words[count:]))
    start = list(itertools.islice(rest, shared))
    return [[*start, *own] for own in words[:count]]


class Ways:
    """One engine, with its cache taken away, empty or filled before each answer."""

    def __init__(self, engine: Engine, new_tokens: int) -> None:
        self._engine, self._new_tokens = engine, new_tokens
        keep_prefixes(engine, MEGABYTES)
        models = [engine.target, getattr(engine.drafter, "model", None)]
        self._models = [model for model in models if isinstance(model, HFTarget)]
        self._caches = [model.prefix_cache for model in self._models]

    def answer(self, way: str, text: list[int], before: list[int]) -> Result:
        """The answer to a text; `before` is read first where the cache is to be warm."""
        for model, cache in zip(self._models, self._caches, strict=True):
            model.prefix_cache = None if way == "off" else _cleared(cache)
        if way == "warm":
            self._engine.generate(before, max_new_tokens=1)
        return self._engine.generate(text, max_new_tokens=self._new_tokens, ignore_eos=True)

    def megabytes(self) -> float:
        """What the last text has left."""
        return sum(c.num_bytes for c in prefix_counts(self._engine).values()) / 2**20


def _cleared(cache: PrefixCache | None) -> PrefixCache | None:
    if cache is not None:
        cache.clear()
    return cache


def measure(engine: Engine, shared: int, count: int, new_tokens: int) -> dict[str, Any]:
    """One row: every way of every question, in turn."""
    ways, asked = Ways(engine, new_tokens), texts(engine, shared, count + 1)
    before, asked = asked[0], asked[1:]
    results: dict[str, list[Result]] = {way: [] for way in WAYS}
    for way in WAYS:
        ways.answer(way, asked[0], before)  # not counted: what is done only once
    for text, way in itertools.product(asked, WAYS):
        results[way].append(ways.answer(way, text, before))
    ttft = {way: [r.stats.ttft_s for r in results[way]] for way in WAYS}
    pooled = {way: Statistics.pool(r.stats for r in results[way]) for way in WAYS}
    return {
        "shared": shared,
        "prompts": count,
        "prompt_tokens": pooled["off"].prompt_tokens / count,
        "cached_prompt_tokens": pooled["warm"].cached_prompt_tokens / count,
        **{f"ttft_ms_{way}": 1000 * statistics.median(ttft[way]) for way in WAYS},
        "speedup": _ratio(ttft["off"], ttft["warm"]),
        "cost_of_keeping": _ratio(ttft["filling"], ttft["off"]),
        **{f"mean_acceptance_length_{way}": pooled[way].mean_acceptance_length for way in WAYS},
        "identical": sum(
            len({r.token_ids for r in rs}) == 1 for rs in zip(*results.values(), strict=True)
        ),
        "megabytes": ways.megabytes(),
    }


def _ratio(over: list[float], under: list[float]) -> float:
    """The median of the ratios, question by question."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every method and shared length."""
    for method in args.methods.split(","):
        engine = foredraft.load(args.model, method=method, dtype=args.dtype, report=print)
        for shared in map(int, args.shared.split(",")):
            yield {
                "method": method,
                **measure(engine, shared, args.prompts, args.new_tokens),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--shared", default=",".join(map(str, SHARED)), help="tokens in common")
    parser.add_argument("--prompts", type=int, default=8, help="questions a row")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    made = []
    for row in rows(args):
        made.append(row)
        print(row, flush=True)
    write_results(args.out, made, model=args.model, new_tokens=args.new_tokens)


if __name__ == "__main__":
    main()
