"""The oracle of a chain is a run that could have been made: here it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from foredraft import Engine
from foredraft.backends.table import TableModel
from foredraft.bench.modelled import oracle_rounds
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome
from foredraft.results import RoundRecord
from foredraft.tree import Proposal

VOCAB, LONGEST, TOKENS = 12, 5, 60


class KnownLengths:
    """A policy that is told how long each draft shall be."""

    kind, branches, max_nodes = PolicyKind.GROWS, False, LONGEST

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = iter(lengths)

    def start(self) -> KnownLengths:
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return dataclasses.replace(limits, max_depth=min(limits.max_depth, next(self._lengths)))

    def grow(self, frontier: Frontier) -> Sequence[int]:
        return [1] * len(frontier.nodes)

    def observe(self, outcome: RoundOutcome) -> None:
        pass


def drafter(seed: int) -> tuple[TableModel, DraftModelDrafter]:
    """A target, and a drafter that is often right."""
    random = torch.Generator().manual_seed(seed)
    logits, others = torch.randn(2, *[VOCAB] * 3, generator=random, dtype=torch.float64)
    target, mixed = (2 * logits).softmax(-1), (2 * logits + others).softmax(-1)
    return TableModel(target), DraftModelDrafter(TableModel(mixed), Proposal.COUPLED)


def counts(record: RoundRecord) -> tuple[object, ...]:
    """What a round did, without its times; the rows of a first pass depend on what was drafted before."""
    return record.context, record.widths, len(record.draft_rows), record.num_accepted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_policy_that_knows_what_will_be_accepted_makes_the_oracles_rounds(
    seed: int, temperature: float
) -> None:
    target, drafts = drafter(seed)
    options = {"max_new_tokens": TOKENS, "temperature": temperature, "seed": seed}
    chain = Engine(target, drafts, FixedPolicy.chain(LONGEST)).generate([1, 2], **options)
    lengths = [r.num_accepted for r in chain.stats.rounds]
    known = Engine(target, drafts, KnownLengths(lengths)).generate([1, 2], **options)
    assert known.token_ids == chain.token_ids
    oracle = oracle_rounds(chain.stats)
    assert chain.stats.wasted_tokens > 0
    assert list(map(counts, known.stats.rounds)) == list(map(counts, oracle.rounds))
    assert known.stats.wasted_tokens == 0
    assert known.stats.draft_passes == sum(lengths) == oracle.draft_passes


@pytest.mark.parametrize("seed", range(4))
def test_no_shorter_chain_has_an_oracle_with_fewer_rounds(seed: int) -> None:
    target, drafts = drafter(seed)

    def rounds(depth: int) -> int:
        engine = Engine(target, drafts, FixedPolicy.chain(depth))
        return len(engine.generate([1, 2], max_new_tokens=TOKENS, ignore_eos=True).stats.rounds)

    assert rounds(LONGEST) == min(map(rounds, range(1, LONGEST + 1)))


def test_drafts_are_accepted_and_rejected_here() -> None:
    """So that the tests above say something."""
    target, drafts = drafter(0)
    result = Engine(target, drafts, FixedPolicy.chain(LONGEST)).generate(
        [1, 2], max_new_tokens=TOKENS, temperature=1.0, seed=0
    )
    assert sum(count > 0 for count in result.stats.accepted_histogram) > 2
