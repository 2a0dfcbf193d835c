"""How often rounding changes the answer: drafts, and plain decoding with padded passes as the control.

    python benchmarks/ties/run.py --prompts PROMPTS --out benchmarks/ties/results.json

The control scores, beside the last token, as many tokens as a draft would have, none of which can be
accepted. It differs from plain decoding by the shape of its passes alone, so a method whose answers
differ more often than the control's has another fault than rounding.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import read_prompts, write_results

import foredraft
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.agreement import compare
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, PolicyState
from foredraft.tree import DraftTree, Proposal, TreeBuilder


class PaddingDrafter:
    """Proposes a chain of one token that the target does not say."""

    proposals = frozenset({Proposal.DETERMINISTIC})

    def __init__(self, token_id: int, depth: int) -> None:
        self.token_id = token_id
        self.default_policy = FixedPolicy.chain(depth)

    def start(self, capacity: int) -> PaddingDrafter:
        return self

    def prefill(self, token_ids: Sequence[int]) -> None:
        pass

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        builder = TreeBuilder(context.token_ids[-1])
        for node in range(min(context.limits.max_depth, self.default_policy.max_nodes)):
            builder.add(node, self.token_id, Proposal.DETERMINISTIC)
        return builder.build()

    def commit(self, path: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of the question files")
    parser.add_argument("--suites", default="sum")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--padding-token", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plain_engine = foredraft.load(args.model, method="autoregressive", dtype=args.dtype)
    target, tokenizer = plain_engine.target, plain_engine.tokenizer
    chain = FixedPolicy.chain(args.depth)
    engines = {
        "ngram": foredraft.Engine(target, NgramDrafter(), chain, tokenizer=tokenizer),
        "control": foredraft.Engine(
            target, PaddingDrafter(args.padding_token, args.depth), tokenizer=tokenizer
        ),
    }
    options = foredraft.GenerationOptions(max_new_tokens=args.max_new_tokens)
    rows = []
    for name, prompt in read_prompts(args.prompts, args.suites.split(","), args.limit):
        plain = plain_engine.generate(prompt, options)
        row = {"prompt": name}
        for method, engine in engines.items():
            answer = engine.generate(prompt, options)
            agreement = compare(engine, plain, answer, options)
            row |= {method: agreement.kind, f"{method}_token": agreement.token}
        rows.append(row)
        print(row, flush=True)
    counts = {method: dict(Counter(row[method] for row in rows)) for method in engines}
    write_results(args.out, rows, identical=counts, dtype=args.dtype)
    print(counts)


if __name__ == "__main__":
    main()
