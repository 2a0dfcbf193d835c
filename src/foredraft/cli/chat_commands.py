"""What a chat can be told besides questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from foredraft.cli.chat_files import save_chat
from foredraft.cli.chat_show import stats_table
from foredraft.config import METHODS
from foredraft.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from foredraft.cli.chat_loop import Chat

COMMAND = "/"
NOTHING_SAID = "nothing was said yet"


@dataclass(frozen=True, slots=True)
class Command:
    """One of them."""

    takes: str
    """What follows its name."""
    help: str
    run: Callable[[Chat, str], None]
    """Called with the chat and the words behind the name."""


def run_command(chat: Chat, said: str) -> None:
    """Do what a line that begins with `/` asks for.

    Raises:
        ForedraftError: there is no such command, or it cannot be done; nothing has changed.
    """
    name, _, words = said.removeprefix(COMMAND).partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        known = [COMMAND + name for name in COMMANDS]
        raise ConfigError(
            f"unknown command {COMMAND + name!r}; {suggestion(COMMAND + name, known)}"
        )
    words = words.strip()
    if words and not command.takes:
        raise ConfigError(f"{COMMAND}{name} takes no {words!r}; leave it out")
    command.run(chat, words)


def _help(chat: Chat, words: str) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, command in COMMANDS.items():
        table.add_row(f"{COMMAND}{name} {command.takes}".rstrip(), command.help)
    table.add_row("\\ at the end of a line", "goes on in the next line")
    table.add_row("//words", "a question that begins with /")
    table.add_row("Ctrl-C", "stops the answer, or clears the line")
    chat.screen.show(table)


def _stats(chat: Chat, words: str) -> None:
    if chat.conversation.stats:
        chat.screen.show(stats_table(chat.conversation))
    else:
        chat.screen.note(NOTHING_SAID)


def _method(chat: Chat, words: str) -> None:
    if not words:
        chat.screen.note(f"method {chat.method}; there are {', '.join(METHODS)} (K a number)")
        return
    with chat.screen.notes.status("changing the method"):
        chat.switch.change(words)
    chat.method = words
    lossy = "" if chat.switch.engine.lossless else "; lossy: answers are not the model's own"
    chat.screen.note(f"method {words}{lossy}")


def _temperature(chat: Chat, words: str) -> None:
    if words:
        try:
            value = float(words)
        except ValueError:
            raise ConfigError(f"{words!r} is no temperature; give a number, such as 0.7") from None
        chat.options = chat.options.replace(temperature=value)
    chat.screen.note(f"temperature {chat.options.temperature:g}")


def _system(chat: Chat, words: str) -> None:
    if words:
        chat.conversation.system = None if words == "-" else words
    told = chat.conversation.system
    chat.screen.note("no system message" if told is None else f"system message: {told}")


def _retry(chat: Chat, words: str) -> None:
    turn = chat.conversation.take_back()
    if turn is None:
        raise ConfigError(f"{NOTHING_SAID}; ask something first")
    if chat.options.temperature == 0:
        chat.screen.note("at temperature 0 the same question has the same answer; see /temperature")
    is_answered = False
    try:
        is_answered = chat.ask(turn.question, turn.choice + 1)
    finally:
        if not is_answered:
            chat.conversation.put_back(turn)


def _undo(chat: Chat, words: str) -> None:
    turn = chat.conversation.take_back()
    if turn is None:
        raise ConfigError(f"{NOTHING_SAID}; there is nothing to take back")
    chat.screen.note(f"taken back: {turn.question}")


def _clear(chat: Chat, words: str) -> None:
    chat.conversation.clear()
    chat.screen.note("everything is forgotten but the system message")


def _save(chat: Chat, words: str, overwrite: bool = False) -> None:
    if not words:
        raise ConfigError("/save needs a file; give a name that ends with .jsonl or .md")
    if not chat.conversation.turns:
        raise ConfigError(f"{NOTHING_SAID}; there is nothing to save")
    path = Path(words).expanduser()
    facts = {"model": chat.model, "temperature": chat.options.temperature}
    save_chat(chat.conversation, path, facts, overwrite=overwrite)
    chat.screen.note(f"{len(chat.conversation.turns)} turns saved in {path}")


def _save_over(chat: Chat, words: str) -> None:
    _save(chat, words, overwrite=True)


def _quit(chat: Chat, words: str) -> None:
    chat.ended = True


COMMANDS: Mapping[str, Command] = {
    "help": Command("", "this list", _help),
    "stats": Command("", "speed, acceptance and cached tokens: last answer, and all", _stats),
    "method": Command(
        "[NAME[:options]]", "the method, or another one over the same model", _method
    ),
    "temperature": Command("[X]", "the temperature, or another one; 0 is greedy", _temperature),
    "system": Command("[TEXT]", "the system message, or another one; - for none", _system),
    "retry": Command("", "another answer to the last question", _retry),
    "undo": Command("", "take the last question and its answer back", _undo),
    "clear": Command("", "forget everything that was said", _clear),
    "save": Command("FILE", "write the chat to FILE.jsonl or FILE.md", _save),
    "save!": Command("FILE", "likewise, over a file that is there", _save_over),
    "quit": Command("", "end the chat", _quit),
}
"""By name."""
