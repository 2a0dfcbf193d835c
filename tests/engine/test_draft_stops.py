"""Stop rules by name: what a text stands for, and what is wrong with others."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from foredraft import ConfigError, Engine
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.draft_stops import STOP_RULES, depth_of, read_stop, stopped
from foredraft.methods import parse_method
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.schedules import GammaTuneRule, HeuristicRule
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.policies.stopping import ComposedRule, StoppingPolicy
from foredraft.policies.thresholds import (
    AdaEdlRule,
    BeamRule,
    ConfidenceRule,
    CumulativeRule,
    SvipRule,
)
from tests.tiny_models import tiny_llama

TARGET, DRAFT = TableModel.random(6, seed=1), TableModel.random(6, seed=2)


@cache
def head() -> EagleHead:
    """A head of a tiny model; its weights do not matter here."""
    return EagleHead.for_target(tiny_llama(), 3)


# --- what a text stands for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "numbers"),
    [
        ("confidence", ConfidenceRule, {"threshold": 0.4}),
        ("confidence@0.25", ConfidenceRule, {"threshold": 0.25}),
        ("cumulative", CumulativeRule, {"threshold": -0.6}),
        ("cumulative@-2", CumulativeRule, {"threshold": -2.0}),
        ("ddd@-0.5", BeamRule, {"threshold": -0.5, "levels": frozenset({5, 7, 9})}),
        ("ddd@-0.5@2.4", BeamRule, {"threshold": -0.5, "levels": frozenset({2, 4})}),
        ("svip", SvipRule, {"threshold": 0.3, "scale": 0.15}),
        ("svip@0.5@0.2", SvipRule, {"threshold": 0.5, "scale": 0.2}),
        ("adaedl", AdaEdlRule, {"bound": 0.3, "scale": 0.2, "memory": 0.5, "longest": 7}),
        ("adaedl@0.4@0.1@0.6", AdaEdlRule, {"bound": 0.4, "scale": 0.1, "memory": 0.6}),
        ("heuristic", HeuristicRule, {"length": 20, "longest": 7}),
        ("gammatune@3@0.5", GammaTuneRule, {"length": 3, "pace": 0.5, "longest": 7}),
    ],
)
def test_a_rule_and_its_numbers(text: str, kind: type, numbers: dict[str, Any]) -> None:
    rule = read_stop(text, longest=7)
    assert type(rule) is kind
    assert {name: getattr(rule, name) for name in numbers} == numbers


def names(rule: Any) -> Any:
    """A composition by the names of its rules and of what joins them."""
    if not isinstance(rule, ComposedRule):
        return type(rule).__name__
    joined_by = {any: "all of", all: "any of"}[rule.goes_on]  # type: ignore[index]
    return (joined_by, *map(names, rule.rules))


def test_rules_are_joined_and_all_of_binds_closer() -> None:
    assert names(read_stop("constant@2+confidence")) == ("all of", "ConstantRule", "ConfidenceRule")
    assert names(read_stop("svip/heuristic")) == ("any of", "SvipRule", "HeuristicRule")
    both = read_stop("constant@6/constant@2+confidence/svip")
    inner = ("all of", "ConstantRule", "ConfidenceRule")
    assert names(both) == ("any of", "ConstantRule", inner, "SvipRule")


@pytest.mark.parametrize(
    ("shape", "depth"),
    [
        (FixedPolicy("2,1,1"), 3),
        (StaticTreePolicy(), 5),
        (DynamicTreePolicy(7, 12, 2), 7),
        (BudgetPolicy(6, 4), 4),
        (StoppingPolicy(FixedPolicy("1"), ConfidenceRule()), None),
    ],
)
def test_the_depth_of_a_shape(shape: Any, depth: int | None) -> None:
    assert depth_of(shape) == depth


def test_no_rules_leave_the_shape_as_it_is() -> None:
    shape = FixedPolicy("1")
    assert stopped(shape, None) is shape


# --- methods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "shape"),
    [
        ("speculative:depth=6", FixedPolicy),
        ("eagle-chain-6", FixedPolicy),
        ("eagle", StaticTreePolicy),
        ("eagle2", DynamicTreePolicy),
        ("eagle2:proposal=sampled:verifier=rejection", BudgetPolicy),
        ("mcsd", FixedPolicy),
        ("mcsd-improved", FixedPolicy),
        ("mcsd-improved-lossy", FixedPolicy),
    ],
)
def test_methods_that_draft_with_a_model_take_stop_rules(method: str, shape: type) -> None:
    read = parse_method(f"{method}:stop=adaedl@0.35/cumulative@-3")
    policy = read.build(head() if read.needs == "head" else DRAFT).policy
    assert isinstance(policy, StoppingPolicy)
    assert type(policy.shape) is shape
    assert isinstance(policy.rule, ComposedRule)
    adaedl = policy.rule.rules[0]
    assert isinstance(adaedl, AdaEdlRule)
    assert adaedl.longest == depth_of(policy.shape)


@pytest.mark.parametrize("rule", [name if name != "ddd" else "ddd@-1@2" for name in STOP_RULES])
def test_a_stopped_draft_gives_the_same_answer(rule: str) -> None:
    def made(method: str) -> Any:
        parts = parse_method(method).build(DRAFT)
        engine = Engine(TARGET, parts.drafter, parts.policy, parts.verifier)
        return engine.generate([1, 2], max_new_tokens=60, temperature=1.0, seed=3)

    whole, cut = made("speculative:depth=6"), made(f"speculative:depth=6:stop={rule}")
    assert cut.token_ids == whole.token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "method",
    [
        "eagle-chain-5:stop=svip@0.9",
        "eagle:stop=confidence@0.02",
        "eagle2:depth=4:nodes=9:top_k=3:stop=ddd@-6@2.3",
        "eagle2:depth=4:nodes=9:top_k=3:stop=constant@2+adaedl",
        "eagle:tree=3,2,1:stop=cumulative@-4",
    ],
)
def test_heads_with_stop_rules_give_plain_answers(method: str, temperature: float) -> None:
    parts = parse_method(method).build(head())
    engine = Engine(HFTarget(tiny_llama()), parts.drafter, parts.policy, parts.verifier)
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 1}
    plain = engine.without_drafts().generate([5, 9, 3, 7], **options)
    assert engine.generate([5, 9, 3, 7], **options).token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("stop=confidense", "unknown stop rule 'confidense'; did you mean 'confidence'"),
        ("stop=", "unknown stop rule ''; available: confidence, cumulative, ddd"),
        ("stop=svip+", "unknown stop rule ''"),
        ("stop=svip@x", "stop=svip@x: threshold 'x' is not a number"),
        ("stop=constant@2.5", "stop=constant@2.5: length '2.5' is not a whole number"),
        ("stop=ddd@-1@a", "levels 'a' is not whole numbers joined by dots"),
        ("stop=svip@1@2@3", "gives 3 numbers, and svip takes threshold, scale alone"),
        (
            "stop=ddd",
            "stop=ddd gives no threshold, and ddd has no usual one; write it like ddd@-0.5",
        ),
        ("stop=confidence@2", "speculative:stop=confidence@2: threshold 2.0 is not allowed; give"),
        (
            "stop=svip:decision=x",
            "speculative:decision=x and speculative:stop=svip both say where a draft ends",
        ),
        ("stop=svip:threshold=0.3", "speculative:threshold=0.3 is for a decision model"),
    ],
)
def test_what_cannot_be_read_is_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_method(f"speculative:{option}").build(DRAFT)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", ["ngram", "autoregressive"])
def test_methods_without_laws_take_none(method: str) -> None:
    with pytest.raises(ConfigError, match="has no option 'stop=svip'"):
        parse_method(f"{method}:stop=svip")
