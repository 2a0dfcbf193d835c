"""The generated tasks, and how an answer is read."""

from __future__ import annotations

from collections import Counter

import pytest

from foredraft.bench.quality.tasks import Task, is_right, make_tasks

TASKS = {task.id: task for task in make_tasks(10_000)}


def test_there_are_a_few_hundred_each_once_of_every_kind() -> None:
    assert 300 <= len(TASKS) == len(make_tasks(10_000)) <= 500
    counts = Counter(task.kind for task in make_tasks(70))
    assert set(counts.values()) == {10}
    assert make_tasks(70) == make_tasks(300)[:70]


def test_every_item_can_be_answered_rightly() -> None:
    for task in TASKS.values():
        assert task.answer in task.options, task
        assert is_right(task, f"{task.answer.capitalize()}."), task


@pytest.mark.parametrize(
    ("id", "text", "right"),
    [
        ("sum/3+4", "7", True),
        ("sum/3+4", "3 + 4 = 7", True),
        ("sum/3+4", "The sum of 3 and 4 is 7.", True),
        ("sum/3+4", "3 + 4 equals seven", True),
        ("sum/3+4", "8", False),
        ("sum/3+4", "3 + 4 = 8, and not 7", False),
        ("sum/3+4", "I do not know.", False),
        ("sum/3+4", "", False),
        ("after/monday", "The day after Monday is Tuesday.", True),
        ("after/monday", "Sunday, then Tuesday", False),
        ("before/january", "December", True),
        ("capital/france", "The capital of France is Paris, a city like Rome.", True),
        ("capital/france", "Rome or Paris", False),
        ("opposite/hot", "The opposite of hot is COLD.", True),
        ("bigger/ant,cow", "the cow is bigger than the ant", True),
        ("bigger/ant,cow", "ant", False),
        ("larger/9,5", "nine", True),
        ("next/1by1", "4", True),
    ],
)
def test_the_first_option_of_an_answer_is_its_answer(id: str, text: str, right: bool) -> None:
    assert is_right(TASKS[id], text) is right


def test_an_item_becomes_a_question_of_a_suite() -> None:
    task = Task("a", "sum", "What is 1 + 1?", ("2",), "2")
    assert task.as_question() == {"id": "a", "category": "sum", "prompt": "What is 1 + 1?"}
