"""A file of JSON objects, one a line, that grows as they are made and survives a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from foredraft.errors import ConfigError

Entry = TypeVar("Entry")


class JsonLines:
    """Reads and appends. A last line that was cut off in writing counts as never written.

    Args:
        path: the file; there need be none yet.
        entry: what a line holds and what removing it leads to, for errors: "a record of a prompt".
        again: what happens once a line is removed: "the prompt is run again".
    """

    def __init__(self, path: Path, entry: str, again: str) -> None:
        self.path = path
        self._entry, self._again = entry, again
        self._ends_whole = False

    def read(self, parse: Callable[[dict[str, Any]], Entry]) -> Iterator[Entry]:
        """Every entry, as `parse` makes it of its object.

        Raises:
            ConfigError: a line cannot be read.
        """
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            if number == len(lines) and not line.endswith("\n"):
                return
            try:
                yield parse(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{self.path}, line {number} is not {self._entry} ({error}); remove that line, "
                    f"and {self._again}"
                ) from None

    def append(self, document: Mapping[str, Any]) -> None:
        """Keep an entry, on disk before this returns."""
        if not self._ends_whole:
            _drop_cut_line(self.path)
            self._ends_whole = True
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(document, separators=(",", ":")) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _drop_cut_line(file: Path) -> None:
    """Remove what a killed run left of its last line."""
    if not file.exists():
        return
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(file, len(whole))
