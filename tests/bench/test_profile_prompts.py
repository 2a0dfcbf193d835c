"""Prompts of exactly so many tokens, which end as the model's turn does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.backends.hf import HFTarget
from foredraft.bench.profile.prompts import common_end, prompt_of
from foredraft.engine.engine import Engine
from tests.tiny_folders import byte_tokenizer
from tests.tiny_models import tiny_llama


@pytest.mark.parametrize("count", [1, 12, 100, 60_000])
@pytest.mark.parametrize("template", [True, False])
def test_a_prompt_has_so_many_tokens(count: int, template: bool) -> None:
    tokenizer = byte_tokenizer() if template else byte_tokenizer(chat_template=None)
    target = HFTarget(tiny_llama(vocab_size=len(tokenizer)), tokenizer)
    found = prompt_of(Engine(target, tokenizer=tokenizer), count)
    assert len(found) == count
    end = tokenizer.encode("\n[assistant]")
    assert (found[-len(end) :] == end) is (template and count > len(end))


def test_without_a_tokenizer_tokens_are_random() -> None:
    found = prompt_of(Engine(HFTarget(tiny_llama())), 40)
    assert len(found) == 40
    assert len(set(found)) > 10


@given(*[st.lists(st.integers(0, 2), max_size=6)] * 3)
def test_what_two_have_in_common_at_their_ends(a: list[int], b: list[int], end: list[int]) -> None:
    found = common_end(a + end, b + end)
    assert found >= len(end)
    assert (a + end)[len(a + end) - found :] == (b + end)[len(b + end) - found :]
