"""Drafting with EAGLE heads: true features behind every row, whatever was accepted, and the same text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends import hf_state
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.eagle import drafter as eagle_drafter
from foredraft.drafters.eagle.config import HeadConfig
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.eagle.head import EagleHead
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.protocols import FeatureDrafter, Policy
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.drafters.eagle_rounds import HEADS, check_laws, make_head, rounds
from tests.tiny_models import VOCAB_SIZE, tiny_bf16_llama, tiny_gemma3, tiny_llama, tiny_qwen3

PROMPT = (3, 4, 5, 6, 3, 4)
POLICIES: dict[str, Policy] = {
    "chain": FixedPolicy.chain(4),
    "tree": FixedPolicy("2,2,1"),
    "static": StaticTreePolicy(),
    "dynamic": DynamicTreePolicy(depth=4, nodes=9, top_k=3),
    "budget": BudgetPolicy(nodes=10, depth=4),
}
RIGHT = {
    "none": [0],
    "one": [1],
    "all": [9],
    "mixed": [0, 9, 1, 0, 2, 3],
}
GREEDY = GenerationOptions(max_new_tokens=20)
SAMPLING = GenerationOptions(max_new_tokens=20, temperature=1.0, seed=3)
FEW = GenerationOptions(max_new_tokens=10)
every_head = pytest.mark.parametrize("name", HEADS)
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@pytest.fixture(scope="module")
def llama() -> HFTarget:
    return HFTarget(tiny_llama())


# --- true features (cases 6 and 7) ------------------------------------------------------------------


@every_head
@every_policy
@pytest.mark.parametrize("right", RIGHT)
def test_the_head_says_what_it_would_say_from_true_features_alone(
    llama: HFTarget, name: str, policy: Policy, right: str
) -> None:
    """A row of guessed features, a rejected row or a missing one would change a later law."""
    head = make_head(llama.model, name)
    played = list(rounds(llama, EagleDrafter(head), policy, RIGHT[right], PROMPT, FEW))
    accepted = [one.num_accepted for one in played if one.num_drafted]
    assert {"none": max(accepted) == 0, "all": max(accepted) > 1}.get(right, max(accepted) > 0)
    assert check_laws(head, llama, played) > len(played)


@pytest.mark.parametrize("kind", [Proposal.SAMPLED, Proposal.RESAMPLED, Proposal.COUPLED])
@pytest.mark.parametrize("policy", ["tree", "budget"])
def test_sampled_drafts_come_from_true_features_too(
    llama: HFTarget, kind: Proposal, policy: str
) -> None:
    head = make_head(llama.model, "reduced")
    drafter = EagleDrafter(head, kind)
    played = rounds(llama, drafter, POLICIES[policy], RIGHT["mixed"], PROMPT, SAMPLING)
    assert check_laws(head, llama, played) > 8


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_prompts(llama: HFTarget, length: int) -> None:
    """The first token has no feature before it, so a prompt of one token starts with an empty draft."""
    head = make_head(llama.model, "eagle3")
    played = list(rounds(llama, EagleDrafter(head), POLICIES["tree"], [1], PROMPT[:length], GREEDY))
    assert [bool(one.num_drafted) for one in played[:2]] == [length > 1, True]
    assert check_laws(head, llama, played) > 8


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("policy", ["chain", "tree", "dynamic"])
def test_a_window_hides_older_rows(llama: HFTarget, window: int, policy: str) -> None:
    head = make_head(llama.model, "eagle3")
    drafter = EagleDrafter(head, window=window)
    played = list(rounds(llama, drafter, POLICIES[policy], RIGHT["mixed"], PROMPT, GREEDY))
    assert check_laws(head, llama, played, window) > 8
    with pytest.raises(AssertionError):
        check_laws(head, llama, played, window + 1)


def test_texts_longer_than_the_head_was_made_for(llama: HFTarget) -> None:
    """Its longest position bounds what it attends to, not where it drafts."""
    model = llama.model
    head = EagleHead(short_config(model, max_position_embeddings=8), TargetEnds.of(model))
    played = list(rounds(llama, EagleDrafter(head), POLICIES["tree"], [1], PROMPT * 4, GREEDY))
    assert check_laws(head, llama, played, window=8) > 8
    drafter = EagleDrafter(head, window=20)  # who asks for more gets it
    played = list(rounds(llama, drafter, POLICIES["tree"], [1], PROMPT * 4, GREEDY))
    assert check_laws(head, llama, played, window=20) > 8


def short_config(model: Any, **changes: Any) -> HeadConfig:
    sizes = {
        "variant": 3,
        "hidden_size": 32,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": VOCAB_SIZE,
        "target_hidden_size": 32,
        "taps": (0, 1, 2),
        "fc_bias": False,
    }
    return HeadConfig(**sizes | changes)


def test_a_policy_that_reads_nothing_saves_the_nodes_without_children(llama: HFTarget) -> None:
    """`draft_rows` are the rows of the passes that were made: text first, then nodes with children."""
    head = make_head(llama.model, "eagle3")
    step, made = head.step, []

    def counted(embeds: Any, *rest: Any) -> Any:
        made.append(embeds.shape[1])
        return step(embeds, *rest)

    head.step = counted  # type: ignore[method-assign]
    engine = Engine(llama, EagleDrafter(head), StaticTreePolicy())
    result = engine.generate(PROMPT, max_new_tokens=30, ignore_eos=True)
    rows = [record.draft_rows for record in result.stats.rounds if record.draft_rows]
    assert [count for passes in rows for count in passes] == made[1:]  # the first was the prompt's
    deep = [r for r in rows if len(r) == 5]
    assert deep
    assert {r[1:] for r in deep} == {(4, 4, 1, 1)}


# --- features of another width (case 59), chunks ----------------------------------------------------


def narrow_head(model: Any) -> EagleHead:
    """Hidden 16 beside a target of hidden 32 with three taps."""
    torch.manual_seed(5)
    config = short_config(model, hidden_size=16, num_attention_heads=2, num_key_value_heads=1)
    return EagleHead(config, TargetEnds.of(model), own_embeddings=True, own_lm_head=True)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 300])
def test_a_prompt_in_chunks_drafts_as_one_in_a_piece(
    llama: HFTarget, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 59; 300 tokens outgrow the head's first buffer as well."""
    prompt = [(7 * i) % 90 + 3 for i in range(length)]
    head = narrow_head(llama.model)
    engine = Engine(llama, EagleDrafter(head), POLICIES["dynamic"])
    whole = engine.generate(prompt, GREEDY, ignore_eos=True)
    monkeypatch.setattr(hf_state, "MAX_TREE_NODES", 16)
    monkeypatch.setattr(eagle_drafter, "MAX_TREE_NODES", 16)
    chunked = engine.generate(prompt, GREEDY, ignore_eos=True)
    assert chunked.token_ids == whole.token_ids
    counts = [[r.num_accepted for r in result.stats.rounds] for result in (whole, chunked)]
    assert counts[0] == counts[1]
    played = rounds(llama, EagleDrafter(head), POLICIES["tree"], [1], prompt, GREEDY)
    assert check_laws(head, llama, [next(played)]) == (0 if length == 1 else 1 + 2 + 4 + 4)


