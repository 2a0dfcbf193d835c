"""How many tokens of a chain the target would accept, at every position of a text at once.

A chain drafted behind a root is the text itself for as long as its tokens are the text's. So laws that are
read along the text (of an EAGLE head the steps of its training, of a draft model one pass) are those of
the draft, until its first token that is none of the text. No token is drafted one by one.

Labels at temperature 0 are the tokens accepted by greedy decoding: the target's own best tokens decide.
Above 0 they are an expectation. Of a chain whose tokens are drawn from q and verified by rejection, depth
d is accepted with the mean, over texts x that the target writes, of

    min(1, q/p)(x_1) .. min(1, q/p)(x_(d-1)) * sum over v of min(p, q)(v) at depth d,

since an accepted token follows min(p, q) and the text p. The label is the sum of this over d. It holds for
texts that were sampled at that temperature from the whole law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.backends.hf_facts import text_config
from foredraft.drafters.eagle.ends import LmRows, TargetEnds
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.other_rows import OtherRows
from foredraft.train.features import TargetFeatures
from foredraft.train.objective import Batch
from foredraft.train.unroll import Unroll

CHUNK_ROWS = 256
"""Rows of which the target's whole law is made at a time."""
GREEDY_SHARE = 0.95
"""Share of a reply's tokens that must be the target's best ones: a reply that was sampled has less, and of a
greedy one a few are others, where rounding decided between equals."""
LEAST = 1e-4
"""A path that is accepted less often adds nothing more to an expectation."""


@dataclass(frozen=True, slots=True)
class Laws:
    """Logits after rows.

    Attributes:
        logits: [B, R, C]; -inf where a row does not know a token.
        ids: int64 [C] the token of each column.
    """

    logits: Tensor
    ids: Tensor


class ReadLaws(Protocol):
    """A drafter's laws along a batch of texts. Row j drafts behind token j + 1, the root."""

    def begin(self, batch: Batch, features: Tensor, rows: Tensor) -> Laws:
        """The laws of depth 1 of these rows, int64 [B, R]; features [B, T, F] are what the drafter reads."""
        ...

    def deeper(self, places: Tensor) -> Laws:
        """The next depth of some of the rows, int64 [B, S] places among the last ones."""
        ...


@dataclass(frozen=True, slots=True)
class Labels:
    """What was found; N positions.

    Attributes:
        features: [N, 2 h]: what enters the first layer, and the state after the final norm, of the token
            before the root, in the target's dtype.
        lengths: float32 [N] accepted tokens, 0 to the longest.
        roots: int64 [N] the root's token.
        places: int64 [N] the root's position in its text.
        samples: int64 [N] the text.
    """

    features: Tensor
    lengths: Tensor
    roots: Tensor
    places: Tensor
    samples: Tensor


class Labeller:
    """Labels the positions of texts.

    Args:
        model: the target, a `transformers` model.
        taps: of the target, as the drafter reads them; none for a draft model.
        laws: the drafter's.
        longest: tokens of a chain at most.
        end_ids: tokens behind which there is nothing.
        temperature: 0 for greedy acceptance, else of text and draft.
    """

    def __init__(
        self,
        model: object,
        taps: Sequence[int],
        laws: ReadLaws,
        longest: int,
        end_ids: Sequence[int],
        temperature: float = 0.0,
    ) -> None:
        self._states = TargetFeatures(model, (*taps, 0))
        self._ends, self._laws = TargetEnds.of(model), laws
        self._longest, self._temperature = longest, temperature
        self._end_ids = torch.tensor(sorted(end_ids), dtype=torch.int64)

    @property
    def device(self) -> torch.device:
        """Where batches belong."""
        return self._ends.device

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Labels:
        """The labels of a batch; positions of which nobody can tell are left out."""
        states = self._states(batch)
        size = states.final.shape[-1]
        own, first = states.features[..., :-size], states.features[..., -size:]
        text = _Text.of(batch, states.final, self._ends, self._temperature)
        rows, there = _rows_before(text.wanted)
        if not rows.numel():
            return _none(batch, states.final)
        run = _Run(text, rows, there, self._end_ids.to(rows.device))
        laws = self._laws.begin(batch, own, rows)
        for depth in range(self._longest):
            run.add(laws, depth)
            if depth + 1 == self._longest or not (places := run.narrow()).shape[1]:
                break
            laws = self._laws.deeper(places)
        found = run.known & there
        sample, column = found.nonzero(as_tuple=True)
        at = rows[sample, column]
        features = torch.cat([first[sample, at], states.final[sample, at]], -1)
        roots = batch.token_ids[sample, at + 1]
        return Labels(features, run.lengths[found], roots, at + 1, batch.samples[sample])


