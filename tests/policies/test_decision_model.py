"""When a decision model stops a draft, what it reads, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.decoder import decode
from foredraft.policies.decision_model import DecisionPolicy, hard_features
from foredraft.policies.decision_rules import Rule
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Policy
from foredraft.tree import DraftTree, Proposal
from tests.drafters.contexts import DEEP, context
from tests.drafters.eagle_rounds import make_head
from tests.policies.decision_models import ScriptedNet, Showing, net
from tests.tiny_models import tiny_llama

VOCAB_SIZE = 6
TEXT = [1, 2, 3]
OPTIONS = GenerationOptions(max_new_tokens=12, ignore_eos=True)


def model() -> Showing:
    return Showing(TableModel.random(VOCAB_SIZE, order=1, seed=3)._logits.exp())


def grown(policy: Policy, **options: Any) -> DraftTree:
    """One draft after TEXT by deterministic proposals."""
    state = DraftModelDrafter(model(), Proposal.DETERMINISTIC).start(100)
    seen = context(TEXT, vocab_size=VOCAB_SIZE, limits=DEEP, **options)
    return state.draft(seen, policy.start())


def by_length(*predictions: float) -> Callable[[list[float]], float]:
    """Predictions by the depth of the row, the root's first."""
    return lambda row: predictions[int(row[1]) - len(TEXT)]


# --- the rule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predictions", "depth"),
    [
        ((0.1, 0.1, 0.1), 1),  # one level is drafted whatever is predicted
        ((0.4, 0.9, 0.9), 1),  # it has to exceed the threshold
        ((0.5, 0.1, 0.9), 2),
        ((0.5, 0.5, 0.1), 3),
        ((0.9, 0.9, 0.9), 4),  # never deeper than the shape
    ],
)
def test_a_chain_ends_behind_the_first_level_that_is_not_promising(
    predictions: tuple[float, ...], depth: int
) -> None:
    scripted = ScriptedNet(by_length(*predictions))
    tree = grown(DecisionPolicy("1,1,1,1", scripted, threshold=0.4))
    assert tree.widths == (1,) * (depth + 1)
    assert len(scripted.asked) == min(depth, 3)


def test_one_promising_row_carries_its_whole_level() -> None:
    tree = grown(FixedPolicy("3,2,1"))
    lucky = tree.token_ids[3]
    scripted = ScriptedNet(lambda row: 0.9 if row[0] in (TEXT[-1], lucky) and row[1] <= 4 else 0.1)
    stopped = grown(DecisionPolicy("3,2,1", scripted, threshold=0.4))
    assert (
        stopped.token_ids == tree.token_ids
    )  # two levels are promising, and the third is the last
    scripted = ScriptedNet(lambda row: 0.9 if row[1] == len(TEXT) else 0.1)
    assert grown(DecisionPolicy("3,2,1", scripted, threshold=0.4)).widths == (1, 3, 6)


def test_predictions_are_those_of_the_rows_that_a_level_was_drawn_from() -> None:
    scripted = ScriptedNet(lambda row: 0.9)
    tree = grown(DecisionPolicy("2,2,1", scripted, threshold=0.4))
    assert scripted.asked[0] == [[float(TEXT[-1]), 3.0, 0.0, 1.0]]
    assert scripted.asked[1] == [[float(tree.token_ids[n]), 4.0, 0.0, 1.0] for n in (1, 2)]
    assert len(scripted.asked) == 2


@pytest.mark.parametrize(("rule", "depth"), [("any", 4), ("path", 2)])
def test_the_path_rule_multiplies_along_the_path(rule: Rule, depth: int) -> None:
    scripted = ScriptedNet(by_length(0.6, 0.6, 0.6))
    policy = DecisionPolicy("1,1,1,1", scripted, threshold=0.4, rule=rule)
    assert grown(policy).depth == depth


def test_the_path_rule_knows_which_path_a_row_is_on() -> None:
    first, second = grown(FixedPolicy("2")).token_ids[1:]
    for likely, depth in ((0.9, 3), (0.3, 2)):
        below = {first: 0.3, second: likely}
        scripted = ScriptedNet(
            lambda row, below=below: 0.8 if row[1] == 3 else below.get(row[0], 0.0)
        )
        assert grown(DecisionPolicy("2,1,1", scripted, threshold=0.5, rule="path")).depth == depth


def test_the_models_own_threshold_and_rule_are_taken_where_none_is_given() -> None:
    policy = DecisionPolicy("1,1", net("hard", threshold=0.7, rule="path"))
    assert (policy.threshold, policy.rule) == (0.7, "path")
    assert DecisionPolicy("1,1", net()).threshold == 0.4


