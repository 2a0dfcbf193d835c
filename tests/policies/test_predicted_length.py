"""Drafts of a predicted length: how long they are, what the net is shown, and trees that follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.predicted_length import LengthRule, LengthShapedPolicy
from foredraft.policies.stopping import FeatureStopRule, StoppingPolicy, all_of
from foredraft.policies.thresholds import CumulativeRule
from foredraft.protocols import (
    FeaturePolicy,
    Frontier,
    Policy,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
)
from foredraft.results import RoundRecord
from foredraft.tree import DraftTree
from tests.policies.length_nets import ScriptedLength, length_net, tapped
from tests.policies.test_stopping import Merging

V = 6
TABLE = TableModel.random(V, seed=1)._logits.exp().numpy()
PROMPT = [1, 2, 3]


def rounds(
    policy: Policy, num: int = 20, prompt: Sequence[int] = PROMPT
) -> tuple[RoundRecord, ...]:
    drafter = DraftModelDrafter(TableModel.random(V, seed=2))
    engine = Engine(tapped(TABLE), drafter, policy)
    options = GenerationOptions(max_new_tokens=num)
    answer = engine.generate(list(prompt), options)
    assert answer.token_ids == engine.without_drafts().generate(list(prompt), options).token_ids
    return tuple(answer.stats.rounds)


def roomy(policy: Policy) -> list[RoundRecord]:
    """Those with room for the longest draft."""
    return [record for record in rounds(policy) if record.context + 6 < len(PROMPT) + 20]


def chain(predict: Callable[[int, int], float], depth: int = 4) -> StoppingPolicy:
    return StoppingPolicy(FixedPolicy.chain(depth), LengthRule(ScriptedLength(predict, k_max=4)))


@pytest.mark.parametrize("length", range(7))
def test_drafts_are_as_long_as_predicted(length: int) -> None:
    for record in roomy(chain(lambda token, place: length)):
        assert sum(record.widths[1:]) == min(length, 4)


def test_a_round_without_a_draft_costs_no_pass() -> None:
    found = rounds(chain(lambda token, place: 0.3))
    assert all(record.widths == (1,) and record.draft_rows == () for record in found)
    assert len(found) == 20


def test_the_net_reads_the_state_before_the_root_once_a_round() -> None:
    policy = chain(lambda token, place: place % 3)
    found = roomy(policy)
    assert isinstance(policy.rule, LengthRule)
    net = policy.rule.net
    assert isinstance(net, ScriptedLength)
    assert net.asked[0][:2] == [PROMPT[-2], 1.0]
    for record, row in zip(found, net.asked, strict=False):
        assert row[1] == record.context - 1
        assert sum(record.widths[1:]) == row[1] % 3


def test_a_text_of_one_token_has_no_state_to_read() -> None:
    assert sum(rounds(chain(lambda token, place: 1), prompt=[2])[0].widths[1:]) == 4


def test_the_form_with_a_threshold_drafts_at_least_as_long() -> None:
    """Past the prediction, drafts go on while they are likely."""
    rule = LengthRule(ScriptedLength(lambda token, place: 2, k_max=4))
    never = all_of(rule, CumulativeRule(-1e-9))
    always = all_of(rule, CumulativeRule(-1e9))
    for both, depth in ((never, 2), (always, 4)):
        assert isinstance(both, FeatureStopRule)
        found = roomy(StoppingPolicy(FixedPolicy.chain(4), both))
        assert {sum(record.widths[1:]) for record in found} == {depth}


def test_a_gru_is_told_what_became_of_the_draft() -> None:
    net = length_net(arch="gru", hidden_size=2, width=4)
    rule = LengthRule(net)
    features = torch.randn(2, 4)
    state = rule.start_reading(lambda: features)
    state.begin([1, 2])
    first, remembered = net(features[-1:])
    assert state.length == int(net.lengths(first))
    tree = DraftTree.root_only(2)
    state.observe(RoundOutcome(tree, 0, 0.0, 0.0))
    state.begin([1, 2, 3])
    past = net.fresh(1, torch.device("cpu"))
    outcome = net.outcome(torch.tensor([0.0]), torch.tensor([float(tree.depth)]))
    second, _ = net(features[-1:], type(past)(remembered, outcome))
    assert state.length == int(net.lengths(second))


def test_rules_of_one_net_are_independent_requests() -> None:
    rule = LengthRule(length_net(arch="gru", hidden_size=2))
    one, other = (rule.start_reading(lambda: torch.ones(1, 4)) for _ in range(2))
    one.begin([1])
    fresh = one.length
    one.observe(RoundOutcome(DraftTree.root_only(2), 0, 0.0, 0.0))
    one.begin([1])
    other.begin([1])
    assert other.length == fresh


def test_the_root_is_read_where_the_net_asks_for_it() -> None:
    seen: list[int] = []

    def embed(token: int) -> torch.Tensor:
        seen.append(token)
        return torch.ones(3)

    net = length_net(hidden_size=2, root_size=3)
    state = LengthRule(net, embed).start_reading(lambda: torch.ones(1, 4))
    state.begin([5, 4])
    assert seen == [4]
    with pytest.raises(ConfigError, match="nothing here embeds tokens"):
        LengthRule(net)
    wide = LengthRule(net, lambda token: torch.ones(4)).start_reading(lambda: torch.ones(1, 4))
    with pytest.raises(ConfigError, match="embeddings of 3 numbers, and this drafter's have 4"):
        wide.begin([5, 4])


def test_states_of_another_size_are_refused() -> None:
    state = LengthRule(length_net(hidden_size=2)).start_reading(lambda: torch.ones(1, 6))
    with pytest.raises(ConfigError, match="of 2 numbers, and the target's have 3"):
        state.begin([1, 2])


# --- trees ------------------------------------------------------------------------------------------


def shaped(length: int, spare: int, **shape: int) -> LengthShapedPolicy:
    tree = DynamicTreePolicy(**{"depth": 4, "nodes": 10, "top_k": 3} | shape)
    return LengthShapedPolicy(
        tree, 4, LengthRule(ScriptedLength(lambda t, p: length, k_max=4)), spare
    )


@pytest.mark.parametrize(
    ("length", "spare", "depth", "nodes"),
    [
        (0, 0, 0, 0),
        (0, 1, 1, 3),
        (1, 1, 2, 5),
        (2, 0, 2, 5),
        (2, 1, 3, 8),
        (3, 1, 4, 10),
        (4, 1, 4, 10),
    ],
)
def test_a_dynamic_tree_follows_the_prediction(
    length: int, spare: int, depth: int, nodes: int
) -> None:
    for record in roomy(shaped(length, spare)):
        assert len(record.widths) - 1 <= depth
        assert sum(record.widths[1:]) == nodes


def test_a_shaped_tree_is_a_policy_that_reads_and_selects() -> None:
    policy = shaped(2, 1)
    assert isinstance(policy, FeaturePolicy)
    assert isinstance(policy.start_reading(lambda: torch.ones(1, 4)), SelectingState)
    assert (policy.kind, policy.branches, policy.max_nodes) == (
        policy.shape.kind,
        policy.shape.branches,
        policy.shape.max_nodes,
    )
    plain = LengthShapedPolicy(FixedPolicy("2,1"), 2, policy.rule)
    assert not isinstance(plain.start_reading(lambda: torch.ones(1, 4)), SelectingState)


class Reads(FixedPolicy):
    taps = (0,)

    def start_reading(self, take_features: TakeFeatures) -> Reads:
        return self


def test_shapes_that_cannot_follow_are_refused() -> None:
    rule = shaped(1, 1).rule
    with pytest.raises(ConfigError, match="spare=-1 is not allowed"):
        LengthShapedPolicy(FixedPolicy("2"), 1, rule, -1)
    with pytest.raises(ConfigError, match="Reads reads hidden states of its own"):
        LengthShapedPolicy(Reads("2"), 1, rule)
    merged = FixedPolicy("2")
    merged.start = Merging  # type: ignore[assignment, method-assign]
    with pytest.raises(ConfigError, match="merges copies"):
        LengthShapedPolicy(merged, 1, rule).start_reading(lambda: torch.ones(1, 4))


@pytest.mark.parametrize("part", [LengthRule(length_net()), shaped(1, 1)])
def test_neither_starts_without_features(part: LengthRule | LengthShapedPolicy) -> None:
    with pytest.raises(ConfigError, match="reads the target's hidden states"):
        part.start()


def test_every_node_of_a_level_gets_the_same_answer() -> None:
    state = LengthRule(ScriptedLength(lambda t, p: 2)).start_reading(lambda: torch.ones(1, 4))
    state.begin([1, 2])
    level = Frontier(1, (1, 2), (3, 4), (0, 0), (0, 1), log_probs=lambda: None, scores=lambda: None)
    assert state.going_on(level) == [True, True]
