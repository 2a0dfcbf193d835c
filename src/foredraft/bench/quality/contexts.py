"""Contexts as sampling leaves them, the roots that could follow, and how long their drafts would live."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foredraft.bench.intervals import Floats
from foredraft.bench.quality.roots import length_law
from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine
from foredraft.engine.session import Session
from foredraft.sampling.law import TargetLaws
from foredraft.tree import DraftTree

LONGEST_PREFIX = 48
"""Tokens of an answer before a context's end, at most."""


@dataclass(frozen=True, slots=True)
class RootChoices:
    """The likeliest tokens after a context, and the accepted lengths of what each would carry.

    Attributes:
        context: its name.
        drafter: what drafted behind the roots.
        tokens: [M] candidates, likeliest first.
        probs: [M] the target's law of them, as sampled; their sum is 1 - the tail that is left out.
        lengths: [M][D + 1] the law of each one's accepted length, the mean over its drafts.
    """

    context: str
    drafter: str
    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    lengths: tuple[tuple[float, ...], ...]

    @property
    def key(self) -> tuple[str, str]:
        """What a resumed run knows it by."""
        return self.context, self.drafter

    @property
    def question(self) -> str:
        """The suite and id of the question that the context begins with."""
        return question_of(self.context)

    @property
    def tail(self) -> float:
        """Probability of the tokens that are no candidates."""
        return max(0.0, 1.0 - sum(self.probs))

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> RootChoices:
        """What `asdict` gave."""
        tokens, probs = tuple(document["tokens"]), tuple(document["probs"])
        lengths = tuple(map(tuple, document["lengths"]))
        return cls(document["context"], document["drafter"], tokens, probs, lengths)


def context_name(suite: str, question: str, number: int) -> str:
    """The name of the `number`-th context, which begins with this question."""
    return f"{suite}/{question}/{number}"


def question_of(name: str) -> str:
    """What `context_name` was given, without the number: contexts of one question are not independent."""
    return name.rpartition("/")[0]


def sampled_context(
    plain: Engine, prompt_ids: Sequence[int], options: GenerationOptions, name: str
) -> list[int]:
    """A prompt and the first tokens of a sampled answer: how many is drawn from the context's name."""
    length = random.Random(name).randint(0, LONGEST_PREFIX)
    if length == 0:
        return list(prompt_ids)
    answer = plain.generate(list(prompt_ids), options.replace(max_new_tokens=length))
    ends = set(plain.target.eos_token_ids)
    return [*prompt_ids, *(token for token in answer.token_ids if token not in ends)]


def root_choices(
    plain: Engine,
    drafting: Engine,
    context_ids: Sequence[int],
    options: GenerationOptions,
    *,
    names: tuple[str, str],
    candidates: int,
    drafts: int,
) -> RootChoices:
    """What could be a root after a context, and how its drafts would fare.

    Args:
        plain: plain decoding, for the target's law.
        drafting: the same target, a drafter whose children are sampled, the tree that a root carries, and
            recursive rejection: what a root is to the lossy mode is here the text's last token.
        context_ids: [T] the text so far.
        options: the request.
        names: of the context and of the drafter.
        candidates: M at most; fewer where the law has less support.
        drafts: R, over which each candidate's accepted length is averaged; greedy drafts are all alike.

    Each draft has noise of its own, made from the seed, the context's name, the candidate and the draft's
    number; drafters share it.
    """
    tokens, probs = _candidates(plain, context_ids, options, candidates)
    ends = frozenset(plain.target.eos_token_ids)
    repeats = 1 if options.temperature == 0 else drafts
    laws = [
        np.ones(1)
        if token in ends
        else np.mean(
            _padded(
                [
                    _lengths(drafting, [*context_ids, token], options, f"{names[0]}/{token}/{r}")
                    for r in range(repeats)
                ]
            ),
            axis=0,
        )
        for token in tokens
    ]
    return RootChoices(*names, tokens, probs, tuple(map(tuple, _padded(laws).tolist())))


def _candidates(
    plain: Engine, context_ids: Sequence[int], options: GenerationOptions, count: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The likeliest tokens and their probabilities; ranked by score, since a greedy law is one point."""
    with _scored(plain, context_ids, options, "") as (_, laws):
        best = laws.scores(0).sort(
            descending=True, stable=True
        )  # of equal ones the first, as roots
        tokens, scores = best.indices[:count].tolist(), best.values[:count].tolist()
        allowed = [token for token, score in zip(tokens, scores, strict=True) if score > -np.inf]
        probs = laws.probs(0)[torch.tensor(allowed)]
    return tuple(allowed), tuple(probs.tolist())


def _lengths(
    drafting: Engine, text: Sequence[int], options: GenerationOptions, draft: str
) -> Floats:
    """The law of the accepted length of one draft behind a text, [D + 1]; its noise is made from its name."""
    with _scored(drafting, text, options, draft) as (tree, laws):
        return length_law(tree, laws)


@contextmanager
def _scored(
    engine: Engine, text: Sequence[int], options: GenerationOptions, draft: str
) -> Iterator[tuple[DraftTree, TargetLaws]]:
    """One round up to its verification: the tree, and the target's laws over it."""
    seed = random.Random(f"{options.seed or 0}/{draft}").getrandbits(63)
    session: Session = engine.session(text, options, engine.randomness(seed))
    try:
        session.prefill()
        tree = session.draft()
        yield tree, session.laws(tree, session.target.score(tree.token_ids, tree.parents))
    finally:
        session.close()


def _padded(laws: Sequence[Floats]) -> Floats:
    """Laws of lengths as one array [M, D + 1], the shorter ones with zeros at their end."""
    width = max(map(len, laws))
    return np.stack([np.pad(law, (0, width - len(law))) for law in laws])
