"""Trees that end where a learnt model expects no more acceptance (arXiv 2409.10644, the decision model).

After every level that was drafted, the model's predictions for its rows are looked at, and another level
is drafted or not. What was drafted stays: so the policy only grows drafts, and every verifier keeps the
target's law with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.policies.decision_net import HARD_FEATURES, TOP, DecisionNet
from foredraft.policies.decision_rules import Kind, Rule, check_rule
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome


class DecisionPolicy:
    """A k-config whose depth a decision model cuts short, level by level.

    A level is drawn from laws of the drafter; from each such row the model predicts how likely a token
    drawn from it is to be accepted. Another level is drafted if a row of the level exceeds the threshold.
    The first level is always drafted. The rows belong to passes that are made in any case, and a level
    costs one wait for the device, however many rows it has.

    Args:
        shape: the tree at its deepest: widths per depth, as in `FixedPolicy` (a chain is 1,1,1; a fork
            3,1,1; any product tree).
        model: predicts; its kind says what it reads: hidden states (soft), or entropy and the ten largest
            probabilities of the drafter's law before temperature and filters (hard).
        threshold: go on above it; None takes the model's own (0.4 in the paper).
        rule: `any` (the paper's) compares the prediction of every row; `path` the product of the
            predictions along the path to and with the row, which is how likely the whole path is to be
            accepted. None takes the model's own.
        num_roots: as in `FixedPolicy`.

    Raises:
        ConfigError: a shape, threshold or rule that cannot be used.
    """

    kind = PolicyKind.GROWS

    def __init__(
        self,
        shape: Sequence[int] | str,
        model: DecisionNet,
        threshold: float | None = None,
        rule: Rule | None = None,
        num_roots: int = 1,
    ) -> None:
        fixed = FixedPolicy(shape, num_roots)
        self.k_config, self.branches, self.max_nodes = (
            fixed.k_config,
            fixed.branches,
            fixed.max_nodes,
        )
        self.model = deepcopy(model)  # which each policy moves to the device of its own drafter
        self.threshold = model.config.threshold if threshold is None else threshold
        self.rule: Rule = model.config.rule if rule is None else rule
        check_rule(self.threshold, self.rule)

    def start(self) -> DecisionState:
        """State for one request."""
        return DecisionState(self)


class DecisionState:
    """The rows that the last level of the draft in progress was drawn from."""

    def __init__(self, policy: DecisionPolicy) -> None:
        self._policy = policy
        self._rows: dict[int, int] = {}  # node -> its row of what follows
        self._features: Tensor | None = None  # [F, inputs]
        self._above: Tensor | None = None  # [F] the product of predictions on the way to each node

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The limits as they are; a new draft begins."""
        self._rows, self._features, self._above = {}, None, None
        return limits

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """k_d children for each node if the level just drafted is promising, else none."""
        widths, depth = self._policy.k_config, frontier.depth
        stop = (0,) * len(frontier.nodes)
        if depth >= len(widths):
            return stop
        if depth > 0 and not self._promising(frontier):
            return stop
        if depth + 1 < len(widths):  # nobody decides behind the last level
            self._features = self._read(frontier)
            self._rows = {node: row for row, node in enumerate(frontier.nodes)}
        return (widths[depth],) * len(frontier.nodes)

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""

    def _read(self, frontier: Frontier) -> Tensor:
        model = self._policy.model
        features = features_of(frontier, model.config.kind)
        check_hidden_size(model, features.shape[-1])
        return features

    @torch.inference_mode()
    def _promising(self, frontier: Frontier) -> bool:
        """Whether a row of the level just drafted exceeds the threshold."""
        assert self._features is not None
        policy = self._policy
        likely = policy.model.to(self._features.device)(self._features)
        if policy.rule == "path" and self._above is not None:
            likely = likely * self._above
        rows = [self._rows[parent] for parent in frontier.parents]
        above = likely[rows]
        self._above = above
        return bool((above > policy.threshold).any())  # the one wait of a level


def features_of(frontier: Frontier, kind: Kind) -> Tensor:
    """What a model of a kind reads of the rows of a frontier, float32 [F, inputs]; costs their draft pass.

    Raises:
        ConfigError: the drafter does not have it.
    """
    if kind == "soft":
        hidden = frontier.hidden()
        if hidden is None:
            raise ConfigError(
                "a soft decision model reads the drafter's hidden states, and this drafter shows none; use "
                "a hard decision model, or another drafter"
            )
        return hidden.float()
    log_probs = frontier.log_probs()
    if log_probs is None:
        raise ConfigError(
            "a decision model reads the drafter's laws, and this drafter has none; leave the decision out, "
            "or draft with a model or a head"
        )
    return hard_features(log_probs)


def check_hidden_size(model: DecisionNet, hidden_size: int) -> None:
    """Refuse a soft model beside a drafter of another size.

    Raises:
        ConfigError: the message names both sizes.
    """
    if model.config.kind == "soft" and model.num_inputs != hidden_size:
        raise ConfigError(
            f"the decision model reads hidden states of {model.num_inputs} numbers, and this drafter's have "
            f"{hidden_size}; use the drafter it was trained for, or train one for this drafter"
        )


def hard_features(log_probs: Tensor) -> Tensor:
    """Entropy in nats, then the ten largest probabilities, of laws given as logs, [F, C] -> float32 [F, 11].

    Of laws with fewer tokens the missing probabilities are 0.
    """
    probs = log_probs.float().exp()
    top = probs.topk(min(TOP, probs.shape[-1]), dim=-1).values
    features = probs.new_zeros(len(probs), HARD_FEATURES)
    features[:, 0] = torch.special.entr(probs).sum(-1)
    features[:, 1 : 1 + top.shape[-1]] = top
    return features
