"""Users' own conversations, as a stream: JSONL files, or data sets of the `datasets` library.

A row is one conversation in one of these forms; where several fit, the first is taken, and what else a
row holds is left alone.

```
{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}
{"turns": ["...", "..."]}                    what the user says, turn by turn
{"prompt": "...", "response": "..."}         the response may be left out
```
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from foredraft.errors import ConfigError, DataError

FORMS = '"messages", "conversations", "turns" or "prompt"'
DIGESTED_ROWS = 1000
"""Rows of a data set that its digest reads."""
_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and the reply that is given to it, if one is."""

    user: str
    reply: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A system prompt, if there is one, turns in order, and where they were read."""

    turns: tuple[Turn, ...]
    system: str | None
    place: str

    def messages(self) -> list[dict[str, str]]:
        """As chat templates take them: everything that is said, up to the first turn without a reply."""
        said = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            said.append({"role": "user", "content": turn.user})
            if turn.reply is None:
                break
            said.append({"role": "assistant", "content": turn.reply})
        return said


class Source(Protocol):
    """Conversations that can be read from the start any number of times."""

    name: str

    def digest(self) -> str:
        """Changes whenever a conversation does."""
        ...

    def __iter__(self) -> Iterator[Conversation]:
        """The conversations, in an order that does not change.

        Raises:
            DataError: a row is of no known form; the message says which row, and what is wrong with it.
        """
        ...


def open_source(name: str) -> Source:
    """A file if there is one of that name or if the name can only be a file's, else a data set.

    Raises:
        ConfigError: there is no such file, or the `datasets` library is missing or refuses the name.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return JsonlSource(path)
    if path.suffix in (".jsonl", ".json") or name.startswith((".", "/", "~")):
        raise ConfigError(f"there is no file {name!r}; give a JSONL file, or a data set's name")
    return DatasetSource(name)


class JsonlSource:
    """A file with one JSON object a line; blank lines are passed over."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name

    def digest(self) -> str:
        """Of the file's bytes."""
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error.strerror})") from None

    def __iter__(self) -> Iterator[Conversation]:
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip(b" \t\r\n\xef\xbb\xbf"):
                        yield self._read(line, f"{self.path}, line {number}")
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error.strerror})") from None

    def _read(self, line: bytes, place: str) -> Conversation:
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise DataError(f"{place} is not UTF-8; save the file as UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{place} is not JSON ({error}); write one JSON object a line"
            ) from None
        return parse_row(row, place)


class DatasetSource:
    """A data set of the `datasets` library: `NAME`, `NAME:SPLIT` or `NAME@CONFIG:SPLIT`; the split is
    `train` where none is named."""

    def __init__(self, name: str) -> None:
        self.name = name
        rest, _, split = name.partition(":")
        path, _, config = rest.partition("@")
        self._rows = _load_dataset(path, config or None, split or "train", name)

    def digest(self) -> str:
        """Of the first rows, and of version and size as the library has them: a whole stream takes long."""
        info = getattr(self._rows, "info", None)
        facts = [str(getattr(info, name, None)) for name in ("version", "dataset_size", "features")]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for row in islice(self._rows, DIGESTED_ROWS):
            digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        return digest.hexdigest()

    def __iter__(self) -> Iterator[Conversation]:
        for number, row in enumerate(self._rows, start=1):
            yield parse_row(row, f"{self.name}, row {number}")


def _load_dataset(path: str, config: str | None, split: str, name: str) -> Any:
    try:
        load_dataset = import_module("datasets").load_dataset
    except ImportError:
        raise ConfigError(
            f"there is no file {name!r}, and data sets need the package `datasets`: "
            "pip install datasets, or give a JSONL file"
        ) from None
    try:
        return load_dataset(path, config, split=split, streaming=True)
    except Exception as error:  # the library raises what it likes
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the data set {name!r} cannot be read ({reason}); give NAME, NAME:SPLIT or "
            "NAME@CONFIG:SPLIT, or a JSONL file"
        ) from error


def parse_row(row: Any, place: str) -> Conversation:
    """The conversation in a row.

    Raises:
        DataError: it is of none of the forms, or its turns are not a conversation.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{place} is no JSON object; write one with {FORMS}")
    read = next((read for form, read in _READERS.items() if row.get(form) is not None), None)
    if read is None:
        raise DataError(f"{place} has none of {FORMS}; rename the field that holds the text")
    return _check(*read(row, place), place)


_Said = tuple[str, str]
"""(role, text)."""


def _read_messages(row: Mapping[str, Any], place: str) -> tuple[list[_Said], Any]:
    return _said(row["messages"], "messages", ("role", "content"), place), row.get("system")


def _read_shared(row: Mapping[str, Any], place: str) -> tuple[list[_Said], Any]:
    return _said(row["conversations"], "conversations", ("from", "value"), place), row.get("system")


def _said(entries: Any, field: str, keys: tuple[str, str], place: str) -> list[_Said]:
    who, what = keys
    if not isinstance(entries, list | tuple):
        raise DataError(f'{place}: "{field}" is no list; write [{{"{who}": ..., "{what}": ...}}]')
    said = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not {who, what} <= entry.keys():
            raise DataError(f'{place}: {entry!r:.60} lacks "{who}" or "{what}"')
        if entry[who] not in list(_ROLES):
            raise DataError(f"{place}: {entry[who]!r} is none of the roles {', '.join(_ROLES)}")
        said.append((_ROLES[entry[who]], entry[what]))
    return said


def _read_turns(row: Mapping[str, Any], place: str) -> tuple[list[_Said], Any]:
    if not isinstance(row["turns"], list | tuple):
        raise DataError(f'{place}: "turns" is no list; write what the user says, turn by turn')
    return [("user", text) for text in row["turns"]], row.get("system")


def _read_prompt(row: Mapping[str, Any], place: str) -> tuple[list[_Said], Any]:
    said = [("user", row["prompt"])]
    if row.get("response") is not None:
        said.append(("assistant", row["response"]))
    return said, row.get("system")


_READERS = {
    "messages": _read_messages,
    "conversations": _read_shared,
    "turns": _read_turns,
    "prompt": _read_prompt,
}


def _check(said: list[_Said], system: Any, place: str) -> Conversation:
    """Turns out of what is said, one after another.

    Raises:
        DataError: something said is not text, a reply answers nothing, or there is no turn.
    """
    system = system or None
    turns: list[Turn] = []
    for index, (role, text) in enumerate([*([("system", system)] if system else []), *said]):
        _check_text(role, text, place)
        if role == "system":
            if index:
                raise DataError(f"{place}: a system prompt stands behind other messages, not first")
            system = text
        elif role == "user":
            turns.append(Turn(text))
        elif not turns or turns[-1].reply is not None:
            raise DataError(f"{place}: the reply {text[:40]!r} follows no question of the user")
        else:
            turns[-1] = Turn(turns[-1].user, text)
    if not turns:
        raise DataError(f"{place}: the user says nothing; give at least one turn")
    return Conversation(tuple(turns), system, place)


def _check_text(role: str, text: Any, place: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{place}: what the {role} says is {text!r:.60}, not text; write a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: what the {role} says holds half a character, {text[error.start]!r}"
        ) from None
