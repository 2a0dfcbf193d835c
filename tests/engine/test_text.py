from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engine.text import MAX_UNFINISHED, REPLACEMENT, find_stray_byte
from tests.engine.toy_text import BLOCK_SIZES, BYTES, SCRIPTS, VOCABULARIES, in_blocks, incremental

WITH_BYTES = [name for name in VOCABULARIES if name != "wordpiece"]
every_vocabulary = pytest.mark.parametrize("name", VOCABULARIES)
every_byte_vocabulary = pytest.mark.parametrize("name", WITH_BYTES)
every_script = pytest.mark.parametrize("script", SCRIPTS)


def stream(name: str, token_ids: Sequence[int], sizes: Sequence[int] = (1,)) -> list[str]:
    """All deltas, the final flush last."""
    text = incremental(VOCABULARIES[name].decode)
    return [*(text.push(block) for block in in_blocks(token_ids, sizes)), text.finish()]


@every_vocabulary
@given(data=st.data(), sizes=BLOCK_SIZES)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_deltas_join_to_the_decoded_text(name: str, data: st.DataObject, sizes: list[int]) -> None:
    token_ids = data.draw(VOCABULARIES[name].sequences(max_size=120))
    assert "".join(stream(name, token_ids, sizes)) == VOCABULARIES[name].decode(token_ids)


@every_vocabulary
@given(data=st.data(), sizes=BLOCK_SIZES)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_later_token_takes_text_back(name: str, data: st.DataObject, sizes: list[int]) -> None:
    vocabulary = VOCABULARIES[name]
    token_ids = data.draw(vocabulary.sequences())
    future = data.draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=5))
    shown = "".join(stream(name, token_ids, sizes)[:-1])
    assert vocabulary.decode(token_ids + future).startswith(shown)


@every_byte_vocabulary
@every_script
@pytest.mark.parametrize("size", range(1, 9))
def test_split_characters_are_shown_whole(name: str, script: str, size: int) -> None:
    token_ids = VOCABULARIES[name].of_bytes(SCRIPTS[script].encode())
    deltas = stream(name, token_ids, [size])
    assert "".join(deltas) == SCRIPTS[script]
    assert REPLACEMENT not in "".join(deltas)


@every_byte_vocabulary
@every_script
def test_cap_inside_a_character(name: str, script: str) -> None:
    data = SCRIPTS[script].encode()
    for length in range(len(data)):
        token_ids = VOCABULARIES[name].of_bytes(data[:length])
        *deltas, rest = stream(name, token_ids, [3])
        assert REPLACEMENT not in "".join(deltas)
        assert "".join(deltas) + rest == VOCABULARIES[name].decode(token_ids)


@pytest.mark.parametrize("name", ["byte-level", "llama", "metaspace"])
def test_a_genuine_replacement_character_is_text(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    token_ids = vocabulary.encode("the" + REPLACEMENT + "cat")
    assert REPLACEMENT in vocabulary.decode(token_ids)
    *deltas, rest = stream(name, token_ids)
    assert "".join(deltas) == vocabulary.decode(token_ids)
    assert rest == ""


@every_byte_vocabulary
@pytest.mark.parametrize("byte", [0xFF, 0x80, 0xE2])
def test_broken_bytes_do_not_stall_the_stream(name: str, byte: int) -> None:
    token_ids = VOCABULARIES[name].of_bytes(b"ok" + bytes([byte]) * 50)
    num_deltas = sum(map(bool, stream(name, token_ids)[:-1]))
    num_shown = len("".join(stream(name, token_ids)[:-1]))
    assert num_shown >= len(VOCABULARIES[name].decode(token_ids)) - MAX_UNFINISHED
    assert num_deltas >= 20


@pytest.mark.parametrize("name", ["bytes", "byte-level", "wordpiece"])
def test_complete_text_is_shown_at_once(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    text = incremental(vocabulary.decode)
    shown = ""
    token_ids = vocabulary.encode("the cat sat on the mat")
    for length, token in enumerate(token_ids, start=1):
        shown += text.push([token])
        assert shown == vocabulary.decode(token_ids[:length])
    assert text.finish() == ""


def test_run_of_fallback_bytes_waits_for_its_end() -> None:
    text = incremental(VOCABULARIES["llama"].decode)
    newline, broken, letter = *VOCABULARIES["llama"].of_bytes(b"\n\xff"), 270
    assert (text.push([newline]), text.pending) == ("", "\n")
    assert (text.push([broken]), text.pending) == ("", "")
    assert text.push([letter]).startswith(REPLACEMENT * 2)


@every_vocabulary
def test_the_cost_of_a_step_does_not_grow(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return vocabulary.decode(token_ids)

    text = incremental(decode)
    token_ids = vocabulary.encode("the cat sat on the mat 안녕 stop\n") * 60
    for block in in_blocks(token_ids, [5, 1, 8]):
        text.push(block)
    assert longest <= 48


def test_a_broken_run_is_not_forgotten_halfway() -> None:
    llama = VOCABULARIES["llama"]
    broken = llama.of_bytes(b"\xff" * 12 + b"A" + "😀".encode())
    token_ids = broken + llama.encode("the")
    assert "".join(stream("llama", token_ids)) == llama.decode(token_ids)
    assert llama.decode(broken) == REPLACEMENT * len(broken)


def test_nothing_pushed_is_no_text() -> None:
    text = incremental(BYTES.decode)
    assert text.push([]) == text.finish() == ""


def test_finish_gives_the_rest_once() -> None:
    text = incremental(BYTES.decode)
    assert text.push(b"a\xe2\x82") == "a"
    assert (text.finish(), text.finish()) == (REPLACEMENT, "")


def test_stray_byte_of_each_family() -> None:
    strays = {name: find_stray_byte(v.decode) for name, v in VOCABULARIES.items()}
    assert strays["wordpiece"] is None
    assert strays["bytes"] == 0x80
    assert strays["llama"] == strays["metaspace"] == 3 + 0x80
    assert VOCABULARIES["byte-level"].decode([strays["byte-level"]]) == REPLACEMENT


def test_vocabulary_that_refuses_unknown_ids_has_no_stray_byte() -> None:
    letters = "abc"
    assert find_stray_byte(lambda ids: "".join(letters[i] for i in ids)) is None