# --- the text, and what the target thinks of it -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """A batch as labels read it.

    Attributes:
        token_ids: int64 [B, T].
        answered: bool [B, T], tokens of replies, inside the text.
        wanted: bool [B, T], those behind a root that is labelled.
        best: int64 [B, T] the target's best token in each place, where it answers; at temperature 0.
        final: [B, T, h].
        masses: float32 [B, T], log of the sum of exp(logits / temperature) after each token; above 0.
        ends: the target's.
        temperature: see `Labeller`.
    """

    token_ids: Tensor
    answered: Tensor
    wanted: Tensor
    best: Tensor
    final: Tensor
    masses: Tensor
    ends: TargetEnds
    temperature: float

    @classmethod
    def of(cls, batch: Batch, final: Tensor, ends: TargetEnds, temperature: float) -> _Text:
        length = batch.token_ids.shape[1]
        inside = torch.arange(length, device=final.device) < batch.lengths[:, None]
        answered = batch.labelled & inside
        best, masses = _read_target(final, answered, ends, temperature)
        wanted = answered if temperature else answered & _greedy(batch, answered, best)
        wanted[:, :2] = False  # no state stands before their root
        return cls(batch.token_ids, answered, wanted, best, final, masses, ends, temperature)

    def target_logits(self, sample: Tensor, place: Tensor, ids: Tensor) -> Tensor:
        """log p [n, C] of these tokens in these places, [n] each."""
        rows = self.ends.rows_of(ids)
        logits = self.ends.finish(rows.logits(self.final[sample, place - 1])).float()
        return logits / self.temperature - self.masses[sample, place - 1, None]


def _read_target(
    final: Tensor, answered: Tensor, ends: TargetEnds, temperature: float
) -> tuple[Tensor, Tensor]:
    """The best token in each place that is answered, and the mass of the law before each; see `_Text`."""
    best = torch.full(answered.shape, -1, device=final.device)
    masses = torch.zeros(answered.shape, device=final.device)
    samples, places = answered.nonzero(as_tuple=True)
    for part in range(0, len(samples), CHUNK_ROWS):
        sample, place = samples[part : part + CHUNK_ROWS], places[part : part + CHUNK_ROWS]
        logits = ends.logits(final[sample, place - 1])
        if temperature:
            masses[sample, place - 1] = (logits.float() / temperature).logsumexp(-1)
        else:
            best[sample, place] = logits.argmax(-1)
    return best, masses


def _greedy(batch: Batch, answered: Tensor, best: Tensor) -> Tensor:
    """bool [B, T]: tokens of replies that the target wrote greedily."""
    starts = answered & ~F.pad(answered[:, :-1], (1, 0))
    reply = starts.cumsum(1) * answered  # 0 outside, else the number of the reply
    same = (best == batch.token_ids) & answered
    count = int(reply.max()) + 1 if reply.numel() else 1
    sizes, hits = (
        torch.zeros(len(reply), count, device=reply.device).scatter_add_(1, reply, of.float())
        for of in (answered, same)
    )
    return answered & (hits >= GREEDY_SHARE * sizes).gather(1, reply)


def _rows_before(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [B, R] rows whose chains begin in wanted places, padded, and bool [B, R] which are there."""
    return _packed(F.pad(wanted[:, 2:], (0, 2)))


def _packed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen places of each row, bool [B, T], in order: [B, most], padded with 0; and which are there."""
    counts = chosen.sum(1)
    most = int(counts.max()) if counts.numel() else 0
    there = torch.arange(most, device=chosen.device) < counts[:, None]
    places = torch.zeros(there.shape, dtype=torch.int64, device=chosen.device)
    places[there] = chosen.nonzero()[:, 1]
    return places, there


def _none(batch: Batch, final: Tensor) -> Labels:
    nothing = batch.lengths[:0]
    features = final.new_zeros(0, 2 * final.shape[-1])
    return Labels(features, torch.zeros(0), nothing, nothing, nothing)


# --- runs of accepted tokens ------------------------------------------------------------------------


class _Run:
    """How far the chain of each row has come.

    Attributes:
        lengths: float32 [B, R] so far.
        known: bool [B, R], whether that is certain.
    """

    def __init__(self, text: _Text, rows: Tensor, there: Tensor, end_ids: Tensor) -> None:
        self._text, self._rows, self._end_ids = text, rows, end_ids
        self.lengths = torch.zeros(rows.shape, device=rows.device)
        self.known = there.clone()
        self._reached = there.float()  # how likely the depth is reached
        self._columns = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        self._there = there

    def add(self, laws: Laws, depth: int) -> None:
        """Take in the laws of the rows that were kept."""
        sample, column = self._there.nonzero(as_tuple=True)
        whole = self._columns[sample, column]
        place = self._rows[sample, whole] + 2 + depth
        goes_on = self._inside(sample, whole, place)
        sample, column, whole, place = (of[goes_on] for of in (sample, column, whole, place))
        logits = laws.logits[sample, column]
        if self._text.temperature:
            self._expect(sample, whole, place, logits, laws.ids)
        else:
            self._match(sample, whole, place, laws.ids[logits.argmax(-1)])

    def narrow(self) -> Tensor:
        """int64 [B, S]: places, among the rows that were kept last, of those that go on."""
        alive = (self._reached > LEAST).gather(1, self._columns) & self._there
        places, self._there = _packed(alive)
        self._columns = self._columns.gather(1, places)
        return places

    def _inside(self, sample: Tensor, whole: Tensor, place: Tensor) -> Tensor:
        """Whether the reply goes on to these places; where it was cut off, nobody knows how it would."""
        text = self._text
        last = text.token_ids.shape[1] - 1
        inside = (place <= last) & text.answered[sample, place.clamp_max(last)]
        over = ~inside
        ended = torch.isin(text.token_ids[sample, place - 1], self._end_ids)
        self._reached[sample[over], whole[over]] = 0.0
        self.known[sample[over & ~ended], whole[over & ~ended]] = False
        return inside

    def _match(self, sample: Tensor, whole: Tensor, place: Tensor, drafted: Tensor) -> None:
        """Greedy: a token is accepted if it is the target's best one."""
        text = self._text
        right = drafted == text.best[sample, place]
        other = text.token_ids[sample, place] != text.best[sample, place]
        self.lengths[sample, whole] += right.float()
        self._reached[sample, whole] = (right & ~other).float()
        lost = right & other  # accepted, and the text goes on otherwise than the target would
        self.known[sample[lost], whole[lost]] = False

    def _expect(
        self, sample: Tensor, whole: Tensor, place: Tensor, logits: Tensor, ids: Tensor
    ) -> None:
        """Sampled: what rejection is expected to accept."""
        text = self._text
        log_q = (logits.float() / text.temperature).log_softmax(-1)
        log_p = text.target_logits(sample, place, ids)
        overlap = torch.minimum(log_p, log_q).exp().sum(-1)
        self.lengths[sample, whole] += self._reached[sample, whole] * overlap
        said = ids == text.token_ids[sample, place, None]  # [n, C]: at most one column is the token
        kept = (log_q - log_p).clamp_max(0).exp().nan_to_num(0.0)
        self._reached[sample, whole] *= (kept * said).sum(-1)


