"""Copies and a model's tree as one draft: the union of both, within the limits, and caches that stay true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.passes import HeadPasses
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.recall import RecallWeights
from foredraft.engine.calibration import draft_model
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.merging import MergingPolicy
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.protocols import (
    Drafter,
    DraftLimits,
    FeatureDrafter,
    LawReader,
    Policy,
    PolicyKind,
    PolicyState,
)
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers import verifier
from tests.drafters.contexts import DEEP, context
from tests.drafters.eagle_rounds import HEADS, Said, check_laws, make_head, rounds
from tests.scripted import Watched, checked_rounds
from tests.tiny_models import tiny_llama

VOCAB_SIZE = 6
MODEL = TableModel.random(VOCAB_SIZE, 2, sharpness=3.0, seed=2)
COPIES = FixedPolicy.chain(5)
LOOP = (3, 4, 5, 6, 3, 4)
POLICIES: dict[str, Policy] = {
    "chain": FixedPolicy.chain(3),
    "tree": FixedPolicy("2,2,1"),
    "static": StaticTreePolicy(),
    "dynamic": DynamicTreePolicy(depth=4, nodes=9, top_k=3),
    "budget": BudgetPolicy(nodes=10, depth=4),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
texts = st.lists(st.integers(0, 3), min_size=2, max_size=30)


def hybrid(model: Drafter | None = None, least: int = 1, most: int = 3) -> HybridDrafter:
    return HybridDrafter(model or DraftModelDrafter(MODEL), NgramDrafter(least, most))


def drafted(
    text: Sequence[int],
    policy: Policy,
    drafter: Drafter,
    limits: DraftLimits = DEEP,
) -> DraftTree:
    """The draft of a fresh request with this text."""
    seen = context(text, vocab_size=VOCAB_SIZE, limits=limits)
    return drafter.start(100).draft(seen, policy.start())


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(node) for node in range(len(tree))}


class Not(FixedPolicy):
    """Does not draft in rounds whose text has one of these lengths modulo 4."""

    def __init__(self, k_config: str, lengths: Sequence[int] = (0, 1, 2, 3)) -> None:
        super().__init__(k_config)
        self._lengths = lengths

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return replace(limits, max_depth=0) if len(text) % 4 in self._lengths else limits


# --- one tree of two --------------------------------------------------------------------------------


@given(texts, st.sampled_from(list(POLICIES)))
def test_the_draft_is_the_union_of_both(text: list[int], name: str) -> None:
    policy = POLICIES[name]
    tree = drafted(text, MergingPolicy(policy, COPIES), hybrid())
    model = drafted(text, policy, DraftModelDrafter(MODEL))
    copies = drafted(text, COPIES, NgramDrafter(1, 3))
    assert paths_of(tree) == paths_of(model) | paths_of(copies)
    assert tree.draft_rows == model.draft_rows
    for node in range(1, len(model)):
        place = tree.follow(model.path_tokens(node))[-1]
        assert tree.proposals[place] is model.proposals[node]


@settings(max_examples=200)
@given(
    texts,
    st.sampled_from(list(POLICIES)),
    st.builds(DraftLimits, st.integers(0, 6), st.integers(0, 12), st.booleans()),
)
def test_limits_hold_for_the_merged_tree(text: list[int], name: str, limits: DraftLimits) -> None:
    tree = drafted(text, MergingPolicy(POLICIES[name], COPIES), hybrid(), limits)
    assert tree.depth <= limits.max_depth
    assert tree.num_drafted <= limits.max_nodes
    assert tree.is_chain or not limits.chains_only


class Greedy(MergingPolicy):
    """Keeps every copy, room or not."""

    def start(self) -> PolicyState:  # type: ignore[override]
        state = super().start()
        state.keep_copies = lambda tree: range(1, len(state._offered[0]))  # type: ignore[index,method-assign]
        return state


@given(texts, st.integers(0, 12))
def test_limits_hold_whatever_is_kept(text: list[int], max_nodes: int) -> None:
    limits = DraftLimits(8, max_nodes)
    policy = Greedy(FixedPolicy("2,1"), FixedPolicy("2,2"))
    tree = drafted(text, policy, hybrid(), limits)
    assert tree.num_drafted <= max_nodes
    whole = drafted(text, policy, hybrid(), DEEP)
    assert paths_of(tree) <= paths_of(whole)


def test_a_copy_goes_on_where_the_models_tree_ends() -> None:
    """And the model's tree beside it."""
    tree = drafted(LOOP[:2] * 3, MergingPolicy(FixedPolicy("2"), COPIES), hybrid())
    assert tree.depth == 5
    assert len(tree.children[0]) >= 2


