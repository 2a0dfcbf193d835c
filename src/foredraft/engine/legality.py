"""Which drafter, policy and verifier keep the target's law together (design, section 4.3)."""

from __future__ import annotations

from foredraft.drafters.hybrid import HybridDrafter, merging_state
from foredraft.errors import ConfigError
from foredraft.protocols import (
    Drafter,
    FeatureDrafter,
    FeaturePolicy,
    FeatureTarget,
    Policy,
    PolicyKind,
    RootVerifier,
    Target,
    Verifier,
)
from foredraft.tree import Proposal


def check_legal(drafter: Drafter, policy: Policy, verifier: Verifier) -> None:
    """Refuse a triple whose output would not follow the target's law.

    Raises:
        ConfigError: the triple is illegal; the message names the parts and a legal choice.
    """
    name = type(verifier).__name__
    unread = sorted(drafter.proposals - verifier.proposals, key=lambda p: p.value)
    for proposal in unread if isinstance(verifier, RootVerifier) else ():
        raise ConfigError(
            f"{type(drafter).__name__} makes {proposal.value} proposals, which {name} does not verify; give "
            f"one of its proposals: {_names(verifier.proposals)}"
        )
    for proposal in unread:
        raise ConfigError(
            f"{type(drafter).__name__} makes {proposal.value} proposals, for which {name} does not keep "
            f"the target's law; use verifier='exact', or one of its proposals: {_names(verifier.proposals)}"
        )
    if policy.kind not in verifier.policies:
        raise ConfigError(
            f"{type(policy).__name__} {_doing(policy.kind)}, and {name} then does not keep the "
            "target's law; use verifier='exact'"
        )
    if verifier.chains_only and policy.branches:
        raise ConfigError(
            f"{name} verifies chains alone and {type(policy).__name__} asks for trees; give a tree of "
            "ones such as 1,1,1,1, or use verifier='exact' or 'traversal'"
        )
    if isinstance(drafter, HybridDrafter) and not isinstance(policy, FeaturePolicy):
        merging_state(
            policy.start()
        )  # one that reads hidden states is looked at in its first draft


def check_features(part: Drafter | Policy, target: Target) -> None:
    """Refuse a part that reads hidden states beside a target that shows none.

    Raises:
        ConfigError: the message names both.
    """
    reads = isinstance(part, FeatureDrafter | FeaturePolicy)
    if reads and not isinstance(target, FeatureTarget):
        other = "drafter" if isinstance(part, Drafter) else "policy"
        raise ConfigError(
            f"{type(part).__name__} reads the target's hidden states, and {type(target).__name__} "
            f"shows none; use a target with start_tapped (HFTarget), or another {other}"
        )


def check_roots(verifier: Verifier, target: Target) -> None:
    """Refuse several roots where the target scores chains alone.

    Raises:
        ConfigError: the message names the number of roots.
    """
    if isinstance(verifier, RootVerifier) and verifier.num_roots > 1 and not target.scores_trees:
        raise ConfigError(
            f"{type(verifier).__name__} starts drafts from {verifier.num_roots} roots, and this target "
            "ignores masks or positions, so it scores chains alone; use 1 root"
        )


def _names(proposals: frozenset[Proposal]) -> str:
    return ", ".join(sorted(p.value for p in proposals))


def _doing(kind: PolicyKind) -> str:
    return {
        PolicyKind.GROWS: "grows drafts",
        PolicyKind.SELECTS: "selects among drawn tokens",
    }[kind]
