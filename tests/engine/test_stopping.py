from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engine.stopping import StopRules, StopState, Taken
from foredraft.engine.text import Decode
from tests.engine.toy_text import (
    BLOCK_SIZES,
    BYTES,
    SCRIPTS,
    VOCABULARIES,
    Vocabulary,
    in_blocks,
    incremental,
)

EOS, OTHER_EOS, THIRD_EOS = 1000, 1001, 1002
ENDS = frozenset({EOS, OTHER_EOS, THIRD_EOS})
PIECES = ["a", "b", "c", "ab", "bc", "abc", " ", "User", "\n", "User:", ": "]
every_size = pytest.mark.parametrize("size", range(1, 9))


def joined_pieces(token_ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in token_ids)


PIECEWISE = Vocabulary(len(PIECES), joined_pieces, lambda text: [PIECES.index(c) for c in text])
ALL = {**VOCABULARIES, "pieces": PIECEWISE}


def rules(**changes: object) -> StopRules:
    return StopRules(**{"eos_token_ids": ENDS, "max_new_tokens": 1000, **changes})


def run(
    rules: StopRules, decode: Decode, token_ids: Sequence[int], sizes: Sequence[int] = (1,)
) -> tuple[list[int], list[Taken]]:
    """Feed blocks until the answer ends: its ids, and what was taken each round."""
    state = StopState(rules, incremental(decode))
    kept: list[int] = []
    rounds: list[Taken] = []
    for block in in_blocks(token_ids, sizes):
        rounds.append(state.take(block))
        kept += block[: rounds[-1].num_kept]
        if rounds[-1].finish_reason:
            break
    return kept, rounds


def reference(rules: StopRules, decode: Decode, token_ids: Sequence[int]) -> tuple[object, ...]:
    """(ids, text, reason, stopped by), from whole decodes after each token."""
    for length, token in enumerate(token_ids, start=1):
        kept = list(token_ids[:length])
        if token in rules.eos_token_ids:
            return kept, decode(kept[:-1]), "stop", token
        text = decode(kept)
        found = [(text.find(stop), -len(stop), stop) for stop in rules.stop if stop in text]
        if found:
            start, _, stop = min(found)
            return kept, text[:start], "stop", stop
        if length == rules.max_new_tokens:
            return kept, text, "length", None
    return list(token_ids), None, None, None


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), sizes=BLOCK_SIZES)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_agrees_with_whole_decodes(name: str, data: st.DataObject, sizes: list[int]) -> None:
    vocabulary = ALL[name]
    token_ids = data.draw(_sequences(vocabulary))
    stops = data.draw(st.lists(_stops_for(vocabulary, token_ids), max_size=3))
    cap = data.draw(st.integers(1, 40))
    limits = rules(stop=tuple(stops), max_new_tokens=cap)
    kept, rounds = run(limits, vocabulary.decode, token_ids, sizes)
    ids, text, reason, stopped_by = reference(limits, vocabulary.decode, token_ids)
    assert kept == ids
    assert (rounds[-1].finish_reason if rounds else None) == reason
    assert (rounds[-1].stopped_by if rounds else None) == stopped_by
    if reason is not None:
        assert "".join(taken.text for taken in rounds) == text
    assert all(taken.num_kept >= 1 for taken in rounds)


def _sequences(vocabulary: Vocabulary) -> st.SearchStrategy[list[int]]:
    if vocabulary is PIECEWISE:
        text = st.lists(st.integers(0, vocabulary.size - 1), max_size=30)
    else:
        text = vocabulary.sequences()
    return st.tuples(text, st.lists(st.sampled_from([*ENDS, 3]), max_size=3), text).map(
        lambda parts: [token for part in parts for token in part]
    )


def _stops_for(vocabulary: Vocabulary, token_ids: Sequence[int]) -> st.SearchStrategy[str]:
    """Strings that occur in the text, pieces of the same letters, and strings that never occur."""
    text = vocabulary.decode([token for token in token_ids if token not in ENDS])
    words = text.replace("\ufffd", "") or "abc"
    place = st.tuples(st.integers(0, len(words) - 1), st.integers(1, 6))
    inside = place.map(lambda p: words[p[0] : p[0] + p[1]])
    return st.one_of(inside, st.text("abc\n ", min_size=1, max_size=4), st.just("long and absent"))


