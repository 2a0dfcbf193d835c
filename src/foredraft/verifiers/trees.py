"""What verifiers read from a draft tree, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.protocols import Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.laws import Draw, draws


def require_proposals(tree: DraftTree, legal: frozenset[Proposal], verifier: str) -> None:
    """Refuse a tree with a child for which this verifier's rule is not lossless."""
    for proposal in tree.proposals[1:]:
        if proposal not in legal:
            known = ", ".join(sorted(kind.value for kind in legal))
            raise ConfigError(
                f"{verifier} verification is lossless for {known} draft tokens only, and this "
                f"draft has a {proposal.value} one; use exact verification"
            )


def require_chain(tree: DraftTree, verifier: str) -> None:
    """Refuse a tree with a node of several children."""
    if not tree.is_chain:
        raise ConfigError(
            f"{verifier} verification handles chains only, and this draft branches; use traversal "
            "verification or a policy that gives every node one child"
        )


def child_draws(tree: DraftTree, node: int, p: Tensor) -> Iterator[Draw]:
    """The children of `node`, in draw order, with the law of each draw given those before it.

    Args:
        p: the target's law after `node`, float64 [V].

    Raises:
        ConfigError: a sampled child whose parent has no law, or one of another vocabulary.
    """
    children = tree.children[node]
    proposals = [tree.proposals[child] for child in children]
    law = tree.laws.get(node)
    if law is None and any(kind is not Proposal.DETERMINISTIC for kind in proposals):
        raise ConfigError(
            f"draft node {node} has sampled children but the drafter reported no law for them; "
            "record it with TreeBuilder.set_law"
        )
    if law is not None and law.shape != p.shape:
        raise ConfigError(
            f"the draft law after node {node} has shape {tuple(law.shape)}, and the target's has "
            f"{tuple(p.shape)}; the drafter must report laws over the target's tokens"
        )
    law = None if law is None else law.to(p.device)
    return draws(p, law, [tree.token_ids[child] for child in children], proposals)


def chosen_walk(tree: DraftTree, node: int, laws: TargetLaws) -> tuple[int, int]:
    """Follow the target's own choices from `node`: the last node that holds one, and the choice after it."""
    while True:
        token = laws.choose(node)
        child = next((c for c in tree.children[node] if tree.token_ids[c] == token), None)
        if child is None:
            return node, token
        node = child


def verdict(tree: DraftTree, node: int, token: int) -> Verdict:
    """Everything up to `node` is accepted, and `token` follows it."""
    return Verdict(tree.path(node), (*tree.path_tokens(node), token))
