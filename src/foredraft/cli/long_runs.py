"""What commands that measure for a long time share: a bar, and an end that keeps what is finished."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foredraft.cli.failures import FAILURE
from foredraft.cli.interrupts import INTERRUPTED, noticed_interrupts


class Step(Protocol):
    """Something finished, of a part that has so many."""

    @property
    def part(self) -> str:
        """What it belongs to."""
        ...

    @property
    def done(self) -> int:
        """Finished of the part."""
        ...

    @property
    def total(self) -> int:
        """All of the part."""
        ...


def run_to_end(steps: Iterable[Step], out: Path, console: Console) -> None:
    """Take every step; whatever ends it early, what is finished is kept in `out`."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        _with_bar(steps, console)
    except KeyboardInterrupt:
        _say_what_is_kept("interrupted", out, console)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        _say_what_is_kept(
            f"error: {error.filename or out}: {error.strerror or error}", out, console
        )
        raise typer.Exit(FAILURE) from None


def _with_bar(steps: Iterable[Step], console: Console) -> None:
    """The bar is drawn between steps: a thread would take its share of what is timed."""
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks = {}
    with (
        noticed_interrupts() as interrupted,
        Progress(*columns, console=console, auto_refresh=False) as bar,
    ):
        for step in steps:
            if step.part not in tasks:
                tasks[step.part] = bar.add_task(step.part, total=step.total, completed=step.done)
            bar.update(tasks[step.part], completed=step.done, refresh=True)
            interrupted.heed()


def _say_what_is_kept(reason: str, out: Path, console: Console) -> None:
    console.print(
        f"{reason}: what is finished is kept in {out}; the same command goes on from there"
    )
