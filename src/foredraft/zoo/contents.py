"""What a usable model folder holds, checked from its small files without loading the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from foredraft.errors import ModelError

WEIGHTS = "model.safetensors"
REQUIRED = ("config.json", "tokenizer.json", WEIGHTS)
"""Without these a folder is no model."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What an embedded model's folder must say about itself."""

    vocab_size: int
    eos_token_id: int
    eos_token: str

    def check(self, folder: Path) -> None:
        """Compare a folder with this.

        Raises:
            ModelError: a part is missing or says something else; the message names it.
        """
        missing = [name for name in REQUIRED if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"the model folder lacks {', '.join(missing)}")
        config, tokenizer = (_read(folder / name) for name in REQUIRED[:2])
        added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
        _demand("vocabulary size", config["vocab_size"], self.vocab_size)
        _demand("size of the tokenizer", len(tokenizer["model"]["vocab"]), self.vocab_size)
        _demand("end token id", config["eos_token_id"], self.eos_token_id)
        _demand("end token", added.get(self.eos_token_id), self.eos_token)
        if not _has_chat_template(folder):
            raise ModelError("the model folder has no chat template")
        _check_weights(folder / WEIGHTS)


def _read(file: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file.name} is not valid JSON ({error})") from error
    return document


def _demand(what: str, found: object, wanted: object) -> None:
    """Refuse a folder whose `what` is another one."""
    if found != wanted:
        raise ModelError(f"the {what} is {found!r} where {wanted!r} was expected")


def _has_chat_template(folder: Path) -> bool:
    """Whether a template is there, as a file of its own or inside the tokenizer's settings."""
    settings = folder / "tokenizer_config.json"
    return (folder / "chat_template.jinja").is_file() or (
        settings.is_file() and "chat_template" in _read(settings)
    )


def _check_weights(file: Path) -> None:
    """Refuse a weights file that is cut short; reads the header only."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ModelError(f"{file.name} cannot be read ({error})") from error
