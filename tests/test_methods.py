"""Recipes by name: what they are made of, and which options they do not take."""

from __future__ import annotations

from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import ConfigError
from foredraft.backends.table import TableModel
from foredraft.config import METHODS
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.methods import BEST, RECIPES, parse_method
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.merging import MergingPolicy
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.policies.stopping import StoppingPolicy
from foredraft.tree import Proposal
from foredraft.verifiers import VERIFIERS
from tests.tiny_models import tiny_llama

TARGET, DRAFT = TableModel.random(6, seed=1), TableModel.random(6, seed=2)
PROMPT = (1, 2, 3, 1, 2)


@cache
def head() -> EagleHead:
    """A head of a tiny model; its weights do not matter here."""
    return EagleHead.for_target(tiny_llama(), 3)


def shape(policy: Any) -> tuple[int, ...]:
    assert isinstance(policy, FixedPolicy)
    return policy.k_config


# --- what a name stands for -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.endswith("-K")])
def test_a_bare_name_is_a_recipe_without_options(name: str) -> None:
    method = parse_method(name)
    assert (method.name, method.recipe, dict(method.options)) == (name, name, {})


def test_a_number_in_a_name_is_the_depth() -> None:
    method = parse_method("eagle-chain-7:proposal=sampled")
    assert (method.name, method.recipe, method.needs) == ("eagle-chain-7", "eagle-chain-K", "head")
    parts = method.build(head())
    assert shape(parts.policy) == (1,) * 7
    assert parts.drafter is not None
    assert parts.drafter.proposals == {Proposal.SAMPLED}


def test_eagle_is_a_static_tree_and_eagle2_a_dynamic_one() -> None:
    static = parse_method("eagle").build(head()).policy
    assert isinstance(static, StaticTreePolicy)
    assert static.max_nodes == 25
    assert shape(parse_method("eagle:tree=3,2").build(head()).policy) == (3, 2)
    dynamic = parse_method("eagle2:depth=3:nodes=9:top_k=4").build(head()).policy
    assert isinstance(dynamic, DynamicTreePolicy)
    assert (dynamic.depth, dynamic.nodes, dynamic.top_k) == (3, 9, 4)


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
def test_eagle2_spends_its_budget_before_drawing_where_that_keeps_the_law(verifier: str) -> None:
    policy = (
        parse_method(f"eagle2:depth=3:nodes=9:top_k=4:verifier={verifier}").build(head()).policy
    )
    assert isinstance(policy, BudgetPolicy)
    assert (policy.depth, policy.nodes, policy.max_children) == (3, 9, 4)


def test_hybrid_is_a_branch_of_copies_and_a_tree() -> None:
    parts = parse_method("hybrid:depth=6:min=3:levels=3:nodes=9:top_k=5").build(head())
    assert isinstance(parts.drafter, HybridDrafter)
    assert isinstance(parts.policy, MergingPolicy)
    assert isinstance(parts.drafter.model, EagleDrafter)
    assert (parts.drafter.copies.min_match, parts.drafter.copies.max_match) == (3, 5)
    assert shape(parts.policy.copies_policy) == (1,) * 6
    tree = parts.policy.model_policy
    assert isinstance(tree, DynamicTreePolicy)
    assert (tree.depth, tree.nodes, tree.top_k) == (3, 9, 5)


def test_stop_rules_end_the_models_part_of_hybrid_drafts() -> None:
    policy = parse_method("hybrid:stop=confidence@0.5").build(head()).policy
    assert isinstance(policy, MergingPolicy)
    assert isinstance(policy.model_policy, StoppingPolicy)
    assert isinstance(policy.copies_policy, FixedPolicy)


def test_hybrid_takes_a_k_config_and_a_draft_model() -> None:
    parts = parse_method("hybrid:drafter=d:tree=3,2:proposal=sampled").build(DRAFT)
    assert isinstance(parts.drafter, HybridDrafter)
    assert isinstance(parts.policy, MergingPolicy)
    assert isinstance(parts.drafter.model, DraftModelDrafter)
    assert parts.drafter.model.proposal is Proposal.SAMPLED
    assert shape(parts.policy.model_policy) == (3, 2)
    sampled = parse_method("hybrid:nodes=9:proposal=sampled").build(head()).policy
    assert isinstance(sampled, MergingPolicy)
    assert isinstance(sampled.model_policy, BudgetPolicy)


def test_a_method_that_drafts_with_a_model_or_a_head_may_name_it() -> None:
    method = parse_method("eagle-chain-3:drafter=eagle1:proposal=sampled")
    assert (method.drafter, method.needs, method.needs_given) == ("eagle1", "head", None)
    assert dict(method.options) == {"depth": 3, "proposal": "sampled"}
    assert parse_method("speculative:drafter=~/a b=c").drafter == "~/a b=c"
    unnamed = parse_method("eagle2")
    assert (unnamed.drafter, unnamed.needs_given) == (None, "head")


