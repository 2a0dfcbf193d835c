"""The dynamic sliced mask in real decoding: rows are built once and sliced for every later draft."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft.backends.hf import HFTarget
from foredraft.backends.tree_attention import AncestorRows
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.engine import Engine
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits, PolicyState
from foredraft.tree import Proposal
from foredraft.verifiers.exact import ExactVerifier
from foredraft.verifiers.multi_root import MultiRootVerifier
from tests.tiny_models import tiny_llama

PROMPT = [5, 9, 3, 7]


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Rows that each stored tree appends, call by call."""
    calls: dict[int, list[int]] = {}
    append = AncestorRows.append

    def counting(self: AncestorRows, parents: list[int]) -> None:
        if parents:
            calls.setdefault(id(self), []).append(len(parents))
        append(self, parents)

    monkeypatch.setattr(AncestorRows, "append", counting)
    return calls


class Shrinking(FixedPolicy):
    """The whole tree in the first round, and then one level less each, from the full depth again."""

    def start(self) -> PolicyState:
        return _Shrinking(self)


class _Shrinking:
    def __init__(self, fixed: FixedPolicy) -> None:
        self._fixed, self._rounds = fixed, 0

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        depth = len(self._fixed.k_config) - self._rounds % 3
        self._rounds += 1
        return DraftLimits(min(limits.max_depth, depth), limits.max_nodes, limits.chains_only)

    def grow(self, frontier: object) -> object:
        return self._fixed.grow(frontier)  # type: ignore[arg-type]

    def observe(self, outcome: object) -> None:
        pass


def engine_of(name: str) -> Engine:
    target, draft = HFTarget(tiny_llama()), HFTarget(tiny_llama(seed=1))
    if name == "open roots":
        drafter = DraftModelDrafter(draft, Proposal.SAMPLED)
        return Engine(target, drafter, FixedPolicy((2, 1), 2), MultiRootVerifier(2))
    policy = Shrinking("3,2,1") if name == "shrinking" else FixedPolicy("3,2,1")
    return Engine(target, DraftModelDrafter(draft, Proposal.COUPLED), policy, ExactVerifier())


@pytest.mark.parametrize("name", ["fixed", "shrinking", "open roots"])
def test_a_fixed_shape_builds_its_rows_once(name: str, appended: dict[int, list[int]]) -> None:
    engine = engine_of(name)
    appended.clear()
    request = {"max_new_tokens": 30, "ignore_eos": True, "temperature": 1.0, "seed": 2}
    with engine.stream(PROMPT, **request) as stream:
        for _ in stream:
            pass
        rounds = stream.result().stats.rounds
    assert len(rounds) > 5
    nodes = max(sum(r.widths) for r in rounds)
    built = [sum(rows) for rows in appended.values()]
    assert len(built) <= 1 + 2  # the target's; the draft model's, behind one or two missed tokens
    assert nodes in built
    assert max(built) <= nodes + 1
