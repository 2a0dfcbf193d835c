"""Engines whose drafts start from open roots, and what their passes and greedy rounds should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends.table import TableModel, TableState
from foredraft.engine.decoder import decode
from foredraft.methods import parse_method
from foredraft.protocols import Verdict
from foredraft.results import Step
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree
from foredraft.verifiers.multi_root import MultiRootVerifier
from tests.scripted import Watched

Logits = Callable[[Sequence[int]], np.ndarray]
"""Text -> logits of the next token [V]."""


def engine(options: str, target: Any, draft: Any, tokenizer: Any = None) -> Engine:
    """`mcsd-improved-lossy` with these options; every draft of the engine's drafter is kept."""
    parts = parse_method(f"mcsd-improved-lossy:{options}").build(draft)
    drafter = Watched(parts.drafter)  # type: ignore[arg-type]
    return Engine(target, drafter, parts.policy, parts.verifier, tokenizer)


# --- models that are watched ------------------------------------------------------------------------


class Counting(TableModel):
    """Notes the (committed tokens, nodes) of every pass, and the longest text one has seen."""

    def __init__(self, table: Tensor, **facts: Any) -> None:
        super().__init__(table, **facts)
        self.passes: list[tuple[int, int]] = []
        self.longest = self.num_started = self.num_closed = 0

    def start(self, capacity: int) -> CountingState:
        self.num_started += 1
        return CountingState(self)


class CountingState(TableState):
    def __init__(self, model: Counting) -> None:
        super().__init__(model)
        self.model = model

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        self.model.passes.append((self.length, len(token_ids)))
        logits = super().score(token_ids, parents)
        paths = [len(self._path(node)) for node in range(len(self._pending))]
        self.model.longest = max(self.model.longest, self.length + max(paths))
        return logits

    def close(self) -> None:
        self.model.num_closed += 1
        super().close()


def counting(vocab_size: int, order: int, seed: int, sharpness: float = 1.5, **facts: Any) -> Any:
    """Random laws; of one `seed`, a draft model of lower order is unlike its target."""
    table = TableModel.random(vocab_size, order, seed=seed, sharpness=sharpness)
    return Counting(table._logits.exp(), **facts)


def near(model: TableModel, seed: int, share: float = 0.5) -> Any:
    """A draft model that agrees with `model` now and then."""
    other = TableModel.random(model.vocab_size, model.order, seed=seed, sharpness=2.0)
    return Counting((1 - share) * model._logits.exp() + share * other._logits.exp())


# --- rounds -----------------------------------------------------------------------------------------


def checked(
    made: Engine, prompt: Sequence[int], options: GenerationOptions, verifier: Any = None
) -> Iterator[tuple[tuple[int, ...], Step]]:
    """(text before, step) of each round; after it the target's cache holds exactly the session's tokens.

    But for an answer's last token, of which no pass was made because it was all there was room for.
    """
    session = made.session(prompt, options, made.randomness(options.seed))
    text = tuple(prompt)
    for step in decode(session, verifier or made.verifier):
        before, text = text, (*text, *step.token_ids)
        assert step.token_ids, "a round without a token"
        assert tuple(session.token_ids) == text
        free = len(before) + 1 == len(prompt) + options.max_new_tokens
        cached = before if free else text
        assert session.target.length == len(cached)
        if isinstance(session.target, TableState):
            assert tuple(session.target.committed) == cached
        yield before, step


class Forced(MultiRootVerifier):
    """RIGHT(j) from the last root: accepts j draft tokens of the last path, with j from a list in turn.

    Keeps the trees, and the target's law after each of their nodes.
    """

    def __init__(self, num_roots: int, lengths: Sequence[int]) -> None:
        super().__init__(num_roots)
        self._lengths = tuple(lengths)
        self.trees: list[DraftTree] = []
        self.beliefs: list[list[Tensor]] = []

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        length = self._lengths[len(self.trees) % len(self._lengths)]
        self.trees.append(tree)
        self.beliefs.append([laws.beliefs(node) for node in range(len(tree))])
        path = tree.path(len(tree) - 1)[: length + 1]
        return Verdict(path, tuple(tree.token_ids[node] for node in path))


# --- what greedy rounds should be -------------------------------------------------------------------


def greedy_rounds(
    target: Logits,
    draft: Logits,
    prompt: Sequence[int],
    num_roots: int,
    widths: Sequence[int],
    length: int,
    ends: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """The tokens of each round: roots are the target's best, and the longest greedy walk wins."""
    text, found = list(prompt), []
    while True:
        room = len(prompt) + length - len(text)
        roots = best(target(text), num_roots if room > 1 else 1)
        walks = [_walk(target, draft, text, root, widths[: room - 1], ends) for root in roots]
        winner = max(walks, key=len)  # the first of the longest
        kept = next((i + 1 for i, token in enumerate(winner) if token in ends), len(winner))
        found.append(tuple(winner[:kept]))
        text += winner[:kept]
        if text[-1] in ends or len(text) == len(prompt) + length:
            return found


def _walk(
    target: Logits,
    draft: Logits,
    text: Sequence[int],
    root: int,
    widths: Sequence[int],
    ends: Sequence[int],
) -> list[int]:
    walk = [root]
    for width in widths:
        so_far = [*text, *walk]
        choice = best(target(so_far), 1)[0]
        if walk[-1] in ends or choice not in best(draft(so_far), width):
            break
        walk.append(choice)
    return walk


def best(logits: np.ndarray, count: int) -> list[int]:
    return [int(token) for token in np.argsort(-logits, kind="stable")[:count]]


def table_logits(model: TableModel) -> Logits:
    return lambda text: model.logits_after(text).numpy()


def model_logits(model: Any) -> Logits:
    """From one pass over the whole text."""

    @torch.no_grad()
    def logits(text: Sequence[int]) -> np.ndarray:
        row: np.ndarray = model(torch.tensor([list(text)])).logits[0, -1].numpy()
        return row

    return logits
