"""The target writes its own training data: prompts and answers, many conversations at a time.

A shard is a function of its number, the plan and the model. So a run that was killed is continued shard by
shard, and ends with the corpus of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foredraft.errors import ModelError
from foredraft.train.corpus import CorpusWriter, Sample
from foredraft.train.lockstep import LockstepDecoder, lockstep_attention
from foredraft.train.memory import reuse_freed_memory
from foredraft.train.recording import CohortStates, StateRecorder, States
from foredraft.train.scripts import Draw, Given, Script

NUCLEUS_TOKENS = 512
"""Sampling looks at the most likely tokens only, at most so many: sorting 49,152 costs more than the pass."""
COHORTS = 4
"""Groups of conversations that begin together, among those that are decoded at a time."""
COMPACT_AT = 0.85
"""Rows that have ended are taken out when no more than this share is still going."""

ScriptsOf = Callable[[int], Sequence[Script] | None]
"""Shard number -> its conversations; None when there are no more."""
Progress = Callable[[int], None]
"""Called with the number of tokens that were added to finished conversations."""


def generate_corpus(
    model: Any,
    scripts_of: ScriptsOf,
    writer: CorpusWriter,
    num_tokens: int | None,
    num_rows: int,
    report: Progress = lambda tokens: None,
    recorder: StateRecorder | None = None,
) -> None:
    """Write shards until the corpus has `num_tokens`, or the scripts are at their end.

    Args:
        model: a `transformers` causal language model, in eval mode.
        scripts_of: the conversations of each shard.
        writer: where they go; shards that it has are not made again.
        num_tokens: tokens in all; None makes every shard there is.
        num_rows: conversations at a time.
        report: progress.
        recorder: keeps the model's hidden states beside each shard; None keeps none.

    Raises:
        ModelError: the model's logits are not finite.
        ConfigError: the disk has no room for the hidden states.
    """
    reuse_freed_memory()
    with lockstep_attention(model):
        while num_tokens is None or writer.num_tokens < num_tokens:
            scripts = scripts_of(writer.num_shards)
            if not scripts:
                return
            written = run_scripts(model, scripts, num_rows, report, recorder)
            if recorder is not None:
                recorder.keep(writer.folder, writer.as_stored(written.samples), written.states)
            writer.add_shard(written.samples, dropped=written.dropped)


class Written(NamedTuple):
    """What came of scripts.

    Attributes:
        samples: in the order of their scripts.
        dropped: how many scripts gave none.
        states: of each sample, the hidden states of its tokens; empty where none were recorded.
    """

    samples: list[Sample]
    dropped: int
    states: list[States]


def run_scripts(
    model: Any,
    scripts: Sequence[Script],
    num_rows: int,
    report: Progress = lambda tokens: None,
    recorder: StateRecorder | None = None,
) -> Written:
    """All conversations to their ends, `num_rows` of them at a time, a quarter of that beginning together."""
    decoder = LockstepDecoder(model, None if recorder is None else recorder.hooks)
    device = model.get_input_embeddings().weight.device
    together = max(1, num_rows // COHORTS)
    waiting = [scripts[i : i + together] for i in range(0, len(scripts), together)][::-1]
    live: list[_Group] = []
    done: list[_Group] = []
    while waiting or live:
        while waiting and sum(group.num_rows for group in live) <= num_rows - together:
            live.append(_Group(len(live) + len(done), waiting.pop(), decoder, device))
        rows = [row for group in live for row in group.next_ids()]
        logits = decoder.step([group.cohort for group in live], torch.tensor(rows, device=device))
        _record(live, decoder.states)
        draws = [draw for group in live for draw in group.draws()]
        tokens = iter(choose(logits, draws))
        for group in live:
            report(group.advance([next(tokens) for _ in range(group.num_rows)]))
        done += [group for group in live if not group.num_rows]
        live = [group for group in live if group.num_rows]
    done.sort(key=lambda group: group.number)
    samples = [sample for group in done for sample in group.samples()]
    states = [states for group in done for states in group.states]
    return Written(samples, len(scripts) - len(samples), states)


def _record(groups: Sequence[_Group], states: Mapping[int, Tensor]) -> None:
    """Hand each group its rows of the states of a step."""
    first = 0
    for group in groups:
        rows = slice(first, first + group.num_rows)
        group.record({tap: state[rows] for tap, state in states.items()})
        first += group.num_rows


@torch.inference_mode()
def choose(logits: Tensor, draws: Sequence[Draw | None]) -> list[int]:
    """The token of each row that draws one; rows without a draw get 0.

    Args:
        logits: [R, V]; those of tokens that a row may not draw are overwritten.
        draws: [R].

    Raises:
        ModelError: a row that draws has no finite logit.
    """
    tokens = [0] * len(draws)
    for row, draw in enumerate(draws):
        if draw is not None and draw.banned:
            logits[row, list(draw.banned)] = -torch.inf
    best = logits.max(-1)
    greedy = [i for i, draw in enumerate(draws) if draw is not None and draw.temperature == 0]
    finite = best.values.isfinite().tolist()
    if not all(ok for ok, draw in zip(finite, draws, strict=True) if draw is not None):
        raise ModelError("the model's logits are not finite; try dtype=float32")
    for i, token in zip(greedy, best.indices[greedy].tolist(), strict=True):
        tokens[i] = token
    sampled = [i for i, draw in enumerate(draws) if draw is not None and draw.temperature > 0]
    if sampled:
        chosen = _sample(logits[sampled], [draws[i] for i in sampled])  # type: ignore[misc]
        for i, token in zip(sampled, chosen, strict=True):
            tokens[i] = token
    return tokens


def _sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Inverse of the cumulative law of each row's nucleus at the draw's random number."""
    column = [[draw.temperature, draw.top_p, draw.uniform] for draw in draws]
    temperature, top_p, uniform = torch.tensor(column, device=logits.device).T[:, :, None]
    top = logits.topk(min(NUCLEUS_TOKENS, logits.shape[-1]))
    law = (top.values.float() / temperature).softmax(-1)
    mass = law.cumsum(-1)
    law = law.masked_fill(mass - law >= top_p, 0)  # the first token that passes top_p stays
    mass = law.cumsum(-1)
    index = torch.searchsorted(mass, uniform * mass[:, -1:], right=True)
    index = index.clamp_max((law > 0).sum(-1, keepdim=True) - 1)
    return top.indices.gather(-1, index)[:, 0].tolist()


