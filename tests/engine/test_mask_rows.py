"""The dynamic sliced mask in real decoding: rows are built once and sliced for every later draft."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foredraft.backends.hf import HFTarget
from foredraft.backends.tree_attention import Topology
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.engine import Engine
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits, PolicyState
from foredraft.tree import Proposal
from foredraft.verifiers.exact import ExactVerifier
from foredraft.verifiers.multi_root import MultiRootVerifier
from tests.tiny_models import tiny_llama

PROMPT = [5, 9, 2 + 1, 7]


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Rows that each topology appends, call by call, in the order in which topologies are made."""
    calls: dict[int, list[int]] = {}
    append = Topology._append

    def counting(self: Topology, parents: list[int]) -> None:
        if parents:
            calls.setdefault(id(self), []).append(len(parents))
        append(self, parents)

    monkeypatch.setattr(Topology, "_append", counting)
    return calls


class Shrinking(FixedPolicy):
    """The whole tree in the first round, and then one level less each, from the full depth again."""

    def start(self) -> PolicyState:
        return _Shrinking(self)


class _Shrinking:
    def __init__(self, fixed: FixedPolicy) -> None:
        self._fixed, self._rounds = fixed, 0

    def plan(self, limits: DraftLimits) -> DraftLimits:
        depth = len(self._fixed.k_config) - self._rounds % 3
        self._rounds += 1
        return DraftLimits(min(limits.max_depth, depth), limits.max_nodes, limits.chains_only)

    def grow(self, frontier: object) -> object:
        return self._fixed.grow(frontier)  # type: ignore[arg-type]

    def observe(self, outcome: object) -> None:
        pass


def engines() -> Iterator[tuple[str, Engine]]:
    target, draft = HFTarget(tiny_llama()), HFTarget(tiny_llama(seed=1))
    for name, policy in (("fixed", FixedPolicy("3,2,1")), ("shrinking", Shrinking("3,2,1"))):
        exact = DraftModelDrafter(draft, Proposal.COUPLED)
        yield f"{name}, exact", Engine(target, exact, policy, ExactVerifier())
    sampled = DraftModelDrafter(draft, Proposal.SAMPLED)
    yield "roots", Engine(target, sampled, FixedPolicy((2, 1), 2), MultiRootVerifier(2))


@pytest.mark.parametrize(("name", "engine"), engines(), ids=lambda value: str(value)[:16])
def test_a_fixed_shape_builds_its_rows_once(
    name: str, engine: Engine, appended: dict[int, list[int]]
) -> None:
    appended.clear()
    with engine.stream(
        PROMPT, max_new_tokens=30, ignore_eos=True, temperature=1.0, seed=2
    ) as stream:
        for _ in stream:
            pass
        rounds = stream.result().stats.rounds
    assert len(rounds) > 5
    nodes = max(sum(r.widths) for r in rounds)
    target, draft = appended.values()
    assert sum(target) == nodes, name
    assert len(target) <= 2  # a lone row may come first, when the prompt's law is read
    assert sum(draft) <= 2 * nodes, (name, draft)  # behind one missing token, and behind two
