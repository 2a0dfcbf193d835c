"""What recipes are made of: a drafter, a policy and a verifier, and how a drafter is built from a model."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.recall import RecallWeights
from foredraft.errors import ConfigError, suggestion
from foredraft.protocols import Drafter, Policy, Target, Verifier
from foredraft.tree import Proposal


@dataclass(frozen=True, slots=True)
class Parts:
    """What a method adds to a target."""

    drafter: Drafter | None
    policy: Policy | None
    verifier: Verifier


def drafts_of(
    model: Target | EagleHead, proposal: Proposal, recall: RecallWeights | None = None
) -> EagleDrafter | DraftModelDrafter:
    """The drafter of a draft model or a head."""
    if isinstance(model, EagleHead):
        return EagleDrafter(model, proposal, recall=recall)
    return DraftModelDrafter(model, proposal, recall=recall)


def proposal_for(verifier: str, name: str | None) -> Proposal:
    """The proposal named, or else what the verifier wants."""
    if name is None:
        return Proposal.COUPLED if verifier == "exact" else Proposal.SAMPLED
    try:
        return Proposal(name)
    except ValueError:
        known = [p.value for p in Proposal]
        raise ConfigError(f"unknown proposal {name!r}; {suggestion(name, known)}") from None
