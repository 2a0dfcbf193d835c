"""`Frontier.hidden`: what the drafter's head reads, from the pass that is made anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.student import Student, build_student
from foredraft.engine.decoder import decode
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter, Frontier
from foredraft.tree import Proposal
from tests.drafters.eagle_rounds import HEADS, make_head
from tests.tiny_models import (
    VOCAB_SIZE,
    tiny_cohere,
    tiny_gemma2,
    tiny_gpt2,
    tiny_granite,
    tiny_llama,
    tiny_tied_llama,
)

HIDDEN_ATOL = 2e-5
"""float32 sums in another order; another row or another place is off by more than 1e-2."""
PROMPT = [3, 14, 15, 92, 65]
MODELS = (tiny_llama, tiny_tied_llama, tiny_gpt2, tiny_granite, tiny_cohere, tiny_gemma2)


class Asking:
    """A policy that asks for hidden states, before or after the laws, and keeps what it got."""

    def __init__(self, k_config: str, laws_first: bool = False) -> None:
        self._fixed, self._laws_first = FixedPolicy(k_config), laws_first
        self.kind, self.branches = self._fixed.kind, self._fixed.branches
        self.max_nodes = self._fixed.max_nodes
        self.plan, self.observe = self._fixed.plan, self._fixed.observe
        self.seen: list[tuple[tuple[int, ...], Tensor | None, Tensor | None]] = []
        self._paths: dict[int, tuple[int, ...]] = {}

    def start(self) -> Asking:
        return self

    def grow(self, frontier: Frontier) -> Sequence[int]:
        counts = self._fixed.grow(frontier)
        if not any(counts):
            return counts
        laws = frontier.log_probs() if self._laws_first else None
        hidden = frontier.hidden()
        laws = frontier.log_probs()
        for i, (node, parent) in enumerate(zip(frontier.nodes, frontier.parents, strict=True)):
            above = self._paths[parent] if frontier.depth else None
            self._paths[node] = () if above is None else (*above, frontier.token_ids[i])
            row = None if hidden is None else hidden[i].clone()
            self.seen.append((self._paths[node], row, None if laws is None else laws[i]))
        return counts


def rounds(
    target: Any, drafter: Drafter, policy: Asking
) -> list[tuple[list[int], tuple[int, ...], Tensor | None, Tensor | None]]:
    """(text, path, hidden, log law) of every node that was asked about, over some rounds."""
    engine = Engine(target, drafter, policy)
    options = GenerationOptions(max_new_tokens=10, ignore_eos=True)
    session = engine.session(PROMPT, options, engine.randomness(0))
    found, text = [], list(PROMPT)
    for step in decode(session, engine.verifier):
        found += [(list(text), *seen) for seen in policy.seen]
        policy.seen.clear()
        text += step.token_ids
    return found


@torch.no_grad()
def last_state(model: Any, token_ids: Sequence[int]) -> Tensor:
    """The model's own word for it."""
    output = model(torch.tensor([token_ids]), output_hidden_states=True)
    return output.hidden_states[-1][0, -1]


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("laws_first", [False, True])
def test_a_draft_model_shows_its_last_hidden_state(
    build: Callable[[], Any], laws_first: bool
) -> None:
    model = build()
    drafter = DraftModelDrafter(HFTarget(build()), Proposal.DETERMINISTIC)
    found = rounds(HFTarget(tiny_llama(seed=3)), drafter, Asking("2,2,1", laws_first))
    assert len(found) > 10
    for text, path, hidden, _ in found:
        assert hidden is not None
        expected = last_state(model, [*text, *path])
        torch.testing.assert_close(hidden, expected, rtol=0, atol=HIDDEN_ATOL)


@pytest.mark.parametrize("reduced", [False, True])
def test_a_student_shows_what_its_own_head_reads(reduced: bool) -> None:
    model = tiny_llama(num_hidden_layers=3)
    ids = torch.arange(3, 90, 2) if reduced else None
    student = build_student(model, 2, draft_ids=ids, own_head=reduced)
    found = rounds(HFTarget(model), DraftModelDrafter(Student(student)), Asking("2,1"))
    weight = student.model.get_output_embeddings().weight
    for _, _, hidden, law in found:
        assert hidden is not None
        assert law is not None
        assert hidden.shape == (32,)
        torch.testing.assert_close((weight @ hidden).log_softmax(-1), law, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_an_eagle_head_shows_what_its_head_reads(name: str) -> None:
    model = tiny_llama()
    head = make_head(model, name)
    found = rounds(HFTarget(model), EagleDrafter(head), Asking("2,2"))
    rows = (head.lm_head if head.own_lm_head else model.lm_head).weight.detach()
    if not head.own_lm_head and head.lm_rows is not None:
        rows = head.lm_rows
    assert len(found) > 5
    for _, _, hidden, law in found:
        assert hidden is not None
        assert law is not None
        known = (rows @ hidden).float()
        own = law[: len(known)]  # tokens of the text stand behind those of the head
        torch.testing.assert_close(known - known[0], own - own[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "drafter",
    [NgramDrafter(1, 2), DraftModelDrafter(TableModel.random(VOCAB_SIZE))],
    ids=["ngram", "table"],
)
def test_drafters_without_hidden_states_say_so(drafter: Drafter) -> None:
    found = rounds(TableModel.random(VOCAB_SIZE, seed=1), drafter, Asking("1,1"))
    assert found
    assert all(hidden is None for _, _, hidden, _ in found)


def test_asking_costs_no_pass_and_changes_nothing() -> None:
    options = GenerationOptions(max_new_tokens=10, ignore_eos=True)
    records = []
    for policy in (FixedPolicy("2,2"), Asking("2,2")):
        drafter = DraftModelDrafter(HFTarget(tiny_llama(seed=1)))
        engine = Engine(HFTarget(tiny_llama()), drafter, policy)
        session = engine.session(PROMPT, options, engine.randomness(0))
        text = [step.token_ids for step in decode(session, engine.verifier)]
        records.append((text, [r.draft_rows for r in session.rounds]))
    assert records[0] == records[1]


def test_passes_that_nobody_drafts_with_leave_nothing_behind() -> None:
    model = tiny_llama()
    target = HFTarget(model)
    plain = target.start(16)
    showing = target.start_showing(16)
    showing.score([5], [-1])
    before = showing.last_hidden()
    plain.score([7], [-1])
    model(torch.tensor([[9, 9]]))
    after = showing.last_hidden()
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)
    assert before.shape == (1, 32)
