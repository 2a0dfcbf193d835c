"""What a conversation is made of, token by token: which tokens are given and which the model draws.

A script is a generator: it yields a `Given` token or a `Draw`, is sent the token that stands there, and
returns the finished `Sample`, or None for a conversation of no use. Every choice in it hangs on the seed
and the conversation's own number, so it does not matter which conversations share a batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from foredraft.results import LOOP_NGRAM
from foredraft.train.corpus import Sample
from foredraft.train.templates import ChatFrame


@dataclass(frozen=True, slots=True)
class Given:
    """A token that the template or the user's data sets.

    Attributes:
        token_id: the token.
        replaces: it stands in the place of the token before it, which was drawn and not yet seen by the
            model: an end token is no part of a text that the template ends in its own way.
    """

    token_id: int
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """A token that the model chooses.

    Attributes:
        temperature: 0 takes the most likely token.
        top_p: nucleus.
        uniform: in [0, 1): the random number that picks from the sorted nucleus.
        banned: tokens that cannot be chosen.
    """

    temperature: float
    top_p: float = 1.0
    uniform: float = 0.0
    banned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentTask:
    """What a user asks about a text: token ids before it and after it.

    Attributes:
        before, after: the user's words.
        asks: whether the model goes on with the user's words behind `after`.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    asks: bool = False


SHORTEST_TURN = 32
"""Tokens that must be left for another question and its reply."""
SHORTEST_DOCUMENT = 64
"""Tokens of a document at least; where there is no room for so many, the user asks something else."""
FIRST_TOKENS, FIRST_TEMPERATURE = 4, 2.0
"""How a document begins: at a temperature that gives each another subject."""

Script = Generator[Given | Draw, int, Sample | None]


@dataclass(frozen=True, slots=True)
class Mixture:
    """How conversations are drawn.

    Attributes:
        greedy_share: share of conversations whose replies are greedy; the others take a temperature.
        temperatures: of the other replies, chosen evenly.
        top_p: nucleus of everything that is sampled.
        max_user_tokens, max_reply_tokens: a user's text that is longer ends the conversation before the
            reply; a reply that is longer is cut and ends it.
        max_length: tokens of a whole conversation.
        more_turns: probability of going on with another question after each reply.
        max_looping: a reply ends after so many tokens within a repetition of itself.
        documents: share of conversations that begin with a text of the model's and a task about it, so that
            replies take up what stands far above.
        max_document_tokens: tokens of such a text.
        openings: how users may begin, as token ids; the empty one leaves everything to the model.
        follow_ups: how they may begin their later questions.
        tasks: what they may ask about a document; without any there are no documents.
    """

    greedy_share: float = 0.75
    temperatures: tuple[float, ...] = (0.7, 1.0)
    top_p: float = 0.95
    max_user_tokens: int = 384
    max_reply_tokens: int = 256
    max_length: int = 1024
    more_turns: float = 0.6
    max_looping: int = 48
    documents: float = 0.15
    max_document_tokens: int = 600
    openings: tuple[tuple[int, ...], ...] = field(default=((),), repr=False)
    follow_ups: tuple[tuple[int, ...], ...] = field(default=((),), repr=False)
    tasks: tuple[DocumentTask, ...] = field(default=(), repr=False)


@dataclass(slots=True)
class _Writing:
    """The conversation so far."""

    token_ids: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def give(
        self, tokens: Sequence[int], *, replacing: bool = False
    ) -> Generator[Given | Draw, int, None]:
        for i, token in enumerate(tokens):
            yield Given(token, replaces=replacing and i == 0)
            self.token_ids.append(token)

    def sample(self) -> Sample:
        """All that leads to a reply, and the replies: an unfinished question at the end teaches nothing."""
        stop = self.spans[-1][1]
        return Sample(np.array(self.token_ids[:stop], np.int64), tuple(self.spans))


def conversation(frame: ChatFrame, mixture: Mixture, seed: int, number: int) -> Script:
    """A conversation that the model writes whole: the user's words and the replies."""
    random = np.random.default_rng([seed, number])
    temperature = _reply_temperature(mixture, random)
    writing = _Writing()
    yield from writing.give(frame.user_opening)
    beginnings = mixture.openings
    task = _task(mixture, len(writing.token_ids), random)
    while True:
        if task is not None:
            asked = yield from _about_document(task, writing, frame, mixture, random)
            task = None
        else:
            asked = yield from _led(beginnings, writing, frame, mixture, random)
        if not asked:
            break
        ended = yield from _reply(writing, frame, mixture, temperature, random)
        room = mixture.max_length - len(writing.token_ids) > len(frame.next_user) + SHORTEST_TURN
        if not ended or not room or random.random() >= mixture.more_turns:
            break
        yield from writing.give(frame.next_user)
        beginnings = mixture.follow_ups
    return writing.sample() if writing.spans else None


