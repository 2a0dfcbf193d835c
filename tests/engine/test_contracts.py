"""Parts of a user's own that break their contract: an error that says so, never another text."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import (
    DraftContext,
    Drafter,
    DraftLimits,
    Frontier,
    PolicyKind,
    PolicyState,
    Verdict,
)
from foredraft.sampling.law import TargetLaws
from foredraft.tree import NO_PARENT, DraftTree, Proposal
from foredraft.verifiers import verifier as make_verifier
from tests.scripted import Watched
from tests.tiny_models import tiny_bloom, tiny_llama

VOCAB_SIZE = 8
PROMPT = (1, 2, 3, 1, 2)
TARGET, DRAFT = TableModel.random(VOCAB_SIZE, 2, seed=1), TableModel.random(VOCAB_SIZE, 1, seed=2)
REQUEST = GenerationOptions(max_new_tokens=12, temperature=0.9, seed=3)
ANSWER = Engine(TARGET).generate(PROMPT, REQUEST).token_ids


def assert_refused(engine: Engine, complaint: str) -> None:
    """The request is refused, and the engine without the faulty part answers as ever."""
    with pytest.raises(ConfigError) as caught:
        engine.generate(PROMPT, REQUEST)
    assert complaint in str(caught.value)
    assert engine.without_drafts().generate(PROMPT, REQUEST).token_ids == ANSWER


# --- policies ---------------------------------------------------------------------------------------


class OwnPolicy(FixedPolicy):
    """Grows and plans as the test says."""

    def __init__(
        self,
        grow: Callable[[Frontier], Any],
        plan: Callable[[DraftLimits], DraftLimits] = lambda limits: limits,
    ) -> None:
        super().__init__("2,2")
        self.grow = grow  # type: ignore[method-assign]
        self._plan = plan

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return self._plan(limits)


def drafters() -> dict[str, Drafter]:
    models = {kind.value: DraftModelDrafter(DRAFT, kind) for kind in Proposal}
    return {**models, "ngram": NgramDrafter(1, 3)}


every_drafter = pytest.mark.parametrize("name", drafters())

WRONG_COUNTS: dict[str, Callable[[int], Any]] = {
    "negative": lambda n: [-1] * n,
    "one negative": lambda n: [*[2] * (n - 1), -5],
    "fractions": lambda n: [1.5] * n,
    "NaN": lambda n: [float("nan")] * n,
    "text": lambda n: ["1"] * n,
    "none at all": lambda n: [],
    "too many": lambda n: [1] * (n + 1),
    "None": lambda n: None,
    "one number": lambda n: 1,
}


@every_drafter
@pytest.mark.parametrize("counts", WRONG_COUNTS.values(), ids=WRONG_COUNTS)
def test_counts_that_are_no_counts_are_refused(name: str, counts: Callable[[int], Any]) -> None:
    policy = OwnPolicy(lambda frontier: counts(len(frontier.nodes)))
    engine = Engine(TARGET, drafters()[name], policy)
    assert_refused(engine, "OwnPolicy asked for ")


RIGHT_COUNTS: dict[str, Callable[[int], Any]] = {
    "huge": lambda n: [10**12] * n,
    "numpy": lambda n: np.full(n, 2),
    "tensor": lambda n: torch.full((n,), 2),
    "booleans": lambda n: [True] * n,
}


@every_drafter
@pytest.mark.parametrize("counts", RIGHT_COUNTS.values(), ids=RIGHT_COUNTS)
def test_counts_of_any_size_and_form_are_kept_to_the_limits(
    name: str, counts: Callable[[int], Any]
) -> None:
    """The policy never ends a draft by itself."""
    drafter = Watched(drafters()[name])
    policy = OwnPolicy(lambda frontier: counts(len(frontier.nodes)))
    assert Engine(TARGET, drafter, policy).generate(PROMPT, REQUEST).token_ids == ANSWER
    assert 0 < max(tree.num_drafted for tree in drafter.drafts) <= policy.max_nodes


@every_drafter
@pytest.mark.parametrize("size", [-3, 0, 10**9])
def test_a_plan_tightens_limits_and_never_widens_them(name: str, size: int) -> None:
    drafter = Watched(drafters()[name])
    policy = OwnPolicy(
        lambda frontier: [50] * len(frontier.nodes), plan=lambda limits: DraftLimits(size, size)
    )
    assert Engine(TARGET, drafter, policy).generate(PROMPT, REQUEST).token_ids == ANSWER
    largest = max(tree.num_drafted for tree in drafter.drafts)
    assert largest == 0 if size <= 0 else 0 < largest <= policy.max_nodes


def test_a_policy_that_selects_and_does_not_say_so_is_refused() -> None:
    """Its kind is what verifiers that need honest siblings go by."""
    policy = DynamicTreePolicy()
    policy.kind = PolicyKind.GROWS
    drafter = DraftModelDrafter(DRAFT, Proposal.SAMPLED)
    for verifier in ("rejection", "traversal", "exact"):
        proposal = drafter if verifier != "exact" else DraftModelDrafter(DRAFT)
        engine = Engine(TARGET, proposal, policy, make_verifier(verifier))
        assert_refused(engine, "selects among drawn tokens, and DynamicTreePolicy is of kind GROWS")


@pytest.mark.filterwarnings("ignore:this model ignores masks")
def test_a_plan_cannot_make_trees_of_chains() -> None:
    target = HFTarget(tiny_bloom())
    policy = OwnPolicy(lambda frontier: [2] * len(frontier.nodes), plan=lambda _: DraftLimits(9))
    drafter = Watched(NgramDrafter(1, 3))
    Engine(target, drafter, policy).generate([3, 4, 3, 5, 3], max_new_tokens=8, ignore_eos=True)
    assert any(tree.num_drafted for tree in drafter.drafts)
    assert all(tree.is_chain for tree in drafter.drafts)


# --- drafters ---------------------------------------------------------------------------------------


class OwnDrafter:
    """Drafts whatever the test says."""

    proposals = frozenset({Proposal.DETERMINISTIC})
    default_policy = FixedPolicy("2,2")

    def __init__(self, make: Callable[[DraftContext], Any]) -> None:
        self._make = make

    def start(self, capacity: int) -> OwnDrafter:
        return self

    def prefill(self, token_ids: Sequence[int]) -> None:
        pass

    def draft(self, context: DraftContext, policy: PolicyState) -> Any:
        return self._make(context)

    def commit(self, path: Sequence[int]) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


def tree(root: int, tokens: Sequence[Any], parents: Sequence[int]) -> DraftTree:
    kinds = (Proposal.DETERMINISTIC,) * (len(tokens) + 1)
    return DraftTree((root, *tokens), (NO_PARENT, *parents), kinds)


WRONG_DRAFTS: dict[str, tuple[Callable[[int], Any], str]] = {
    "another root": (lambda root: tree(root + 1, [5], [0]), "and the text ends with"),
    "too large": (lambda root: tree(root, [5] * 9, [0] * 9), "has 9 tokens and depth 1"),
    "past the answer": (lambda root: tree(root, [5] * 40, range(40)), "depth 40"),
    "no such token": (lambda root: tree(root, [VOCAB_SIZE], [0]), "holds token 8"),
    "a filler token": (lambda root: tree(root, [3, -1], [0, 1]), "holds token -1"),
    "a fraction": (lambda root: tree(root, [5.0], [0]), "holds token 5.0"),
    "None": (lambda root: None, "is of type NoneType and no DraftTree"),
}


@pytest.mark.parametrize(("make", "complaint"), WRONG_DRAFTS.values(), ids=WRONG_DRAFTS)
def test_drafts_that_break_the_contract_are_refused(
    make: Callable[[int], Any], complaint: str
) -> None:
    drafter = OwnDrafter(lambda context: make(context.token_ids[-1]))
    assert_refused(Engine(TARGET, drafter), complaint)


def test_a_branching_draft_for_a_model_that_scores_chains_is_refused() -> None:
    drafter = OwnDrafter(lambda context: tree(context.token_ids[-1], [5, 6], [0, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = Engine(HFTarget(tiny_bloom()), drafter)
    with pytest.raises(ConfigError, match="branches, and this model scores chains only"):
        engine.generate(PROMPT)


# --- verifiers --------------------------------------------------------------------------------------


class OwnVerifier:
    """Keeps whatever the test says."""

    proposals, policies = frozenset(Proposal), frozenset(PolicyKind)
    chains_only = reads_rejected = False

    def __init__(self, verify: Callable[[DraftTree, TargetLaws], Verdict]) -> None:
        self._verify = verify

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Any) -> Verdict:
        return self._verify(tree, laws)


WRONG_VERDICTS = {
    "no such token": Verdict((0,), (VOCAB_SIZE,)),
    "a negative token": Verdict((0,), (-1,)),
    "no such node": Verdict((0, 99), (5, 6)),
    "a node without its parent": Verdict((0, 2), (5, 6)),
    "another token than the node's": Verdict((0, 1), (6, 6)),
}


@pytest.mark.parametrize("verdict", WRONG_VERDICTS.values(), ids=WRONG_VERDICTS)
def test_verdicts_that_are_no_path_are_refused(verdict: Verdict) -> None:
    drafter = OwnDrafter(lambda context: tree(context.token_ids[-1], [5, 4], [0, 1]))
    engine = Engine(TARGET, drafter, verifier=OwnVerifier(lambda *_: verdict))
    assert_refused(engine, f"keeps nodes {verdict.path} with tokens {verdict.token_ids}")


def test_a_verifier_of_ones_own_is_used() -> None:
    own = OwnVerifier(lambda tree, laws: Verdict((0,), (laws.choose(0),)))
    result = Engine(TARGET, NgramDrafter(1, 3), verifier=own).generate(PROMPT, REQUEST)
    assert result.token_ids == ANSWER
    assert result.stats.drafted_tokens > 0
    assert result.stats.accepted_tokens == 0


# --- logits processors ------------------------------------------------------------------------------


class OwnProcessor(LogitsProcessor):
    """Gives whatever the test says."""

    def __init__(self, process: Callable[[Tensor], Any]) -> None:
        self._process = process

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        return self._process(scores)


WRONG_SCORES: dict[str, Callable[[Tensor], Any]] = {
    "None": lambda scores: None,
    "numpy": lambda scores: scores.numpy(),
    "fewer": lambda scores: scores[:, :5],
    "more": lambda scores: torch.cat([scores, scores], 1),
    "one axis": lambda scores: scores[0],
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("process", WRONG_SCORES.values(), ids=WRONG_SCORES)
def test_scores_of_another_shape_are_refused(
    process: Callable[[Tensor], Any], temperature: float
) -> None:
    engine = Engine(TARGET, NgramDrafter(1, 3))
    request = REQUEST.replace(logits_processors=[OwnProcessor(process)], temperature=temperature)
    with pytest.raises(ConfigError, match=r"OwnProcessor returned .* of scores \[1, 8\]"):
        engine.generate(PROMPT, request)
    assert engine.generate(PROMPT, REQUEST).token_ids == ANSWER


def test_a_fault_in_a_processor_reaches_the_caller_and_frees_the_session() -> None:
    target = HFTarget(tiny_llama(eos_token_id=None))
    engine = Engine(target, DraftModelDrafter(target))

    def fail(scores: Tensor) -> Tensor:
        raise RuntimeError("out of ideas")

    expected = engine.generate(PROMPT, REQUEST).token_ids
    spare = len(target._spare)
    with pytest.raises(RuntimeError, match="out of ideas"):
        engine.generate(PROMPT, REQUEST, logits_processors=[OwnProcessor(fail)])
    assert len(target._spare) == spare == 2  # of the target, and of it as its own draft model
    assert engine.generate(PROMPT, REQUEST).token_ids == expected


def test_a_request_inside_another_ones_processor() -> None:
    engine = Engine(TARGET, NgramDrafter(1, 3))
    inner: list[tuple[int, ...]] = []

    def ask(scores: Tensor) -> Tensor:
        inner.append(engine.generate(PROMPT, REQUEST).token_ids)
        return scores

    request = REQUEST.replace(logits_processors=[OwnProcessor(ask)])
    assert engine.generate(PROMPT, request).token_ids == ANSWER
    assert set(inner) == {ANSWER}


# --- arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"target": "smollm2"}, "target is of type str; give a Target"),
        ({"target": None}, "target is of type NoneType"),
        ({"target": tiny_llama()}, "target is of type LlamaForCausalLM"),
        ({"target": TableModel}, "target is the class TableModel; give an object of it"),
        ({"drafter": "ngram"}, "drafter is of type str; give a Drafter"),
        ({"drafter": NgramDrafter}, "drafter is the class NgramDrafter"),
        ({"drafter": DRAFT}, "drafter is of type TableModel"),
        ({"drafter": NgramDrafter(), "policy": "4,2"}, "policy is of type str; give a Policy"),
        ({"verifier": "exact"}, "verifier is of type str; give a Verifier"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_arguments_that_are_no_parts_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Engine(**{"target": TARGET} | arguments)
    assert complaint in str(caught.value)


def test_options_in_a_dict_are_refused() -> None:
    with pytest.raises(ConfigError, match="options is of type dict; give a GenerationOptions"):
        Engine(TARGET).generate(PROMPT, {"temperature": 1.0})  # type: ignore[arg-type]
