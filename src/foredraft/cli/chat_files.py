"""A chat as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foredraft.cli.chat_state import INTERRUPTED, Conversation, Turn
from foredraft.errors import ConfigError, suggestion


def save_chat(
    conversation: Conversation, path: Path, facts: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write what was said, in the form that the name ends with: `.jsonl` or `.md`.

    Args:
        facts: of the model, for the file.
        overwrite: whether a file of that name may be lost.

    Raises:
        ConfigError: another ending, a file that is there already, or one that cannot be written.
    """
    write = FORMS.get(path.suffix.lower())
    if write is None:
        raise ConfigError(
            f"{path.name!r} does not say which form it should have; {suggestion(path.suffix, FORMS)}"
        )
    text = write(conversation, facts)
    try:
        with open(path, "w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"there is a file {str(path)!r} already; give another name, or overwrite it by /save! {path}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be written ({error.strerror or error}); give another name"
        ) from None


def _as_jsonl(conversation: Conversation, facts: Mapping[str, Any]) -> str:
    """One line, in the form of chat data that `foredraft data` reads; each turn's statistics beside it."""
    answers = [turn.as_dict() for turn in conversation.turns]
    line = {"messages": conversation.messages(), **facts, "answers": answers}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _as_markdown(conversation: Conversation, facts: Mapping[str, Any]) -> str:
    parts = [f"# A chat with {facts['model']}"]
    if conversation.system is not None:
        parts.append(f"*System:* {conversation.system}")
    for turn in conversation.turns:
        parts += ["## User", turn.question, "## Assistant", turn.text.strip(), _footer(turn)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _footer(turn: Turn) -> str:
    ended = {INTERRUPTED: "stopped by the user", "length": "cut"}.get(turn.finish_reason, "")
    seed = "" if turn.seed is None else f"seed {turn.seed}"
    parts = ", ".join(part for part in (f"method {turn.method}", seed, ended) if part)
    return f"*({parts})*"


FORMS: Mapping[str, Callable[[Conversation, Mapping[str, Any]], str]] = {
    ".jsonl": _as_jsonl,
    ".md": _as_markdown,
}
"""By the end of a file's name."""
