"""Recipes whose drafts follow a learnt length (AdaEAGLE, arXiv 2412.18910, and its trees)."""

from __future__ import annotations

from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.draft_stops import stopped
from foredraft.engine.lengths import chosen_length
from foredraft.engine.parts import Parts, drafts_of, proposal_for
from foredraft.errors import ConfigError
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.predicted_length import LengthRule, LengthShapedPolicy
from foredraft.policies.stopping import StoppingPolicy, StopRule, all_of
from foredraft.policies.thresholds import CUMULATIVE, CumulativeRule
from foredraft.protocols import Policy, Target
from foredraft.verifiers import verifier as make_verifier

SPARE = 1
"""Levels of a tree beyond the predicted length of its chain of best tokens."""


def adaeagle(
    model: Target | EagleHead,
    *,
    depth: int | None = None,
    length: str | None = None,
    proposal: str | None = None,
    verifier: str = "exact",
) -> Parts:
    """A chain as long as a learnt net predicts, each round (AdaEAGLE, arXiv 2412.18910).

    `depth` is the longest; without, what the net was trained for.
    """
    rule = _length_of(length, model)
    return _adaptive_chain(model, depth, rule, rule, proposal, verifier)


def adaeagle_threshold(
    model: Target | EagleHead,
    *,
    depth: int | None = None,
    length: str | None = None,
    threshold: float = CUMULATIVE,
    proposal: str | None = None,
    verifier: str = "exact",
) -> Parts:
    """AdaEAGLE's form with a threshold: the draft ends past the prediction, where it is unlikely too."""
    rule = _length_of(length, model)
    both = all_of(rule, CumulativeRule(threshold))
    return _adaptive_chain(model, depth, rule, both, proposal, verifier)


def _length_of(length: str | None, model: Target | EagleHead) -> LengthRule:
    rule = chosen_length(length, None, model, always=True)
    assert rule is not None
    return rule


def _adaptive_chain(
    model: Target | EagleHead,
    depth: int | None,
    length: LengthRule,
    rule: StopRule,
    proposal: str | None,
    verifier: str,
) -> Parts:
    drafter = drafts_of(model, proposal_for(verifier, proposal))
    longest = length.net.config.k_max if depth is None else depth
    policy = StoppingPolicy(FixedPolicy.chain(longest), rule)
    return Parts(drafter, policy, make_verifier(verifier))


def tree_by_length(
    shape: DynamicTreePolicy | BudgetPolicy,
    depth: int,
    head: EagleHead,
    stop: str | None,
    length: str | None,
    spare: int | None,
) -> Policy:
    """A dynamic tree whose size follows a predicted length, if one is named."""
    rule = chosen_length(length, stop, head)
    if length is None:
        if spare is not None:
            raise ConfigError(
                f"spare={spare} is for a predicted length; give length=... too, or leave it out"
            )
        return stopped(shape, stop, rule)
    assert rule is not None
    if stop is not None:
        raise ConfigError(
            f"length={length} has the whole tree follow the prediction, and stop={stop} asks for its depth "
            "alone; leave one out"
        )
    return LengthShapedPolicy(shape, depth, rule, SPARE if spare is None else spare)
