"""What a decision model is trained for: acceptance itself, or tokens in a second.

A recorded round is a chain of levels i = 1 .. D. Level i is drawn from a row with features x_i, and its
token is accepted with probability a_i, given that those before it are. The net s(x) is a stochastic stop
rule: behind level i it goes on with probability s_i = s(x_i). The first level is always drafted. So

    reach      R_i = s_1 s_2 .. s_(i-1)                  R_1 = 1
    tokens     E[T] = 1 + sum_i R_i a_1 a_2 .. a_i
    time       E[C] = base + sum_i R_i c_i

with c_i what level i adds to a round. REINFORCE (Williams, 1992) estimates the gradient of such
expectations by drawing stops: grad E[T] = E[T sum_i grad log pi(action_i)]. All stops of a chain are known
here, so the expectation over them is the sum above, and its derivative

    dE[T] / ds_j = sum_(i > j) (R_i / s_j) a_1 .. a_i

is that gradient exactly, without variance. What is maximised is the ratio of the sums over rounds,
sum E[T] / sum E[C]: tokens in the time of a target pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.costs import CostTable, PassCosts
from foredraft.errors import ConfigError
from foredraft.policies.decision_net import DecisionNet
from foredraft.policies.decision_rules import Rule
from foredraft.train.decision_rounds import RecordedRows

THRESHOLDS = tuple(i / 100 for i in range(1, 100))
"""What `tuned_threshold` chooses from."""
USUAL_CONTEXT = 512
"""Cached tokens at which a cost table is read."""


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What a round takes, in passes of the target over one row.

    Attributes:
        base: a round without a draft.
        levels: [D] what each further level of a chain adds: its draft pass, and its row of the target's.
    """

    base: float
    levels: tuple[float, ...]

    @classmethod
    def flat(cls, draft_cost: float, depth: int) -> RoundCosts:
        """A target pass of any size costs 1, a level of the draft `draft_cost`."""
        return cls(1.0, (draft_cost,) * depth)

    @classmethod
    def from_table(
        cls,
        table: CostTable,
        depth: int,
        methods: Collection[str] | None = None,
        context: int = USUAL_CONTEXT,
    ) -> RoundCosts:
        """As a cost table says of the methods of one drafter; of these, the one with the least host work.

        Args:
            table: of the machine.
            depth: levels.
            methods: those of the table that draft with the drafter in question; None takes all.
            context: cached tokens.

        Raises:
            ConfigError: the table has none of them with passes of a model, or they draft with several.
        """
        passes: dict[str, PassCosts] = {
            name: costs.passes
            for name, costs in table.drafts.items()
            if costs.passes is not None and (methods is None or name in methods)
        }
        if not passes:
            others = ", ".join(table.drafts) or "none"
            raise ConfigError(
                f"the cost table has no method that drafts with this drafter (its methods: {others}); make "
                "one with `foredraft calibrate --drafter ... --out FILE`"
            )
        if len(set(passes.values())) > 1:
            raise ConfigError(
                f"the cost table prices several drafters ({', '.join(passes)}), and nothing tells which is "
                "meant; calibrate one of these methods alone"
            )
        one_s = table.target(1, context)
        base_s = one_s + table.host_s + min(table.drafts[name].host_s for name in passes)
        draft_s = next(iter(passes.values()))(1, context)
        rows_s = [table.target(rows, context) for rows in range(1, depth + 2)]
        levels = tuple((draft_s + after - before) / one_s for before, after in pairwise(rows_s))
        return cls(base_s / one_s, levels)


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of first children of some rounds, padded to D levels; C rounds.

    Attributes:
        features: float32 [C, D, inputs].
        accept: float32 [C, D].
        drafted: bool [C, D], False where the draft had ended.
        prompts: int64 [C] the prompt of each round.
    """

    features: Tensor
    accept: Tensor
    drafted: Tensor
    prompts: Tensor

    def __len__(self) -> int:
        return len(self.accept)

    def __getitem__(self, index: Tensor) -> Chains:
        return Chains(
            self.features[index], self.accept[index], self.drafted[index], self.prompts[index]
        )


def chains_of(rows: RecordedRows, chosen: Tensor, depth: int) -> Chains:
    """The chains of the rounds that hold chosen rows, bool [R]; a round's rows are all chosen or none."""
    on_chain = chosen & (rows.depths >= 0)
    _, place = torch.unique(rows.rounds[on_chain], return_inverse=True)
    count = int(place.max()) + 1 if len(place) else 0
    features = torch.zeros(count, depth, rows.features.shape[1])
    accept, drafted = torch.zeros(count, depth), torch.zeros(count, depth, dtype=torch.bool)
    at = (place, rows.depths[on_chain])
    features[at], accept[at], drafted[at] = rows.features[on_chain], rows.labels[on_chain], True
    prompts = torch.zeros(count, dtype=torch.int64)
    prompts[place] = rows.prompts[on_chain]
    return Chains(features, accept, drafted, prompts)


def expected(stay: Tensor, chains: Chains, costs: RoundCosts) -> tuple[Tensor, Tensor]:
    """Expected tokens and time of each round, [C] and [C]; see the head of this file.

    Args:
        stay: [C, D] probability to go on behind each level.
        chains: the rounds.
        costs: for at least D levels.
    """
    first = torch.ones_like(stay[:, :1])
    reach = torch.cat([first, stay[:, :-1]], 1).cumprod(1) * chains.drafted
    tokens = 1 + (reach * chains.accept.to(stay).cumprod(1)).sum(1)
    levels = torch.tensor(costs.levels[: stay.shape[1]], dtype=stay.dtype, device=stay.device)
    return tokens, costs.base + (reach * levels).sum(1)


def tokens_per_pass_time(stay: Tensor, chains: Chains, costs: RoundCosts) -> Tensor:
    """Expected tokens in the time of a target pass over all rounds, a scalar."""
    tokens, time = expected(stay, chains, costs)
    return tokens.sum() / time.sum()


def cost_loss(net: DecisionNet, chains: Chains, costs: RoundCosts) -> Tensor:
    """The negative of `tokens_per_pass_time` of a net as a stochastic stop rule."""
    return -tokens_per_pass_time(net(chains.features), chains, costs)


def bce_loss(net: DecisionNet, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Binary cross-entropy with labels in 0 .. 1, the mean by weights; all [R]."""
    each = F.binary_cross_entropy_with_logits(net.logits(features), labels, reduction="none")
    return (each * weights).sum() / weights.sum()


def balanced_weights(labels: Tensor) -> Tensor:
    """Weights [R] under which labels of 0 and 1 count the same (the paper balances its hard examples)."""
    share = float(labels.mean())
    if not 0 < share < 1:
        return torch.ones_like(labels)
    return labels / (2 * share) + (1 - labels) / (2 * (1 - share))


def stays(predicted: Tensor, threshold: float, rule: Rule) -> Tensor:
    """1 where `DecisionPolicy` goes on along a chain and 0 where it stops, [C, D]."""
    likely = predicted.cumprod(1) if rule == "path" else predicted
    return (likely > threshold).to(predicted.dtype)


def tuned_threshold(
    predicted: Tensor,
    chains: Chains,
    costs: RoundCosts,
    rule: Rule,
    thresholds: Sequence[float] = THRESHOLDS,
) -> tuple[float, float]:
    """The threshold with the most tokens in the time of a pass, and that number; the first of equals."""
    best, most = thresholds[0], -math.inf
    for threshold in thresholds:
        found = float(tokens_per_pass_time(stays(predicted, threshold, rule), chains, costs))
        if found > most:
            best, most = threshold, found
    return best, most
