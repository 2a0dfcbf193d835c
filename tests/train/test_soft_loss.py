"""The fused loss and its hand-made gradient are those that autograd computes the long way."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from foredraft.train.soft_loss import Finish, soft_cross_entropy, teacher_logits

ROWS, WIDTH, COLUMNS = 150, 8, 21  # more rows than a chunk holds
FINISHES = (
    Finish(),
    Finish(scale=0.3),
    Finish(softcap=2.0),
    Finish(torch.linspace(-1, 1, COLUMNS).double(), 1.7, 3.0),
)


def tensors() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = ((ROWS, WIDTH), (COLUMNS, WIDTH), (ROWS, COLUMNS), (ROWS,))
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]


def the_long_way(hidden: torch.Tensor, weight: torch.Tensor, finish: Finish) -> torch.Tensor:
    logits = F.linear(hidden, weight, finish.bias) * finish.scale
    return logits if finish.softcap is None else finish.softcap * (logits / finish.softcap).tanh()


@pytest.mark.parametrize("finish", FINISHES)
def test_loss_and_gradients(finish: Finish) -> None:
    hidden, weight, teacher, row_weights = tensors()
    results = []
    for fused in (True, False):
        h, w = (t.clone().requires_grad_() for t in (hidden, weight))
        if fused:
            loss = soft_cross_entropy(h, w, teacher, row_weights, finish).loss
        else:
            log_probs = the_long_way(h, w, finish).log_softmax(-1)
            loss = -((teacher.softmax(-1) * log_probs).sum(-1) * row_weights).sum()
        (loss * 3).backward()
        results.append((loss.double(), h.grad, w.grad))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_hits_are_the_rows_where_the_best_tokens_agree() -> None:
    hidden, weight, teacher, row_weights = tensors()
    hits = soft_cross_entropy(hidden, weight, teacher, row_weights).hits
    assert hits.tolist() == ((hidden @ weight.T).argmax(-1) == teacher.argmax(-1)).tolist()
    assert 0 < hits.sum() < ROWS


def test_a_frozen_weight_gets_no_gradient_and_no_row_is_no_loss() -> None:
    hidden, weight, teacher, row_weights = tensors()
    hidden.requires_grad_()
    soft_cross_entropy(hidden, weight, teacher, row_weights).loss.backward()
    assert weight.grad is None
    none = soft_cross_entropy(hidden[:0], weight, teacher[:0], row_weights[:0])
    assert none.loss.item() == 0
    none.loss.backward()


def test_half_precision_under_autocast_is_near() -> None:
    hidden, weight, teacher, row_weights = (t.float() for t in tensors())
    exact = soft_cross_entropy(hidden, weight, teacher, row_weights.abs()).loss
    with torch.autocast("cpu", torch.bfloat16):
        near = soft_cross_entropy(hidden, weight, teacher, row_weights.abs()).loss
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, rtol=2e-2, atol=0)


@pytest.mark.parametrize("finish", FINISHES)
def test_the_teacher_is_finished_too(finish: Finish) -> None:
    hidden, weight, *_ = tensors()
    torch.testing.assert_close(
        teacher_logits(hidden, weight, finish), the_long_way(hidden, weight, finish)
    )


def test_sharpening_teaches_a_power_of_the_law_and_judges_by_the_law_itself() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 8, requires_grad=True), torch.randn(11, 8)
    teacher, row_weights = torch.randn(5, 11), torch.rand(5)
    power = teacher.softmax(-1) ** 3
    law = power / power.sum(-1, keepdim=True)
    expected = -((law * (hidden @ weight.T).log_softmax(-1)).sum(-1) * row_weights).sum()
    (gradient,) = torch.autograd.grad(expected, hidden)
    found = soft_cross_entropy(hidden, weight, teacher, row_weights, sharpen=3.0)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(torch.autograd.grad(found.loss, hidden)[0], gradient)
    plain = soft_cross_entropy(hidden, weight, teacher, row_weights)
    assert torch.equal(found.hits, plain.hits)
    assert not torch.isclose(found.loss, plain.loss)
