"""Labels read along a text are what the engine accepts there, round by round and in law."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.student import Student, build_student
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter
from foredraft.train.batches import collate
from foredraft.train.corpus import Sample
from foredraft.train.eagle import EagleLoss, EagleObjective
from foredraft.train.length_labels import HeadLaws, Labeller, Labels, ModelLaws
from tests.tiny_models import VOCAB_SIZE, tiny_llama

LONGEST = 4
EOS = 2
HEADS = ("eagle1", "eagle3", "reduced")


@cache
def sure_llama(sharpness: float = 4.0) -> Any:
    model = tiny_llama().requires_grad_(False)
    model.lm_head.weight.mul_(sharpness)
    return model


@cache
def texts(cut: bool = False) -> tuple[Sample, ...]:
    """What the model answers greedily; one reply ends, or all are cut off."""
    random = np.random.default_rng(0)
    samples = []
    for length in (3, 5, 4, 6):
        ids = random.integers(3, VOCAB_SIZE, length).tolist()
        first = len(ids)
        for _ in range(14):
            with torch.inference_mode():
                ids.append(int(sure_llama()(torch.tensor([ids])).logits[0, -1].argmax()))
        if not cut:
            ids[-1] = EOS  # which the model did not say: the last place is another's
        samples.append(Sample(np.array(ids), ((first, len(ids)),)))
    return tuple(samples)


@cache
def head(name: str) -> EagleHead:
    """A head that has learnt some of these texts."""
    torch.manual_seed(0)
    variant = 1 if name == "eagle1" else 3
    seen = {int(token) for text in texts() for token in text.token_ids[::2]}
    ids = torch.tensor(sorted(seen)) if name == "reduced" else None
    loss = EagleLoss(steps=3, soft_label=1.0, noise=0.0, later_share=1.0)
    objective = EagleObjective.for_target(sure_llama(), variant, draft_ids=ids, loss=loss)
    optimizer = torch.optim.Adam(objective.module.parameters(), lr=1e-2)
    batch = collate(list(texts()), 100)
    for _ in range(40):
        optimizer.zero_grad()
        objective(batch).loss.backward()
        optimizer.step()
    return objective.head.eval()


@cache
def student() -> Student:
    seen = sorted({int(token) for text in texts() for token in text.token_ids})[::2]
    return Student(build_student(sure_llama(), 1, draft_ids=torch.tensor(seen)))


def drafting(name: str) -> tuple[Drafter, Labeller]:
    model = sure_llama()
    if name in HEADS:
        laws = HeadLaws(head(name))
        labeller = Labeller(model, head(name).config.taps, laws, LONGEST, [EOS])
        return EagleDrafter(head(name)), labeller
    draft = student() if name == "student" else HFTarget(tiny_llama(seed=0, num_hidden_layers=2))
    read = ModelLaws(draft.model, getattr(draft, "target_ids", None), VOCAB_SIZE)
    return DraftModelDrafter(draft), Labeller(model, (), read, LONGEST, [EOS])


def labelled(labeller: Labeller, samples: tuple[Sample, ...]) -> Labels:
    return labeller(collate(list(samples), 100))


@pytest.mark.parametrize("name", [*HEADS, "student", "model"])
def test_a_label_is_what_a_round_of_the_engine_accepts(name: str) -> None:
    drafter, labeller = drafting(name)
    labels = labelled(labeller, texts(cut=True))
    engine = Engine(HFTarget(sure_llama()), drafter, FixedPolicy.chain(LONGEST))
    options = GenerationOptions(max_new_tokens=LONGEST + 1, ignore_eos=True)
    places = zip(labels.samples.tolist(), labels.places.tolist(), strict=True)
    for (sample, place), length in zip(places, labels.lengths.tolist(), strict=True):
        prompt = texts(cut=True)[sample].token_ids[: place + 1].tolist()
        assert engine.generate(prompt, options).stats.rounds[0].num_accepted == length
    assert len(labels.lengths.unique()) > 1
    expected = {len(t.token_ids) - t.spans[0][0] for t in texts()}
    assert len(labels.lengths) <= len(texts()) * max(expected)
