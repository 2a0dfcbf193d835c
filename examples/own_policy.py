"""A policy of your own: drafts grow while they are accepted whole, and shrink when they are not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import foredraft
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome


class GrowAndShrink:
    """Chains: one token longer after a draft that was accepted whole, half as long after any other."""

    kind = PolicyKind.GROWS  # it decides before drawing, and drops nothing that was drawn
    branches = False
    max_nodes = 16

    def start(self) -> GrowAndShrinkState:
        return GrowAndShrinkState(self.max_nodes)


class GrowAndShrinkState:
    """What one request remembers."""

    def __init__(self, longest: int) -> None:
        self.length, self.longest = 4, longest

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return replace(limits, max_depth=min(limits.max_depth, self.length))

    def grow(self, frontier: Frontier) -> Sequence[int]:
        return [1] * len(frontier.nodes)  # the limits end it

    def observe(self, outcome: RoundOutcome) -> None:
        whole = outcome.num_accepted == outcome.tree.depth
        self.length = min(self.length + 1, self.longest) if whole else max(self.length // 2, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args()

    loaded = foredraft.load(given.model, method="ngram")  # its target and its drafter
    engine = foredraft.Engine(
        loaded.target, loaded.drafter, policy=GrowAndShrink(), tokenizer=loaded.tokenizer
    )
    prompt = "The cat sat on the mat. The dog sat on the mat. The cow sat on"
    result = engine.generate(prompt, max_new_tokens=given.max_new_tokens)
    plain = engine.without_drafts().generate(prompt, max_new_tokens=given.max_new_tokens)
    print(prompt + result.text)
    print("draft lengths:", *(record.depth for record in result.stats.rounds))
    print(f"the same words without drafts: {plain.token_ids == result.token_ids}")


if __name__ == "__main__":
    main()