# --- the drafters -----------------------------------------------------------------------------------


class HeadLaws:
    """An EAGLE head's laws: the steps of its training, along the text.

    A reduced vocabulary takes in the tokens of the text up to the root, as it does in drafting.
    """

    def __init__(self, head: EagleHead) -> None:
        self._head = head.eval()
        self._others = OtherRows.of(head)

    def begin(self, batch: Batch, features: Tensor, rows: Tensor) -> Laws:
        """See `ReadLaws`."""
        self._unroll = Unroll(self._head, batch.token_ids, features)
        self._rows = rows
        self._take_in(batch)
        self._output = self._unroll.choose(rows, self._unroll.first())
        return self._laws()

    def deeper(self, places: Tensor) -> Laws:
        """See `ReadLaws`."""
        self._rows = self._rows.gather(1, places)
        self._output = self._unroll.next(self._unroll.keep(places, self._output))
        return self._laws()

    def _laws(self) -> Laws:
        logits = self._head.logits(self._output, self._more)
        count = self._since.shape[1]
        if count:
            unseen = self._since[:, None] > self._rows[..., None] + 1
            logits[..., -count:].masked_fill_(unseen, -torch.inf)
        return Laws(logits, self._ids)

    def _take_in(self, batch: Batch) -> None:
        """The batch's tokens that the head does not know, and since which place each text has them."""
        head, tokens = self._head, batch.token_ids
        own = head.target_ids
        new = tokens.new_zeros(0)
        if own is not None and self._others is not None:
            present = torch.unique(tokens)
            new = present[~torch.isin(present, own)]
        self._more: LmRows | None = self._others.rows(new) if len(new) and self._others else None
        first = tokens[:, :, None] == new  # [B, T, E]
        since = first.int().argmax(1)
        self._since = since.masked_fill(~first.any(1), tokens.shape[1])
        every = torch.arange(head.config.draft_vocab_size, device=tokens.device)
        self._ids = torch.cat([every if own is None else own.to(tokens.device), new])


class ModelLaws:
    """A draft model's laws: one pass over the text.

    Args:
        model: a `transformers` model.
        target_ids: as in `DraftModelDrafter`.
        vocab_size: of the target: tokens that it lacks are never drafted.
    """

    def __init__(self, model: object, target_ids: Tensor | None, vocab_size: int) -> None:
        self._ends = TargetEnds.of(model)
        self._states = TargetFeatures(model, (text_config(model).num_hidden_layers,))
        rows = len(self._ends.lm_rows)
        ids = torch.arange(rows) if target_ids is None else target_ids
        self._ids = ids.to(self._ends.device)
        self._known = self._ids < vocab_size

    def begin(self, batch: Batch, features: Tensor, rows: Tensor) -> Laws:
        """See `ReadLaws`."""
        self._final = self._states(batch).final
        self._at = rows + 1
        return self._laws()

    def deeper(self, places: Tensor) -> Laws:
        """See `ReadLaws`."""
        last = self._final.shape[1] - 1
        self._at = (self._at.gather(1, places) + 1).clamp_max(last)
        return self._laws()

    def _laws(self) -> Laws:
        sample = torch.arange(len(self._at), device=self._at.device)[:, None]
        logits = self._ends.logits(self._final[sample, self._at])
        return Laws(logits.masked_fill(~self._known.to(logits.device), -torch.inf), self._ids)
