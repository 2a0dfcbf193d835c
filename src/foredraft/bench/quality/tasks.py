"""Small questions with answers that a program can check, made here: a model of 135 M solves about half.

Every item is written by code from a fixed seed, so that none is from a public set.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Any

SEED = 20240916
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December")  # fmt: skip
OPPOSITES = MappingProxyType(
    {
        "hot": "cold", "big": "small", "up": "down", "left": "right", "open": "closed",
        "fast": "slow", "happy": "sad", "light": "dark", "old": "young", "rich": "poor",
        "early": "late", "full": "empty", "hard": "soft", "high": "low", "long": "short",
        "loud": "quiet", "strong": "weak", "wet": "dry", "wide": "narrow", "true": "false",
        "day": "night", "first": "last", "inside": "outside", "push": "pull", "win": "lose",
        "buy": "sell", "begin": "end", "love": "hate", "clean": "dirty", "heavy": "light",
    }
)  # fmt: skip
CAPITALS = MappingProxyType(
    {
        "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
        "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow", "Egypt": "Cairo",
        "Greece": "Athens", "Portugal": "Lisbon", "Austria": "Vienna", "Poland": "Warsaw",
        "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
        "Ireland": "Dublin", "Hungary": "Budapest", "Turkey": "Ankara", "Canada": "Ottawa",
        "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Kenya": "Nairobi",
        "Thailand": "Bangkok", "India": "Delhi", "Iraq": "Baghdad", "Iran": "Tehran",
        "Belgium": "Brussels", "Australia": "Canberra",
    }
)  # fmt: skip
SIZES = ("ant", "mouse", "cat", "dog", "goat", "cow", "elephant")
"""Smallest first."""
_EQUATION = re.compile(r"\b\w+ *(?:\+|plus|and|-|minus) *\w+(?= *(?:=|is|equals|makes))")


@dataclass(frozen=True, slots=True)
class Task:
    """One item.

    Attributes:
        id: unique among all items.
        kind: what is asked for.
        question: the user's message.
        options: what an answer may be, in lower case; the first of them that an answer mentions is its
            answer. Numbers count as digits and as words.
        answer: the right one of these.
    """

    id: str
    kind: str
    question: str
    options: tuple[str, ...]
    answer: str

    def as_question(self) -> dict[str, Any]:
        """The line of a suite's JSONL file."""
        return {"id": self.id, "category": self.kind, "prompt": self.question}


def make_tasks(count: int) -> tuple[Task, ...]:
    """The first `count` items (all there are, if fewer); the kinds in turn, each shuffled."""
    kinds = (
        _sums(),
        _larger(),
        _next_numbers(),
        _next_names(),
        _opposites(),
        _capitals(),
        _bigger(),
    )
    shuffled = [random.Random(SEED + i).sample(items, len(items)) for i, items in enumerate(kinds)]
    dealt = chain.from_iterable(zip_longest(*shuffled))
    return tuple([task for task in dealt if task is not None][:count])


def is_right(task: Task, text: str) -> bool:
    """Whether the first option that an answer mentions is the right one.

    A sum that is said again before its result (3 + 4 = 7) is passed over.
    """
    said = _EQUATION.sub(" ", text.lower())
    for word in re.findall(r"[a-z]+|\d+", said):
        if (option := _as_option(word)) in task.options:
            return option == task.answer
    return False


def _as_option(word: str) -> str:
    return str(NUMBERS.index(word)) if word in NUMBERS else word


def _numbers(limit: int) -> tuple[str, ...]:
    return tuple(map(str, range(limit)))


def _sums() -> list[Task]:
    return [
        Task(f"sum/{a}+{b}", "sum", f"What is {a} + {b}? Answer with the number only.",
             _numbers(100), str(a + b))
        for a in range(1, 10)
        for b in range(1, 10)
    ]  # fmt: skip


def _larger() -> list[Task]:
    return [
        Task(f"larger/{a},{b}", "larger",
             f"Which number is larger, {a} or {b}? Answer with the number only.",
             (str(a), str(b)), str(max(a, b)))
        for a in range(2, 60, 7)
        for b in range(5, 60, 9)
        if a != b
    ]  # fmt: skip


def _next_numbers() -> list[Task]:
    return [
        Task(f"next/{a}by{step}", "next number",
             f"What number comes next: {a}, {a + step}, {a + 2 * step}? Answer with the number only.",
             _numbers(200), str(a + 3 * step))
        for step in (1, 2, 3, 5, 10)
        for a in range(1, 10)
    ]  # fmt: skip


def _next_names() -> list[Task]:
    return [
        Task(f"{side}/{name.lower()}", "calendar",
             f"Which {unit} comes right {side} {name}? Answer with one word.",
             tuple(n.lower() for n in names if n != name), names[(i + step) % len(names)].lower())
        for unit, names in (("day", DAYS), ("month", MONTHS))
        for side, step in (("after", 1), ("before", -1))
        for i, name in enumerate(names)
    ]  # fmt: skip


def _opposites() -> list[Task]:
    return list(
        _looked_up("opposite", "What is the opposite of {!r}? Answer with one word.", OPPOSITES)
    )


def _capitals() -> list[Task]:
    return list(_looked_up("capital", "What is the capital of {}? Answer with one word.", CAPITALS))


def _bigger() -> list[Task]:
    return [
        Task(f"bigger/{a},{b}", "bigger",
             f"Which animal is bigger, the {a} or the {b}? Answer with one word.",
             (a, b), max(a, b, key=SIZES.index))
        for a in SIZES
        for b in SIZES
        if a != b
    ]  # fmt: skip


def _looked_up(kind: str, question: str, answers: Mapping[str, str]) -> Iterator[Task]:
    for asked, answer in answers.items():
        options = sorted({*answers.values()} - {asked})
        known: Sequence[str] = [option.lower() for option in options]
        yield Task(
            f"{kind}/{asked.lower()}", kind, question.format(asked), tuple(known), answer.lower()
        )
