"""Drafters that play a script: what they propose depends on the text alone, and is known beforehand.

They stand in for a drafter that is right, wrong, or right for a while:

```python
script = right(answer_text, num_right=2, length=4, vocab_size=8)
engine = Engine(target, ScriptedDrafter(script, max_nodes=4))
```
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from foredraft import Engine, GenerationOptions
from foredraft.engine.decoder import decode
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import (
    DraftContext,
    Drafter,
    DrafterState,
    Policy,
    PolicyKind,
    PolicyState,
)
from foredraft.results import Step
from foredraft.tree import NO_PARENT, DraftTree, Proposal, TreeBuilder

Branches = Sequence[tuple[int, int]]
"""A tree without its root, in level order: (parent, token) of nodes 1, 2, ..; parent 0 is the root."""
Script = Callable[[Sequence[int]], Branches]
"""Text so far -> what to propose after it."""


def chain(tokens: Sequence[int]) -> Branches:
    """One token after the other."""
    return list(enumerate(tokens))


# --- the scripts ------------------------------------------------------------------------------------


def perfect(text: Sequence[int], length: int) -> Script:
    """PERFECT: plays `text`, prompt and answer as plain decoding gives them."""
    return lambda so_far: chain(text[len(so_far) : len(so_far) + length])


def right(text: Sequence[int], num_right: int, length: int, vocab_size: int) -> Script:
    """RIGHT(j): the first `num_right` tokens are those of `text`, all later ones are not."""

    def script(so_far: Sequence[int]) -> Branches:
        tokens = text[len(so_far) : len(so_far) + length]
        return chain([*tokens[:num_right], *[(t + 1) % vocab_size for t in tokens[num_right:]]])

    return script


def wrong(text: Sequence[int], length: int, vocab_size: int) -> Script:
    """WRONG: not one token is right."""
    return right(text, 0, length, vocab_size)


def empty() -> Script:
    """EMPTY: no draft at all."""
    return lambda so_far: []


def noise(seed: int, length: int, vocab_size: int) -> Script:
    """RANDOM: tokens that follow from the text's length and from nothing else."""

    def script(so_far: Sequence[int]) -> Branches:
        generator = random.Random(seed * 1000 + len(so_far))
        return chain([generator.randrange(vocab_size) for _ in range(length)])

    return script


def repeat(token: int, length: int) -> Script:
    """EOS, when given an end token: proposes nothing else."""
    return lambda so_far: chain([token] * length)


def cycle(text: Sequence[int], length: int) -> Script:
    """CYCLE: right, with 0, 1, .. `length` tokens in turn."""
    return lambda so_far: perfect(text, len(so_far) % (length + 1))(so_far)


def with_siblings(script: Script, num_siblings: int, index: int, vocab_size: int) -> Script:
    """The script's chain, each token as the child `index` of `num_siblings` (the others differ)."""

    def widened(so_far: Sequence[int]) -> Branches:
        branches, parent = [], 0
        for _, token in script(so_far):
            others = [(token + 1 + i) % vocab_size for i in range(num_siblings - 1)]
            siblings = [*others[:index], token, *others[index:]]
            branches += [(parent, sibling) for sibling in siblings]
            parent = len(branches) - num_siblings + index + 1
        return branches

    return widened


def tree_of_paths(paths: Sequence[Sequence[int]]) -> Script:
    """The same tree in every round, from the tokens of its paths; equal beginnings are shared."""
    prefixes = {tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    first = {prefix: i for i, path in reversed(list(enumerate(paths))) for prefix in _starts(path)}
    ordered: list[tuple[int, ...]] = [()]
    for depth in range(1, max(map(len, paths)) + 1):
        level = [prefix for prefix in prefixes if len(prefix) == depth]
        ordered += sorted(level, key=lambda p: (ordered.index(p[:-1]), first[p]))
    branches = [(ordered.index(prefix[:-1]), prefix[-1]) for prefix in ordered[1:]]
    return lambda so_far: branches


def _starts(path: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(path[:depth]) for depth in range(1, len(path) + 1)]


# --- the drafter ------------------------------------------------------------------------------------


class ScriptedDrafter:
    """Plays a script, cut to the limits of the round: the deepest levels go first.

    It ignores what the policy would like, as the script says it all.
    """

    proposals = frozenset({Proposal.DETERMINISTIC})

    def __init__(self, script: Script, max_nodes: int, branches: bool = False) -> None:
        self._script = script
        self.default_policy = ScriptedPolicy(max_nodes, branches)

    def start(self, capacity: int) -> ScriptedState:
        return ScriptedState(self._script)


class ScriptedState:
    """Remembers nothing: the script follows from the text."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def prefill(self, token_ids: Sequence[int]) -> None:
        pass

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        limits = context.limits
        builder, depths = TreeBuilder(context.token_ids[-1]), {NO_PARENT: -1, 0: 0}
        for parent, token in self._script(context.token_ids)[: limits.max_nodes]:
            if depths[parent] == limits.max_depth:
                break
            depths[builder.add(parent, token, Proposal.DETERMINISTIC)] = depths[parent] + 1
        return builder.build()

    def commit(self, path: Sequence[int]) -> None:
        """The next script follows from the text."""

    def close(self) -> None:
        """Nothing to give back."""


class ScriptedPolicy(FixedPolicy):
    """Only says how large scripts may be."""

    kind = PolicyKind.GROWS

    def __init__(self, max_nodes: int, branches: bool) -> None:
        super().__init__((1,))
        self.max_nodes, self.branches = max_nodes, branches


# --- looking at rounds ------------------------------------------------------------------------------


class Watched:
    """A drafter of which every state and every draft is kept."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.states: list[WatchedState] = []

    @property
    def proposals(self) -> frozenset[Proposal]:
        return self._drafter.proposals

    @property
    def default_policy(self) -> Policy:
        return self._drafter.default_policy

    @property
    def drafts(self) -> list[DraftTree]:
        return [tree for state in self.states for tree in state.drafts]

    def start(self, capacity: int) -> WatchedState:
        self.states.append(WatchedState(self._drafter.start(capacity)))
        return self.states[-1]


class WatchedState:
    """Passes everything on."""

    def __init__(self, state: DrafterState) -> None:
        self.state = state
        self.drafts: list[DraftTree] = []
        self.closed = False

    @property
    def length(self) -> int:
        """Committed tokens of its cache; 0 when it has none."""
        return getattr(self.state, "length", 0)

    def prefill(self, token_ids: Sequence[int]) -> None:
        pass

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        self.drafts.append(self.state.draft(context, policy))
        return self.drafts[-1]

    def commit(self, path: Sequence[int]) -> None:
        self.state.commit(path)

    def close(self) -> None:
        self.closed = True
        self.state.close()


def checked_rounds(
    engine: Engine, prompt: Sequence[int], options: GenerationOptions
) -> Iterator[Step]:
    """The rounds of one request; after each, the caches hold what they should (INV).

    The target's cache holds the text but its last token, the drafter's no more than that; what was
    streamed is what the session holds.
    """
    drafter = engine.drafter
    session = engine.session(prompt, options, engine.randomness(options.seed, options.choice))
    text = list(prompt)
    for step in decode(session, engine.verifier):
        text += step.token_ids
        assert step.token_ids, "a round without a token"
        assert session.token_ids == text
        assert session.target.length == len(text) - 1
        if isinstance(drafter, Watched):
            assert drafter.states[-1].length <= len(text) - 1
        yield step
