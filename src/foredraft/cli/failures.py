"""From errors to one sentence on stderr and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

import typer

from foredraft.errors import ConfigError, ForedraftError

FAILURE, USAGE = 1, 2


@contextmanager
def clear_failures() -> Iterator[None]:
    """Turn errors that a user can act on into a sentence and an exit code; let faults of ours through."""
    try:
        yield
    except ForedraftError as error:
        _say(in_options(str(error), command_options()))
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


FIELDS = {"num_tokens": "tokens", "suites": "suite", "budgets": "budget"}
"""Arguments in Python whose options have other names."""
GROUPS = (r"options\.", r"loss\.")
"""Before the names of a training's options, where two runs are told apart."""
IN_PYTHON = ", or None"
"""What an option that was not given is in Python."""


def command_options() -> Mapping[str, str]:
    """The options of the command that runs, by the names of the arguments in Python."""
    clicks = typer.Context.__mro__[1].__module__.rpartition(".")[0]  # new versions bring their own
    context = import_module(f"{clicks}.globals").get_current_context(silent=True)
    if context is None:
        return {}
    options = {
        p.name: p.opts[0] for p in context.command.params if p.name and p.opts[0][:2] == "--"
    }
    others = {field: options[name] for field, name in FIELDS.items() if name in options}
    return options | others


def in_options(sentence: str, options: Mapping[str, str]) -> str:
    """An error in the words of the command line: `--top-k 0` for `top_k=0`.

    Args:
        sentence: as Python says it.
        options: by the names of arguments in Python. What is named without a value is told from an English
            word by its underscore; what follows a colon or a dot is an option of a method, or no option.
    """
    if options:
        sentence = sentence.replace(IN_PYTHON, "")
    for name, option in options.items():
        argument = rf"(?<![\w:.'/-])(?:{'|'.join(GROUPS)})?{name}="
        sentence = re.sub(rf"{argument}(True\b|\.\.\.)", option, sentence)
        sentence = re.sub(argument, f"{option} ", sentence)
        if "_" in name:
            sentence = re.sub(rf"(?<![\w:.'/-]){name}(?![\w=/-]|\.\w)", option, sentence)
    return sentence


def _lacks_memory(error: Exception) -> bool:
    """Told by its words, because PyTorch raises a RuntimeError on CPUs and importing it here takes long."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(w in str(error) for w in words)


def _give_stdout_up() -> None:
    """What is still buffered for it would fail once more when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(sentence: str) -> None:
    typer.echo(f"error: {' '.join(sentence.split())}", err=True)
