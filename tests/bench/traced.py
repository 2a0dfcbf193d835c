"""Engines for the tests of traces: a target that says a given text, and parts that count what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foredraft import Engine
from foredraft.backends.table import TableModel, TableState
from foredraft.config import MAX_TREE_NODES
from foredraft.protocols import DraftLimits, Frontier, PolicyKind, RoundOutcome
from foredraft.tree import NO_PARENT
from tests.scripted import Script, ScriptedDrafter
from tests.tiny_folders import byte_tokenizer

END = 2
"""The tokenizer's end token."""
TOKENIZER = byte_tokenizer(chat_template=None)
PROMPT = TOKENIZER("the cat sat")["input_ids"]
HOSTILE = (
    "</script><b>\"bold\"</b> 'q' & &amp; {{ x }} <!-- \u2028 שלום 👩‍👩‍👧 \0\x1b\tend\n\n  two"
)
"""Everything that markup, JSON, JavaScript or a reader could stumble over."""


def _byte_ids() -> list[int]:
    """The token of each byte: byte-level vocabularies write bytes that cannot be seen as other letters."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [byte for byte in range(256) if byte not in seen]
    letters = {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(unseen)}}
    ids: list[int] = TOKENIZER.convert_tokens_to_ids([letters[byte] for byte in range(256)])
    return ids


BYTE_IDS = _byte_ids()


def ids_of(text: str | bytes) -> list[int]:
    """Token ids of a text as the tokenizer has it; of bytes, one token each."""
    if isinstance(text, bytes):
        return [BYTE_IDS[byte] for byte in text]
    return list(TOKENIZER(text)["input_ids"])


class Speaker:
    """A target that says one text after its prompt, whatever it is given, and then the end token."""

    scores_trees = True
    context_length = None
    device = torch.device("cpu")
    vocab_size = len(TOKENIZER)
    eos_token_ids = (END,)

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = [*token_ids, END]

    def start(self, capacity: int) -> SpeakerState:
        return SpeakerState(self.token_ids)

    def synchronize(self) -> None:
        """Nothing runs ahead."""


class SpeakerState:
    """Knows how many tokens of the text were said."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids, self.length, self._depths = token_ids, 0, list[int]()

    def prefill(self, token_ids: Sequence[int]) -> None:
        self.length += len(token_ids)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        for parent in parents:
            self._depths.append(0 if parent == NO_PARENT else self._depths[parent] + 1)
        said = self.length - len(PROMPT) + 1
        logits = torch.zeros(len(token_ids), Speaker.vocab_size)
        for row, depth in enumerate(self._depths):
            logits[row, self._token_ids[min(said + depth, len(self._token_ids) - 1)]] = 9.0
        return logits

    def commit(self, path: Sequence[int]) -> None:
        self.length, self._depths = self.length + len(path), []

    def close(self) -> None:
        """Nothing to give back."""


def speaking(text: str | bytes, script: Script, max_nodes: int = MAX_TREE_NODES - 1) -> Engine:
    """An engine whose answer to `PROMPT` is this text, with scripted drafts."""
    drafter = ScriptedDrafter(script, max_nodes, branches=True)
    return Engine(Speaker(ids_of(text)), drafter, tokenizer=TOKENIZER)


class CountingTable(TableModel):
    """A table that counts its passes, of every sequence together."""

    num_passes = 0

    def start(self, capacity: int) -> CountingState:
        return CountingState(self)


class CountingState(TableState):
    """Tells its table of every pass."""

    def __init__(self, table: CountingTable) -> None:
        super().__init__(table)
        self._table = table

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        self._table.num_passes += 1
        return super().score(token_ids, parents)


class Asking:
    """A policy that asks for the same number of children again and again, whatever room is left.

    Args:
        num_children: of each node.
        levels: it ends the draft after so many.
        max_nodes: draft tokens at most.
        reads: whether it looks at the drafter's law first, even where it then ends the draft.
    """

    kind = PolicyKind.GROWS
    branches = True

    def __init__(self, num_children: int, levels: int, max_nodes: int, reads: bool) -> None:
        self.num_children, self.levels, self.reads = num_children, levels, reads
        self.max_nodes = max_nodes

    def start(self) -> Asking:
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return limits

    def grow(self, frontier: Frontier) -> Any:
        if self.reads:
            frontier.log_probs()
        count = self.num_children if frontier.depth < self.levels else 0
        return torch.tensor([count] * len(frontier.nodes))  # any whole numbers will do

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""