def test_autoregressive_is_plain_decoding() -> None:
    parts = parse_method("autoregressive").build()
    assert (parts.drafter, parts.policy) == (None, None)


def test_ngram_looks_up_the_lengths_it_is_given() -> None:
    drafter = parse_method("ngram:min=3:max=4").build().drafter
    assert isinstance(drafter, NgramDrafter)
    assert (drafter.min_match, drafter.max_match) == (3, 4)


@pytest.mark.parametrize("name", ["ngram", "speculative"])
@pytest.mark.parametrize(
    ("option", "widths"), [("depth=3", (1, 1, 1)), ("tree=4,2", (4, 2)), ("tree=2", (2,))]
)
def test_the_shape_is_the_one_given(name: str, option: str, widths: tuple[int, ...]) -> None:
    method = parse_method(f"{name}:{option}")
    assert shape(method.build(DRAFT if method.needs_draft_model else None).policy) == widths


@pytest.mark.parametrize("name", ["ngram", "speculative"])
def test_without_a_shape_the_drafters_own_is_taken(name: str) -> None:
    method = parse_method(name)
    parts = method.build(DRAFT if method.needs_draft_model else None)
    assert parts.drafter is not None
    assert shape(parts.policy) == shape(parts.drafter.default_policy)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_model_proposes_what_its_verifier_wants(verifier: str) -> None:
    drafter = parse_method("speculative").build(DRAFT, verifier=verifier).drafter
    assert isinstance(drafter, DraftModelDrafter)
    wanted = Proposal.COUPLED if verifier == "exact" else Proposal.SAMPLED
    assert drafter.proposal is wanted


@pytest.mark.parametrize("kind", Proposal, ids=lambda kind: kind.value)
def test_a_proposal_can_be_named(kind: Proposal) -> None:
    drafter = parse_method("speculative").build(DRAFT, proposal=kind.value).drafter
    assert drafter is not None
    assert drafter.proposals == {kind}


def test_a_choice_beside_the_method_goes_before_its_own_option() -> None:
    assert shape(parse_method("ngram:tree=2,2").build(tree="3").policy) == (3,)


# --- through load -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "drafter"),
    [
        ({}, NgramDrafter),
        ({"drafter": "ngram"}, NgramDrafter),
        ({"drafter": "none"}, type(None)),
        ({"method": "autoregressive"}, type(None)),
        ({"method": "autoregressive", "drafter": "none"}, type(None)),
        ({"drafter": DRAFT}, HybridDrafter),
        ({"drafter": DRAFT, "proposal": "coupled"}, DraftModelDrafter),
        ({"drafter": DRAFT, "tree": "2,1"}, DraftModelDrafter),
        ({"method": "speculative:depth=2", "drafter": DRAFT}, DraftModelDrafter),
    ],
)
def test_a_drafter_implies_a_method(choices: dict[str, Any], drafter: type) -> None:
    assert isinstance(foredraft.load(TARGET, **choices).drafter, drafter)


def test_no_method_is_the_best_there_is() -> None:
    named, unnamed = foredraft.load(TARGET, method=BEST), foredraft.load(TARGET)
    assert type(named.drafter) is type(unnamed.drafter)
    assert isinstance(unnamed.policy, AdaptivePolicy)


def test_the_adaptive_method_drafts_with_a_model_where_there_is_one() -> None:
    alone, joined = (foredraft.load(TARGET, method="adaptive", drafter=d) for d in (None, DRAFT))
    assert isinstance(alone.drafter, NgramDrafter)
    assert isinstance(joined.drafter, HybridDrafter)


@pytest.mark.parametrize(
    "name",
    ["autoregressive", "adaptive", "adaptive:nodes=3", "ngram:tree=3,1", "speculative:tree=2,2"],
)
def test_every_method_answers_as_plain_decoding(name: str) -> None:
    drafter = DRAFT if parse_method(name).needs_draft_model else None
    engine = foredraft.load(TARGET, method=name, drafter=drafter)
    request = {"temperature": 0.8, "seed": 1, "max_new_tokens": 20}
    plain = engine.without_drafts().generate(PROMPT, **request)
    assert engine.generate(PROMPT, **request).token_ids == plain.token_ids


