"""Conversations about a long text: the text, what is asked about it, and a reply with room to be given."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from foredraft.train.generation import choose, run_scripts
from foredraft.train.lockstep import lockstep_attention
from foredraft.train.openings import DOCUMENT_TASKS, read_tasks
from foredraft.train.scripts import (
    FIRST_TEMPERATURE,
    FIRST_TOKENS,
    SHORTEST_DOCUMENT,
    DocumentTask,
    Draw,
    Given,
    Mixture,
    Script,
    conversation,
)
from tests import tiny_models
from tests.tiny_folders import byte_tokenizer
from tests.train.test_generation import FRAME, replay

TASKS = (DocumentTask((40, 41), ()), DocumentTask((), (42, 43)), DocumentTask((44,), (45,), True))
MIXTURE = Mixture(
    max_user_tokens=12,
    max_reply_tokens=16,
    max_length=220,
    more_turns=0.5,
    documents=1.0,
    max_document_tokens=90,
    tasks=TASKS,
)


def asked(script: Script) -> list[Given | Draw]:
    """What a script asks for, when every draw gives a word and each turn but a document ends at once."""
    steps, one = [], next(script)
    while True:
        steps.append(one)
        ends = isinstance(one, Draw) and not one.banned
        token = one.token_id if isinstance(one, Given) else 3 if ends else 60
        try:
            one = script.send(token)
        except StopIteration:
            return steps


def test_a_document_stands_between_the_words_of_its_task() -> None:
    seen = set()
    for number in range(40):
        steps = asked(conversation(FRAME, replace(MIXTURE, more_turns=0.0), 3, number))
        kinds = [step.token_id if isinstance(step, Given) else None for step in steps]
        document = [i for i, step in enumerate(steps) if isinstance(step, Draw) and step.banned]
        first, stop = document[0], document[-1] + 1
        assert document == list(range(first, stop))
        assert SHORTEST_DOCUMENT <= len(document) <= 90
        task = next(t for t in TASKS if kinds[3:first] == list(t.before))
        seen.add(task)
        assert kinds[stop : stop + len(task.after)] == list(task.after)
        rest = kinds[stop + len(task.after) :]
        # Where the task asks, the model ends the question itself; then the template, and the reply.
        expected = [None, *FRAME.between, None] if task.asks else [*FRAME.between, None]
        assert rest == expected
    assert seen == set(TASKS)


def test_a_document_begins_hotter_than_it_goes_on() -> None:
    steps = asked(conversation(FRAME, MIXTURE, 3, 0))
    heat = [step.temperature for step in steps if isinstance(step, Draw) and step.banned]
    assert set(heat[:FIRST_TOKENS]) == {FIRST_TEMPERATURE}
    assert set(heat[FIRST_TOKENS:]) == {1.0}


def test_documents_are_as_many_as_asked_for() -> None:
    def has_document(number: int, share: float) -> bool:
        steps = asked(conversation(FRAME, replace(MIXTURE, documents=share), 3, number))
        return any(isinstance(step, Draw) and step.banned for step in steps)

    assert not any(has_document(number, 0.0) for number in range(30))
    assert all(has_document(number, 1.0) for number in range(30))
    assert 20 < sum(has_document(number, 0.3) for number in range(100)) < 40


def test_without_room_or_tasks_users_ask_something_else() -> None:
    for mixture in (replace(MIXTURE, max_length=100), replace(MIXTURE, tasks=())):
        steps = asked(conversation(FRAME, mixture, 3, 0))
        assert not any(isinstance(step, Draw) and step.banned for step in steps)


def test_no_document_holds_a_token_that_ends_a_turn() -> None:
    """A random model would end most of them; replies stay within their limits all the same."""
    model = tiny_models.tiny_llama()
    scripts = [conversation(FRAME, MIXTURE, 1, number) for number in range(12)]
    with lockstep_attention(model):
        samples = run_scripts(model, scripts, 5).samples
    assert samples
    for sample in samples:
        ids = sample.token_ids.tolist()
        assert len(ids) <= MIXTURE.max_length
        first = sample.spans[0][0]
        ends = [i for i in range(first - len(FRAME.between)) if ids[i] in FRAME.user_end_ids]
        assert ends == []


def test_documents_do_not_depend_on_what_shares_their_batch() -> None:
    model = tiny_models.tiny_llama()
    scripts = [conversation(FRAME, MIXTURE, 7, number) for number in range(5)]
    with lockstep_attention(model):
        samples = run_scripts(model, scripts, 3).samples
    expected = [replay(model, conversation(FRAME, MIXTURE, 7, number)) for number in range(5)]
    kept = [sample.token_ids.tolist() for sample in expected if sample is not None]
    assert [sample.token_ids.tolist() for sample in samples] == kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_are_not_chosen(temperature: float) -> None:
    logits = torch.zeros(2, 6)
    logits[:, 4] = 9.0
    draws = [Draw(temperature, 1.0, 0.5, banned=(4,)), Draw(temperature, 1.0, 0.5)]
    tokens = choose(logits, draws)
    assert tokens[0] != 4
    assert tokens[1] == 4


def test_built_in_tasks_go_with_built_in_openings() -> None:
    tokenizer: PreTrainedTokenizerBase = byte_tokenizer()
    tasks = read_tasks("builtin", tokenizer)
    assert [tokenizer.decode(task.before) for task in tasks] == [task[0] for task in DOCUMENT_TASKS]
    assert [tokenizer.decode(task.after) for task in tasks] == [task[1] for task in DOCUMENT_TASKS]
    assert any(task.asks for task in tasks)
    assert read_tasks("none", tokenizer) == ()
