"""How answers look in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from foredraft.engine.agreement import Agreement
from foredraft.engine.cost_files import dtype_of
from foredraft.engine.engine import Engine
from foredraft.results import Result, Statistics

ACCEPTED_STYLE = "green"
BUSY_RATIO = 1.25


def show_summary(result: Result, console: Console) -> None:
    """One line under an answer: how much, how fast, and why it ended."""
    console.print(
        _summary(result.stats), f"· ended by {_ending(result)}", style="dim", highlight=False
    )


def show_comparison(
    engine: Engine,
    method: str,
    plain: Result,
    drafted: Result,
    agreement: Agreement,
    console: Console,
) -> None:
    """Both answers side by side, accepted draft tokens coloured, and what drafting by `method` gained."""
    title = f"speculative decoding ({method})"
    answers = Table.grid(expand=True, padding=(0, 1))
    answers.add_column(ratio=1)
    answers.add_column(ratio=1)
    answers.add_row(
        Panel(Text(plain.text), title="plain decoding"),
        Panel(_coloured(engine, drafted), title=Text(title)),
    )
    console.print(answers)
    console.print(_speeds(plain.stats, drafted.stats, title))
    accepted = f"{sum(drafted.accepted)} of {len(drafted.token_ids)} tokens"
    console.print(Text.assemble((accepted, ACCEPTED_STYLE), " were drafted and accepted"))
    if plain.stats.tokens_per_s and drafted.stats.tokens_per_s:
        ratio = drafted.stats.tokens_per_s / plain.stats.tokens_per_s
        console.print(f"speed-up:  {ratio:.2f}x", highlight=False)
    console.print(f"identical: {agreement}{_reason(engine, agreement)}", highlight=False)
    if _was_busy(plain.stats, drafted.stats):
        console.print(
            "note: plain decoding's passes took longer than the wider ones of drafts, so the machine was "
            "busy with something else and the speed-up means little; run it again"
        )


def _reason(engine: Engine, agreement: Agreement) -> str:
    """Why the answers are not the same, and what would make them so."""
    if agreement.kind == "n/a":
        return " (this verifier keeps the model's law when sampling, and not the words of a seed)"
    if agreement.kind == "tie":
        return f" ({dtype_of(engine.target)} rounds the two tokens' scores alike; float32 tells them apart)"
    return ""


def _was_busy(plain: Statistics, drafted: Statistics) -> bool:
    """Whether a pass over one token took much longer than one over a draft: never for want of speed."""
    alone, tree = plain.ms_per_round()["target_ms"], drafted.ms_per_round()["target_ms"]
    return bool(alone and tree and alone > BUSY_RATIO * tree)


def _speeds(plain: Statistics, drafted: Statistics, title: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("tokens", "passes", "tokens/s"):
        table.add_column(name, justify="right")
    for name, stats in (("plain decoding", plain), (title, drafted)):
        table.add_row(name, str(stats.completion_tokens), str(stats.target_passes), _speed(stats))
    return table


def _coloured(engine: Engine, result: Result) -> Text:
    """The answer with the text of accepted tokens in colour."""
    incoming = engine.incremental_text()
    text, room = Text(), len(result.text)
    for token, accepted in zip(result.token_ids, result.accepted, strict=True):
        piece = incoming.push([token])[: max(room, 0)]
        room -= len(piece)
        text.append(piece, style=ACCEPTED_STYLE if accepted else "")
    return text.append(result.text[len(text) :])


def _summary(stats: Statistics) -> str:
    return (
        f"{stats.completion_tokens} tokens, {stats.target_passes} passes, {_speed(stats)} tokens/s"
    )


def _speed(stats: Statistics) -> str:
    return f"{stats.tokens_per_s:.1f}" if stats.tokens_per_s else "-"


def _ending(result: Result) -> str:
    if result.stopped_by is None:
        return result.finish_reason
    if isinstance(result.stopped_by, int):
        return "the end token"
    return f"the stop string {result.stopped_by!r}"
