"""`foredraft data`: corpora to train drafters on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from foredraft.cli import common
from foredraft.cli.failures import FAILURE, clear_failures
from foredraft.cli.flags import Flag, given, takes_flags
from foredraft.cli.interrupts import INTERRUPTED, noticed_interrupts
from foredraft.cli.taps import taps_of
from foredraft.cli.threads import wait_briefly
from foredraft.errors import ConfigError, DataError

if TYPE_CHECKING:
    from foredraft.train.data import DataPlan

app = typer.Typer(no_args_is_help=True, help="Make and look at corpora to train drafters on.")
app.callback()(wait_briefly)
_UNUSED = {
    "answering": ("openings", "documents", "max_document_tokens", "max_user_tokens", "more_turns"),
    "keeping": (
        *("openings", "seed", "batch", "greedy_share", "temperatures", "top_p", "documents"),
        *("max_document_tokens", "max_user_tokens", "max_reply_tokens", "more_turns"),
    ),
}
"""Options without a meaning when the users' words, or all words, are given."""
Out = Annotated[
    Path,
    common.out_folder("Folder of the corpus; an unfinished one is gone on with."),
]


WRITING: Mapping[str, Flag] = {
    "openings": Flag(
        str | None,
        "How the model's users begin: builtin, none, or a file with one a line.",
        shown="builtin",
    ),
    "seed": Flag(int | None, "Same seed, same corpus.", shown="0"),
    "batch": Flag(int | None, "Conversations decoded together.", shown="128"),
    "greedy_share": Flag(float | None, "Share of conversations with greedy replies.", shown="0.75"),
    "temperatures": Flag(str | None, "Of the other replies, comma-separated.", shown="0.7,1.0"),
    "top_p": Flag(float | None, "Of everything that is sampled.", shown="0.95"),
    "max_user_tokens": Flag(int | None, "A longer question ends its conversation.", shown="384"),
    "max_reply_tokens": Flag(int | None, "A longer reply is cut there.", shown="256"),
    "max_length": Flag(int | None, "Tokens of a conversation.", shown="1024"),
    "more_turns": Flag(float | None, "Probability of another question after a reply.", shown="0.6"),
    "documents": Flag(
        float | None,
        "Share of conversations about a long text, which the model writes too.",
        shown="0.15",
    ),
    "max_document_tokens": Flag(int | None, "Tokens of such a text.", shown="600"),
}
"""How conversations are written; what is not given is as in `DataPlan` and `Mixture`."""


@app.command()
@takes_flags("writing", WRITING)
def generate(
    out: Out,
    writing: dict[str, Any],
    model: common.Model = "smollm2",
    tokens: Annotated[
        int | None, typer.Option(help="Tokens in all; with --prompts, none means all of them.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="A JSONL file, or a data set (NAME, NAME:SPLIT, NAME@CONFIG:SPLIT); without, the model asks."
        ),
    ] = None,
    answers: Annotated[
        str, typer.Option(help="generate has the model reply; keep takes the replies given.")
    ] = "generate",
    keep_states: Annotated[
        bool,
        typer.Option(
            help="Keep the model's hidden states too: training then begins without a pass of the model."
        ),
    ] = False,
    taps: Annotated[
        str | None, typer.Option(help="Which ones, as for `train eagle`, such as 2,15,27.")
    ] = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
) -> None:
    """Have a model write conversations, or answer yours, and keep them as token shards.

    The same command goes on with what is unfinished.
    """
    with clear_failures():
        states = {"keep_states": keep_states, "taps": taps_of(taps)}
        plan = _plan(tokens, prompts, answers, states, given(writing))
        _make(out, plan, model, dtype, device)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of a corpus.")],
    samples: Annotated[int, typer.Option(help="Conversations to print.", min=0)] = 3,
) -> None:
    """Print what a corpus holds, and some of its conversations, the parts to learn from in brackets."""
    with clear_failures():
        from foredraft.cli.show_data import show_corpus
        from foredraft.train.corpus import Corpus

        show_corpus(Corpus(folder), samples, common.console())


@app.command()
def join(
    folders: Annotated[list[Path], typer.Argument(help="Corpora of one tokenizer, two or more.")],
    out: Annotated[
        Path,
        common.out_folder("Folder of the new corpus."),
    ],
) -> None:
    """Copy several corpora into one, to train on all of them."""
    with clear_failures():
        from foredraft.cli.show_data import show_corpus, unfinished_line, warnings_of
        from foredraft.train.corpus import Corpus
        from foredraft.train.joining import join_corpora

        try:
            join_corpora(folders, out)
        except OSError as error:
            reason = f"{error.filename or out}: {error.strerror or error}"
            raise DataError(
                f"{reason}; nothing was joined, run it again when that is mended"
            ) from None
        corpus = Corpus(out)
        show_corpus(corpus, 0, common.console())
        parts = [line for folder in folders if (line := unfinished_line(Corpus(folder)))]
        for line in (*parts, *warnings_of(corpus, wanted=None)):
            common.console(stderr=True).print(f"warning: {line}", soft_wrap=True)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--temperatures {text!r} is not like 0.7,1.0") from None


