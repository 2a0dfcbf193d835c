"""From errors to one sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from foredraft.errors import ConfigError, ForedraftError

FAILURE, USAGE = 1, 2


@contextmanager
def clear_failures() -> Iterator[None]:
    """Turn errors that a user can act on into a sentence and an exit code; let faults of ours through."""
    try:
        yield
    except ForedraftError as error:
        _say(str(error))
        raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILURE) from None
    except (MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        _say("not enough memory; use a smaller model, --dtype bfloat16, or a shorter prompt")
        raise typer.Exit(FAILURE) from None
    except BrokenPipeError:  # the reader of our output has left; say nothing more to it
        _give_stdout_up()
        raise typer.Exit(FAILURE) from None
    except OSError as error:
        _give_stdout_up()
        _say(f"reading the prompt or writing the answer failed ({error.strerror or error})")
        raise typer.Exit(FAILURE) from None


def _lacks_memory(error: Exception) -> bool:
    """Told by its words, because PyTorch raises a RuntimeError on CPUs and importing it here takes long."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(w in str(error) for w in words)


def _give_stdout_up() -> None:
    """What is still buffered for it would fail once more when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(sentence: str) -> None:
    typer.echo(f"error: {' '.join(sentence.split())}", err=True)
