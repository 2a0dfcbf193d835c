"""Prompt lookup: which copies are proposed, in which order, and where they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.ngram import MATCHES_KEPT, NgramDrafter
from foredraft.errors import ConfigError
from foredraft.protocols import DraftLimits
from foredraft.tree import DraftTree, Proposal
from tests.drafters.contexts import draft, paths

VOCAB_SIZE = 40
END = 39
CHAIN = "1,1,1,1"
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def lookup(
    text: Sequence[int], widths: str = CHAIN, least: int = 1, most: int = 3, **changes: Any
) -> DraftTree:
    """The draft of a fresh request with this text."""
    state = NgramDrafter(least, most).start(100)
    return draft(state, text, widths, vocab_size=VOCAB_SIZE, **changes)


def copied(text: Sequence[int], widths: str = CHAIN, **changes: Any) -> list[tuple[int, ...]]:
    return paths(lookup(text, widths, **changes))


# --- which match ------------------------------------------------------------------------------------


def test_the_longest_match_comes_first() -> None:
    """1 2 was followed by 5; a later 2 alone by 6."""
    assert copied([1, 2, 5, 3, 2, 6, 1, 2], "2") == [(5,), (6,)]


def test_of_equal_matches_the_latest_comes_first() -> None:
    assert copied([1, 2, 5, 1, 2, 6, 1, 2], "2", least=2) == [(6,), (5,)]


def test_a_match_shorter_than_the_least_is_none() -> None:
    assert copied([1, 2, 5, 3, 2], "2", least=2) == []


def test_no_more_than_the_longest_length_is_compared() -> None:
    """By two tokens the latest copy wins; by three the one before it would."""
    text = [9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2]
    assert copied(text, "1", most=2) == [(6,)]
    assert copied(text, "1", most=3) == [(5,)]


def expected_first(text: Sequence[int], least: int, most: int) -> int | None:
    """By brute force: what followed the latest occurrence of the longest repeated ending."""
    for n in range(most, least - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if n <= len(text) and list(text[end - n : end]) == list(text[len(text) - n :]):
                return text[end]
    return None


@given(texts, st.integers(1, 3), st.integers(0, 2))
def test_the_first_copy_agrees_with_brute_force(text: list[int], least: int, more: int) -> None:
    tokens = copied(text, "1", least=least, most=least + more)
    first = expected_first(text, least, least + more)
    assert tokens == ([] if first is None else [(first,)])


@given(texts, st.lists(st.integers(1, 5), max_size=12))
def test_an_index_that_grew_equals_one_made_at_once(text: list[int], steps: list[int]) -> None:
    state = NgramDrafter(1, 3).start(100)
    length = 1
    for step in steps:
        draft(state, text[:length], "2,2", vocab_size=VOCAB_SIZE)
        length = min(length + step, len(text))
    assert draft(state, text, "2,2", vocab_size=VOCAB_SIZE) == lookup(text, "2,2")


# --- how far ----------------------------------------------------------------------------------------


def test_a_copy_goes_on_to_the_depth_asked_for() -> None:
    assert copied([1, 2, 3, 4, 5, 6, 7, 1], "1,1,1") == [(2, 3, 4)]


def test_a_copy_past_the_texts_end_goes_on_with_itself() -> None:
    """A loop is drafted to full depth, though the text shows it only twice."""
    assert copied([1, 2, 3, 1, 2, 3], "1,1,1,1,1,1,1", least=2) == [(1, 2, 3, 1, 2, 3, 1)]


def test_one_token_said_twice_is_a_loop() -> None:
    assert copied([7, 7], "1,1,1,1") == [(7, 7, 7, 7)]


@given(texts, st.integers(0, 6), st.integers(0, 6))
def test_limits_hold(text: list[int], max_depth: int, max_nodes: int) -> None:
    tree = lookup(text, "3,2,1,1", limits=DraftLimits(max_depth, max_nodes))
    assert tree.depth <= max_depth
    assert tree.num_drafted <= max_nodes


# --- several candidates -----------------------------------------------------------------------------


def test_candidates_become_a_tree_by_the_k_config() -> None:
    text = [1, 2, 5, 7, 1, 2, 6, 8, 1, 2]
    assert copied(text, "2,1", least=2) == [(6, 8), (5, 7)]
    assert copied(text, "1,1", least=2) == [(6, 8)]


def test_copies_that_agree_share_their_beginning() -> None:
    text = [1, 2, 5, 7, 1, 2, 5, 8, 1, 2]
    assert copied(text, "2,2", least=2) == [(5, 8), (5, 7)]


@given(texts)
def test_siblings_differ(text: list[int]) -> None:
    tree = lookup(text, "4,3,2")
    for siblings in tree.children:
        assert len({tree.token_ids[child] for child in siblings}) == len(siblings)


@given(texts)
def test_copies_are_deterministic_proposals_without_a_law(text: list[int]) -> None:
    tree = lookup(text, "3,2")
    assert set(tree.proposals) == {Proposal.DETERMINISTIC}
    assert not tree.laws


def test_the_latest_matches_are_remembered() -> None:
    """Thirty different continuations of 0; the last ones are offered."""
    text = [token for n in range(1, 31) for token in (0, n)] + [0]
    latest = [(n,) for n in range(30, 30 - MATCHES_KEPT, -1)]
    assert copied(text, "20", most=1) == latest


# --- where copies are cut ---------------------------------------------------------------------------


def test_nothing_is_drafted_behind_an_end_token() -> None:
    """Case 20."""
    assert copied([1, 2, END, 3, 1, 2], eos_token_ids=[END]) == [(END,)]


def test_other_branches_go_on_beside_an_end_token() -> None:
    text = [1, 2, 5, 6, 1, 2, END, 3, 1, 2]
    assert copied(text, "2,1", least=2, eos_token_ids=[END]) == [(END,), (5, 6)]


@pytest.mark.parametrize(
    ("forbidding", "expected"),
    [
        ({"suppress_tokens": [3]}, [(2,)]),
        ({"logit_bias": {3: float("-inf")}}, [(2,)]),
        ({"bad_words": [[3]]}, [(2,)]),
        ({"bad_words": [[2, 3]]}, [(2,)]),
        ({"bad_words": [[1, 2]]}, []),
        ({"bad_words": [[4, 3]]}, [(2, 3, 4, 1)]),
    ],
    ids=str,
)
def test_a_copy_ends_before_a_forbidden_token(
    forbidding: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    """Cases 31 and 36: 1 2 3 4 again, with a bad word inside the draft or begun by the text."""
    assert copied([1, 2, 3, 4, 1], **forbidding) == expected


def test_another_copy_takes_the_place_of_a_forbidden_one() -> None:
    text = [1, 2, 5, 1, 2, 6, 1, 2]
    assert copied(text, "1", least=2, suppress_tokens=[6]) == [(5,)]


# --- little to look at ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [[5], [5, 6], [5, 6, 7]], ids=len)
def test_a_text_without_repetition_gives_no_draft(text: list[int]) -> None:
    assert lookup(text).num_drafted == 0


def test_the_root_is_the_texts_last_token() -> None:
    assert lookup([5]).token_ids == (5,)


# --- requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edited",
    [[1, 2], [3, 4, 1, 2], [9, 9, 9, 9, 1, 2], [1]],
    ids=["cut", "shorter", "changed", "one-token"],
)
def test_a_request_looks_at_its_own_text_alone(edited: list[int]) -> None:
    """Case 58: the history was cut or edited since the drafter's last request."""
    drafter = NgramDrafter(1, 3)
    draft(drafter.start(100), [1, 2, 5, 1, 2, 6, 1, 2], CHAIN, vocab_size=VOCAB_SIZE)
    after = draft(drafter.start(100), edited, CHAIN, vocab_size=VOCAB_SIZE)
    assert after == lookup(edited)


def test_lengths_that_are_no_range_are_refused() -> None:
    for least, most in [(0, 3), (4, 3)]:
        with pytest.raises(ConfigError, match=f"{least}..{most} are not a range"):
            NgramDrafter(least, most)