# --- chains -----------------------------------------------------------------------------------------

CHAINS = DraftLimits(20, chains_only=True)


def test_a_long_reliable_copy_takes_the_chains_place() -> None:
    """Twelve tokens agree, so eight copies are worth more than the model's two."""
    text = [1, 2, 3, 4, 5, 0] * 4
    policy = MergingPolicy(FixedPolicy.chain(2), FixedPolicy.chain(8))
    tree = drafted(text, policy, hybrid(), CHAINS)
    assert tree.token_ids[1:] == (1, 2, 3, 4, 5, 0, 1, 2)
    assert tree.draft_rows


def test_a_doubtful_copy_does_not() -> None:
    """One token agrees."""
    text, model = [1, 2, 3, 5, 1], DraftModelDrafter(MODEL)
    policy = MergingPolicy(FixedPolicy.chain(4), FixedPolicy.chain(8))
    alone = drafted(text, FixedPolicy.chain(4), model)
    tree = drafted(text, policy, hybrid(model), CHAINS)
    assert alone.token_ids[1] != 2
    assert tree == alone


# --- the model's cache (cases 6 and 7) --------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> HFTarget:
    return HFTarget(tiny_llama())


RIGHT = {"none": [0], "one": [1], "all": [9], "mixed": [0, 9, 1, 0, 2, 3]}
FEW = GenerationOptions(max_new_tokens=24)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize(
    "policy",
    [FixedPolicy("2,2,1"), DynamicTreePolicy(4, 9, 3), Not("2,2,1", (0, 1)), Not("1,1", (1, 2, 3))],
    ids=["tree", "dynamic", "often skipped", "mostly skipped"],
)
def test_a_head_sees_true_features_alone(
    llama: HFTarget, name: str, right: str, policy: Policy
) -> None:
    """Whatever was accepted of its own nodes or of copies, and after rounds without it."""
    drafter = hybrid(EagleDrafter(make_head(llama.model, name)))
    played = list(
        rounds(
            llama,
            drafter,
            policy,
            RIGHT[right],
            LOOP,
            FEW,
            lambda reading: MergingPolicy(reading, COPIES),
        )
    )
    assert check_laws(drafter.model.head, llama, played) > 0  # type: ignore[attr-defined]
    if right == "all":
        assert max(one.num_accepted for one in played) > 4  # copies, behind the model's tree


@torch.no_grad()
def model_law(model: HFTarget, text: Sequence[int], said: Said) -> torch.Tensor:
    logits = model.model(torch.tensor([[*text, *said.path]])).logits
    return logits[0, -1].float().log_softmax(-1)


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize(
    "policy",
    [FixedPolicy("2,2,1"), DynamicTreePolicy(4, 9, 3), Not("2,2,1", (0, 1)), Not("1,1", (1, 2, 3))],
    ids=["tree", "dynamic", "often skipped", "mostly skipped"],
)
def test_a_draft_models_cache_holds_the_text(llama: HFTarget, right: str, policy: Policy) -> None:
    model = HFTarget(tiny_llama(seed=3))
    played = rounds(
        llama,
        hybrid(DraftModelDrafter(model)),
        policy,
        RIGHT[right],
        LOOP,
        FEW,
        lambda reading: MergingPolicy(reading, COPIES),
    )
    count = 0
    for one in played:
        for said in one.said:
            expected = model_law(model, one.text, said)
            torch.testing.assert_close(said.log_probs, expected, atol=1e-3, rtol=1e-3)
            count += 1
    assert count > 0