class _Group:
    """The scripts of a cohort, and which row of it each one is.

    A row whose script has ended stays until enough of them have, fed with its last token: once at least,
    so that the states of every token have been seen.
    """

    def __init__(
        self, number: int, scripts: Sequence[Script], decoder: LockstepDecoder, device: Any
    ) -> None:
        self.number = number
        self._scripts = list(scripts)
        # A script may give nothing: a prompt that leaves no room for a reply.
        self._asked: list[Given | Draw | None] = [next(script, None) for script in scripts]
        self._last = [0] * len(scripts)
        self._rows = list(range(len(scripts)))
        self._samples: dict[int, Sample] = {}
        self._seen = CohortStates(len(self._scripts))
        self.states: list[States] = []
        """Of each sample, once all rows have ended; empty mappings where nothing was recorded."""
        if any(isinstance(asked, Draw) for asked in self._asked):
            raise ModelError(
                "the chat template writes nothing before the user's words, so there is no token for the "
                "model to begin from; give prompts of your own"
            )
        start = self._shared_start()
        self.cohort = decoder.start(torch.tensor(start, device=device))
        self.record(decoder.states)

    @property
    def num_rows(self) -> int:
        """Rows of the cohort."""
        return len(self._rows)

    def samples(self) -> list[Sample]:
        """What the scripts gave, in their order."""
        return [self._samples[i] for i in sorted(self._samples)]

    def draws(self) -> list[Draw | None]:
        """What each row draws after the next step: nothing where its token is given, or it has ended."""
        asked = [self._asked[i] for i in self._rows]
        return [draw if isinstance(draw, Draw) else None for draw in asked]

    def next_ids(self) -> list[list[int]]:
        """[R, 1] each row's last token, which the model has not seen."""
        return [[self._last[i]] for i in self._rows]

    def record(self, states: Mapping[int, Tensor]) -> None:
        """Keep the states [R, N, h] of the pass that was made last; one without tokens has none."""
        new = next(iter(states.values())).shape[1] if states else 0
        if new and self.cohort.length:
            self._seen.add(self._rows, self.cohort.length - new, states)

    def advance(self, tokens: Sequence[int]) -> int:
        """Give every row its next token: its own, or the one that was drawn.

        Returns:
            Tokens of the conversations that ended with this.
        """
        before = set(self._samples)
        going = [row for row, i in enumerate(self._rows) if self._asked[i] is not None]
        self._feed(tokens)
        if len(going) <= COMPACT_AT * len(self._rows):
            self._keep(going)
        return sum(len(self._samples[i].token_ids) for i in self._samples.keys() - before)

    def _shared_start(self) -> list[list[int]]:
        """[R, N] what the conversations begin with, as far as all are given; the last token is kept back."""
        ids: list[list[int]] = [[] for _ in self._rows]
        while all(isinstance(asked, Given) for asked in self._asked):
            for row, token in zip(ids, self._feed([0] * len(self._rows)), strict=True):
                row.append(token)
        return [row[:-1] for row in ids]

    def _feed(self, tokens: Sequence[int]) -> list[int]:
        for i, token in zip(self._rows, tokens, strict=True):
            asked = self._asked[i]
            if asked is None:
                continue
            self._send(i, asked.token_id if isinstance(asked, Given) else token)
            replaced = self._asked[i]
            if isinstance(replaced, Given) and replaced.replaces:
                self._send(i, replaced.token_id)
        return [self._last[i] for i in self._rows]

    def _send(self, i: int, token: int) -> None:
        """Tell a script its next token, and hear what it asks for then."""
        self._last[i] = token
        try:
            self._asked[i] = self._scripts[i].send(token)
        except StopIteration as end:
            self._asked[i] = None
            if end.value is not None:
                self._samples[i] = end.value

    def _keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these; the others have ended, and their last token has been seen."""
        self._rows = [self._rows[row] for row in rows]
        if rows:
            self.cohort.keep(rows)
        else:
            tokens = [(i, len(self._samples[i].token_ids)) for i in sorted(self._samples)]
            self.states = [self._seen.take(i, count) for i, count in tokens]
            del self._seen
