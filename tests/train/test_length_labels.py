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
MEAN_ATOL = 1e-5
"""Float32 laws of a tiny model; a wrong estimator is off by more than 1e-2."""
HEADS = ("eagle1", "eagle3", "reduced")


@cache
def sure_llama(sharpness: float = 4.0) -> Any:
    model = tiny_llama().requires_grad_(False)
    model.lm_head.weight.mul_(sharpness)
    return model


@cache
def texts(cut: bool = False) -> tuple[Sample, ...]:
    """What the model answers greedily, cut off or with an end token."""
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


@cache
def shaken() -> Any:
    """The target with other rows in its head."""
    model = tiny_llama().requires_grad_(False)
    model.lm_head.weight.add_(0.15 * torch.randn(VOCAB_SIZE, 32, generator=torch.manual_seed(3)))
    return model


def drafting(name: str) -> tuple[Drafter, Labeller]:
    model = sure_llama()
    if name in HEADS:
        laws = HeadLaws(head(name))
        labeller = Labeller(model, head(name).config.taps, laws, LONGEST, [EOS])
        return EagleDrafter(head(name)), labeller
    draft = student() if name == "student" else HFTarget(shaken())
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
    assert len(labels.lengths) > 20


def test_replies_that_were_sampled_have_no_labels() -> None:
    """Of greedy replies they have: what decides is whether the tokens are the target's best ones."""
    _, labeller = drafting("student")
    sampled = Sample(np.array([5, 9, 3, 60, 61, 62, 63, 64]), ((3, 8),))
    both = labelled(labeller, (sampled, *texts(cut=True)))
    assert set(both.samples.tolist()) == {1, 2, 3, 4}


def test_where_a_reply_ends_so_does_the_label_and_where_it_is_cut_nobody_knows() -> None:
    """The target's twin drafts: every token is right, as far as the reply goes."""
    model = sure_llama()
    greedy = texts(cut=True)[0]
    laws = ModelLaws(model, None, VOCAB_SIZE)
    last = int(greedy.token_ids[-1])
    first, stop = greedy.spans[0]
    cut = labelled(Labeller(model, (), laws, LONGEST, []), (greedy,))
    assert cut.lengths.tolist() == [LONGEST] * (stop - first - LONGEST + 1)
    ended = labelled(Labeller(model, (), laws, LONGEST, [last]), (greedy,))
    whole = [float(min(LONGEST, stop - 1 - place)) for place in ended.places.tolist()]
    assert ended.places.tolist() == list(range(first - 1, stop - 1))
    assert ended.lengths.tolist() == whole


def test_positions_are_those_before_replies_and_show_the_state_before_the_root() -> None:
    _, labeller = drafting("student")
    text = texts(cut=True)[1]
    labels = labelled(labeller, (text,))
    states = sure_llama()(
        torch.from_numpy(text.token_ids)[None], output_hidden_states=True
    ).hidden_states
    for row, place in zip(labels.features, labels.places.tolist(), strict=True):
        expected = torch.cat([states[0][0, place - 1], states[-1][0, place - 1]])
        torch.testing.assert_close(row, expected)
    assert labels.roots.tolist() == [text.token_ids[place] for place in labels.places.tolist()]


def test_company_changes_no_label() -> None:
    _, labeller = drafting("reduced")
    together = labelled(labeller, texts(cut=True))
    for number, text in enumerate(texts(cut=True)):
        alone, mine = labelled(labeller, (text,)), together.samples == number
        assert alone.lengths.tolist() == together.lengths[mine].tolist()
        assert alone.places.tolist() == together.places[mine].tolist()


@pytest.mark.parametrize("name", ["student", "reduced"])
def test_above_temperature_0_the_mean_label_is_the_expected_length(name: str) -> None:
    """Over every text that the target may write: the probability that rejection accepts, depth by depth."""
    model, temperature, prompt = sure_llama(0.5), 0.8, [5, 9, 3]
    if name == "student":
        own: Any = Student(build_student(model, 1, draft_ids=torch.arange(0, VOCAB_SIZE, 2)))
        laws: Any = ModelLaws(own.model, own.target_ids, VOCAB_SIZE)
        taps: tuple[int, ...] = ()
    else:
        laws, taps = HeadLaws(head(name)), head(name).config.taps
    labeller = Labeller(model, taps, laws, 2, [], temperature)
    every = [Sample(np.array([*prompt, token, 7]), ((3, 5),)) for token in range(VOCAB_SIZE)]
    batch = collate(every, 100)
    labels = labeller(batch)
    at_root = labels.places == 2
    assert int(at_root.sum()) == VOCAB_SIZE
    logits = model(batch.token_ids).logits.double()
    p = (logits / temperature).softmax(-1)
    q = dense(laws, labeller, batch, temperature)
    overlap = torch.minimum(p[:, 2:4], q).sum(-1)  # depth 1, and depth 2 behind each first token
    reach = torch.minimum(p[0, 2], q[0, 0])
    expected = overlap[0, 0] + (reach * overlap[:, 1]).sum()
    mean = (p[0, 2] * labels.lengths[at_root].double()).sum()
    assert 0.1 < expected < 1.9
    torch.testing.assert_close(mean, expected, rtol=0, atol=MEAN_ATOL)


def dense(laws: Any, labeller: Labeller, batch: Any, temperature: float) -> torch.Tensor:
    """The drafter's law of both depths behind the prompt, float64 [B, 2, V]."""
    taps = labeller._states(batch).features[..., : -sure_llama().config.hidden_size]
    rows = torch.ones(len(batch.lengths), 1, dtype=torch.int64)
    found = []
    with torch.no_grad():
        said = [laws.begin(batch, taps, rows), laws.deeper(torch.zeros_like(rows))]
    for law in said:
        q = torch.zeros(len(rows), VOCAB_SIZE, dtype=torch.float64)
        found.append(
            q.index_copy_(1, law.ids, (law.logits[:, 0].double() / temperature).softmax(-1))
        )
    return torch.stack(found, 1)