@pytest.mark.parametrize("head", [False, True])
def test_a_model_that_may_not_draft_makes_no_pass(llama: HFTarget, head: bool) -> None:
    model = (
        EagleDrafter(make_head(llama.model, "eagle3"))
        if head
        else DraftModelDrafter(HFTarget(tiny_llama(seed=3)))
    )
    engine = Engine(llama, hybrid(model), MergingPolicy(Not("2,2"), COPIES))
    result = engine.generate(LOOP * 2, FEW)
    assert result.stats.drafted_tokens > 0
    assert not any(r.draft_rows for r in result.stats.rounds)
    assert result.token_ids == engine.without_drafts().generate(LOOP * 2, FEW).token_ids


def test_a_model_that_learns_from_laws_still_does() -> None:
    """It reads the merged tree, copies included."""
    model = DraftModelDrafter(MODEL, recall=RecallWeights(0.5, 0.3, 0.0))
    state = hybrid(model).start(100)
    assert isinstance(state, LawReader)
    target = TableModel.random(VOCAB_SIZE, 2, sharpness=3.0, seed=5)
    policy = MergingPolicy(FixedPolicy.chain(2), COPIES)
    options = GenerationOptions(max_new_tokens=60, temperature=1.0, seed=1)
    learning = Engine(target, hybrid(model), policy).generate([1, 2], options)
    dull = Engine(target, hybrid(), policy).generate([1, 2], options)
    assert learning.token_ids == dull.token_ids
    assert learning.stats.acceptance_rate != dull.stats.acceptance_rate


# --- the text ---------------------------------------------------------------------------------------

GREEDY = GenerationOptions(max_new_tokens=40)
SAMPLING = GenerationOptions(max_new_tokens=40, temperature=1.0, seed=3)
PENALISED = GREEDY.replace(repetition_penalty=1.3, frequency_penalty=0.4)
REQUESTS = {
    "greedy": GREEDY,
    "sampling": SAMPLING,
    "penalised": PENALISED,
    "penalised sampling": PENALISED.replace(temperature=0.8, top_p=0.9, seed=4),
    "short": GREEDY.replace(max_new_tokens=2),
}


def models_of(llama: HFTarget) -> dict[str, Drafter]:
    head = make_head(llama.model, "reduced")
    near = HFTarget(tiny_llama(seed=3))
    kinds: dict[str, Drafter] = {k.value: DraftModelDrafter(near, k) for k in Proposal}
    return {**kinds, "self": DraftModelDrafter(llama), "head": EagleDrafter(head)}


MODELS = (*(kind.value for kind in Proposal), "self", "head")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_answers_are_plain_decodings(llama: HFTarget, model: str, request_name: str) -> None:
    made, options = models_of(llama)[model], REQUESTS[request_name]
    for policy in ("tree", "dynamic"):
        for prompt in ([5], [*LOOP] * 3):
            engine = Engine(llama, hybrid(made), MergingPolicy(POLICIES[policy], COPIES))
            steps = list(checked_rounds(engine, prompt, options))
            found = tuple(token for step in steps for token in step.token_ids)
            assert found == engine.without_drafts().generate(prompt, options).token_ids


@pytest.mark.parametrize("model", ["self", "head"])
def test_an_end_token_inside_a_copy_ends_the_answer(llama: HFTarget, model: str) -> None:
    """Each token of the answer as the end token, in turn; the prompt shows it where copies take it from."""
    made = models_of(llama)[model]
    plain = Engine(llama).generate(LOOP, GREEDY).token_ids
    for end in dict.fromkeys(plain[:12]):
        options = GREEDY.replace(eos_token_ids=[end])
        prompt = [*LOOP, *plain[:12], *LOOP]
        engine = Engine(llama, hybrid(made), MergingPolicy(FixedPolicy("2,1"), COPIES))
        expected = engine.without_drafts().generate(prompt, options)
        assert engine.generate(prompt, options).token_ids == expected.token_ids


