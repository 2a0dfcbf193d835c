"""Every option has its effect through the engine, with every drafter, and the effect is `transformers`' own.

The reference decodes a tiny Llama one token at a time without any cache, with the processors that `generate`
makes of the same request; noise is added before the argmax when sampling.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.config import GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, NumericsError
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, PolicyState
from foredraft.results import Result
from foredraft.sampling.randomness import SeededRandomness
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from foredraft.verifiers.rejection import RejectionVerifier
from tests.tiny_models import VOCAB_SIZE, tiny_llama

PROMPT = [5, 6, 7, 8, 5, 6]
LENGTH = 24


class Letters:
    """A tokenizer whose every token is one letter."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 0x100 for letter in text if letter != " "]}

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return "".join(chr(0x100 + token) for token in token_ids)


# --- processors of users ------------------------------------------------------------------------------


class Allow(hf.LogitsProcessor):
    """Forbids all tokens but a few, from some position on."""

    def __init__(self, *token_ids: int, start: int = 0) -> None:
        self.token_ids, self.start = list(token_ids), start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        allowed = torch.full_like(scores, -math.inf)
        allowed[:, self.token_ids] = scores[:, self.token_ids]
        return allowed if input_ids.shape[1] >= self.start else scores


class Recorder(hf.LogitsProcessor):
    """Keeps state: what it saw, and a running hash that moves the scores."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.scores: list[Tensor] = []
        self.state = 1

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(tuple(input_ids[0].tolist()))
        self.scores.append(scores[0].clone())
        self.state = (self.state * 31 + self.seen[-1][-1]) % 1009
        shift = torch.zeros_like(scores)
        shift[:, self.state % scores.shape[-1]] = 2.0
        return scores + shift


# --- the reference ------------------------------------------------------------------------------------


@functools.cache
def llama() -> Any:
    return tiny_llama()


def processors_of_generate(
    prompt: Sequence[int], options: GenerationOptions, ends: list[int]
) -> Any:
    arguments: dict[str, Any] = {
        "repetition_penalty": float(options.repetition_penalty),
        "min_new_tokens": options.min_new_tokens if ends else None,
        "bad_words_ids": [list(word) for word in options.bad_words] or None,
        "suppress_tokens": list(options.suppress_tokens) or None,
        "sequence_bias": {(t,): float(b) for t, b in options.logit_bias.items()} or None,
        "logits_processor": list(options.logits_processors),
        "eos_token_id": ends or [VOCAB_SIZE + 1],
        "do_sample": options.temperature > 0,
    }
    if options.temperature > 0:
        arguments |= {"temperature": float(options.temperature), "top_k": options.top_k}
        arguments |= {"top_p": options.top_p, "min_p": options.min_p or None}
    ids = torch.tensor([list(prompt)])
    grab = lambda model, input_ids, logits_processor, **rest: logits_processor  # noqa: E731
    return llama().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        custom_generate=grab,
        max_new_tokens=99,
        **arguments,
    )


@torch.inference_mode()
def reference(
    options: GenerationOptions, prompt: Sequence[int] = PROMPT
) -> tuple[tuple[int, ...], str]:
    """The answer's tokens and text."""
    own = options.eos_token_ids
    ends = [] if options.ignore_eos else list([2] if own is None else own)
    process = processors_of_generate(prompt, options, ends)
    random = SeededRandomness(options.seed or 0, options.choice)
    answer: list[int] = []
    while len(answer) < options.max_new_tokens:
        ids = torch.tensor([[*prompt, *answer]])
        scores = llama()(ids).logits[:, -1].clone()
        for token, count in Counter(answer).items():
            scores[0, token] -= options.frequency_penalty * count + options.presence_penalty
        scores = process(ids, scores)[0]
        if options.temperature > 0:
            scores = scores + random.gumbel(ids.shape[1], VOCAB_SIZE)
        answer.append(int(scores.argmax()))
        if answer[-1] in ends:
            return tuple(answer), Letters().decode(answer[:-1])
        text = Letters().decode(answer)
        for stop in options.stop:
            if stop in text:
                return tuple(answer), text[: text.index(stop)]
    return tuple(answer), Letters().decode(answer)


