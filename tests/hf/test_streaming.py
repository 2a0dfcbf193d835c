"""Streamers get what `generate` gives them: the prompts, a token of every row at a time, the end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TextIteratorStreamer

from foredraft.backends.hf import HFTarget
from foredraft.hf import CustomGenerate
from tests.hf.calls import PROMPTS, Letters, batch, custom, ours, plain
from tests.hf.test_criteria import ByPlace
from tests.tiny_models import tiny_llama


class Recorder:
    """Keeps what it gets, each thing as a list; the end is None."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def put(self, value: Tensor) -> None:
        assert value.device.type == "cpu"
        self.got.append(value.tolist())

    def end(self) -> None:
        self.got.append(None)


@pytest.mark.parametrize("max_batch", [1, 2, 8])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("ends", [2, None, "own"])
def test_a_streamer_of_the_call(count: int, max_batch: int, ends: Any) -> None:
    """Rows that end early are padded, or go on without an end token."""
    asked: dict[str, Any] = {"eos_token_id": ends}
    if ends == "own":
        asked = {"eos_token_id": None, "stopping_criteria": [ByPlace()] if count == 3 else []}
    inputs = batch(PROMPTS[:count])
    theirs, mine = Recorder(), Recorder()
    plain(inputs, streamer=theirs, **asked)
    ours(inputs, sink=mine, max_batch=max_batch, **asked)
    assert mine.got == theirs.got
    assert len(mine.got) > 5


def test_a_row_that_has_no_room_to_go_on_holds_nothing_back() -> None:
    """Without end tokens rows go on until all have stopped; the longest prompt has the least room."""
    model, mine = tiny_llama(max_position_embeddings=20), Recorder()
    asked = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
    inputs = batch([[5, 6, 7, 8, 5, 6, 9, 9, 9, 9], [9]])
    found = model.generate(**inputs, **asked, custom_generate=CustomGenerate("ngram"), sink=mine)
    prompts, *columns, end = mine.got
    assert prompts == inputs["input_ids"].tolist()
    assert columns == found[:, 10:].T.tolist()
    assert end is None


def test_a_streamer_of_the_object() -> None:
    theirs, mine, other = Recorder(), Recorder(), Recorder()
    plain(streamer=theirs)
    made = CustomGenerate(method="ngram", streamer=mine)
    plain(custom_generate=made)
    assert mine.got == theirs.got
    plain(custom_generate=made, sink=other)
    assert other.got == theirs.got
    assert mine.got == theirs.got


def test_tokens_come_while_others_are_decoded() -> None:
    """Several of one round come one by one, and before the next round."""
    passes: list[int] = []
    target = HFTarget(tiny_llama())

    class Watching(Recorder):
        def put(self, value: Tensor) -> None:
            super().put(value)
            passes.append(len(self.got))

    made = CustomGenerate(target, method="speculative")
    seen: list[int] = []

    def watch(token_ids: Tensor, scores: Any, **given: Any) -> bool:
        seen.append(len(passes))
        return False

    plain(
        batch(PROMPTS[:1]),
        custom_generate=made,
        sink=Watching(),
        stopping_criteria=[watch],
        eos_token_id=None,
    )
    # the criterion is asked of a round's tokens before these are shown, and after all of the rounds before
    assert seen[0] == 1
    assert seen[-1] > len(seen) - 6
    assert seen != list(range(1, len(seen) + 1))


def test_text_from_another_thread() -> None:
    streamer = TextIteratorStreamer(Letters(), skip_prompt=True, timeout=60)
    thread = threading.Thread(
        target=ours, args=(batch(PROMPTS[:1]),), kwargs={"sink": streamer, "eos_token_id": None}
    )
    thread.start()
    text = "".join(streamer)
    thread.join()
    expected = plain(batch(PROMPTS[:1]), eos_token_id=None)[0, len(PROMPTS[0]) :]
    assert text == Letters().decode(expected)
    assert custom().last_stats is not None


def test_an_empty_streamer_is_one() -> None:
    """Some have a length, which is 0 at first."""

    class Sized(Recorder):
        def __len__(self) -> int:
            return len(self.got)

    mine = Sized()
    ours(sink=mine)
    assert torch.tensor(mine.got[0]).equal(batch()["input_ids"])
    assert mine.got[-1] is None
