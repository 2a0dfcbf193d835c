"""A first difference is a tie when float noise explains it, and a bug when it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions, Result
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel, TableState
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.agreement import FLOAT32_TIE_GAP, Agreement, compare
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.tiny_models import VOCAB_SIZE, tiny_gpt2

PROMPT = (1, 2)
GREEDY = GenerationOptions(max_new_tokens=6)
SAMPLED = GenerationOptions(max_new_tokens=6, temperature=1.0, seed=1)


class WobblyModel(TableModel):
    """Every row has these logits; in passes of several rows one token's score is off."""

    @classmethod
    def of(cls, logits: Sequence[float], *, token: int = 0, wobble: float = 0.0) -> WobblyModel:
        model = cls(torch.tensor(logits).double().softmax(-1).repeat(len(logits), 1))
        model.token, model.wobble = token, wobble
        return model

    def start(self, capacity: int) -> WobblyState:
        return WobblyState(self)


class WobblyState(TableState):
    def __init__(self, model: WobblyModel) -> None:
        super().__init__(model)
        self.model = model

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        logits = super().score(token_ids, parents)
        if len(token_ids) > 1:
            logits[:, self.model.token] += self.model.wobble
        return logits


def forged(result: Result, at: int, token: int) -> Result:
    """The answer with one token changed."""
    token_ids = (*result.token_ids[:at], token, *result.token_ids[at + 1 :])
    return dataclasses.replace(result, token_ids=token_ids)


def judged(
    target: TableModel, token: int, options: GenerationOptions = GREEDY, at: int = 3
) -> Agreement:
    """How plain decoding's answer agrees with one that has `token` at index `at`."""
    engine = Engine(target, NgramDrafter())
    plain = engine.without_drafts().generate(PROMPT, options)
    assert plain.token_ids[at] != token
    return compare(engine, plain, forged(plain, at, token), options)


# --- equal, or need not be --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_equal_answers_agree(options: GenerationOptions) -> None:
    engine = Engine(TableModel.random(6, seed=1), NgramDrafter(1, 3))
    plain = engine.without_drafts().generate(PROMPT, options)
    assert str(compare(engine, plain, engine.generate(PROMPT, options), options)) == "yes"


def rejecting_engine() -> Engine:
    drafter = DraftModelDrafter(TableModel.random(6, seed=2), Proposal.SAMPLED)
    return Engine(TableModel.random(6, seed=1), drafter, verifier=verifier("rejection"))


def test_sampled_answers_of_another_noise_are_not_compared() -> None:
    """Rejection keeps the law; equal texts would be chance."""
    engine = rejecting_engine()
    plain = engine.without_drafts().generate(PROMPT, SAMPLED)
    assert str(compare(engine, plain, plain, SAMPLED)) == "n/a"


def test_greedy_answers_are_compared_whatever_the_verifier() -> None:
    engine = rejecting_engine()
    plain = engine.without_drafts().generate(PROMPT, GREEDY)
    assert compare(engine, plain, engine.generate(PROMPT, GREEDY), GREEDY).kind == "yes"


# --- different --------------------------------------------------------------------------------------


def test_a_wrong_token_is_a_bug_and_its_place_is_named() -> None:
    agreement = judged(WobblyModel.of([0.0, -1.0, -2.0]), token=1)
    assert str(agreement) == "bug at token 3"
    assert agreement.gap == pytest.approx(1.0)
    assert agreement.noise == 0


def test_a_wrong_token_of_a_sampled_answer_is_a_bug() -> None:
    """Judged with the noise that chose the right one."""
    target = TableModel.random(6, seed=1)
    right = Engine(target).generate(PROMPT, SAMPLED).token_ids
    assert judged(target, (right[3] + 1) % 6, SAMPLED).kind == "bug"


def test_an_answer_that_stopped_where_the_other_went_on_is_a_bug() -> None:
    engine = Engine(TableModel.random(6, seed=1), NgramDrafter())
    plain = engine.without_drafts().generate(PROMPT, GREEDY)
    shorter = dataclasses.replace(plain, token_ids=plain.token_ids[:4])
    assert str(compare(engine, plain, shorter, GREEDY)) == "bug at token 4"
    assert str(compare(engine, shorter, plain, GREEDY)) == "bug at token 4"


@pytest.mark.parametrize(
    ("gap", "kind"), [(FLOAT32_TIE_GAP / 2, "tie"), (FLOAT32_TIE_GAP * 2, "bug")]
)
def test_a_gap_too_small_to_measure_noise_is_a_tie(gap: float, kind: str) -> None:
    assert judged(WobblyModel.of([0.0, -gap, -5.0]), token=1).kind == kind


@pytest.mark.parametrize(("wobble", "kind"), [(0.06, "tie"), (-0.06, "tie"), (0.04, "bug")])
def test_a_gap_within_twice_the_noise_is_a_tie(wobble: float, kind: str) -> None:
    """The two scores are 0.1 apart, and a wider pass moves one of them."""
    agreement = judged(WobblyModel.of([0.0, -0.1, -5.0], token=1, wobble=wobble), token=1)
    assert agreement.kind == kind
    assert agreement.noise == pytest.approx(abs(wobble))


@pytest.mark.parametrize(("wobble", "kind"), [(0.02, "tie"), (0.0, "bug")])
def test_a_token_that_a_filter_keeps_in_one_pass_only_is_a_tie(wobble: float, kind: str) -> None:
    """top_k=2 keeps tokens 0 and 1; with some noise, 0 and 2."""
    target = WobblyModel.of([0.0, -0.01, -0.02, -9.0], token=2, wobble=wobble)
    options = SAMPLED.replace(top_k=2)
    assert judged(target, 2, options).kind == kind


@pytest.mark.parametrize("to_limit", [0, 1, 7])
def test_a_difference_near_the_end_of_the_context_is_judged_inside_it(to_limit: int) -> None:
    """Learned positions end with the context: a wider pass there would be an IndexError."""
    engine = Engine(HFTarget(tiny_gpt2()))
    options = GREEDY.replace(ignore_eos=True)
    plain = engine.generate([1] * (256 - 6 - to_limit), options)
    wrong = (plain.token_ids[-1] + 1) % VOCAB_SIZE
    assert str(compare(engine, plain, forged(plain, 5, wrong), options)) == "bug at token 5"


def test_penalties_are_part_of_the_scores_that_are_compared() -> None:
    """Token 1's logit is 1 below; after a frequency penalty of 1 and one 0, the two are level."""
    target = WobblyModel.of([0.0, -1.0, -9.0])
    options = GREEDY.replace(frequency_penalty=1.0)
    assert Engine(target).generate(PROMPT, options).token_ids[:2] == (0, 0)
    assert judged(target, 1, options, at=1).kind == "tie"
    assert judged(target, 1, GREEDY, at=1).kind == "bug"
