"""A drafter of your own: phrases that you expect, such as those of a form letter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import foredraft
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, PolicyState
from foredraft.tree import DraftTree, Proposal

PHRASES = (
    "Thank you for your letter. We will answer it within three working days.",
    "Please do not hesitate to write to us again.",
)


class PhraseDrafter:
    """Goes on with a phrase as soon as the text has come to its first `needed` tokens."""

    proposals = frozenset({Proposal.DETERMINISTIC})  # a function of the text alone
    default_policy = FixedPolicy.chain(8)

    def __init__(self, phrases: Sequence[Sequence[int]], needed: int = 2) -> None:
        self.phrases, self.needed = [list(phrase) for phrase in phrases], needed

    def start(self, capacity: int) -> PhraseDrafter:
        return self  # it remembers nothing of a request: these three have nothing to do

    def prefill(self, token_ids: Sequence[int]) -> None: ...
    def commit(self, path: Sequence[int]) -> None: ...
    def close(self) -> None: ...

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        room = policy.plan(context.limits, context.token_ids)
        builder, node = context.builder(), 0
        for token in self.rest(context.token_ids)[: min(room.max_depth, room.max_nodes, 8)]:
            node = builder.add(node, token, Proposal.DETERMINISTIC)
        return builder.build()

    def rest(self, text: Sequence[int]) -> list[int]:
        for phrase in self.phrases:
            for done in range(len(phrase) - 1, self.needed - 1, -1):
                if list(text[-done:]) == phrase[:done]:
                    return phrase[done:]
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    given = parser.parse_args()

    loaded = foredraft.load(given.model, method="autoregressive")
    phrases = [loaded.tokenizer(phrase)["input_ids"] for phrase in PHRASES]
    engine = foredraft.Engine(loaded.target, PhraseDrafter(phrases), tokenizer=loaded.tokenizer)
    prompt = f"Write this twice. {PHRASES[0]} {PHRASES[0]} {PHRASES[0][:20]}"
    result = engine.generate(prompt, max_new_tokens=given.max_new_tokens)
    plain = loaded.generate(prompt, max_new_tokens=given.max_new_tokens)
    print(prompt + result.text)
    print(f"{result.stats.accepted_tokens} of {result.stats.drafted_tokens} draft tokens accepted")
    print(f"the same words without drafts: {plain.token_ids == result.token_ids}")


if __name__ == "__main__":
    main()