def _check_used(prompts: str | None, answers: str, chosen: Mapping[str, Any]) -> None:
    """Refuse options that would do nothing."""
    from foredraft.train.openings import BUILTIN

    mode = "keeping" if answers == "keep" else "answering" if prompts else "writing"
    names = [name for name in _UNUSED.get(mode, ()) if name in chosen]
    if names:
        what = "replies" if mode == "keeping" else "prompts"
        raise ConfigError(f"{_option(names[0])} has no meaning when {what} are given; leave it out")
    if chosen.get("openings", BUILTIN) != BUILTIN:
        for name in ("documents", "max_document_tokens"):
            if name in chosen:
                raise ConfigError(
                    f"{_option(name)} belongs to the built-in openings, and --openings gives others; leave "
                    "one of them out"
                )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plan(
    tokens: int | None,
    prompts: str | None,
    answers: str,
    states: dict[str, Any],
    chosen: dict[str, Any],
) -> DataPlan:
    """The plan of options that were given. Errors as in `_check_used` and `DataPlan`."""
    from foredraft.train.data import DataPlan
    from foredraft.train.scripts import Mixture

    _check_used(prompts, answers, chosen)
    if "temperatures" in chosen:
        chosen["temperatures"] = _numbers(chosen["temperatures"])
    own = {name: chosen.pop(name) for name in ("seed", "batch", "openings") if name in chosen}
    return DataPlan(
        num_tokens=tokens,
        prompts=prompts,
        answers=answers,
        mixture=Mixture(**chosen),
        **states,
        **own,
    )


def _make(out: Path, plan: DataPlan, name: str, dtype: str | None, device: str | None) -> None:
    from foredraft.bench.provenance import command
    from foredraft.cli.show_data import show_corpus, warnings_of
    from foredraft.train.data import make_corpus

    console = common.console(stderr=True)
    model, tokenizer = common.load_bare(name, dtype, device, console)
    try:
        with noticed_interrupts() as interrupted, _bar(plan.num_tokens, console) as bar:

            def report(tokens: int) -> None:
                interrupted.heed()
                bar.report(tokens)

            made = make_corpus(out, plan, model, tokenizer, name, bar.begin, report, command())
    except KeyboardInterrupt:
        console.print(f"interrupted: {_kept(out)}; the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        reason = f"{error.filename or out}: {error.strerror or error}"
        console.print(f"error: {reason}; {_kept(out)}; the same command goes on from there")
        raise typer.Exit(FAILURE) from None
    show_corpus(made.corpus, 0, common.console())
    for line in warnings_of(made.corpus, plan.num_tokens, made.without_states):
        console.print(f"warning: {line}")


def _kept(out: Path) -> str:
    from foredraft.train.corpus import Corpus

    try:
        corpus = Corpus(out)
    except DataError:
        return "nothing is kept yet"
    return f"{corpus.num_tokens:,} tokens are kept in {out}"


LINE_SECONDS = 60
"""Between lines of progress where there is no terminal to draw a bar on."""


class _Bar:
    """Tokens, and tokens per second of this run."""

    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total, done="")
        self._before = 0
        self._told = 0.0

    def begin(self, tokens: int) -> None:
        """What was there before counts as done, and not as fast."""
        self._before = tokens
        self._bar.reset(self._task, completed=tokens)
        self.report(0)

    def report(self, tokens: int) -> None:
        """Show that tokens were added."""
        task = self._bar.tasks[0]
        done, elapsed = task.completed + tokens, task.elapsed or 0.0
        speed = f", {(done - self._before) / elapsed:,.0f} tokens/s" if elapsed > 1 else ""
        text = f"{done:,.0f} tokens{speed}"
        self._bar.update(self._task, completed=done, done=text)
        if not self._bar.console.is_terminal and elapsed - self._told >= LINE_SECONDS:
            self._told = elapsed
            self._bar.console.print(text, highlight=False)


@contextmanager
def _bar(total: int | None, console: Console) -> Iterator[_Bar]:
    columns = (BarColumn(), TextColumn("{task.fields[done]}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        yield _Bar(bar, total)
