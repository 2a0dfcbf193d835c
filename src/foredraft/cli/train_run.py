"""One run of `foredraft train`: load, train with a bar, say what came out and how to go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from foredraft.cli import common
from foredraft.cli.failures import FAILURE
from foredraft.cli.interrupts import INTERRUPTED
from foredraft.cli.show_data import unfinished_line
from foredraft.train.batches import SampleCounts
from foredraft.train.corpus import Corpus
from foredraft.train.loop import FitResult, fit
from foredraft.train.memory import reuse_freed_memory
from foredraft.train.metrics import HELD_OUT, Measure
from foredraft.train.objective import Objective
from foredraft.train.options import TrainOptions
from foredraft.train.setting import Setting
from foredraft.train.stepping import make_accelerator

MakeObjective = Callable[[Setting], tuple[Objective, dict[str, Any]]]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MINUTE = 60


def train(
    make_objective: MakeObjective,
    options: TrainOptions,
    data: Path,
    out: Path,
    model: str,
    dtype: str | None,
    start_from: Path | None,
    resume: bool,
    keep_states: bool,
) -> None:
    """Train; exits with 130 if it was interrupted. Errors as in `fit` and `foredraft.load`."""
    corpus = Corpus(data)
    accelerator = make_accelerator()
    console = _console(quiet=not accelerator.is_main_process)
    if line := unfinished_line(corpus):
        console.print(f"warning: {line}, and training takes what is there", soft_wrap=True)
    reuse_freed_memory()
    loaded, tokenizer = common.load_bare(model, dtype, str(accelerator.device), console)
    setting = Setting(loaded, tokenizer, corpus, keep_states)
    torch.manual_seed(options.seed)  # weights that begin at random
    objective, facts = make_objective(setting)
    notes = notes_of(model, data, start_from, accelerator)
    recipe = {**facts, "target": setting.identity(), "notes": notes}
    with _Bar(console) as bar, asked_to_stop(console) as stop, disk_errors(console, out):
        result = fit(
            objective,
            corpus,
            options,
            out,
            recipe=recipe,
            resume=resume,
            begin=bar.begin,
            report=bar.report,
            stop=stop,
        )
    _tell(result, console)
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


def _console(quiet: bool) -> Console:
    return Console(stderr=True, markup=False, quiet=quiet)


def notes_of(model: str, data: Path, start_from: Path | None, accelerator: Any) -> dict[str, Any]:
    """What is written down of a run and may differ when it is resumed."""
    from foredraft.bench.provenance import provenance

    # by its last name, also of a folder given as `..`: where a run lies says nothing elsewhere
    earlier = None if start_from is None else os.path.basename(os.path.abspath(start_from))
    notes = {"model": model, "data": str(data), "start_from": earlier}
    return {**notes, **provenance(accelerator.device)}


class _Bar:
    """Progress on stderr; a line above it for every measurement on the held-out samples."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            BarColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, refresh_per_second=2)
        self._task = self._bar.add_task("", total=1.0, state="reading the corpus")

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, counts: SampleCounts) -> None:
        """Say what is trained on."""
        dropped = f", {counts.unlabelled:,} without answers" if counts.unlabelled else ""
        cut = f", {counts.truncated:,} cut" if counts.truncated else ""
        self._console.print(
            f"{counts.trained:,} samples of {counts.tokens:,} tokens, {_percent(counts)} of them to be "
            f"predicted; {counts.held_out:,} samples held out{dropped}{cut}",
            highlight=False,
            soft_wrap=True,
        )

    def report(self, measure: Measure) -> None:
        """Show a measure."""
        shown = f"loss {measure.loss:.3f}" if measure.loss is not None else "no finite loss"
        shown += f", accepted {_shares(measure)}"
        if measure.kind == HELD_OUT:
            line = f"step {measure.step:,}, held out: {shown}"
            self._console.print(line, highlight=False, soft_wrap=True)
            return
        skipped = f", {measure.skipped} skipped" if measure.skipped else ""
        state = f"step {measure.step:,}: {shown}, {measure.tokens_per_s:,.0f} tokens/s{skipped}"
        self._bar.update(self._task, completed=measure.progress, state=state)


@contextmanager
def asked_to_stop(console: Console) -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C (or SIGTERM) is an answer to a question, and the second one strikes."""
    asked: list[int] = []

    def notice(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        console.print("stopping after this step; Ctrl-C again stops at once, without a checkpoint")

    before = {number: signal.signal(number, notice) for number in SIGNALS}
    try:
        yield lambda: bool(asked)
    except KeyboardInterrupt:
        console.print("interrupted; --resume goes on from the last checkpoint")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def disk_errors(console: Console, out: Path) -> Iterator[None]:
    """A full disk ends the run with a sentence; the last checkpoint is whole."""
    try:
        yield
    except OSError as error:
        reason = f"{error.filename or out}: {error.strerror or error}"
        console.print(f"error: {reason}; --resume goes on from the last checkpoint", soft_wrap=True)
        raise typer.Exit(FAILURE) from None


def _tell(result: FitResult, console: Console) -> None:
    """What came out, and the way on."""
    at, best = result.position, result.best
    done = f"{at.step:,} steps on {at.tokens:,} tokens in {at.elapsed_s / MINUTE:.1f} minutes"
    if best is not None:
        done += f"; accepted of held-out samples at step {best.step:,}: {_shares(best)}"
    way_on = (
        f"foredraft.load(..., drafter={os.fspath(result.out)!r}) drafts with it"
        if result.finished
        else "stopped early; the same command with --resume goes on"
    )
    for line in (done, f"the drafter is in {result.out}", way_on):
        console.print(line, highlight=False, soft_wrap=True)


def _shares(measure: Measure) -> str:
    return " ".join(f"{share:.2f}" for share in measure.acceptance)


def _percent(counts: SampleCounts) -> str:
    return f"{counts.labelled / max(counts.tokens, 1):.0%}"
