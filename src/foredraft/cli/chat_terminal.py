"""Where a chat's words come from and where they go."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any, Protocol

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from foredraft.cli import common
from foredraft.errors import PromptError

GOES_ON = "\\"
"""At the end of a line: the next one belongs to it."""
PROMPT, MORE = "> ", ". "
_CONTROLS = {code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


class Lines(Protocol):
    """What the user says, line by line."""

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None where there is no more.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C.
            PromptError: the line is no text.
        """


class TypedLines:
    """Lines that are typed, with the editing keys and the history of the terminal.

    Args:
        shows_prompt: whether stdout is for the eyes alone, so that a prompt may stand there.
    """

    def __init__(self, shows_prompt: bool) -> None:
        with suppress(ImportError):  # not everywhere
            import readline  # noqa: F401 (`input` edits with it once it is loaded)
        self._shows_prompt = shows_prompt

    def read(self, prompt: str) -> str | None:
        """See `Lines`."""
        try:
            return input(prompt if self._shows_prompt else "")
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise _no_text(error) from None


class PipedLines:
    """Lines of a pipe or file on stdin."""

    def read(self, prompt: str) -> str | None:
        """See `Lines`; the prompt is not shown."""
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise _no_text(error) from None
        return line.removesuffix("\n") if line else None


def _no_text(error: UnicodeDecodeError) -> PromptError:
    return PromptError(f"a line on stdin is not text ({error}); give it as UTF-8")


def read_turn(lines: Lines) -> str | None:
    """All lines of what is said next; None where there is no more. Errors as in `Lines`."""
    said = lines.read(PROMPT)
    while said is not None and said.endswith(GOES_ON):
        more = lines.read(MORE)
        said = said.removesuffix(GOES_ON)
        if more is None:
            break
        said = f"{said}\n{more}"
    return said


class Screen:
    """Answers on stdout, all else on stderr.

    Args:
        as_json: whether answers are documents, one a line, and not text.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._out, self._notes = common.console(), common.console(stderr=True)

    @property
    def notes(self) -> Console:
        """The terminal of what is no answer."""
        return self._notes

    def say(self, text: str) -> None:
        """Text of an answer as it comes; a terminal is given no control characters."""
        if self.as_json or not text:
            return
        if self._out.is_terminal:
            self._out.print(Text(text.translate(_CONTROLS)), end="", soft_wrap=True)
        else:
            typer.echo(text, nl=False)

    def end_answer(self, document: dict[str, Any], note: str) -> None:
        """An answer is over: its document, or a line below its text."""
        if self.as_json:
            typer.echo(json.dumps(document))
        else:
            typer.echo()
            self.note(note)

    def note(self, line: str) -> None:
        """Something to know."""
        self._notes.print(line, style="dim", highlight=False, soft_wrap=True)

    def show(self, what: RenderableType) -> None:
        """What a command was asked for."""
        self._notes.print(what, highlight=False)

    def complain(self, sentence: str, question: str | None = None) -> None:
        """What could not be done; with documents, one for the question that has no answer."""
        self._notes.print(f"error: {' '.join(sentence.split())}", highlight=False, soft_wrap=True)
        if self.as_json and question is not None:
            typer.echo(json.dumps({"question": question, "error": sentence}))
