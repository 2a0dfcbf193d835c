"""From what users pass as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from foredraft.errors import ConfigError, PromptError

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text (continued as it is), token ids, or chat messages (the model's chat template is applied)."""
_KINDS = "give text, a list of token ids, or a list of messages"


def encode_prompt(prompt: Prompt, tokenizer: Any | None, vocab_size: int) -> list[int]:
    """Token ids of a prompt, at least one.

    Raises:
        PromptError: the prompt is empty, malformed, or has ids outside the vocabulary.
        ConfigError: it needs a tokenizer or a chat template and there is none.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise PromptError(f"the prompt is of type {type(prompt).__name__}; {_KINDS}")
    if isinstance(prompt, str):
        token_ids = _encode(_need(tokenizer, "a prompt of text"), prompt)
    elif len(prompt) and isinstance(prompt[0], Mapping):
        token_ids = _encode_chat(prompt, _need(tokenizer, "a prompt of messages"))  # type: ignore[arg-type]
    else:
        token_ids = _check_ids(prompt, vocab_size)
    if not token_ids:
        raise PromptError(
            f"the prompt {prompt!r} has no tokens and this model's tokenizer adds none; "
            "give at least one word"
        )
    return token_ids


def _encode_chat(messages: Sequence[Message], tokenizer: Any) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "this model's tokenizer has no chat template; pass the prompt as one string instead of messages"
        )
    for message in messages:
        _check_message(message)
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # templates raise what they like: jinja's errors, type errors
        raise PromptError(f"the model's chat template refuses these messages: {error}") from error
    return _encode(tokenizer, text, add_special_tokens=False)


def _check_message(message: Any) -> None:
    """A role and something said; only an assistant's tool call may say nothing."""
    known = isinstance(message, Mapping) and "role" in message
    if not known or (message.get("content") is None and message["role"] != "assistant"):
        raise PromptError(
            f"the message {message!r} is not a mapping with 'role' and 'content'; "
            'write it like {"role": "user", "content": "Hello"}'
        )


def _encode(tokenizer: Any, text: str, **options: Any) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt holds {text[error.start]!r}, which is half a character or a byte that is not "
            "UTF-8; give it as valid text"
        ) from None
    return list(tokenizer(text, **options)["input_ids"])


def _check_ids(prompt: Sequence[Any], vocab_size: int) -> list[int]:
    for token in prompt:
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise PromptError(f"the prompt holds {token!r}; {_KINDS}")
        if not 0 <= int(token) < vocab_size:
            raise PromptError(
                f"the prompt holds token {token}; this model's ids go from 0 to {vocab_size - 1}"
            )
    return [int(token) for token in prompt]


def _need(tokenizer: Any | None, what: str) -> Any:
    if tokenizer is None:
        raise ConfigError(f"{what} needs a tokenizer; pass tokenizer=... or give token ids")
    return tokenizer