def test_policies_of_one_net_do_not_move_it_under_each_other() -> None:
    shared = net("hard")
    one, other = DecisionPolicy("1,1", shared), DecisionPolicy("1,1", shared)
    one.model.to("meta")
    assert {p.device.type for p in shared.parameters()} == {"cpu"}
    assert {p.device.type for p in other.model.parameters()} == {"cpu"}
    assert other.model.state_dict().keys() == shared.state_dict().keys()


def test_a_new_draft_begins_anew() -> None:
    scripted = ScriptedNet(by_length(0.9, 0.1))
    policy = DecisionPolicy("1,1,1", scripted, threshold=0.5)
    drafter = DraftModelDrafter(model(), Proposal.DETERMINISTIC)
    state, asking = drafter.start(100), policy.start()
    seen = context(TEXT, vocab_size=VOCAB_SIZE)
    first = state.draft(seen, asking)
    state.commit([0])
    again = state.draft(context([*TEXT, 4], vocab_size=VOCAB_SIZE), asking)
    assert first.depth == 2
    assert again.depth == 1  # its root's row is one further


# --- what it costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("drafts_with", ["model", "head"])
def test_no_draft_pass_is_added(kind: Any, drafts_with: str) -> None:
    """As many passes as levels, of the rows that are drawn from."""
    target = HFTarget(tiny_llama())
    scripted = net(kind, hidden_size=32)
    drafter: Any = (
        DraftModelDrafter(HFTarget(tiny_llama(seed=1)))
        if drafts_with == "model"
        else EagleDrafter(make_head(target.model, "eagle3"))
    )
    engine = Engine(target, drafter, DecisionPolicy("2,2,1", scripted, threshold=0.45))
    session = engine.session(TEXT, OPTIONS, engine.randomness(0))
    text = [token for step in decode(session, engine.verifier) for token in step.token_ids]
    assert text == list(Engine(target).generate(TEXT, OPTIONS).token_ids)
    for record in session.rounds:
        assert len(record.draft_rows) == len(record.widths) - 1
        assert list(record.draft_rows[1:]) == list(record.widths[1:-1])


# --- what it reads ----------------------------------------------------------------------------------


def test_hard_features_are_entropy_and_the_ten_largest_probabilities() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)) * 3
    features = hard_features(logits.log_softmax(-1)).numpy()
    for row, law in zip(features, logits.double().softmax(-1).numpy(), strict=True):
        assert row[0] == pytest.approx(entropy(law), abs=1e-5)
        np.testing.assert_allclose(row[1:], np.sort(law)[::-1][:10], atol=1e-6)


def test_laws_of_few_tokens_leave_zeros() -> None:
    law = torch.tensor([[0.5, 0.5, 0.0]]).log()
    expected = [np.log(2), 0.5, 0.5, *[0.0] * 8]
    np.testing.assert_allclose(hard_features(law)[0].numpy(), expected, atol=1e-6)


def test_features_do_not_depend_on_the_requests_temperature() -> None:
    asked = []
    for temperature in (0.0, 2.0):
        scripted = ScriptedNet(lambda row: 0.0, kind="hard")
        grown(DecisionPolicy("1,1", scripted), temperature=temperature)
        asked.append(scripted.asked)
    assert asked[0] == asked[1]


# --- what cannot work -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_drafter_without_laws_is_refused(kind: Any) -> None:
    engine = Engine(model(), NgramDrafter(1, 2), DecisionPolicy("1,1", net(kind)))
    with pytest.raises(ConfigError, match=r"a (soft )?decision model reads the drafter's"):
        engine.generate([1, 2, 1, 2, 1], OPTIONS)


def test_a_drafter_that_shows_no_hidden_states_is_refused() -> None:
    drafter = DraftModelDrafter(TableModel.random(VOCAB_SIZE))
    engine = Engine(model(), drafter, DecisionPolicy("1,1", net("soft")))
    with pytest.raises(ConfigError, match="this drafter shows none; use a hard"):
        engine.generate(TEXT, OPTIONS)


def test_another_hidden_size_names_both() -> None:
    drafter = DraftModelDrafter(model())
    engine = Engine(model(), drafter, DecisionPolicy("1,1", net("soft", hidden_size=8)))
    with pytest.raises(ConfigError, match=r"of 8 numbers, and this drafter's have 4"):
        engine.generate(TEXT, OPTIONS)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": 1.5}, "threshold=1.5 is not allowed; give a number from 0 to 1"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"rule": "all"}, "rule='all' is not known; give one of any, path"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecisionPolicy("1,1", net(), **options)
    assert complaint in str(caught.value)
