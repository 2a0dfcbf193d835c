"""One question of a benchmark, and the forms in which JSONL files write it.

A file has one question a line, a JSON object with exactly one of

```
{"prompt": "one question"}
{"turns": ["a question", "the one that follows the answer"]}
{"messages": [{"role": "system", "content": ".."}, {"role": "user", "content": ".."}]}
```

and, if it likes, `id` (or `question_id`) and `category`. `turns` is the form of MT-Bench, Spec-Bench and
EAGLE. Keys with other names are the file's own notes, and null counts as absent.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from foredraft.engine.prompts import Message
from foredraft.errors import ConfigError

ROLES = ("system", "user", "assistant")
EXAMPLE = '{"id": "greeting", "category": "chat", "prompt": "Hello, who are you?"}'

Turn = tuple[Message, ...]
"""The messages to append before the model speaks: one of the user's, or all that lead up to it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation with the model's part left out."""

    id: str
    """Unique in its suite: a resumed run knows finished questions by it."""
    category: str
    turns: tuple[Turn, ...]
    """At least one; each ends with a message of the user's."""

    def prompt(self, answers: Sequence[str]) -> list[Message]:
        """The messages up to the turn that follows these answers, the answers in between.

        Args:
            answers: what the model said to the first turns; fewer than there are turns.
        """
        assert len(answers) < len(self.turns)
        messages = list(self.turns[0])
        for answer, turn in zip(
            answers, self.turns[1:], strict=False
        ):  # later turns are not asked yet
            messages += [{"role": "assistant", "content": answer}, *turn]
        return [dict(message) for message in messages]

    def text(self, answers: Sequence[str]) -> str:
        """`prompt` for a model without a chat template: the contents alone, joined by blank lines."""
        return "\n\n".join(message["content"] for message in self.prompt(answers))


def parse_questions(data: bytes, source: str, category: str) -> tuple[Question, ...]:
    """The questions of a JSONL file, in its order.

    Args:
        data: the file's bytes, UTF-8 (a byte order mark and Windows line ends are no harm).
        source: what errors call the file.
        category: of questions that name none. Those without an id get the number of their line.

    Raises:
        ConfigError: a line is not a question, two have one id, or there is no question at all.
    """
    seen: dict[str, int] = {}
    questions = []
    for number, line in _lines(data, source):
        where = f"{source}, line {number}"
        question = _question(_object(line, where), number, category, where)
        first = seen.setdefault(question.id, number)
        if first != number:  # not renamed: most often the same question was pasted in twice
            raise ConfigError(
                f"{where} has the id {shown(question.id)} of line {first}; "
                "give every question an id of its own, or none"
            )
        questions.append(question)
    if not questions:
        raise ConfigError(f"{source} has no questions; write one a line, like {EXAMPLE}")
    return tuple(questions)


def _lines(data: bytes, source: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}, line {line} has the byte {data[error.start]:#04x}, which is not UTF-8; "
            "save the file as UTF-8"
        ) from None
    lines = text.split("\n")  # not splitlines: JSON strings may hold the other line separators
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # without the decoder's own count of lines
        raise ConfigError(
            f"{where} is not JSON ({reason}): {shown(line)}; write one object a line, like {EXAMPLE}"
        ) from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is {shown(entry)}; write an object, like {EXAMPLE}")
    return {key: value for key, value in entry.items() if value is not None}


def _question(entry: Mapping[str, Any], number: int, category: str, where: str) -> Question:
    name = entry.get("id", entry.get("question_id", number))
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    return Question(
        id=_text(name, "the id", where),
        category=_text(entry.get("category", category), "the category", where),
        turns=_turns(entry, where),
    )


def _turns(entry: Mapping[str, Any], where: str) -> tuple[Turn, ...]:
    given = [form for form in FORMS if form in entry]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else f"has only the keys {shown(list(entry))}"
        raise ConfigError(
            f"{where} {found}; give exactly one of {', '.join(FORMS)}, like {EXAMPLE}"
        )
    return FORMS[given[0]](entry[given[0]], where)


def _from_prompt(value: Any, where: str) -> tuple[Turn, ...]:
    return ((_user(_text(value, "the prompt", where)),),)


def _from_turns(value: Any, where: str) -> tuple[Turn, ...]:
    return tuple((_user(_text(turn, "a turn", where)),) for turn in _list(value, "turns", where))


def _from_messages(value: Any, where: str) -> tuple[Turn, ...]:
    """The user's messages at the end are answered one after the other; what stands before is given."""
    messages = [_message(message, where) for message in _list(value, "messages", where)]
    asked = len(list(takewhile(lambda message: message["role"] == "user", reversed(messages))))
    if not asked:
        raise ConfigError(
            f"{where}: the last message has the role {messages[-1]['role']!r}; "
            "end with the user's message that is to be answered"
        )
    opening = len(messages) - asked + 1
    return (tuple(messages[:opening]), *((message,) for message in messages[opening:]))


FORMS: dict[str, Callable[[Any, str], tuple[Turn, ...]]] = {
    "prompt": _from_prompt,
    "messages": _from_messages,
    "turns": _from_turns,
}
"""How each form of a question becomes turns."""


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise ConfigError(
            f"{where}: {shown(value)} is not a message; write it like "
            f'{{"role": "user", "content": "Hello"}}, with one of the roles {", ".join(ROLES)}'
        )
    return {"role": value["role"], "content": _text(value.get("content"), "the content", where)}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _list(value: Any, what: str, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: {what} is {shown(value)}; give a list with at least one entry")
    return value


def _text(value: Any, what: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {what} is {shown(value)}; give a string that says something")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{where}: {what} holds {value[error.start]!r}, which is half a character; write it whole"
        ) from None
    return value


def shown(value: Any) -> str:
    """A user's value for an error message, cut to a length that can be read."""
    return reprlib.repr(value)
