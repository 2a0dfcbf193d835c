"""Drafts as long as a learnt net expects to be accepted (AdaEAGLE, arXiv 2412.18910, and beyond chains).

Once a round, before anything is drafted, the net reads what the target knew before the root and says how many
tokens of a draft will be accepted. It looks at committed text alone, so every verifier keeps the target's
law. A prediction of 0 is a round without a draft: plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.policies.length_net import LengthNet, Past
from foredraft.protocols import (
    Candidates,
    DraftLimits,
    FeaturePolicy,
    Frontier,
    MergingState,
    Policy,
    PolicyState,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
)

Embed = Callable[[int], Tensor]
"""Token id -> its embedding [root_size]."""


class LengthRule:
    """A stop rule: no children for nodes as deep as the predicted length (`FeatureStopRule`).

    `StoppingPolicy(FixedPolicy.chain(net.config.k_max), LengthRule(net))` is the paper's policy, and with
    `all_of(LengthRule(net), CumulativeRule())` its form with a threshold.

    Args:
        net: predicts.
        embed: gives the root's embedding, for nets that read it.

    Raises:
        ConfigError: the net reads the root's embedding, and `embed` is None.
    """

    def __init__(self, net: LengthNet, embed: Embed | None = None) -> None:
        if net.config.root_size and embed is None:
            raise ConfigError(
                "the length predictor reads the root's embedding, and nothing here embeds tokens; use it "
                "with the drafter it was trained for, or train one without --root"
            )
        self.net = deepcopy(net).eval()  # which each rule moves to the device of its own target
        self.embed = embed
        self.taps = net.config.taps

    def start(self) -> LengthRuleState:
        """Refused: it cannot predict without the target's features."""
        raise ConfigError(
            "a length predictor reads the target's hidden states; use it in an Engine, or start_reading"
        )

    def start_reading(self, take_features: TakeFeatures) -> LengthRuleState:
        """State for one request."""
        return LengthRuleState(self, take_features)


class LengthRuleState:
    """One request's predictions.

    Attributes:
        length: of the draft in progress. Where no state stands before the root, in a text of one token,
            it is k_max.
    """

    def __init__(self, rule: LengthRule, take_features: TakeFeatures) -> None:
        self._rule, self._net, self._take = rule, rule.net, take_features
        self._state: Tensor | None = None
        self._outcome: Tensor | None = None
        self.length = rule.net.config.k_max

    def begin(self, text: Sequence[int]) -> None:
        """Predict; one wait for the device."""
        features = self._take()
        if len(features):
            self.length = self._predict(features[-1:], text[-1])

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """The same for all nodes of a level."""
        return [frontier.depth < self.length] * len(frontier.nodes)

    def observe(self, outcome: RoundOutcome) -> None:
        """What a GRU remembers: tokens accepted, of the depth drafted."""
        if self._net.remembers:
            device = self._net.leave.weight.device
            seen = torch.tensor([[outcome.num_accepted], [outcome.tree.depth]], device=device)
            self._outcome = self._net.outcome(*seen.float())

    @torch.inference_mode()
    def _predict(self, features: Tensor, root: int) -> int:
        net = self._net
        if features.shape[-1] != 2 * net.config.hidden_size:
            raise ConfigError(
                f"the length predictor reads hidden states of {net.config.hidden_size} numbers, and the "
                f"target's have {features.shape[-1] // 2}; train one for this model"
            )
        if net.leave.weight.device != features.device:
            net.to(features.device)
        output, self._state = net(self._inputs(features.float(), root), self._past(features.device))
        return int(net.lengths(output))

    def _inputs(self, features: Tensor, root: int) -> Tensor:
        if not self._net.config.root_size or self._rule.embed is None:
            return features
        embedded = self._rule.embed(root).to(features)
        if embedded.shape[-1] != self._net.config.root_size:
            raise ConfigError(
                f"the length predictor reads embeddings of {self._net.config.root_size} numbers, and this "
                f"drafter's have {embedded.shape[-1]}; use the drafter it was trained for"
            )
        return torch.cat([features, embedded[None]], -1)

    def _past(self, device: torch.device) -> Past | None:
        if self._state is None:
            return None
        fresh = self._net.fresh(1, device)
        return Past(self._state, fresh.outcome if self._outcome is None else self._outcome)


class LengthShapedPolicy:
    """A tree whose depth and budget of nodes follow the predicted length (`FeaturePolicy`).

    With a prediction k, the tree has k + spare levels at most, and that share of its nodes: a tree is
    accepted deeper than its chain of best tokens, of which the prediction speaks.

    Args:
        shape: the tree at its largest.
        levels: depth of it.
        rule: predicts.
        spare: levels beyond the prediction, 0 or more. With 0, a prediction of 0 drafts nothing.

    Raises:
        ConfigError: a negative `spare`, or a shape that reads hidden states itself.
    """

    def __init__(self, shape: Policy, levels: int, rule: LengthRule, spare: int = 1) -> None:
        if spare < 0:
            raise ConfigError(f"spare={spare} is not allowed; give 0 or more")
        if isinstance(shape, FeaturePolicy):
            raise ConfigError(
                f"{type(shape).__name__} reads hidden states of its own; give a shape that does not"
            )
        self.shape, self.levels, self.rule, self.spare = shape, levels, rule, spare
        self.kind, self.branches, self.max_nodes = shape.kind, shape.branches, shape.max_nodes
        self.taps = rule.taps

    def start(self) -> LengthShapedState:
        """Refused: it cannot predict without the target's features."""
        raise ConfigError(
            "a length predictor reads the target's hidden states; use it in an Engine, or start_reading"
        )

    def start_reading(self, take_features: TakeFeatures) -> LengthShapedState:
        """State for one request."""
        shape, rule = self.shape.start(), self.rule.start_reading(take_features)
        if isinstance(shape, MergingState):
            raise ConfigError(
                f"{type(shape).__name__} merges copies with a model's tree, whose size is not predicted; "
                "give the shape of the model's tree"
            )
        if isinstance(shape, SelectingState):
            return SelectingLengthShapedState(self, shape, rule)
        return LengthShapedState(self, shape, rule)


class LengthShapedState:
    """One request's shape and predictions."""

    def __init__(
        self, policy: LengthShapedPolicy, shape: PolicyState, rule: LengthRuleState
    ) -> None:
        self._policy, self._shape, self._rule = policy, shape, rule

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The shape's limits, within those of the prediction."""
        self._rule.begin(text)
        policy = self._policy
        depth = min(self._rule.length + policy.spare, policy.levels)
        nodes = math.ceil(policy.max_nodes * depth / policy.levels)
        tighter = replace(
            limits,
            max_depth=min(limits.max_depth, depth),
            max_nodes=min(limits.max_nodes, nodes),
        )
        return self._shape.plan(tighter, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """The shape's counts."""
        return self._shape.grow(frontier)

    def observe(self, outcome: RoundOutcome) -> None:
        """Both learn."""
        self._shape.observe(outcome)
        self._rule.observe(outcome)


class SelectingLengthShapedState(LengthShapedState):
    """A `SelectingState`: the shape selects among what was drawn."""

    def __init__(
        self, policy: LengthShapedPolicy, shape: SelectingState, rule: LengthRuleState
    ) -> None:
        super().__init__(policy, shape, rule)
        self._selecting = shape

    @property
    def max_candidates(self) -> int:
        """The shape's own."""
        return self._selecting.max_candidates

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """The shape's choice."""
        return self._selecting.select(candidates, max_nodes)
