"""What a drafter sees of a session, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft import GenerationOptions
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, DrafterState, DraftLimits
from foredraft.sampling.law import RequestLaw
from foredraft.sampling.randomness import SeededRandomness
from foredraft.tree import DraftTree

DEEP = DraftLimits(max_depth=100)


def context(
    text: Sequence[int],
    *,
    vocab_size: int,
    limits: DraftLimits = DEEP,
    seed: int = 0,
    **options: Any,
) -> DraftContext:
    """The start of a round whose text is `text`; the whole of it counts as the prompt."""
    request = GenerationOptions(**options)
    law = RequestLaw(
        request,
        prompt_length=len(text),
        eos_token_ids=request.eos_token_ids or (),
        vocab_size=vocab_size,
    )
    return DraftContext(list(text), limits, law.draft, SeededRandomness(seed))


def draft(
    state: DrafterState, text: Sequence[int], widths: str, *, vocab_size: int, **changes: Any
) -> DraftTree:
    """What `state` proposes after `text` when it is asked for this k-config."""
    return state.draft(context(text, vocab_size=vocab_size, **changes), FixedPolicy(widths))


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The draft tokens of each root-to-leaf path, in draw order."""
    leaves = [node for node in range(len(tree)) if not tree.children[node]]
    return sorted((tree.path_tokens(leaf) for leaf in leaves if leaf), key=lambda p: _rank(tree, p))


def _rank(tree: DraftTree, tokens: tuple[int, ...]) -> list[int]:
    node, ranks = 0, []
    for token in tokens:
        siblings = [tree.token_ids[child] for child in tree.children[node]]
        ranks.append(siblings.index(token))
        node = tree.children[node][ranks[-1]]
    return ranks
