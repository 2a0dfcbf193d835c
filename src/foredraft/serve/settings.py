"""What a server allows. Each default exists once, here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foredraft.errors import ConfigError

WHOLE = {"max_batch": 1, "max_queue": 0, "max_choices": 1, "max_tokens": 1, "max_body_bytes": 1}
"""Whole-number settings and the least that each may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """A server's name and limits. Frozen; every value is checked when it is made.

    Raises:
        ConfigError: a value is out of its range; the message names it and the range.
    """

    model_name: str
    """What requests call the model."""
    api_keys: tuple[str, ...] = ()
    """Any of these opens `/v1` and `/metrics`; without keys both are open to all."""
    max_batch: int = 8
    """Answers that are decoded at the same time."""
    max_queue: int = 64
    """Answers that wait for their turn; a request beyond these is refused at once."""
    max_choices: int = 16
    """Answers that one request may ask for (prompts times `n`)."""
    max_tokens: int = 4096
    """Tokens that one answer may ask for, and has at most where nothing is asked for."""
    max_body_bytes: int = 2_000_000
    prefix_cache_mb: float = 256.0
    """Megabytes in which rows of earlier texts are kept, so that what a prompt shares with them at its start
    is not read again; 0 keeps nothing."""
    time_limit_s: float | None = None
    """Seconds from a request to its last token; None sets no limit."""
    grace_s: float = 30.0
    """Seconds that running answers get to finish after a signal to end."""

    def __post_init__(self) -> None:
        for name, least in WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"{name}={value!r} is not allowed; give a whole number of {least} or more"
                )
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise ConfigError(
                f"time_limit_s={self.time_limit_s!r} is not allowed; give more than 0"
            )
        if not 0 <= self.prefix_cache_mb < math.inf:
            raise ConfigError(
                f"prefix_cache_mb={self.prefix_cache_mb!r} is not allowed; give 0 or more megabytes"
            )
        if not 0 <= self.grace_s < math.inf:
            raise ConfigError(f"grace_s={self.grace_s!r} is not allowed; give 0 or more")
        if not self.model_name or not _is_text(self.model_name):
            raise ConfigError(
                f"model_name={self.model_name!r} is not allowed; name the model in valid text"
            )
        if not all(key.strip() for key in self.api_keys):
            raise ConfigError("api_keys has an empty key, which anybody would have; give a secret")
        if not all(map(_is_text, self.api_keys)):
            raise ConfigError("api_keys has a key that is not valid UTF-8; give another")

    @property
    def capacity(self) -> int:
        """Answers that may be in the server at the same time."""
        return self.max_batch + self.max_queue


def _is_text(value: str) -> bool:
    """Whether no byte of it is half a character, as of a command line or a path in another encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