def answers(
    frame: ChatFrame, prompts: Sequence[Sequence[int]], mixture: Mixture, seed: int, number: int
) -> Script:
    """Replies to a user's turns, given as token ids ready for the model: the first with the opening and the
    start of the reply, each later one from behind the end of the reply before."""
    random = np.random.default_rng([seed, number])
    temperature = _reply_temperature(mixture, random)
    writing = _Writing()
    for prompt in prompts:
        if len(writing.token_ids) + len(prompt) >= mixture.max_length:
            break
        yield from writing.give(prompt)
        ended = yield from _reply(writing, frame, mixture, temperature, random)
        if not ended:
            break
    return writing.sample() if writing.spans else None


def _reply_temperature(mixture: Mixture, random: np.random.Generator) -> float:
    if random.random() < mixture.greedy_share:
        return 0.0
    return float(random.choice(mixture.temperatures))


def _task(mixture: Mixture, start: int, random: np.random.Generator) -> DocumentTask | None:
    """What the conversation asks about a document, if it begins with one."""
    if not mixture.tasks or random.random() >= mixture.documents:
        return None
    task = mixture.tasks[random.integers(len(mixture.tasks))]
    room = _document_room(task, mixture, start)
    return task if room >= SHORTEST_DOCUMENT else None


def _document_room(task: DocumentTask, mixture: Mixture, start: int) -> int:
    """The longest document for which a task and a reply have room beside it."""
    beside = start + len(task.before) + len(task.after) + 2 * SHORTEST_TURN
    return min(mixture.max_document_tokens, mixture.max_length - beside)


def _about_document(
    task: DocumentTask,
    writing: _Writing,
    frame: ChatFrame,
    mixture: Mixture,
    random: np.random.Generator,
) -> Generator[Given | Draw, int, bool]:
    """Draw a document and what is asked about it, up to the reply; False if the question does not end."""
    room = _document_room(task, mixture, len(writing.token_ids))
    yield from writing.give(task.before)
    for i in range(int(random.integers(SHORTEST_DOCUMENT, room + 1))):
        temperature = FIRST_TEMPERATURE if i < FIRST_TOKENS else 1.0
        token = yield Draw(temperature, mixture.top_p, random.random(), frame.user_end_ids)
        writing.token_ids.append(token)
    yield from writing.give(task.after)
    if not task.asks:
        yield from writing.give(frame.between)
        return True
    return (yield from _question(writing, frame, mixture, random, empty=False))


def _led(
    beginnings: tuple[tuple[int, ...], ...],
    writing: _Writing,
    frame: ChatFrame,
    mixture: Mixture,
    random: np.random.Generator,
) -> Generator[Given | Draw, int, bool]:
    """Draw a question that begins in one of these ways, up to the reply; False if it does not end."""
    opening = beginnings[random.integers(len(beginnings))]
    if len(writing.token_ids) + len(opening) >= mixture.max_length:
        return False
    yield from writing.give(opening)
    return (yield from _question(writing, frame, mixture, random, empty=not opening))


def _question(
    writing: _Writing,
    frame: ChatFrame,
    mixture: Mixture,
    random: np.random.Generator,
    *,
    empty: bool,
) -> Generator[Given | Draw, int, bool]:
    """Draw the user's text, of which nothing stands there yet if `empty`, and lead from it to the reply.

    Returns False if the text is empty or does not end.
    """
    start = len(writing.token_ids)
    room = min(mixture.max_user_tokens, mixture.max_length - start - len(frame.between) - 1)
    for _ in range(room):
        token = yield Draw(1.0, mixture.top_p, random.random())
        if token in frame.user_end_ids:
            written = writing.token_ids[start:]
            kept = len(frame.user_text([*written, token]))
            if not kept and empty:
                return False
            # What `between` begins with may have been written already; the caches hold it.
            yield from writing.give(frame.between[len(written) - kept :], replacing=True)
            return True
        writing.token_ids.append(token)
    return False


def _reply(
    writing: _Writing,
    frame: ChatFrame,
    mixture: Mixture,
    temperature: float,
    random: np.random.Generator,
) -> Generator[Given | Draw, int, bool]:
    """Draw a reply; returns whether it ended by itself, with the token by which the template ends a turn."""
    first = len(writing.token_ids)
    loops = _LoopWatch()
    ended, token = False, -1
    for _ in range(min(mixture.max_reply_tokens, mixture.max_length - first)):
        uniform = random.random() if temperature else 0.0
        token = yield Draw(temperature, mixture.top_p, uniform)
        writing.token_ids.append(token)
        ended = token in frame.assistant_end_ids
        if ended or loops.looping(token) >= mixture.max_looping:
            break
    if len(writing.token_ids) > first:
        writing.spans.append((first, len(writing.token_ids)))
    return ended and token == frame.assistant_end_ids[0]


class _LoopWatch:
    """Counts tokens in a row that repeat an earlier 8-gram of the reply."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._seen: set[tuple[int, ...]] = set()
        self._count = 0

    def looping(self, token: int) -> int:
        self._tokens.append(token)
        gram = tuple(self._tokens[-LOOP_NGRAM:])
        self._count = self._count + 1 if gram in self._seen else 0
        self._seen.add(gram)
        return self._count
