"""What trains EAGLE heads: it learns, it labels what it should, and leaving rows out changes no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from foredraft.drafters.eagle.head import EagleHead
from foredraft.train.batches import collate
from foredraft.train.corpus import Sample
from foredraft.train.eagle import EagleLoss, EagleObjective
from foredraft.train.objective import Batch
from tests.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen3


def greedy_samples(model: Any, count: int, prompt: int = 4, answer: int = 12) -> list[Sample]:
    """Random prompts that the model answers."""
    random = np.random.default_rng(0)
    samples = []
    for _ in range(count):
        ids = random.integers(3, 97, prompt).tolist()
        for _ in range(answer):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        samples.append(Sample(np.array(ids), ((prompt, len(ids)),)))
    return samples


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen3, tiny_gemma3])
@pytest.mark.parametrize("variant", [1, 3])
def test_a_head_learns_a_few_samples_by_heart(make: Any, variant: int) -> None:
    model = make().requires_grad_(False)
    model.lm_head.weight.mul_(4)  # a model that is sure of what it says
    batch = collate(greedy_samples(model, 6), 100)
    torch.manual_seed(0)
    loss = EagleLoss(steps=3, soft_label=1.0, noise=0.0)
    objective = EagleObjective.for_target(model, variant, loss=loss)
    optimizer = torch.optim.Adam(objective.module.parameters(), lr=1e-2)
    report = objective(batch)
    for _ in range(250):
        optimizer.zero_grad()
        report.loss.backward()
        optimizer.step()
        report = objective(batch)
        shares = report.hits / report.counted
        if (shares > 0.95).all():
            break
    assert (shares > 0.95).all(), shares
    assert len(shares) == (3 if variant == 3 else 1)


def gradients(objective: EagleObjective, batch: Batch) -> list[torch.Tensor]:
    objective.module.zero_grad()
    objective(batch).loss.backward()
    return [p.grad.clone() for p in objective.module.parameters() if p.grad is not None]


@pytest.mark.parametrize("variant", [1, 3])
def test_padding_and_company_change_nothing(variant: int) -> None:
    """Alone, or beside a longer sample: the same hits, and gradients that add up."""
    model = tiny_llama().requires_grad_(False)
    short, long = greedy_samples(model, 1, answer=7)[0], greedy_samples(model, 2, answer=15)[1]
    torch.manual_seed(0)
    loss = EagleLoss(steps=3, later_share=1.0, noise=0.0)
    objective = EagleObjective.for_target(model, variant, loss=loss)
    both = objective(collate([short, long], 100))
    apart = [objective(collate([sample], 100)) for sample in (short, long)]
    torch.testing.assert_close(both.counted, sum(r.counted for r in apart))
    torch.testing.assert_close(both.hits, sum(r.hits for r in apart))


def test_which_rows_count() -> None:
    """Case 84: step i predicts token j + 2 + i from row j, of the reply alone and never of padding."""
    model = tiny_llama().requires_grad_(False)
    ids = np.array([5, 6, 7, 8, 9, 10])
    sample, longer = Sample(ids, ((3, 6),)), Sample(np.arange(20, 29), ())
    loss = EagleLoss(steps=3, later_share=1.0)
    counted = EagleObjective.for_target(model, 3, loss=loss)(collate([sample, longer], 100)).counted
    # Tokens 3, 4, 5 are labelled: rows 1, 2, 3; then from them tokens 4, 5; then token 5.
    assert counted.tolist() == [3, 2, 1]


def test_a_reply_that_begins_at_the_second_token_has_no_row_before_it() -> None:
    model = tiny_llama().requires_grad_(False)
    sample = Sample(np.array([5, 6, 7, 8]), ((1, 4),))
    loss = EagleLoss(steps=2, later_share=1.0)
    counted = EagleObjective.for_target(model, 3, loss=loss)(collate([sample], 100)).counted
    assert counted.tolist() == [2, 1]


@pytest.mark.parametrize("length", [1, 2])
def test_texts_too_short_for_a_pair_have_no_loss(length: int) -> None:
    model = tiny_llama().requires_grad_(False)
    objective = EagleObjective.for_target(model, 3, loss=EagleLoss(steps=2))
    report = objective(collate([Sample(np.arange(3, 3 + length), ((0, length),))], 100))
    report.loss.backward()
    assert report.loss.item() == 0
    assert report.counted.tolist() == [0, 0]


def test_leaving_rows_out_of_later_steps_changes_no_other_row() -> None:
    """The mean over many draws of the rows is the loss over all of them."""
    model = tiny_llama().requires_grad_(False)
    samples = greedy_samples(model, 3, answer=16)
    batch = collate(samples, 100)
    torch.manual_seed(0)
    whole = EagleObjective.for_target(model, 3, loss=EagleLoss(steps=2, later_share=1.0))
    some = EagleObjective(whole.head, model, EagleLoss(steps=2, later_share=0.25))
    full = whole(batch)
    parts = [some(batch) for _ in range(400)]
    assert all(part.counted[0] == full.counted[0] for part in parts)
    assert all(part.counted[1] < full.counted[1] / 2 for part in parts)
    hits = sum(part.hits[1] for part in parts) / sum(part.counted[1] for part in parts)
    torch.testing.assert_close(hits, full.hits[1] / full.counted[1], atol=0.05, rtol=0)
    loss = torch.stack([part.loss for part in parts]).mean()
    torch.testing.assert_close(loss, full.loss, atol=0, rtol=0.02)


def test_tokens_outside_the_draft_vocabulary_are_missed_and_have_no_loss() -> None:
    model = tiny_llama().requires_grad_(False)
    sample = greedy_samples(model, 1, answer=10)[0]
    asked = sample.token_ids[4:].tolist()
    ids = torch.tensor(sorted(set(asked) - {asked[-1]}))
    objective = EagleObjective.for_target(model, 3, draft_ids=ids, loss=EagleLoss(steps=1))
    report = objective(collate([sample], 100))
    assert report.counted.item() == 10
    assert report.hits.item() <= 10 - asked.count(asked[-1])
    nothing = Sample(np.array([5, 6, 7, asked[-1]]), ((3, 4),))
    report = objective(collate([nothing], 100))
    report.loss.backward()
    assert (report.loss.item(), report.counted.item(), report.hits.item()) == (0, 1, 0)


@pytest.mark.parametrize("variant", [1, 3])
@pytest.mark.parametrize("fc_norm", [None, False])
def test_float32_training_beside_a_target_in_half_precision(
    variant: int, fc_norm: bool | None
) -> None:
    model = tiny_llama(dtype=torch.bfloat16).requires_grad_(False)
    choices = {} if variant == 1 else {"fc_norm": fc_norm}
    objective = EagleObjective.for_target(model, variant, **choices)
    report = objective(collate([Sample(np.arange(3, 13), ((2, 10),))], 100))
    report.loss.backward()
    assert all(p.grad is not None for p in objective.module.parameters())


@pytest.mark.parametrize("variant", [1, 3])
def test_what_a_head_owns_of_the_ends_is_used_and_its_embeddings_stay(variant: int) -> None:
    model = tiny_llama().requires_grad_(False)
    ids = torch.arange(3, 60)
    fresh = EagleHead.for_target(model, variant, draft_ids=ids if variant == 3 else None)
    head = EagleHead(
        fresh.config, fresh.ends, fresh.target_ids, own_embeddings=True, own_lm_head=True
    )
    objective = EagleObjective(head, model, label_ids=ids)
    objective(collate([Sample(np.arange(3, 13), ((2, 10),))], 100)).loss.backward()
    trained = {name for name, p in head.named_parameters() if p.grad is not None}
    assert "lm_head.weight" in trained
    assert {name for name, p in head.named_parameters() if p.requires_grad} == trained
    assert "embed_tokens.weight" not in trained
