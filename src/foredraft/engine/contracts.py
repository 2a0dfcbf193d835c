"""What parts of a user's own are held to, so that their mistakes are errors and never another text."""

from __future__ import annotations

from typing import Any

from foredraft.errors import ConfigError
from foredraft.protocols import (
    DraftContext,
    MergingState,
    Policy,
    PolicyKind,
    PolicyState,
    SelectingState,
    Verdict,
)
from foredraft.tree import DraftTree


def check_kind(name: str, part: Any, kind: type) -> None:
    """Refuse an argument that is no such part, for instance a name or a class.

    Raises:
        ConfigError: the message says what is wanted.
    """
    if isinstance(part, type):
        raise ConfigError(f"{name} is the class {part.__name__}; give an object of it")
    if not isinstance(part, kind):
        raise ConfigError(
            f"{name} is of type {type(part).__name__}; give a {kind.__name__} "
            "(foredraft.load() takes names and models)"
        )


def check_selection(policy: Policy, state: PolicyState) -> None:
    """Refuse a state that selects among drawn tokens when its policy says it does not.

    Raises:
        ConfigError: the verifier was chosen for what the policy says.
    """
    if policy.kind is not PolicyKind.SELECTS and isinstance(state, SelectingState | MergingState):
        raise ConfigError(
            f"{type(state).__name__} selects among drawn tokens, and {type(policy).__name__} is of kind "
            f"{policy.kind.name}; make it SELECTS"
        )


def check_draft(tree: DraftTree, context: DraftContext, vocab_size: int) -> None:
    """Refuse a draft that breaks the contract of `DrafterState.draft`.

    Raises:
        ConfigError: other roots, a draft outside the limits, or a token that the target lacks.
    """
    fault = _fault_of(tree, context, vocab_size)
    if fault:
        raise ConfigError(f"the draft {fault}; correct the drafter, see DraftContext")


def _fault_of(tree: DraftTree, context: DraftContext, vocab_size: int) -> str | None:
    limits = context.limits
    if not isinstance(tree, DraftTree):
        return f"is of type {type(tree).__name__} and no DraftTree"
    if tree.open_roots != bool(context.open_roots):
        return f"has open_roots={tree.open_roots}, which DraftContext.builder would set right"
    if tree.token_ids[: tree.num_roots] != context.roots:
        first, wanted = tree.token_ids[: tree.num_roots], context.roots
        if not context.open_roots:
            return f"starts with token {first[0]!r}, and the text ends with {wanted[0]}"
        return f"starts with tokens {list(first)!r}, and its open roots are {list(wanted)}"
    if tree.depth > limits.max_depth or tree.num_drafted > limits.max_nodes:
        return (
            f"has {tree.num_drafted} tokens and depth {tree.depth}, and the round has room for "
            f"{limits.max_nodes} and {limits.max_depth}"
        )
    if limits.chains_only and not tree.is_chain:
        return "branches, and this model scores chains only"
    for token in tree.token_ids[tree.num_roots :]:
        if not _is_token(token, vocab_size):
            return f"holds token {token!r}, and the target's ids go from 0 to {vocab_size - 1}"
    return None


def check_verdict(verdict: Verdict, tree: DraftTree, vocab_size: int) -> None:
    """Refuse a verdict that is not a path of the draft and one token more.

    Raises:
        ConfigError: text and caches would part ways.
    """
    node, token = verdict.path[-1], verdict.token_ids[-1]
    if 0 <= node < len(tree) and _is_token(token, vocab_size):
        path, accepted = tree.path(node), tree.path_tokens(node)
        whole = accepted if tree.open_roots else (*accepted, token)
        if verdict.path == path and verdict.token_ids == whole:
            return
    raise ConfigError(
        f"the verdict keeps nodes {verdict.path} with tokens {verdict.token_ids}, which is not a path of "
        "the draft and one token more; correct the verifier, see Verdict"
    )


def _is_token(token: Any, vocab_size: int) -> bool:
    return type(token) is int and 0 <= token < vocab_size
