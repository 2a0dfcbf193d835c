"""How long vLLM's drafts should be at each batch size, from our costs and our acceptance.

vLLM drafts chains of one length for a whole batch, and takes the length from a table of batch sizes
(`num_speculative_tokens_per_batch_size`, entries `[first, last, length]`). A pass over B texts with drafts of
length K has B (1 + K) rows, and each of the K passes of the drafter has B. So wide passes are priced by the
table of `calibrate`, all rows behind one text, and the length of most tokens a second is taken. What vLLM's
own passes cost is not measured: the schedule is as good for it as its passes are like ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from foredraft.bench.suites import Suite
from foredraft.costs import CostTable, DraftCosts
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.results import Statistics

NO_DRAFT = DraftCosts(0.0)
Entry = tuple[int, int, int]
"""First batch size, last batch size, draft length."""


@dataclass(frozen=True, slots=True)
class Gains:
    """What drafts of a chain bring and cost.

    Attributes:
        table: costs of passes.
        method: the chain's name in the table.
        accepted: [D] share of rounds in which the draft was accepted to depth d (1..D), not increasing.
        context: cached tokens of each text.
    """

    table: CostTable
    method: str
    accepted: tuple[float, ...]
    context: int

    def tokens_per_s(self, batch: int, length: int) -> float:
        """Of all texts together, with drafts of that length; 0 is plain decoding."""
        emitted = batch * (1 + sum(self.accepted[:length]))
        draft = self.table.draft_costs(self.method) or NO_DRAFT
        seconds = self.table.target(batch * (1 + length), self.context) + self.table.host_s
        if length:
            seconds += draft([batch] * length, self.context)
        return emitted / seconds

    def best_length(self, batch: int) -> int:
        """The length of most tokens a second; the shorter of equal ones."""
        lengths = range(len(self.accepted) + 1)
        return max(lengths, key=lambda length: self.tokens_per_s(batch, length))


def schedule(gains: Gains, max_batch: int) -> tuple[Entry, ...]:
    """The best length at every batch size from 1 to `max_batch`, equal neighbours as one entry.

    Raises:
        ConfigError: `max_batch` is less than 1.
    """
    if max_batch < 1:
        raise ConfigError(f"max_batch={max_batch} is not allowed; give 1 or more")
    return tuple(_entries([gains.best_length(batch) for batch in range(1, max_batch + 1)]))


def _entries(lengths: Sequence[int]) -> Iterator[Entry]:
    """Runs of equal lengths, by batch size."""
    first = 1
    for length, run in groupby(lengths):
        last = first + len(list(run)) - 1
        yield first, last, length
        first = last + 1


def measure_acceptance(
    engine: Engine, suites: Sequence[Suite], **options: Any
) -> tuple[float, ...]:
    """Share of rounds in which the engine's chain was accepted to each depth, over the suites' first turns.

    Raises:
        ConfigError: no answer was long enough for a whole round.
    """
    prompts = [[dict(m) for m in q.prompt(())] for suite in suites for q in suite.questions]
    stats = Statistics.pool(engine.generate(prompt, **options).stats for prompt in prompts)
    if not stats.accepted_per_depth:
        raise ConfigError(
            "no draft was checked, so its acceptance is not known; ask more or others"
        )
    return stats.accepted_per_depth


def vllm_config(entries: Sequence[Entry], method: str, drafter: str | None) -> dict[str, Any]:
    """What `--speculative-config` of vLLM takes.

    Args:
        entries: of `schedule`.
        method: vLLM's word for the drafter: `eagle3`, `eagle` or `draft_model`.
        drafter: what vLLM loads as one; None leaves it to be added.
    """
    named = {} if drafter is None else {"model": drafter}
    return {
        "method": method,
        **named,
        # vLLM sizes its buffers by this; 0 is not allowed there
        "num_speculative_tokens": max(1, *(length for _, _, length in entries)),
        "num_speculative_tokens_per_batch_size": [list(entry) for entry in entries],
    }