# --- refused, with the way out ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "unknown method ''; available: autoregressive, adaptive, ngram, speculative"),
        ("eagle-chain-K", "unknown method 'eagle-chain-K'"),
        ("eagle-chain", "unknown method 'eagle-chain'; did you mean 'eagle-chain-K'?"),
        ("eagle-chain-4:depth=3", "method 'eagle-chain-4' has no option 'depth=3'"),
        ("eagle3", "unknown method 'eagle3'; did you mean 'eagle'?"),
        ("eagle2:tree=3", "method 'eagle2' has no option 'tree=3'"),
        ("ngarm", "unknown method 'ngarm'; did you mean 'ngram'?"),
        ("medusa", "unknown method 'medusa'; available:"),
        ("ngram:dept=3", "method 'ngram' has no option 'dept=3'; did you mean 'depth'?"),
        ("ngram:zzz=3", "method 'ngram' has no option 'zzz=3'; available: depth, tree, min, max"),
        ("ngram:depth", "method 'ngram' has no option 'depth'"),
        ("ngram:", "method 'ngram' has no option ''"),
        ("ngram:depth=x", "option 'depth=x' of method 'ngram' must be of type int"),
        ("ngram:min=", "option 'min=' of method 'ngram' must be of type int"),
        ("ngram:proposal=sampled", "method 'ngram' has no option 'proposal=sampled'"),
        ("autoregressive:tree=2", "method 'autoregressive' has no option 'tree=2'"),
        ("ngram:drafter=eagle1", "method 'ngram' has no option 'drafter=eagle1'; available:"),
        ("eagle2:draftr=x", "'eagle2' has no option 'draftr=x'; did you mean 'drafter'?"),
        ("eagle2:drafter=a:drafter=b", "gives drafter twice; leave one out"),
        (
            "eagle2:drafter=c:/head",
            "(a folder with a colon in its path cannot be named in a method)",
        ),
    ],
)
def test_a_method_that_cannot_be_read(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_method(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        ({"method": "autoregressive", "tree": "2"}, "tree='2' has no meaning"),
        ({"drafter": "none", "tree": "2"}, "tree='2' has no meaning for method 'autoregressive'"),
        ({"drafter": "none", "proposal": "sampled"}, "proposal='sampled' has no meaning"),
        ({"method": "ngram", "proposal": "sampled"}, "proposal='sampled' has no meaning"),
        ({"method": "speculative"}, "'speculative' needs a draft model; pass drafter=MODEL"),
        ({"method": "eagle2"}, "method 'eagle2' needs an EAGLE head; pass drafter=FOLDER"),
        ({"method": "eagle2", "drafter": DRAFT}, "head, and the drafter given is a draft model"),
        ({"method": "eagle-chain-0", "drafter": head()}, "depth=0 cannot be drafted"),
        ({"method": "eagle2:nodes=0", "drafter": head()}, "nodes=0 is not allowed"),
        ({"method": "eagle2:window=0", "drafter": head()}, "window=0 is not allowed"),
        ({"method": "hybrid:levels=0", "drafter": head()}, "hybrid:levels=0 is not allowed"),
        ({"method": "hybrid:depth=0", "drafter": head()}, "hybrid:depth=0 cannot be drafted"),
        ({"method": "hybrid:min=4:max=2", "drafter": head()}, "lengths 4..2 are not a range"),
        (
            {"method": "hybrid:nodes=9", "tree": "2,2", "drafter": head()},
            "hybrid:nodes=9 and tree='2,2' both give the shape; leave one out",
        ),
        ({"method": "hybrid", "verifier": "rejection", "drafter": head()}, "verifier='exact'"),
        ({"method": "hybrid", "drafter": DRAFT}, "in the method, as in hybrid:drafter=MODEL"),
        (
            {"method": "eagle2:proposal=coupled:verifier=rejection", "drafter": head()},
            "EagleDrafter makes coupled",
        ),
        ({"method": "speculative", "drafter": head()}, "and the drafter given is an EAGLE head"),
        ({"method": "ngram", "drafter": head()}, "'ngram' takes no head; leave drafter out"),
        ({"drafter": head(), "tree": "2", "method": "eagle2"}, "tree='2' has no meaning"),
        (
            {"drafter": head(), "force_vocabulary": True},
            "force_vocabulary=True is for a draft model",
        ),
        ({"drafter": head()}, "TableModel"),
        ({"method": "ngram", "drafter": DRAFT}, "'ngram' takes no draft model; leave drafter out"),
        ({"method": "ngram", "drafter": "none"}, "drafter='none' does not go with method 'ngram'"),
        ({"method": "speculative", "drafter": "ngram"}, "drafter='ngram' does not go with method"),
        ({"method": "ngram:depth=3", "tree": "2"}, "both give the shape; leave one out"),
        ({"tree": "4,0,2"}, "tree '4,0,2' has a depth without children"),
        ({"method": "ngram:depth=0"}, "depth=0 cannot be drafted; give 1 to 511"),
        ({"method": "ngram:depth=9999"}, "depth=9999 cannot be drafted"),
        ({"method": "ngram:min=4:max=2"}, "n-gram lengths 4..2 are not a range"),
        ({"verifier": "exakt"}, "unknown verifier 'exakt'; did you mean 'exact'?"),
        ({"verifier": "traversal"}, "NgramDrafter makes deterministic proposals"),
        ({"force_vocabulary": True}, "force_vocabulary=True is for a draft model; leave it out"),
        ({"model": "smollm2", "revision": "x"}, "revision='x' is for hub models; 'smollm2' has"),
        ({"drafter": DRAFT, "proposal": "simple"}, "unknown proposal 'simple'; did you mean"),
        ({"drafter": DRAFT, "verifier": "block", "tree": "2,2"}, "BlockVerifier verifies chains"),
        ({"method": "speculative:drafter=tests", "drafter": DRAFT}, "names a drafter of its own"),
        ({"method": "eagle2:drafter=eagle1"}, "neither shipped nor a folder; none ships for this"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_choices_that_cannot_be_honoured_are_refused(
    choices: dict[str, Any], complaint: str
) -> None:
    """Nothing is parsed and then ignored."""
    with pytest.raises(ConfigError) as caught:
        foredraft.load(**{"model": TARGET, **choices})
    assert complaint in str(caught.value)


def test_the_choices_are_read_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="unknown method"):
        foredraft.load("./no-such-folder", method="medusa")


@pytest.mark.parametrize(
    "choice",
    [
        {"dtype": "float32"},
        {"device": "cpu"},
        {"device_map": "auto"},
        {"revision": "main"},
        {"trust_remote_code": True},
    ],
    ids=str,
)
def test_a_loaded_model_cannot_be_placed_again(choice: dict[str, Any]) -> None:
    name, value = next(iter(choice.items()))
    with pytest.raises(ConfigError, match=f"{name}={value!r} cannot be applied"):
        foredraft.load(object(), **choice)


def test_a_backend_cannot_be_placed_again() -> None:
    with pytest.raises(ConfigError, match="dtype='float32' cannot be applied"):
        foredraft.load(TARGET, dtype="float32")


def test_a_named_model_brings_its_own_tokenizer() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer=\.\.\. is for an already loaded model"):
        foredraft.load("./no-such-folder", tokenizer=object())


@pytest.mark.parametrize(
    "choices",
    [
        {"tree": "4,0,2"},
        {"verifier": "exakt"},
        {"drafter": "./nowhere-else", "proposal": "guessed"},
        {"drafter": "./nowhere-else", "verifier": "block", "tree": "2,1"},
        {"verifier": "traversal"},
        {"method": "ngram:min=4:max=2"},
    ],
    ids=str,
)
def test_wrong_choices_are_found_before_a_model_is_looked_for(choices: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        foredraft.load("./nowhere", **choices)


def test_the_names_that_help_lists_are_the_recipes() -> None:
    assert tuple(RECIPES) == METHODS


def test_a_method_of_either_kind_takes_a_head_that_it_names_itself() -> None:
    """Given to all methods, a head is refused with the way to name it: it must never be left aside."""
    assert parse_method("mcsd:drafter=eagle3").check("head") == {}
    with pytest.raises(ConfigError, match=r"name yours in the method, as in mcsd:drafter=FOLDER"):
        parse_method("mcsd").check("head")


def test_the_documents_list_every_method_that_takes_a_decision_model() -> None:
    docs = Path(__file__).parents[1] / "docs"
    taking = [name for name, recipe in RECIPES.items() if "rule" in signature(recipe).parameters]
    assert len(taking) == 5
    table = (docs / "drafters.md").read_text(encoding="utf-8").splitlines()
    words = (docs / "decision-models.md").read_text(encoding="utf-8")
    for name in taking:
        row = next(line for line in table if line.startswith(f"| `{name}` |"))
        inherits = "those, and" in row
        assert inherits or all(f"`{o}`" in row for o in ("decision", "threshold", "rule"))
        assert f"`{name}`" in words


@pytest.mark.parametrize("roots", ["", ":roots=topk", ":roots=multinomial"])
def test_the_mass_of_a_nucleus_that_is_not_drawn_from_is_refused(roots: str) -> None:
    with pytest.raises(ConfigError, match=r"root_top_p=0\.5 is the mass of a nucleus"):
        parse_method(f"mcsd-improved-lossy:root_top_p=0.5{roots}").build(DRAFT)
    assert parse_method("mcsd-improved-lossy:roots=nucleus:root_top_p=0.5").build(DRAFT)