def test_a_head_of_another_model_is_refused(llama: HFTarget) -> None:
    model = llama.model
    config = short_config(model, target_hidden_size=48)
    head = EagleHead(config, TargetEnds.of(model), own_lm_head=True)
    with pytest.raises(ConfigError, match="reads features of 144 numbers and the target gives 96"):
        Engine(llama, EagleDrafter(head)).generate(PROMPT)


# --- the same text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen3, tiny_gemma3])
@every_head
def test_the_text_is_plain_decodings(make: Any, name: str) -> None:
    """Greedy and sampled, with coupled proposals of every shape."""
    target = HFTarget(make())
    head = make_head(target.model, name)
    plain = Engine(target)
    for options in (GREEDY, SAMPLING):
        expected = plain.generate(PROMPT, options).token_ids
        for policy in POLICIES.values():
            engine = Engine(target, EagleDrafter(head), policy)
            assert engine.generate(PROMPT, options).token_ids == expected


@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("top_k", [1, 2, 9])
@pytest.mark.parametrize("nodes", [1, 3, 40])
def test_any_depth_width_and_budget(llama: HFTarget, depth: int, top_k: int, nodes: int) -> None:
    """Case 8: budgets below the depth, of one node, and above all there is."""
    head = make_head(llama.model, "eagle3")
    engine = Engine(llama, EagleDrafter(head), DynamicTreePolicy(depth, nodes, top_k))
    result = engine.generate(PROMPT, GREEDY)
    assert result.token_ids == engine.without_drafts().generate(PROMPT, GREEDY).token_ids
    most = min(nodes, top_k + (depth - 1) * top_k**2)
    assert max(r.num_drafted for r in result.stats.rounds) <= most
    assert max(r.num_drafted for r in result.stats.rounds[:2]) >= min(most, top_k)