@pytest.mark.parametrize("options", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
def test_targets_that_score_chains_alone(options: GenerationOptions) -> None:
    class Chains(TableModel):
        scores_trees = False

    target = Chains.random(VOCAB_SIZE, 2, sharpness=3.0, seed=5)
    with pytest.warns(UserWarning, match="kept to chains"):
        engine = Engine(target, hybrid(), MergingPolicy(FixedPolicy("2,2"), COPIES))
    result = engine.generate([1, 2, 3, 1, 2], options)
    assert all(max(r.widths) == 1 for r in result.stats.rounds)
    assert result.stats.drafted_tokens > 30
    assert result.token_ids == engine.without_drafts().generate([1, 2, 3, 1, 2], options).token_ids


# --- how it is used ---------------------------------------------------------------------------------


def test_the_default_is_the_pair_of_defaults(llama: HFTarget) -> None:
    drafter = hybrid(EagleDrafter(make_head(llama.model, "eagle3")))
    policy = drafter.default_policy
    assert isinstance(policy.model_policy, DynamicTreePolicy)
    assert policy.copies_policy.max_nodes == NgramDrafter().default_policy.max_nodes
    assert drafter.proposals == {Proposal.COUPLED, Proposal.DETERMINISTIC}
    assert Engine(llama, drafter).generate(LOOP, GREEDY).stats.accepted_tokens >= 0


def test_it_reads_hidden_states_if_the_model_does(llama: HFTarget) -> None:
    drafter = hybrid(EagleDrafter(make_head(llama.model, "eagle3")))
    assert isinstance(drafter, FeatureDrafter)
    assert not isinstance(hybrid(), FeatureDrafter)
    with pytest.raises(ConfigError, match="reads the target's hidden states, and TableModel"):
        Engine(TableModel.random(97), drafter)


def test_a_policy_of_one_drafter_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"FixedPolicy shapes one drafter's tree, .* MergingPolicy"
    ):
        Engine(MODEL, hybrid(), FixedPolicy("2,2"))


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_other_verifiers_are_refused(name: str) -> None:
    drafter = hybrid(DraftModelDrafter(MODEL, Proposal.SAMPLED))
    with pytest.raises(ConfigError, match="verifier='exact'"):
        Engine(MODEL, drafter, MergingPolicy(FixedPolicy.chain(2), COPIES), verifier(name))


@pytest.mark.parametrize("nodes", [[2], [0, 1], [9], [-1]], ids=str)
def test_what_is_no_tree_of_copies_is_refused(nodes: list[int]) -> None:
    policy = MergingPolicy(FixedPolicy("1"), COPIES)
    state = policy.start()
    state.keep_copies = lambda tree: nodes  # type: ignore[method-assign]
    seen = context([1, 2, 3, 1, 2], vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match=r"MergingPolicyState kept nodes .* of 6 copies"):
        hybrid().start(100).draft(seen, state)


def test_a_policy_that_merges_says_that_it_selects() -> None:
    class Disguised(MergingPolicy):
        kind = PolicyKind.GROWS

    engine = Engine(MODEL, hybrid(), Disguised(FixedPolicy("1"), COPIES))
    with pytest.raises(ConfigError, match="make it SELECTS"):
        engine.generate([1, 2, 1])


def test_both_are_closed() -> None:
    watched = Watched(DraftModelDrafter(MODEL))
    engine = Engine(MODEL, hybrid(watched), MergingPolicy(FixedPolicy("1"), COPIES))
    engine.generate([1, 2, 1], GREEDY)
    assert [state.closed for state in watched.states] == [True]


def test_its_draft_passes_are_the_models(llama: HFTarget) -> None:
    head = make_head(llama.model, "eagle3")
    policy = MergingPolicy(FixedPolicy("1"), COPIES)
    assert draft_model(Engine(llama, hybrid(EagleDrafter(head, window=9)), policy)) == HeadPasses(
        head, 9
    )
    assert draft_model(Engine(MODEL, hybrid(), policy)) is MODEL