# --- the engines --------------------------------------------------------------------------------------


@dataclass
class Script:
    """A drafter that plays a fixed text, whatever the target says: right until the two part."""

    text: Sequence[int]
    proposals = frozenset({Proposal.DETERMINISTIC})
    default_policy = FixedPolicy.chain(4)

    def start(self, capacity: int) -> Script:
        return self

    def prefill(self, token_ids: Sequence[int]) -> None:
        pass

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        builder, node = TreeBuilder(context.token_ids[-1]), 0
        depth = min(4, context.limits.max_depth)
        for token in self.text[len(context.token_ids) :][:depth]:
            node = builder.add(node, token, Proposal.DETERMINISTIC)
        return builder.build()

    def commit(self, path: Sequence[int]) -> None: ...

    def close(self) -> None: ...


@functools.cache
def target() -> HFTarget:
    return HFTarget(llama())


@functools.cache
def draft_model(seed: int) -> HFTarget:
    """Seed 0 is the target itself."""
    return HFTarget(tiny_llama(seed=seed))


def engine(drafter: Any = None, policy: Any = None, verifier: Any = None) -> Engine:
    return Engine(target(), drafter, policy, verifier, tokenizer=Letters())


def by_model(seed: int, proposal: Proposal, widths: tuple[int, ...]) -> Engine:
    return engine(DraftModelDrafter(draft_model(seed), proposal), FixedPolicy(widths))


ENGINES: dict[str, Callable[[], Engine]] = {
    "plain": engine,
    "n-gram": lambda: engine(NgramDrafter(1, 3)),
    "n-gram tree": lambda: engine(NgramDrafter(1, 3), FixedPolicy((3, 2, 1))),
    "the target itself": lambda: by_model(0, Proposal.COUPLED, (1,) * 4),
    "coupled tree": lambda: by_model(1, Proposal.COUPLED, (3, 2, 1)),
    "top-k tree": lambda: by_model(0, Proposal.DETERMINISTIC, (3, 2, 1)),
    "sampled tree": lambda: by_model(0, Proposal.SAMPLED, (2, 2, 1)),
    "resampled tree": lambda: by_model(1, Proposal.RESAMPLED, (2, 2)),
}
DRAFTING = [name for name in ENGINES if name != "plain"]

# --- case 30: every option, two values ----------------------------------------------------------------

GREEDY = GenerationOptions(max_new_tokens=LENGTH, ignore_eos=True)
SAMPLED = GREEDY.replace(temperature=1.2, seed=3)
FREE = reference(GREEDY)[0]
END = FREE[6]
ENDING = GREEDY.replace(ignore_eos=False, eos_token_ids=[END])

EFFECTS: dict[str, tuple[GenerationOptions, Any, Any]] = {
    "max_new_tokens": (GREEDY, 1, 20),
    "min_new_tokens": (ENDING, 0, 15),
    "temperature": (SAMPLED, 0.2, 3.0),
    "top_k": (SAMPLED, 1, 40),
    "top_p": (SAMPLED, 0.05, 0.99),
    "min_p": (SAMPLED, 0.0, 0.9),
    "repetition_penalty": (GREEDY, 0.5, 3.0),
    "presence_penalty": (GREEDY, -2, 2.0),
    "frequency_penalty": (GREEDY, -2, 2.0),
    "logit_bias": (GREEDY, {9: 50}, {FREE[0]: -math.inf, FREE[4]: -3.5}),
    "bad_words": (GREEDY, [[FREE[0]]], [FREE[2:4], FREE[5:7]]),
    "suppress_tokens": (GREEDY, (), [FREE[0], FREE[3]]),
    "logits_processors": (GREEDY, (), [Allow(3, 4, 5)]),
    "seed": (SAMPLED, 1, 2**40),
    "choice": (SAMPLED, 0, 9),
    "eos_token_ids": (ENDING, [], [FREE[10], END]),
    "ignore_eos": (ENDING, True, False),
    "stop": (GREEDY, (), [Letters().decode(FREE[5:7]), Letters().decode(FREE[7:9])]),
}

