"""Lists of layers as users write them."""

from __future__ import annotations

from foredraft.errors import ConfigError


def taps_of(text: str | None) -> tuple[int, ...] | None:
    """The layers of `--taps`.

    Raises:
        ConfigError: it is no list of numbers.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--taps {text!r} is no list of layers; write it like 2,15,27") from None
