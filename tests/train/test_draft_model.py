"""Distilling a student, and the draft vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft import GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.student import Student, build_student
from foredraft.drafters.student_files import load_student
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, DataError
from foredraft.train.batches import collate
from foredraft.train.draft_model import DraftModelObjective
from foredraft.train.loop import fit
from foredraft.train.vocabulary import coverage, draft_vocabulary, token_counts
from tests.tiny_models import (
    FINISHED_MODELS,
    TREE_MODELS,
    VOCAB_SIZE,
    tiny_bf16_llama,
    tiny_llama,
    tiny_qwen3,
)
from tests.train.toy_training import ToyCorpus, sample, toy_options

IDS = torch.arange(1, VOCAB_SIZE, 2)


def texts(count: int, length: int = 12, seed: int = 0) -> list[Any]:
    """Random texts whose first three tokens are the user's."""
    random = np.random.default_rng(seed)
    ids = [random.integers(3, VOCAB_SIZE, length).tolist() for _ in range(count)]
    return [sample(text, (3, length)) for text in ids]


def greedy_texts(model: Any, count: int) -> list[Any]:
    """What a model answers to random prompts."""
    engine = Engine(HFTarget(model))
    options = GenerationOptions(max_new_tokens=16, ignore_eos=True)
    prompts = [text.token_ids[:3].tolist() for text in texts(count)]
    answers = [engine.generate(prompt, options).token_ids for prompt in prompts]
    return [
        sample([*prompt, *answer], (3, 3 + len(answer)))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


@torch.no_grad()
def naive(target: Any, model: Any, samples: list[Any], ids: torch.Tensor) -> tuple[float, float]:
    """Loss and hits one text and one position at a time."""
    losses, hits = [], []
    for text in samples:
        tokens = torch.from_numpy(text.token_ids.astype(np.int64))
        laws = target(tokens[None]).logits[0][:, ids].softmax(-1)
        logits = model(tokens[None]).logits[0]
        for first, stop in text.spans:
            for place in range(first, stop):
                if int(tokens[place]) in ids.tolist():
                    q = logits[place - 1].log_softmax(-1)
                    losses.append(-float((laws[place - 1] * q).sum()))
                    hits.append(float(q.argmax() == laws[place - 1].argmax()))
    return float(np.mean(losses)), float(np.sum(hits))


FAMILIES = TREE_MODELS | FINISHED_MODELS
"""What scales, caps or shifts logits is among them."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("own_head", [False, True])
def test_the_loss_is_the_cross_entropy_of_each_answered_token(family: str, own_head: bool) -> None:
    """Case 84: exactly the labelled tokens, each from the state before it; those outside the draft
    vocabulary are missed."""
    target, samples = FAMILIES[family](), texts(3)
    samples[1] = sample(samples[1].token_ids[:6].tolist(), (2, 4))
    student = build_student(target, 1, "last", draft_ids=IDS, own_head=own_head)
    objective = DraftModelObjective(target, student)
    objective.module.eval()  # GPT-2 has dropout
    report = objective(collate(samples, 100))
    loss, hits = naive(target, student.model, samples, IDS)
    assert float(report.loss.detach()) == pytest.approx(loss, rel=1e-4)
    assert float(report.hits) == hits
    labelled = [int(t) for s in samples for a, b in s.spans for t in s.token_ids[a:b]]
    assert float(report.counted) == len(labelled) > sum(t in IDS.tolist() for t in labelled)


def test_padding_and_neighbours_change_nothing() -> None:
    """Case 91 for the whole objective: a sample gives the same gradient beside any other."""
    target, samples = tiny_llama(), texts(2)
    unlabelled = sample(texts(1, length=30, seed=9)[0].token_ids.tolist(), (0, 1))

    def gradient(batch: list[Any]) -> list[torch.Tensor]:
        objective = DraftModelObjective(target, build_student(target, 1))
        objective(collate(batch, 100)).loss.backward()
        return [p.grad for p in objective.module.parameters() if p.grad is not None]

    alone, beside = gradient(samples), gradient([*samples, unlabelled])
    assert len(alone) > 5
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_a_batch_without_answers_gives_zero_gradients() -> None:
    target = tiny_llama()
    objective = DraftModelObjective(target, build_student(target, 1))
    report = objective(collate([sample([5, 6, 7], (0, 1))], 100))
    report.loss.backward()
    assert all(not p.grad.any() for p in objective.module.parameters() if p.grad is not None)
    assert (float(report.loss.detach()), float(report.counted)) == (0.0, 0.0)


@pytest.mark.parametrize("own_head", [False, True])
def test_it_learns_eight_texts_by_heart(own_head: bool, tmp_path: Path) -> None:
    """Case 89: over 95 % of the target's best tokens after some steps."""
    target = tiny_qwen3()
    corpus = ToyCorpus(greedy_texts(target, 8))
    objective = DraftModelObjective(target, build_student(target, 1, own_head=own_head))
    options = toy_options(
        steps=200, lr=0.01, held_out=0.0, tokens_per_batch=1000, log_steps=10, max_length=100
    )
    measures: list[Any] = []
    fit(objective, corpus, options, tmp_path, report=measures.append)
    assert measures[-1].acceptance[0] > 0.95
    assert measures[0].acceptance[0] < 0.7


def test_what_was_trained_is_what_drafts(tmp_path: Path) -> None:
    """From the corpus to a folder to a drafter that is accepted; texts stay the target's."""
    target = tiny_llama()
    corpus = ToyCorpus(greedy_texts(target, 8))
    ids = draft_vocabulary(corpus, 60, VOCAB_SIZE, always=(2,))
    student = build_student(target, 1, draft_ids=ids, own_head=True)
    objective = DraftModelObjective(target, student)
    options = toy_options(steps=80, lr=0.02, held_out=0.0, tokens_per_batch=1000)
    fit(objective, corpus, options, tmp_path)
    loaded = Student(load_student(tmp_path, target))
    plain = Engine(HFTarget(target))
    drafting = Engine(HFTarget(target), DraftModelDrafter(loaded))
    settings = GenerationOptions(max_new_tokens=16, ignore_eos=True)
    accepted = []
    for text in corpus._samples:
        prompt = text.token_ids[:3].tolist()
        result = drafting.generate(prompt, settings)
        assert result.token_ids == plain.generate(prompt, settings).token_ids
        accepted.append(result.stats.acceptance_rate or 0.0)
    assert np.mean(accepted) > 0.8


def test_a_half_precision_target_is_left_as_it_is(tmp_path: Path) -> None:
    target = tiny_bf16_llama()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    objective = DraftModelObjective(target, build_student(target, 1, own_head=True))
    assert all(p.dtype == torch.float32 for p in objective.module.parameters())
    for precision in ("float32", "bfloat16"):
        options = toy_options(steps=3, precision=precision, max_length=100)
        result = fit(objective, ToyCorpus(texts(10)), options, tmp_path / precision)
        assert result.finished
        assert load_student(tmp_path / precision, target).model.dtype == torch.bfloat16
    assert all(before[name].equal(tensor) for name, tensor in target.state_dict().items())


# --- the draft vocabulary -----------------------------------------------------------------------


def test_the_draft_vocabulary_is_what_answers_use_most() -> None:
    corpus = ToyCorpus(
        [sample([7, 7, 7, 7, 5, 5, 9], (4, 7)), sample([1, 5, 9, 9, 3, 4], (1, 4), (4, 6))]
    )  # answered: 5 5 9 | 5 9 9 | 3 4
    assert draft_vocabulary(corpus, 2, 10).tolist() == [5, 9]
    assert draft_vocabulary(corpus, 3, 10).tolist() == [3, 5, 9]
    assert draft_vocabulary(corpus, 3, 10, always=(8,)).tolist() == [5, 8, 9]
    assert draft_vocabulary(corpus, 10, 10).tolist() == list(range(10))
    assert coverage(token_counts(corpus, 10), torch.tensor([5, 9])) == pytest.approx(6 / 8)


@pytest.mark.parametrize("size", [0, 1, 11])
def test_an_impossible_draft_vocabulary_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="is not possible; give 2 to 10"):
        draft_vocabulary(ToyCorpus([sample([1, 2])]), size, 10, always=(2,))


def test_a_corpus_of_another_model_is_found_out() -> None:
    with pytest.raises(
        DataError, match="sample 1 of the corpus has token 12, and the model has 10"
    ):
        draft_vocabulary(ToyCorpus([sample([1, 2]), sample([1, 12])]), 4, 10)


def test_a_corpus_without_labels_is_an_error() -> None:
    """Case 85: an all-zero mask never passes for training."""
    with pytest.raises(DataError, match="labels no token"):
        draft_vocabulary(ToyCorpus([sample([1, 2], (0, 0))]), 4, 10)
