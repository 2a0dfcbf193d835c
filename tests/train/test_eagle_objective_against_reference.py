"""What trains an EAGLE head against a second reading of sections 4.2 and 4.7: logits, then losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from foredraft.drafters.eagle.checkpoint import load_head
from foredraft.train.eagle import EagleLoss, EagleObjective
from foredraft.train.objective import Batch
from foredraft.train.unroll import unrolled_logits
from tests.eagle_checkpoints import CASES, DRAFT_VOCAB_SIZE, Case
from tests.eagle_reference import (
    last_output,
    reference_training_time_test,
    target_ids,
    true_rows,
)
from tests.tiny_models import VOCAB_SIZE, tiny_llama

STEPS, DECAY = 3, 0.7
KNOWN = target_ids(CASES["eagle3"].tensors(), DRAFT_VOCAB_SIZE)
UNKNOWN = sorted({*range(VOCAB_SIZE)} - {*KNOWN})
TEXTS = (
    (*UNKNOWN[:3], *KNOWN[3:9], UNKNOWN[5], *KNOWN[12:16]),
    (KNOWN[20], *KNOWN[7:13]),
)
"""The first has a token among the answer's that the draft vocabularies of the cases leave out."""
PROMPTS = (3, 1)
"""Tokens at the start of each text that the user wrote."""
TAPS = {1: (7,), 3: (2, 3, 4)}
every_variant_3 = pytest.mark.parametrize(
    "name", ["eagle3", "eagle3-full-vocabulary", "eagle3-own-embeddings", "speculators-all"]
)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(num_hidden_layers=7)


@torch.no_grad()
def states(model: Any, text: Sequence[int], taps: Sequence[int]) -> Tensor:
    """Hidden states [T, len(taps) * h] by the model's own pass over this text alone, float64."""
    given = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.cat([given[tap][0] for tap in taps], -1).double()


def batch_of(texts: Sequence[Sequence[int]]) -> Batch:
    """The texts, padded on the right; what stands behind each prompt is to be predicted."""
    longest = max(map(len, texts))
    labelled = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, (text, prompt) in enumerate(zip(texts, PROMPTS, strict=False)):
        labelled[row, prompt : len(text)] = True
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return Batch(
        padded, torch.tensor([len(text) for text in texts]), labelled, torch.arange(len(texts))
    )


def cross_entropy(teacher: Tensor, student: Tensor) -> float:
    """-sum p log q of two rows of logits."""
    return -float((teacher.softmax(-1) * student.log_softmax(-1)).sum())


# --- EAGLE-3 ----------------------------------------------------------------------------------------


@every_variant_3
def test_logits_of_every_unrolled_step(name: str, model: Any, tmp_path: Path) -> None:
    """Rows whose token still lies within the text; others have nothing to predict."""
    case: Case = CASES[name]
    head, text = load_head(case.write(tmp_path), model), TEXTS[0]
    features = states(model, text, TAPS[3])
    expected = reference_training_time_test(case.reference(model), features[:-1], text, STEPS)
    with torch.no_grad():
        given = unrolled_logits(head, torch.tensor([text]), features.float()[None], STEPS)
    assert len(given) == STEPS
    for step in range(STEPS):
        rows = len(text) - 1 - step
        torch.testing.assert_close(
            given[step][0, :rows].double(), expected[step, :rows], atol=1e-5, rtol=1e-5
        )


def step_terms(case: Case, model: Any, step: int) -> list[tuple[float, bool]]:
    """Cross-entropy, and agreement of the best tokens, of every row of this step that counts.

    The target's law after token j + 1 + step is softmax over the draft vocabulary alone. A row counts if
    the assistant wrote what it predicts, now and in step 0, and the draft vocabulary has both tokens.
    (The published code asks instead whether it has the target's best token there.)
    """
    ids = target_ids(case.tensors(), case.config["draft_vocab_size"])
    lm_head = model.get_output_embeddings().weight.detach().double()
    terms = []
    for text, prompt in zip(TEXTS, PROMPTS, strict=True):
        features = states(model, text, TAPS[3])[:-1]
        logits = reference_training_time_test(case.reference(model), features, text, step + 1)
        teacher = states(model, text, TAPS[1]) @ lm_head[ids].T
        for row in range(len(text) - 2 - step):
            predicted = (row + 2, row + 2 + step)
            if all(place >= prompt and text[place] in ids for place in predicted):
                student, taught = logits[step, row], teacher[row + 1 + step]
                agreed = bool(student.argmax() == taught.argmax())
                terms.append((cross_entropy(taught, student), agreed))
    return terms


@every_variant_3
def test_the_loss_of_the_training_time_test(name: str, model: Any, tmp_path: Path) -> None:
    """The sum over steps of decay^i times the mean cross-entropy of rows that count."""
    case = CASES[name]
    head = load_head(case.write(tmp_path), model)
    loss = EagleLoss(steps=STEPS, decay=DECAY, later_share=1.0)
    report = EagleObjective(head, model, loss)(batch_of(TEXTS))
    steps = [step_terms(case, model, step) for step in range(STEPS)]
    missed = (
        name != "eagle3-full-vocabulary"
    )  # one token of the first answer is not in the vocabulary
    assert report.counted.tolist() == [len(terms) + missed for terms in steps]
    assert report.counted.sum() > 5
    assert report.hits.tolist() == [sum(agreed for _, agreed in terms) for terms in steps]
    expected = sum(
        DECAY**i * sum(value for value, _ in terms) / len(terms)
        for i, terms in enumerate(steps)
        if terms
    )
    assert float(report.loss.detach()) == pytest.approx(expected, rel=1e-5)


# --- EAGLE-1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle1", "eagle1-no-bias", "eagle1-pickled-own-embeddings"])
def test_the_loss_of_eagle1(name: str, model: Any, tmp_path: Path) -> None:
    """1.0 smooth L1 on the next feature and 0.1 soft cross-entropy, means over rows that count."""
    case = CASES[name]
    head = load_head(case.write(tmp_path), model).eval()
    report = EagleObjective(head, model, EagleLoss())(batch_of(TEXTS))
    reference = case.reference(model)
    features_loss, laws_loss = [], []
    for text, prompt in zip(TEXTS, PROMPTS, strict=True):
        features = states(model, text, TAPS[1])
        rows = true_rows(reference, features[:-1], text)
        for row in range(max(0, prompt - 2), len(text) - 2):
            output, wanted = last_output(reference, rows[: row + 1]), features[row + 1]
            features_loss.append(float(smooth_l1_loss(output, wanted)))
            laws_loss.append(cross_entropy(reference.logits(wanted), reference.logits(output)))
    assert report.counted.tolist() == [len(laws_loss)]
    expected = (sum(features_loss) + 0.1 * sum(laws_loss)) / len(laws_loss)
    assert float(report.loss.detach()) == pytest.approx(expected, rel=1e-5)
