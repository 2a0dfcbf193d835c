"""Is the output the target's own? Every drafter, tree and verifier against plain decoding, in float32.

    python benchmarks/identity/run.py --prompts PROMPTS --out benchmarks/identity/results.json

At temperature 0 every configuration must give plain decoding's tokens, and plain decoding those of
transformers' `generate`. At temperatures above 0 the exact verifier must give plain decoding's tokens
for the same seed; the other verifiers keep the law and not the noise, so they take part at 0 alone.
A first difference is a `tie` only if the two tokens' scores are closer than 1e-4 (or than twice the
noise between a one-row and a wider pass), and a `bug` otherwise; a bug makes the run exit with 1.

The draft model is the target's own first layers under its head: right often enough to be accepted,
wrong often enough to be rejected at every depth.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import SUITES, first_layers, read_prompts, write_results

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.engine.agreement import compare
from foredraft.methods import parse_method

AT_ZERO = (
    "ngram:depth=7",
    "ngram:tree=4,2,2,1",
    "ngram:tree=4,2,2,1:verifier=rejection",
    "speculative:depth=4",
    "speculative:tree=2,2,1",
    "speculative:tree=2,2,1:proposal=deterministic:verifier=rejection",
    "speculative:depth=4:verifier=rejection",
    "speculative:depth=4:verifier=block",
    "speculative:depth=4:verifier=traversal",
    "speculative:tree=2,2,1:proposal=sampled:verifier=traversal",
    "speculative:tree=2,2,1:proposal=resampled:verifier=rejection",
)
SAMPLED = (
    "ngram:tree=4,2,2,1",
    "speculative:depth=4",
    "speculative:tree=2,2,1",
    "speculative:tree=2,2,1:proposal=sampled",
)
"""Under the exact verifier, whose seeds reproduce whatever is drafted."""


def engine_for(method: str, target: HFTarget, draft: HFTarget, tokenizer: Any) -> foredraft.Engine:
    recipe = parse_method(method)
    parts = recipe.build(draft if recipe.needs_draft_model else None)
    return foredraft.Engine(target, parts.drafter, parts.policy, parts.verifier, tokenizer)


def generate_reference(
    model: Any, prompt_ids: tuple[int, ...], max_new_tokens: int
) -> tuple[int, ...]:
    """The answer of transformers' `generate`, greedy."""
    ids = torch.tensor([prompt_ids])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens)
    return tuple(out[0, len(prompt_ids) :].tolist())


def check_prompt(
    plain_engine: foredraft.Engine, engines: dict[str, foredraft.Engine], prompt: Any, options: Any
) -> list[dict[str, Any]]:
    """One prompt at one temperature: a row per method."""
    plain = plain_engine.generate(prompt, options)
    rows = []
    if options.temperature == 0:
        model = plain_engine.target.model
        reference = generate_reference(model, plain.prompt_ids, options.max_new_tokens)
        rows.append({"method": "transformers generate", "identical": _same(reference, plain)})
    for method, engine in engines.items():
        drafted = engine.generate(prompt, options)
        agreement = compare(engine, plain, drafted, options)
        rows.append(
            {
                "method": method,
                "identical": agreement.kind,
                "token": agreement.token,
                "gap": agreement.gap,
                "tokens": len(drafted.token_ids),
                "mean_acceptance_length": drafted.stats.mean_acceptance_length,
            }
        )
    return rows


def _same(reference: tuple[int, ...], plain: foredraft.Result) -> str:
    return "yes" if reference == plain.token_ids else "bug"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--prompts", type=Path, required=True, help="folder of the JSONL question files"
    )
    parser.add_argument("--per-suite", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draft-layers", type=int, default=6)
    parser.add_argument("--temperatures", default="0,0.7,1")
    parser.add_argument("--shard", default="0/1", help="part i of n of the prompts")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plain = foredraft.load(args.model, method="autoregressive", dtype=args.dtype, report=print)
    draft = HFTarget(first_layers(plain.target.model, args.draft_layers), plain.tokenizer)
    part, parts = map(int, args.shard.split("/"))
    prompts = read_prompts(args.prompts, SUITES, args.per_suite)[part::parts]
    rows = []
    for temperature in map(float, args.temperatures.split(",")):
        methods = AT_ZERO if temperature == 0 else SAMPLED
        engines = {m: engine_for(m, plain.target, draft, plain.tokenizer) for m in methods}
        for seed, (name, prompt) in enumerate(prompts):
            options = foredraft.GenerationOptions(
                max_new_tokens=args.max_new_tokens, temperature=temperature, seed=seed
            )
            found = check_prompt(plain, engines, prompt, options)
            rows += [{"prompt": name, "temperature": temperature, **row} for row in found]
            print(temperature, name, dict(Counter(r["identical"] for r in found)), flush=True)
    counts = Counter(row["identical"] for row in rows)
    write_results(args.out, rows, identical=dict(counts), dtype=args.dtype)
    print(dict(counts))
    return 1 if counts["bug"] else 0


if __name__ == "__main__":
    sys.exit(main())