@given(
    token_ids=st.lists(st.sampled_from(b"aab"), max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=BLOCK_SIZES,
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_holds_back_what_may_start_a_stop_and_no_more(
    token_ids: list[int], stops: list[str], sizes: list[int]
) -> None:
    kept, rounds = run(rules(stop=tuple(stops)), BYTES.decode, token_ids, sizes)
    if rounds and rounds[-1].finish_reason:
        return
    text = BYTES.decode(kept)
    starts = [s for s in range(len(text)) if any(stop.startswith(text[s:]) for stop in stops)]
    assert "".join(taken.text for taken in rounds) == text[: min(starts, default=len(text))]


@pytest.mark.parametrize("position", range(8))
@pytest.mark.parametrize("stop", [(), ("zzz",)])
def test_end_token_at_every_position_of_a_block(position: int, stop: tuple[str, ...]) -> None:
    block = list(b"abcdefgh")
    block[position] = EOS
    taken = StopState(rules(stop=stop), incremental(BYTES.decode)).take(block)
    assert taken == Taken(position + 1, "abcdefgh"[:position], "stop", EOS)


def test_earliest_of_several_end_tokens_wins() -> None:
    taken = StopState(rules(), incremental(BYTES.decode)).take([97, THIRD_EOS, EOS, OTHER_EOS])
    assert taken == Taken(2, "a", "stop", THIRD_EOS)


def test_no_end_tokens_runs_to_the_cap() -> None:
    state = StopState(rules(eos_token_ids=frozenset(), max_new_tokens=4), incremental(BYTES.decode))
    assert state.take(b"abc") == Taken(3, "abc")
    assert state.take(b"abc") == Taken(1, "a", "length")


@pytest.mark.parametrize(
    ("cap", "by_token", "by_string"),
    [
        (5, Taken(3, "ab", "stop", EOS), Taken(3, "ab", "stop", "X")),
        (3, Taken(3, "ab", "stop", EOS), Taken(3, "ab", "stop", "X")),
        (2, Taken(2, "ab", "length"), Taken(2, "ab", "length")),
    ],
)
def test_stop_and_cap_in_one_block(cap: int, by_token: Taken, by_string: Taken) -> None:
    limits = rules(max_new_tokens=cap, stop=("X",))
    assert (
        StopState(limits, incremental(BYTES.decode)).take([97, 98, EOS, 99, 100, 101]) == by_token
    )
    assert StopState(limits, incremental(BYTES.decode)).take(b"abXcde") == by_string


def test_end_token_goes_before_the_cap() -> None:
    taken = StopState(rules(max_new_tokens=1), incremental(BYTES.decode)).take([EOS])
    assert taken == Taken(1, "", "stop", EOS)


@every_size
def test_stop_at_the_start_of_a_block_or_across_blocks(size: int) -> None:
    for before in range(10):
        text = "x" * before + "\nUser:" + "y" * 9
        kept, rounds = run(rules(stop=("\nUser:",)), BYTES.decode, text.encode(), [size])
        assert bytes(kept).decode() == "x" * before + "\nUser:"
        assert "".join(taken.text for taken in rounds) == "x" * before
        assert rounds[-1].stopped_by == "\nUser:"


@every_size
@pytest.mark.parametrize("end", [[EOS], []])
def test_proper_prefix_at_the_end_is_flushed(size: int, end: list[int]) -> None:
    token_ids = [*b"hello\nUser", *end]
    limits = rules(stop=("\nUser:",), max_new_tokens=len(token_ids))
    _, rounds = run(limits, BYTES.decode, token_ids, [size])
    assert "".join(taken.text for taken in rounds) == "hello\nUser"
    assert rounds[-1].finish_reason == ("stop" if end else "length")


def test_stop_that_restarts_inside_itself() -> None:
    kept, rounds = run(rules(stop=("aab",)), BYTES.decode, b"aaaab")
    assert (len(kept), [taken.text for taken in rounds]) == (5, ["", "", "a", "a", ""])


@pytest.mark.parametrize(
    ("tokens", "stops", "text", "stopped_by"),
    [
        (["a", "b", "c"], ("abc", "b"), "a", "b"),  # the inner one completes first
        (["abc"], ("b", "abc"), "", "abc"),  # on one token: the one that starts earliest
        (["abc"], ("ab", "a", "abc"), "", "abc"),  # ... and the longest of those
        (["a", "bc"], ("bc", "abc"), "", "abc"),
        (["a", "b", "c"], ("bc", "ab"), "", "ab"),  # overlapping
    ],
)
def test_which_of_several_stops(
    tokens: list[str], stops: tuple[str, ...], text: str, stopped_by: str
) -> None:
    state = StopState(rules(stop=stops), incremental(joined_pieces))
    taken = state.take([PIECES.index(token) for token in tokens])
    assert (taken.text, taken.stopped_by) == (text, stopped_by)


def test_token_that_straddles_the_stop_is_kept_and_its_text_is_cut() -> None:
    tokens = [PIECES.index(piece) for piece in ["a", "bc", "b"]]
    taken = StopState(rules(stop=("b",)), incremental(joined_pieces)).take(tokens)
    assert taken == Taken(2, "a", "stop", "b")


def test_stop_that_begins_in_the_prompt_does_not_count() -> None:
    state = StopState(rules(stop=("\nUser:",)), incremental(BYTES.decode))
    assert state.take(b"ser: hi") == Taken(7, "ser: hi")


@every_size
def test_stop_among_leading_spaces_of_sentencepiece(size: int) -> None:
    llama = VOCABULARIES["llama"]
    token_ids = llama.encode("the cat on ionized the cat")
    limits = rules(stop=("long phrase not occurring", "ionized"))
    kept, rounds = run(limits, llama.decode, token_ids, [size])
    assert llama.decode(kept) == "the cat on ionized"
    assert "".join(taken.text for taken in rounds) == "the cat on "


def test_stop_in_a_run_of_fallback_bytes_ends_at_its_own_token() -> None:
    llama = VOCABULARIES["llama"]
    token_ids = [*llama.encode("the"), *llama.of_bytes(b"\n"), *llama.encode("cat")]
    kept, rounds = run(rules(stop=("\n",)), llama.decode, token_ids, [8])
    assert llama.decode(kept) == "the\n"
    assert rounds == [Taken(len(kept), "the", "stop", "\n")]


@every_size
@pytest.mark.parametrize("script", SCRIPTS)
def test_stop_of_several_bytes(size: int, script: str) -> None:
    stop = SCRIPTS[script][3:6]
    token_ids = list(SCRIPTS[script].encode())
    kept, rounds = run(rules(stop=(stop,)), BYTES.decode, token_ids, [size])
    assert BYTES.decode(kept).endswith(stop)
    assert "".join(taken.text for taken in rounds) + stop == BYTES.decode(kept)


def test_must_not_be_called_after_the_end() -> None:
    state = StopState(rules(), incremental(BYTES.decode))
    state.take([EOS])
    with pytest.raises(AssertionError, match="ended"):
        state.take([97])


def test_a_round_without_tokens_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="at least one"):
        StopState(rules(), incremental(BYTES.decode)).take([])


def test_rules_need_room_for_an_answer() -> None:
    with pytest.raises(AssertionError, match="no room"):
        rules(max_new_tokens=0)


def test_without_stop_strings_text_is_decoded_once_a_round() -> None:
    lengths: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        lengths.append(len(token_ids))
        return joined_pieces(token_ids)

    state = StopState(rules(), incremental(decode))
    lengths.clear()
    state.take([0, 1, 2, 3, 4])
    assert lengths == [5]


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.lists(st.integers(1, 5), min_size=1),
    st.integers(0, 22),
    st.integers(1, 25),
    st.booleans(),
)
def test_a_criterion_is_asked_of_every_token_up_to_the_end(
    token_ids: list[int], sizes: list[int], end: int, cap: int, has_end_token: bool
) -> None:
    """Whatever ends the answer, and however its tokens come."""
    asked: list[int] = []

    def criterion(token_id: int) -> bool:
        asked.append(token_id)
        return len(asked) == end

    token_ids = [*token_ids, EOS] if has_end_token else token_ids
    state = StopState(rules(max_new_tokens=cap), incremental(joined_pieces), criterion)
    rounds = []
    for block in in_blocks(token_ids, sizes):
        rounds.append(state.take(block))
        if rounds[-1].finish_reason:
            break
    last = rounds[-1]
    length = min(len(token_ids), cap, end or len(token_ids))
    assert asked == token_ids[:length]
    assert sum(taken.num_kept for taken in rounds) == length
    if token_ids[length - 1] == EOS:
        assert (last.finish_reason, last.stopped_by) == ("stop", EOS)
    elif length == end:
        assert (last.finish_reason, last.stopped_by) == ("stop", None)
    else:
        assert last.finish_reason == ("length" if length == cap else None)
