"""The four extension points, and the values that pass between them.

A *target* scores draft trees, a *drafter* proposes them, a *policy* decides their shape, a *verifier*
keeps what the target agrees with. Models are shared and hold no request; what belongs to one request
lives in the state object that `start` returns, and the session owns it.
"""

from __future__ import annotations

from foredraft.protocols.drafter import (
    DraftContext,
    Drafter,
    DrafterState,
    FeatureDrafter,
    LawReader,
)
from foredraft.protocols.policy import (
    ALONE,
    Candidates,
    Company,
    CompanyState,
    DraftLimits,
    FeaturePolicy,
    Frontier,
    MergingState,
    Policy,
    PolicyKind,
    PolicyState,
    RoundOutcome,
    SelectingState,
)
from foredraft.protocols.target import (
    FeatureState,
    FeatureTarget,
    JoiningTarget,
    ModelState,
    RestoringState,
    ShowingState,
    ShowingTarget,
    TakeFeatures,
    Target,
)
from foredraft.protocols.verifier import (
    RootVerifier,
    Verdict,
    Verifier,
)

__all__ = [
    "ALONE",
    "Candidates",
    "Company",
    "CompanyState",
    "DraftContext",
    "DraftLimits",
    "Drafter",
    "DrafterState",
    "FeatureDrafter",
    "FeaturePolicy",
    "FeatureState",
    "FeatureTarget",
    "Frontier",
    "JoiningTarget",
    "LawReader",
    "MergingState",
    "ModelState",
    "Policy",
    "PolicyKind",
    "PolicyState",
    "RestoringState",
    "RootVerifier",
    "RoundOutcome",
    "SelectingState",
    "ShowingState",
    "ShowingTarget",
    "TakeFeatures",
    "Target",
    "Verdict",
    "Verifier",
]