REPORTING = ("logprobs", "prompt_logprobs")
"""They tell of an answer and change none of its tokens: tests/engine/test_logprobs.py."""


def test_every_option_is_here() -> None:
    assert [*EFFECTS, *REPORTING] == [f.name for f in dataclasses.fields(GenerationOptions)]


def both_requests(name: str) -> list[GenerationOptions]:
    base, *values = EFFECTS[name]
    return [base.replace(**{name: value}) for value in values]


@functools.cache
def effects_in_generate(name: str) -> list[tuple[tuple[int, ...], str]]:
    return [reference(options) for options in both_requests(name)]


def answer_of(result: Result) -> tuple[tuple[int, ...], str]:
    return result.token_ids, result.text


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", EFFECTS)
def test_an_option_has_the_effect_it_has_in_generate(name: str, kind: str) -> None:
    requests = both_requests(name)
    answers = [answer_of(ENGINES[kind]().generate(PROMPT, options)) for options in requests]
    assert answers == effects_in_generate(name)
    assert answers[0] != answers[1]


def test_a_bad_word_as_text_is_its_tokens() -> None:
    word = Letters().decode(FREE[2:4])
    options = GREEDY.replace(bad_words=[word])
    result = engine(Script([*PROMPT, *FREE])).generate(PROMPT, options)
    assert result.token_ids == reference(GREEDY.replace(bad_words=[FREE[2:4]]))[0] != FREE


