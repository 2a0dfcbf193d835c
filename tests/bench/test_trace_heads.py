"""Traces of drafts that follow the drafter's belief: nothing changes by watching, and q is the drafter's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import foredraft
from foredraft import Engine
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.trace.rounds import TracedRound, read_round
from foredraft.engine.trace.watch import Watch, watched
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.protocols import Policy
from foredraft.results import Result
from tests.tiny_models import tiny_llama

PROMPT = [5, 9, 7, 5, 9]
REQUEST: dict[str, Any] = {"max_new_tokens": 14, "seed": 1, "ignore_eos": True}


def trace(engine: Engine, **request: Any) -> tuple[Result, list[TracedRound]]:
    """The answer of a watched engine, and its rounds."""
    watch = Watch()
    rounds = []
    with watched(engine, watch).stream(PROMPT, **REQUEST | request) as stream:
        for step in stream:
            rounds.append(read_round(step, watch.take(), request.get("temperature", 0.0)))
        return stream.result(), rounds


METHODS = [
    "eagle2",
    "eagle2:nodes=4:depth=3:top_k=2",
    "eagle",
    "eagle:tree=2,2",
    "eagle-chain-3",
    "eagle2:verifier=traversal",
    "eagle2:verifier=rejection:nodes=6",
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("reduced", [False, True])
def test_watching_a_head_changes_nothing(method: str, temperature: float, reduced: bool) -> None:
    target = HFTarget(tiny_llama())
    ids = torch.arange(0, 96, 2) if reduced else None
    head = EagleHead.for_target(target.model, 3, draft_ids=ids)
    engine = foredraft.load(target, method=method, drafter=head)
    plain = engine.generate(PROMPT, **REQUEST, temperature=temperature)
    seen, rounds = trace(engine, temperature=temperature)
    assert seen.token_ids == plain.token_ids
    for own, other in zip(plain.stats.rounds, seen.stats.rounds, strict=True):
        assert (own.widths, own.draft_rows) == (other.widths, other.draft_rows)
    drafted = [q for r in rounds for q in r.q[1:]]
    assert drafted
    if temperature == 0:
        assert any(q is not None for q in drafted)


TABLE, DRAFT = TableModel.random(12, seed=1), TableModel.random(12, seed=2)


@pytest.mark.parametrize(
    "policy",
    [DynamicTreePolicy(3, 7, 3), DynamicTreePolicy(2, 20, 4), StaticTreePolicy()],
    ids=["cut", "whole", "static"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_q_is_the_drafters_probability(policy: Policy, temperature: float) -> None:
    engine = Engine(TABLE, DraftModelDrafter(DRAFT), policy)
    _, rounds = trace(engine, temperature=temperature)
    told = 0
    for seen in rounds:
        for node, q in enumerate(seen.q):
            if q is None:
                continue
            told += 1
            before = seen.token_ids[seen.parents[node]]
            law = DRAFT.logits_after([before]).softmax(-1)
            assert math.isclose(q, float(law[seen.token_ids[node]]), rel_tol=2e-3)
    reads_laws = isinstance(policy, DynamicTreePolicy) and policy.depth == 2
    if temperature == 0 or reads_laws:  # else scores know the noise, and are not shown as a law
        assert told > 5
