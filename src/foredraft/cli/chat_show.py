"""How a chat's answers are summed up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from foredraft.cli.chat_state import INTERRUPTED, Conversation, Turn

if TYPE_CHECKING:
    from foredraft.results import Statistics

WAYS_ON = "/undo takes the last turn back, /clear begins anew, and /save FILE keeps what was said"


def summary(turn: Turn, context_length: int | None) -> str:
    """One line under an answer: how much, how fast, and what to do where it is not whole."""
    stats = turn.stats
    parts = [f"{stats.completion_tokens} tokens, {_number(stats.tokens_per_s)} tokens/s"]
    if turn.finish_reason == INTERRUPTED:
        parts.append("stopped by Ctrl-C; what was said is kept (/undo forgets it)")
    elif turn.finish_reason == "length":
        used = stats.prompt_tokens + stats.completion_tokens
        is_full = context_length is not None and used >= context_length
        parts.append(
            f"the context of {context_length} tokens is full: {WAYS_ON}"
            if is_full
            else "cut at --max-new-tokens; ask it to go on"
        )
    return " · ".join(parts)


def stats_table(conversation: Conversation) -> Table:
    """The last answer beside the whole session."""
    from foredraft.results import Statistics

    answers = conversation.stats
    columns = {"last answer": answers[-1], f"all {len(answers)}": Statistics.pool(answers)}
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for name, cells in _rows(*columns.values()):
        table.add_row(name, *cells)
    return table


def _rows(*columns: Statistics) -> list[tuple[str, list[str]]]:
    return [
        ("tokens", [str(s.completion_tokens) for s in columns]),
        ("tokens/s", [_number(s.tokens_per_s) for s in columns]),
        ("passes", [str(s.target_passes) for s in columns]),
        ("acceptance length", [_number(s.mean_acceptance_length, 2) for s in columns]),
        ("prompt tokens", [str(s.prompt_tokens) for s in columns]),
        ("of them cached", [str(s.cached_prompt_tokens) for s in columns]),
        ("to the first token, s", [_number(s.ttft_s / s.requests, 2) for s in columns]),
    ]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