@pytest.mark.parametrize("name", ["rejection", "traversal", "block"])
def test_sampled_drafts_run_with_every_verifier(llama: HFTarget, name: str) -> None:
    drafter = EagleDrafter(make_head(llama.model, "reduced"), Proposal.SAMPLED)
    policy = FixedPolicy.chain(3) if name == "block" else None
    result = Engine(llama, drafter, policy, verifier(name)).generate(PROMPT, SAMPLING)
    assert result.stats.drafted_tokens > 10


def test_a_dynamic_tree_of_sampled_children_is_refused_elsewhere(llama: HFTarget) -> None:
    drafter = EagleDrafter(make_head(llama.model, "eagle3"), Proposal.SAMPLED)
    with pytest.raises(ConfigError, match="selects among drawn tokens"):
        Engine(llama, drafter, DynamicTreePolicy(), verifier("rejection"))


@pytest.mark.parametrize("kind", list(Proposal), ids=lambda kind: kind.value)
def test_a_reduced_vocabulary_drafts_its_own_tokens_and_no_forbidden_one(
    llama: HFTarget, kind: Proposal
) -> None:
    head = make_head(llama.model, "reduced")
    ids = set(HEADS["reduced"]["draft_ids"].tolist())  # type: ignore[attr-defined]
    forbidden = [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]
    drafted: set[int] = set()

    class Noting(FixedPolicy):
        def observe(self, outcome: Any) -> None:
            drafted.update(outcome.tree.token_ids[1:])

    engine = Engine(llama, EagleDrafter(head, kind), Noting("6,2,1"))
    options = GenerationOptions(
        max_new_tokens=40, temperature=1.0, seed=1, suppress_tokens=forbidden, ignore_eos=True
    )
    engine.generate(PROMPT, options)
    assert len(drafted) > 10
    assert drafted <= ids - set(forbidden)


@pytest.mark.parametrize("kind", list(Proposal), ids=lambda kind: kind.value)
def test_tokens_that_the_target_cannot_emit_are_not_drafted(kind: Proposal) -> None:
    """A head of 97 tokens beside a tokenizer of 60 (case 60)."""

    class Tokenizer:
        added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
        eos_token_id = None

        def __len__(self) -> int:
            return 60

    target = HFTarget(tiny_llama(), Tokenizer())
    for name in HEADS:
        drafter = EagleDrafter(make_head(target.model, name), kind)
        engine = Engine(target, drafter, FixedPolicy("5,2"))
        result = engine.generate(PROMPT, SAMPLING, ignore_eos=True)
        assert (
            result.token_ids
            == engine.without_drafts().generate(PROMPT, SAMPLING, ignore_eos=True).token_ids
        )


@pytest.mark.parametrize("swap", [False, True])
def test_a_head_of_another_dtype(swap: bool) -> None:
    target = HFTarget(tiny_llama() if swap else tiny_bf16_llama())
    head = make_head(target.model, "eagle3")
    head = head.to(torch.bfloat16 if swap else torch.float32)
    result = Engine(target, EagleDrafter(head)).generate(PROMPT, GREEDY)
    assert result.stats.drafted_tokens > 20


# --- how it is used ---------------------------------------------------------------------------------


def test_it_needs_a_target_that_shows_features(llama: HFTarget) -> None:
    drafter = EagleDrafter(make_head(llama.model, "eagle3"))
    assert isinstance(drafter, FeatureDrafter)
    with pytest.raises(ConfigError, match="reads the target's hidden states, and TableModel"):
        Engine(TableModel.random(VOCAB_SIZE), drafter)
    with pytest.raises(ConfigError, match="use it in an Engine"):
        drafter.start(10)


def test_a_window_is_a_number_of_rows(llama: HFTarget) -> None:
    with pytest.raises(ConfigError, match="window=0"):
        EagleDrafter(make_head(llama.model, "eagle3"), window=0)


def test_the_default_policy_suits_the_proposals(llama: HFTarget) -> None:
    head = make_head(llama.model, "eagle3")
    assert isinstance(EagleDrafter(head).default_policy, DynamicTreePolicy)
    assert isinstance(EagleDrafter(head, Proposal.SAMPLED).default_policy, BudgetPolicy)


def test_one_head_serves_requests_one_after_the_other(llama: HFTarget) -> None:
    """Case 73: a long request, a short one, and the long one again."""
    engine = Engine(llama, EagleDrafter(make_head(llama.model, "eagle3")))
    long, short = [*PROMPT] * 20, [9, 8]
    first = engine.generate(long, GREEDY)
    engine.generate(short, GREEDY)
    again = engine.generate(long, GREEDY)
    counts = [[r.num_accepted for r in result.stats.rounds] for result in (first, again)]
    assert counts[0] == counts[1]
    assert first.token_ids == again.token_ids
