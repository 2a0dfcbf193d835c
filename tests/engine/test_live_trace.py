"""A trace that is told while the answer is made: texts of tokens, company, and the engine's own target."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.batch import Batch
from foredraft.engine.trace.live import LiveTrace
from foredraft.engine.trace.names import TokenNames
from foredraft.engine.trace.shown import TraceRound
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Company, DraftLimits, Frontier, PolicyState, RoundOutcome
from tests.bench.traced import HOSTILE, PROMPT, ids_of, speaking
from tests.scripted import perfect

LETTERS = st.sampled_from(["a", "b", "é", "👩", " ", "ab"])


def told(engine: Engine, options: GenerationOptions) -> tuple[list[TraceRound], str]:
    """The rounds of an answer, and its text."""
    trace = LiveTrace(engine, options, TokenNames(engine))
    with trace.stream(PROMPT) as stream:
        rounds = [trace.read(stream, step) for step in stream]
        return rounds, stream.result().text


def text_of(rounds: Sequence[TraceRound]) -> str:
    return "".join(token.text for each in rounds for token in each.tokens)


@given(text=st.lists(LETTERS, min_size=1, max_size=25).map("".join), depth=st.integers(0, 4))
def test_the_texts_of_tokens_are_the_answer(text: str, depth: int) -> None:
    engine = speaking(text, perfect([*PROMPT, *ids_of(text), 2], depth))
    rounds, answer = told(engine, GenerationOptions(max_new_tokens=200))
    assert text_of(rounds) == answer == text


@given(
    text=st.lists(LETTERS, min_size=1, max_size=25).map("".join),
    stop=st.lists(LETTERS, min_size=1, max_size=3).map("".join),
    depth=st.integers(0, 4),
)
def test_of_a_stop_string_only_its_beginning_may_have_been_told(
    text: str, stop: str, depth: int
) -> None:
    engine = speaking(text, perfect([*PROMPT, *ids_of(text), 2], depth))
    rounds, answer = told(engine, GenerationOptions(max_new_tokens=200, stop=(stop,)))
    assert answer == text.split(stop)[0]
    begun = text_of(rounds).removeprefix(answer)
    assert text_of(rounds) == answer + begun
    assert stop.startswith(begun)
    assert begun != stop


def test_half_a_character_at_the_end_goes_to_the_last_token() -> None:
    half = HOSTILE.encode() + "é".encode()[:1]
    engine = speaking(half, perfect([*PROMPT, *ids_of(half), 2], 3))
    rounds, answer = told(engine, GenerationOptions(max_new_tokens=400))
    assert text_of(rounds) == answer
    assert answer.endswith("\ufffd")


class HeedingState:
    """State of a policy that notes its company."""

    def __init__(self, own: PolicyState, met: list[Company]) -> None:
        self._own, self._met = own, met

    def join(self, company: Company) -> None:
        self._met.append(company)

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return self._own.plan(limits, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        return self._own.grow(frontier)

    def observe(self, outcome: RoundOutcome) -> None:
        self._own.observe(outcome)


class HeedingPolicy(FixedPolicy):
    """Notes its company."""

    def __init__(self, tree: str) -> None:
        super().__init__(tree)
        self.met: list[Company] = []

    def start(self) -> HeedingState:  # type: ignore[override]
        return HeedingState(super().start(), self.met)


def test_a_traced_answer_shares_a_batch_and_its_policy_knows() -> None:
    target, policy = TableModel.random(6, seed=1), HeedingPolicy("2,1")
    engine = Engine(target, DraftModelDrafter(TableModel.random(6, seed=2)), policy)
    options = GenerationOptions(max_new_tokens=8, temperature=1.0, seed=4)
    trace = LiveTrace(engine, options, TokenNames(engine))
    stream, other = trace.stream([1, 2]), engine.without_drafts().stream([3], options)
    batch = Batch(target)
    batch.join(stream)
    batch.join(other)
    ids: list[int] = []
    while not stream.is_finished:
        mine = next(progress for progress in batch.round() if progress.stream is stream)
        assert mine.step is not None
        told = trace.read(stream, mine.step)
        ids += [token.token_id for token in told.tokens]
    assert tuple(ids) == engine.generate([1, 2], options).token_ids
    batch.close()
    assert policy.met[0].members == 1
