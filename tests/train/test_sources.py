"""Users' own conversations: every form, and what is wrong said with the file and the line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from foredraft.errors import ConfigError, DataError
from foredraft.train.sources import Conversation, Turn, open_source, parse_row

HELLO = (Turn("Hello", "Hi."), Turn("And?", "Nothing."))
ROWS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "Nothing."},
        ]
    },
    {
        "conversations": [
            {"from": "human", "value": "Hello"},
            {"from": "gpt", "value": "Hi."},
            {"from": "human", "value": "And?"},
            {"from": "gpt", "value": "Nothing."},
        ]
    },
    {"turns": ["Hello", "And?"], "category": "talk"},
    {"prompt": "Hello", "response": "Hi."},
    {"prompt": "Hello"},
]
TURNS = [HELLO, HELLO, (Turn("Hello"), Turn("And?")), HELLO[:1], (Turn("Hello"),)]


def write(file: Path, *rows: Any) -> Path:
    """A JSONL file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_every_form_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", *ROWS)
    found = list(open_source(str(file)))
    assert [conversation.turns for conversation in found] == TURNS
    assert [c.place for c in found] == [f"{file}, line {i}" for i in range(1, 6)]


def test_a_source_can_be_read_again_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", *ROWS)
    file.write_text("\ufeff\n" + file.read_text().replace("\n", "\r\n\n"), encoding="utf-8")
    source = open_source(str(file))
    assert [c.turns for c in source] == [c.turns for c in source] == TURNS


@pytest.mark.parametrize(
    "row",
    [
        {"system": "Be brief.", "prompt": "Hello"},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hello"},
            ]
        },
        {
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": "Hello"},
            ]
        },
    ],
)
def test_a_system_prompt_is_taken_along(row: dict[str, Any]) -> None:
    conversation = parse_row(row, "here")
    assert conversation == Conversation((Turn("Hello"),), "Be brief.", "here")
    assert conversation.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_messages_end_at_the_first_turn_without_a_reply() -> None:
    turns = (HELLO[0], Turn("Well?"), HELLO[1])
    said = [message["content"] for message in Conversation(turns, None, "here").messages()]
    assert said == ["Hello", "Hi.", "Well?"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "no JSON object"),
        ({"text": "Hello"}, "has none of"),
        ({"prompt": 7}, "the user says is 7"),
        ({"prompt": " "}, "the user says is ' '"),
        ({"prompt": "Hello", "response": ""}, "the assistant says is ''"),
        ({"prompt": "Hello", "system": 3}, "the system says is 3"),
        ({"prompt": "half \ud83d"}, "half a character"),
        ({"turns": "Hello"}, '"turns" is no list'),
        ({"turns": []}, "says nothing"),
        ({"messages": {}}, '"messages" is no list'),
        ({"messages": [{"role": "user"}]}, 'lacks "role" or "content"'),
        ({"messages": [{"role": "tool", "content": "x"}]}, "'tool' is none of the roles"),
        ({"messages": [{"role": ["a"], "content": "x"}]}, "is none of the roles"),
        ({"messages": [{"role": "assistant", "content": "Hi."}]}, "follows no question"),
        ({"messages": [*ROWS[0]["messages"], ROWS[0]["messages"][1]]}, "follows no question"),
        ({"messages": [*ROWS[0]["messages"], {"role": "system", "content": "S"}]}, "not first"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not text"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(tmp_path: Path, row: Any, reason: str) -> None:
    file = write(tmp_path / "chats.jsonl", ROWS[0], row)
    rows = iter(open_source(str(file)))
    next(rows)
    with pytest.raises(DataError, match=f"chats.jsonl, line 2.*{reason}"):
        next(rows)


@pytest.mark.parametrize(("line", "reason"), [(b"{", "not JSON"), (b'{"prompt": "\xff"}', "UTF-8")])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_bytes(b"\n" + line)
    with pytest.raises(DataError, match=f"line 2 is not {reason.removeprefix('not ')}"):
        list(open_source(str(file)))


def test_a_digest_follows_the_content(tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", *ROWS)
    before = open_source(str(file)).digest()
    assert open_source(str(write(tmp_path / "copy.jsonl", *ROWS))).digest() == before
    write(file, *ROWS[::-1])
    assert open_source(str(file)).digest() != before


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no file 'no/such\.jsonl'"):
        open_source("no/such.jsonl")


def fake_datasets(load: Callable[..., Any]) -> ModuleType:
    """A stand-in for the library, with one function."""
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    return module


class Rows:
    """A streamed data set, which can be read again."""

    def __init__(self, *asked: Any, rows: list[Any] = ROWS, **options: Any) -> None:
        self.asked, self.rows = (asked, options), rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.rows


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("owner/chats", ("owner/chats", None, "train")),
        ("owner/chats:test_sft", ("owner/chats", None, "test_sft")),
        ("owner/chats@small:test", ("owner/chats", "small", "test")),
    ],
)
def test_a_data_set_is_streamed(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: tuple[str, str | None, str]
) -> None:
    made: list[Rows] = []

    def load(*arguments: Any, **options: Any) -> Rows:
        made.append(Rows(*arguments, **options))
        return made[-1]

    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(load))
    source = open_source(name)
    assert [c.turns for c in source] == [c.turns for c in source] == TURNS
    path, config, split = asked
    assert [rows.asked for rows in made] == [((path, config), {"split": split, "streaming": True})]
    before = source.digest()
    assert open_source(name).digest() == before
    made[-1].rows = ROWS[1:]
    assert source.digest() == before
    made[0].rows = ROWS[1:]
    assert source.digest() != before


def test_a_data_set_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: Any, **options: Any) -> Rows:
        raise FileNotFoundError("no such data set\nand more")

    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(load))
    with pytest.raises(ConfigError, match=r"'owner/chats' cannot be read \(no such data set\)"):
        open_source("owner/chats")


def test_without_the_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        open_source("owner/chats")
