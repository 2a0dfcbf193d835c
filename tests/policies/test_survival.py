"""How likely drafted tokens are to be accepted: two opinions joined, and a record that corrects them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.policies.survival import (
    NO_COPIES,
    NO_COPY,
    Calibration,
    Child,
    Copies,
    Survivals,
    TrackRecord,
)
from foredraft.tree import NO_PARENT, DraftTree, Proposal

AS_IT_IS = Calibration(bias=0.0, slope=1.0, first=0.0, any_child=0.8)
probabilities = st.floats(1e-3, 0.99)


def copies_of(*token_ids: int, share: float = 0.5) -> Copies:
    """One branch after a root, each copy as likely given the one before."""
    n = len(token_ids) + 1
    tree = DraftTree((0, *token_ids), tuple(range(NO_PARENT, n - 1)), (Proposal.DETERMINISTIC,) * n)
    return Copies.of(tree, [depth * math.log(share) for depth in range(n)])


@given(probabilities)
def test_the_identity_calibration_believes_the_law(q: float) -> None:
    assert AS_IT_IS.child(math.log(q), 3) == pytest.approx(q)


@given(probabilities, probabilities, st.integers(0, 4))
def test_likelier_tokens_survive_likelier(q: float, other: float, rank: int) -> None:
    low, high = sorted((q, other))
    calibration = Calibration()
    assert calibration.child(math.log(low), rank) <= calibration.child(math.log(high), rank)
    assert calibration.child(math.log(q), 0) >= calibration.child(math.log(q), 1)


def test_a_path_survives_if_each_of_its_tokens_does() -> None:
    survivals = Survivals(AS_IT_IS, NO_COPIES, 1.0)
    survivals.add(0, [Child(1, 7, math.log(0.5), 0)])
    survivals.add(0, [Child(2, 8, math.log(0.25), 1)])
    survivals.add(1, [Child(3, 9, math.log(0.5 * 0.4), 0)])
    assert [survivals[node] for node in range(4)] == pytest.approx([1.0, 0.5, 0.25, 0.2])
    assert survivals.promised == pytest.approx({1: 0.5, 2: 0.25})


def test_a_copy_and_a_law_that_agree_are_surer_than_each_alone() -> None:
    survivals = Survivals(AS_IT_IS, copies_of(7, 9, share=0.6), 1.0)
    survivals.add(0, [Child(1, 7, math.log(0.5), 0)])
    survivals.add(0, [Child(2, 8, math.log(0.3), 1)])
    survivals.add(1, [Child(3, 9, math.log(0.5 * 0.2), 0)])
    assert survivals[1] == pytest.approx(0.6 + 0.4 * 0.5)
    assert survivals[2] == pytest.approx(0.4 * 0.3)
    assert survivals[3] == pytest.approx(survivals[1] * (0.6 + 0.4 * 0.2))
    assert [survivals.copy_at(node) for node in range(4)] == [0, 1, NO_COPY, 2]


@given(st.lists(probabilities, min_size=1, max_size=5), probabilities, st.floats(0.05, 4))
def test_the_children_of_a_node_are_likelihoods(
    laws: list[float], share: float, factor: float
) -> None:
    total = max(sum(laws), 1.0)
    survivals = Survivals(AS_IT_IS, copies_of(100, share=share), factor)
    for rank, q in enumerate(laws):
        survivals.add(0, [Child(rank + 1, 100 + rank, math.log(q / total), rank)])
        assert 0 <= survivals[rank + 1] <= 1 + 1e-9


def test_a_copy_that_the_model_does_not_name_is_doubted_the_more_the_surer_the_model_is() -> None:
    def share_beside(q: float) -> float:
        survivals = Survivals(Calibration(), copies_of(7, 9, share=0.6), 1.0)
        survivals.add(0, [Child(1, 8, math.log(q), 0)])
        assert survivals.share(2) == pytest.approx(
            0.6
        )  # of what follows, the model has said nothing
        return survivals.share(1)

    assert share_beside(0.9) < share_beside(0.3) < 0.6


def test_what_a_doubted_copy_loses_the_model_has() -> None:
    agreed, doubted = (Survivals(AS_IT_IS, copies_of(7, share=0.6), 1.0) for _ in range(2))
    agreed.add(0, [Child(1, 7, math.log(0.5), 0), Child(2, 8, math.log(0.3), 1)])
    doubted.add(0, [Child(1, 9, math.log(0.5), 0), Child(2, 8, math.log(0.3), 1)])
    assert doubted[2] > agreed[2]


def test_a_pass_gives_what_copies_lack() -> None:
    free, covered = (Survivals(AS_IT_IS, c, 1.0) for c in (NO_COPIES, copies_of(7, share=0.9)))
    assert free.next_level(0) == pytest.approx(0.8)
    assert covered.next_level(0) == pytest.approx(0.1 * 0.8)


def test_a_record_raises_and_lowers_promises() -> None:
    better, worse = (TrackRecord(AS_IT_IS) for _ in range(2))
    assert better.factor == 1.0
    for _ in range(30):
        better.note(0.5, accepted=True)
        worse.note(0.5, accepted=False)
    assert better.factor == pytest.approx(1.05 / 0.55, rel=0.01)
    assert worse.factor == pytest.approx(0.05 / 0.55, rel=0.05)


def test_a_drafter_that_was_given_up_is_slowly_thought_better_of() -> None:
    record = TrackRecord(AS_IT_IS)
    for _ in range(30):
        record.note(0.9, accepted=False)
    factors = [record.factor]
    for _ in range(2000):
        record.note_nothing()
        factors.append(record.factor)
    assert factors == sorted(factors)
    assert factors[20] < 0.2 < 0.9 < factors[-1]
