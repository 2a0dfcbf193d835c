"""How often copies from the text are right, by how much of the text agrees with their source.

    python benchmarks/ngram-reliability/run.py --out benchmarks/ngram-reliability/results.json

reads the corpora that the model wrote (`benchmarks/training/corpus*`; 60 to 75 % of the answers are greedy),
and looks up every token of the answers as `ngram` does, before it is added to the text. The rates are what
`foredraft.drafters.reliability` starts from. How fast a request is to leave them for its own is measured by
log loss (nats a copy, on answers that the rates were not taken from). Repetition longer than 48 tokens is
left out of the corpora, so agreement of 32 tokens is rarer here than in answers.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import write_results

from foredraft.drafters import reliability
from foredraft.drafters.ngram import MATCHES_KEPT
from foredraft.drafters.reliability import LENGTHS, OTHER_LENGTHS, Reliability, agreement
from foredraft.train.corpus import Corpus

CORPORA = sorted(Path(__file__).parents[1].glob("training/corpus*"))
MATCHES = range(5, 0, -1)
"""Lengths looked up; the shortest is below `ngram`'s own, so that its rate is known too."""
LOOKED_AT = 4
"""Different tokens looked at in one place."""
WEIGHTS, DECAYS, PROMPT_WEIGHTS = (4, 8, 16, 32), (1.0, 0.98, 0.95, 0.9), (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Place:
    """A token of a text, as copies would have had it."""

    in_answer: bool
    copies: tuple[tuple[int, bool], ...]
    """Agreement of the source of each different token, and whether it is the one; in order."""


def places(token_ids: Sequence[int], first: int) -> Iterator[Place]:
    """Every token with a copy; the answer begins at `first`."""
    follow: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for end in range(1, len(token_ids)):
        grams = [tuple(token_ids[end - n : end]) for n in MATCHES if n <= end]
        sources: dict[int, int] = {}
        for gram in grams:
            for source in reversed(follow[gram]):
                sources.setdefault(token_ids[source], source)
        if sources:
            copies = [
                (agreement(token_ids, source, end), token == token_ids[end])
                for token, source in list(sources.items())[:LOOKED_AT]
            ]
            yield Place(end >= first, tuple(copies))
        for gram in grams:
            follow[gram] = [*follow[gram], end][-MATCHES_KEPT:]


def texts(every: int) -> Iterator[list[Place]]:
    """Of every so many conversations, the places of each answer."""
    for folder in CORPORA:
        corpus = Corpus(folder)
        for number in range(0, len(corpus), every):
            sample = corpus[number]
            for first, stop in sample.spans:
                yield list(places(sample.token_ids[:stop].tolist(), first))


def rates(answers: Sequence[list[Place]], rank: int, lengths: Sequence[int]) -> list[list[float]]:
    """How often the copy of this rank is right where all before are wrong, and of how many; by `lengths`.

    The last rank stands for itself and all later ones.
    """
    hits, trials = [0] * len(lengths), [0] * len(lengths)
    for place in (p for answer in answers for p in answer if p.in_answer):
        ranks = range(rank, len(place.copies)) if rank == 2 else [rank]
        for r in ranks:
            if r < len(place.copies) and not any(right for _, right in place.copies[:r]):
                length, right = place.copies[r]
                at = max(i for i, least in enumerate(lengths) if least <= max(length, 1))
                hits[at] += right
                trials[at] += 1
    return [[round(h / max(n, 1), 4), n] for h, n in zip(hits, trials, strict=True)]


def log_loss(answers: Sequence[list[Place]], weight: float, decay: float, prompt: float) -> float:
    """Of first copies of 2 tokens or more in answers, when every request learns with these."""
    reliability.PRIOR_WEIGHT, reliability.DECAY = weight, decay
    loss, count = 0.0, 0
    for answer in answers:
        own = Reliability()
        for place in answer:
            length, right = place.copies[0]
            if place.in_answer and length > 1:
                likely = own(length)
                loss -= math.log(likely if right else 1 - likely)
                count += 1
            own.note(length, right, 1.0 if place.in_answer else prompt)
    return loss / max(count, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=4, help="read one conversation of so many")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    answers = list(texts(args.every))
    known, held_out = answers[::2], answers[1::2]
    reliability.FIRST = tuple(rate for rate, _ in rates(known, 0, LENGTHS))
    learning = [
        {"prior_weight": w, "decay": d, "prompt_weight": p, "log_loss": log_loss(held_out, w, d, p)}
        for w, d, p in product(WEIGHTS, DECAYS, PROMPT_WEIGHTS)
    ]
    rows = [
        {"copy": name, "lengths": list(lengths), "rates": rates(answers, rank, lengths)}
        for rank, (name, lengths) in enumerate(
            (("first", LENGTHS), ("second", OTHER_LENGTHS), ("later", OTHER_LENGTHS))
        )
    ]
    never = log_loss(held_out, 1e9, 1.0, 0.0)
    write_results(args.out, rows, answers=len(answers), no_learning=never, learning=learning)
    print(f"{len(answers)} answers; log loss {never:.4f} without learning")
    for row in rows:
        print(row["copy"], row["rates"])
    for line in sorted(learning, key=lambda each: each["log_loss"])[:5]:
        print(line)


if __name__ == "__main__":
    main()
