"""A verifier of your own: a fresh draw of the target at every node, followed as far as the draft holds it."""

from __future__ import annotations

import argparse

import foredraft
from foredraft.protocols import PolicyKind, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal


class FreshDraws:
    """Naive sampling: what is drawn does not depend on the draft, so every legal draft keeps the law."""

    proposals = frozenset({Proposal.DETERMINISTIC, Proposal.SAMPLED, Proposal.RESAMPLED})
    policies = frozenset(PolicyKind)  # of those that select too
    chains_only = False
    reads_rejected = False  # it reads laws along the accepted path alone

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        path: list[int] = [0]
        tokens: list[int] = []
        while True:
            node = path[-1]
            token = laws.choose(node) if laws.greedy else random.categorical(laws.probs(node))
            tokens.append(token)
            child = next((c for c in tree.children[node] if tree.token_ids[c] == token), None)
            if child is None:
                return Verdict(tuple(path), tuple(tokens))
            path.append(child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    given = parser.parse_args()

    loaded = foredraft.load(given.model, method="ngram")
    engine = foredraft.Engine(
        loaded.target, loaded.drafter, verifier=FreshDraws(), tokenizer=loaded.tokenizer
    )
    prompt = "The cat sat on the mat. The dog sat on the mat. The cow sat on"
    greedy = engine.generate(prompt, max_new_tokens=given.max_new_tokens)
    plain = loaded.without_drafts().generate(prompt, max_new_tokens=given.max_new_tokens)
    print(prompt + greedy.text)
    print(f"the same words without drafts: {plain.token_ids == greedy.token_ids}")
    options = {"temperature": 0.8, "seed": 1, "max_new_tokens": given.max_new_tokens}
    print("\nsampled:", engine.generate(prompt, **options).text)


if __name__ == "__main__":
    main()