@pytest.mark.parametrize("kind", ENGINES)
def test_an_unknown_option_is_an_error_through_the_engine(kind: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'frequency_penalty'"):
        ENGINES[kind]().generate(PROMPT, frequency_penality=1.0)


@pytest.mark.parametrize("kind", DRAFTING)
@pytest.mark.parametrize("seed", range(3))
def test_many_options_at_once(kind: str, seed: int) -> None:
    options = SAMPLED.replace(
        seed=seed,
        top_k=30,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={9: 1.5},
        bad_words=[[9, 10], [FREE[0]]],
        suppress_tokens=[11],
        min_new_tokens=8,
        ignore_eos=False,
        eos_token_ids=[9, 20, 30],
    )
    assert answer_of(ENGINES[kind]().generate(PROMPT, options)) == reference(options)


@pytest.mark.parametrize("kind", ENGINES)
def test_penalties_count_tokens_and_not_rounds(kind: str) -> None:
    """Case 29."""
    options = GREEDY.replace(
        min_new_tokens=10, frequency_penalty=1.0, ignore_eos=False, eos_token_ids=[END]
    )
    result = ENGINES[kind]().generate(PROMPT, options)
    assert answer_of(result) == reference(options)
    assert END not in result.token_ids[:10]


# --- case 31: bans over and inside blocks -------------------------------------------------------------


@pytest.mark.parametrize("first", range(12))
@pytest.mark.parametrize("length", [2, 3])
def test_a_bad_word_is_banned_wherever_a_block_ends(first: int, length: int) -> None:
    """The script wants the word at every place of a block of five, and over its border."""
    word = FREE[first : first + length]
    options = GREEDY.replace(bad_words=[word])
    result = engine(Script([*PROMPT, *FREE])).generate(PROMPT, options)
    assert result.token_ids == reference(options)[0]
    windows = [result.token_ids[i : i + length] for i in range(LENGTH - length + 1)]
    assert word not in windows


@pytest.mark.parametrize("kind", DRAFTING)
@pytest.mark.parametrize("start", [0, 8, 11])
def test_allowed_ids_hold_inside_a_block(kind: str, start: int) -> None:
    """Case 31, from a position inside a block on."""
    options = GREEDY.replace(logits_processors=[Allow(3, 4, 5, start=start)])
    result = ENGINES[kind]().generate(PROMPT, options)
    assert result.token_ids == reference(options)[0]
    assert set(result.token_ids[max(0, start - len(PROMPT)) :]) <= {3, 4, 5}


# --- cases 32 to 34: what a stateful processor goes through -------------------------------------------


def table_engine(kind: str, table: TableModel) -> Engine:
    drafters: dict[str, Any] = {
        "plain": None,
        "n-gram": NgramDrafter(1, 3),
        "self": DraftModelDrafter(table, Proposal.COUPLED),
        "tree": DraftModelDrafter(TableModel.random(9, seed=5), Proposal.DETERMINISTIC),
        "sampled": DraftModelDrafter(table, Proposal.SAMPLED),
    }
    policy = FixedPolicy((3, 2, 1)) if kind in ("tree", "sampled") else None
    return Engine(table, drafters[kind], policy)


@pytest.mark.parametrize("kind", ["n-gram", "self", "tree", "sampled"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ends", [(), (3, 7)], ids=["to the limit", "to an end token"])
def test_a_stateful_processor_lives_through_plain_decoding(
    kind: str, temperature: float, ends: tuple[int, ...]
) -> None:
    """The same contexts with exactly the same scores, each once and in order; the same state at the end."""
    table = TableModel.random(9, order=2, seed=3)
    for seed in range(6):
        prompt = [seed, 4, 5, seed, 4]
        lives = []
        for name in ("plain", kind):
            own = Recorder()
            options = GenerationOptions(
                max_new_tokens=30,
                temperature=temperature,
                seed=seed,
                frequency_penalty=0.3,
                eos_token_ids=ends,
                logits_processors=[own],
            )
            result = table_engine(name, table).generate(prompt, options)
            text = (*prompt, *result.token_ids)
            lives.append((result.token_ids, own))
            assert own.seen == [text[:i] for i in range(len(prompt), len(text))]
        (plain_ids, plain), (ids, own) = lives
        assert ids == plain_ids
        assert own.state == plain.state
        assert all(map(torch.equal, own.scores, plain.scores))


def test_behind_a_stop_string_a_processor_may_see_the_rest_of_the_round() -> None:
    """Only text shows a stop string, and text is read when a round is over."""
    recorders = []
    stop = [Letters().decode(FREE[5:7])]
    for drafter in (None, Script([*PROMPT, *FREE])):
        own = Recorder()
        process = GREEDY.replace(stop=stop, logits_processors=[own, Allow(*range(VOCAB_SIZE))])
        engine(drafter).generate(PROMPT, process)
        recorders.append(own.seen)
    plain, drafted = recorders
    assert drafted[: len(plain)] == plain
    assert all(longer[:-1] == shorter for shorter, longer in pairwise(drafted))


def test_rejection_shows_a_processor_true_prefixes_alone() -> None:
    table = TableModel.random(9, order=2, seed=3)
    for seed in range(10):
        own = Recorder()
        drafter = DraftModelDrafter(TableModel.random(9, seed=5), Proposal.SAMPLED)
        sampled = Engine(table, drafter, FixedPolicy((2, 2, 1)), RejectionVerifier())
        result = sampled.generate(
            [1, 2, 1],
            max_new_tokens=20,
            temperature=1.0,
            seed=seed,
            eos_token_ids=[3],
            logits_processors=[own],
        )
        text = (1, 2, 1, *result.token_ids)
        assert own.seen == [text[:i] for i in range(3, len(text))]


# --- case 35: repetition penalty on repeated text -----------------------------------------------------


def repeated_texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    phrases = [torch.randint(3, VOCAB_SIZE, (n,), generator=generator) for n in (1, 2, 3, 5, 8)]
    return [phrase.repeat(24 // len(phrase)).tolist() for phrase in phrases]


@functools.cache
def penalised_answers(penalty: float) -> list[tuple[int, ...]]:
    options = GREEDY.replace(repetition_penalty=penalty)
    return [reference(options, prompt)[0] for prompt in repeated_texts()]


@pytest.mark.parametrize("penalty", [1.05, 1.3, 0.9])
@pytest.mark.parametrize("kind", ["n-gram", "n-gram tree", "coupled tree", "the target itself"])
def test_repetition_penalty_on_repeated_text(penalty: float, kind: str) -> None:
    speculative = ENGINES[kind]()
    answers = [
        speculative.generate(prompt, GREEDY, repetition_penalty=penalty).token_ids
        for prompt in repeated_texts()
    ]
    assert answers == penalised_answers(penalty)


# --- case 36: copies of what is forbidden -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["n-gram", "n-gram tree"])
@pytest.mark.parametrize(
    "bans", [{"suppress_tokens": [7]}, {"bad_words": [[6, 7]]}, {"bad_words": [[7]]}], ids=str
)
def test_copies_of_forbidden_tokens(kind: str, bans: dict[str, Any]) -> None:
    """The prompt repeats them, and the bias makes the target want them."""
    options = GREEDY.replace(logit_bias={5: 6.0, 6: 6.0, 7: 6.5, 8: 6.0}, **bans)
    result = ENGINES[kind]().generate([*PROMPT, 7, 8] * 3, options)
    assert result.token_ids == reference(options, [*PROMPT, 7, 8] * 3)[0]


# --- case 38: nobody ignores temperature --------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_temperature_varies_the_answers_of_every_drafter(kind: str) -> None:
    speculative = ENGINES[kind]()
    answers = {
        speculative.generate(
            PROMPT, SAMPLED, temperature=1.5, seed=seed, max_new_tokens=4
        ).token_ids
        for seed in range(20)
    }
    assert len(answers) > 15


# --- case 45: rows without a choice -------------------------------------------------------------------


class Broken(hf.LogitsProcessor):
    """Fills the scores after a text of some length with one value."""

    def __init__(self, value: float, length: int) -> None:
        self.value, self.length = value, length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, self.value) if input_ids.shape[1] == self.length else scores


@functools.cache
def short_answer(temperature: float) -> tuple[int, ...]:
    return reference(GREEDY.replace(temperature=temperature, seed=1, max_new_tokens=10))[0]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_leaves_no_choice(kind: str, value: float, temperature: float) -> None:
    speculative = ENGINES[kind]()
    options = GREEDY.replace(temperature=temperature, seed=1, max_new_tokens=10)
    for length in (len(PROMPT), len(PROMPT) + 7):
        broken = options.replace(logits_processors=[Broken(value, length)])
        with pytest.raises(NumericsError, match=f"position {length} "):
            speculative.generate(PROMPT, broken)
    assert speculative.generate(PROMPT, options).token_ids == short_answer(temperature)


class BrokenTable(TableModel):
    """NaN after every text of odd length."""

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        row = super().logits_after(token_ids)
        return row * math.nan if len(token_ids) % 2 else row


@pytest.mark.parametrize("proposal", Proposal)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_drafter_costs_only_its_drafts(proposal: Proposal, temperature: float) -> None:
    table = TableModel.random(9, order=2, seed=3)
    broken = DraftModelDrafter(BrokenTable.random(9, order=2, seed=3), proposal)
    options = GenerationOptions(max_new_tokens=30, temperature=temperature, seed=2)
    speculative = Engine(table, broken, FixedPolicy((2, 2)))
    plain = speculative.without_drafts().generate([1, 2], options)
    assert speculative.generate([1, 2], options).token_ids == plain.token_ids


@pytest.mark.parametrize("kind", ["n-gram", "self", "tree"])
def test_a_broken_target_is_an_error_that_names_the_position(kind: str) -> None:
    speculative = table_engine(kind, BrokenTable.random(9, order=2, seed=3))
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericsError, match="position 3 "):
            speculative.generate([1, 2], max_new_tokens=9, temperature=temperature, seed=0)
