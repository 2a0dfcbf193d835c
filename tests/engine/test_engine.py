"""The engine as its users meet it: what it refuses, what it frees, and what it answers regardless."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft import ConfigError, Engine, ForedraftError, GenerationOptions, PromptError
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel, TableState
from foredraft.config import MAX_TREE_NODES
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter, PolicyKind, Verdict
from foredraft.results import Step
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers import verifier
from foredraft.verifiers.exact import ExactVerifier
from tests.scripted import Branches, ScriptedDrafter, Watched, repeat
from tests.tiny_folders import byte_tokenizer
from tests.tiny_models import tiny_bloom, tiny_llama

PROMPT = (1, 2, 3, 1, 2)
TARGET, DRAFT = TableModel.random(8, 2, seed=1), TableModel.random(8, 1, seed=2)
REQUEST = GenerationOptions(max_new_tokens=24, temperature=0.9, seed=3)
VERIFIERS = ("exact", "rejection", "block", "traversal")
NUM_THREADS = 8


def drafters(draft: Any = DRAFT) -> dict[str, Drafter]:
    return {
        "ngram": NgramDrafter(min_match=1, max_match=3),
        "draft-model": DraftModelDrafter(draft),
    }


every_drafter = pytest.mark.parametrize("name", drafters())

# --- parts that do not go together ------------------------------------------------------------------

LEGAL = {
    ("exact", "deterministic"),
    ("exact", "coupled"),
    ("exact", "sampled"),
    ("exact", "resampled"),
    ("rejection", "deterministic"),
    ("rejection", "sampled"),
    ("rejection", "resampled"),
    ("block", "sampled"),
    ("block", "resampled"),
    ("traversal", "sampled"),
    ("traversal", "resampled"),
}
ILLEGAL = sorted({(name, kind.value) for name in VERIFIERS for kind in Proposal} - LEGAL)


class Selecting(FixedPolicy):
    """Says that it drops drawn tokens."""

    kind = PolicyKind.SELECTS


@pytest.mark.parametrize(("name", "kind"), sorted(LEGAL))
def test_a_legal_triple_is_built(name: str, kind: str) -> None:
    Engine(TARGET, DraftModelDrafter(DRAFT, Proposal(kind)), None, verifier(name))


@pytest.mark.parametrize(("name", "kind"), ILLEGAL)
def test_a_proposal_that_the_verifier_would_bias_is_refused(name: str, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Engine(TARGET, DraftModelDrafter(DRAFT, Proposal(kind)), None, verifier(name))
    for part in ("DraftModelDrafter", f"{kind} proposals", f"{name.capitalize()}Verifier"):
        assert part in str(caught.value)
    assert "use verifier='exact'" in str(caught.value)


@pytest.mark.parametrize("name", VERIFIERS[1:])
def test_a_policy_that_selects_is_refused(name: str) -> None:
    drafter = DraftModelDrafter(DRAFT, Proposal.SAMPLED)
    with pytest.raises(ConfigError, match=r"Selecting selects .* use verifier='exact'"):
        Engine(TARGET, drafter, Selecting("1,1"), verifier(name))


def test_a_tree_for_a_verifier_of_chains_is_refused() -> None:
    drafter = DraftModelDrafter(DRAFT, Proposal.SAMPLED)
    with pytest.raises(ConfigError, match=r"BlockVerifier .* FixedPolicy asks for trees"):
        Engine(TARGET, drafter, FixedPolicy("2,1"), verifier("block"))


def test_a_policy_without_a_drafter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"FixedPolicy shapes drafts, and there is no drafter"):
        Engine(TARGET, policy=FixedPolicy("1"))


def test_a_policy_of_too_large_trees_is_refused() -> None:
    policy = FixedPolicy("1")
    policy.max_nodes = MAX_TREE_NODES
    with pytest.raises(ConfigError, match=f"may draft {MAX_TREE_NODES} tokens; the limit is"):
        Engine(TARGET, NgramDrafter(), policy)


def test_a_model_that_cannot_score_trees_gets_chains_and_a_warning() -> None:
    target = HFTarget(tiny_bloom())
    drafter = Watched(DraftModelDrafter(TableModel.random(97, seed=1)))
    with pytest.warns(UserWarning, match="drafts are kept to chains"):
        engine = Engine(target, drafter, FixedPolicy("2,2"))
    drafted = engine.generate(PROMPT, max_new_tokens=16, ignore_eos=True)
    plain = engine.without_drafts().generate(PROMPT, max_new_tokens=16, ignore_eos=True)
    assert drafted.token_ids == plain.token_ids
    assert all(tree.is_chain for tree in drafter.drafts)


# --- prompts that cannot be answered ----------------------------------------------------------------

WORDS = byte_tokenizer(chat_template=None)
CHAT = byte_tokenizer()


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ([], "has no tokens"),
        ("", "has no tokens"),
        ([1, 97], "holds token 97; this model's ids go from 0 to 96"),
        ([-1], "holds token -1"),
        ([1.5], "holds 1.5; give text, a list of token ids, or a list of messages"),
        ([True], "holds True"),
        ("caf\udce9", "holds '\\udce9', which is half a character or a byte"),
        ([{"role": "user", "content": "\ud83d"}], "holds '\\ud83d'"),
        (5, "is of type int; give text, a list of token ids, or a list of messages"),
        (None, "is of type NoneType"),
        (b"cat", "is of type bytes"),
        ({"role": "user", "content": "hi"}, "is of type dict"),
        ([1, {"role": "user", "content": "hi"}], "holds {'role'"),
        ([{"role": "user"}], "is not a mapping with 'role' and 'content'"),
        ([{"role": "user", "content": "hi"}, "hi"], "the message 'hi' is not a mapping"),
        (range(2048), "has 2048 tokens and this model's context holds 2048"),
    ],
    ids=repr,
)
def test_a_prompt_that_cannot_be_answered_is_an_error_and_the_next_one_is_answered(
    prompt: Any, complaint: str
) -> None:
    target = TableModel.random(97, seed=1)
    target.context_length = 2048
    engine = Engine(target, NgramDrafter(), tokenizer=CHAT)
    with pytest.raises(PromptError) as caught:
        engine.generate([i % 97 for i in prompt] if isinstance(prompt, range) else prompt)
    assert complaint in str(caught.value)
    assert engine.generate([1, 2], max_new_tokens=3).token_ids


@pytest.mark.parametrize("prompt", ["hello", [{"role": "user", "content": "hello"}]], ids=repr)
def test_text_needs_a_tokenizer(prompt: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs a tokenizer; pass tokenizer=\.\.\. or give"):
        Engine(TARGET).generate(prompt)


def test_messages_need_a_chat_template() -> None:
    with pytest.raises(ConfigError, match="no chat template; pass the prompt as one string"):
        Engine(TARGET, tokenizer=WORDS).generate([{"role": "user", "content": "hello"}])


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    tokenizer = byte_tokenizer(chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(PromptError, match="refuses these messages: roles must alternate"):
        Engine(TARGET, tokenizer=tokenizer).generate([{"role": "user", "content": "hello"}])


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match=r"stop=\('x',\) needs a tokenizer"):
        Engine(TARGET).generate(PROMPT, stop=["x"])


def test_the_request_is_checked_before_its_first_step() -> None:
    with pytest.raises(PromptError):
        Engine(TARGET).stream([])


@every_drafter
@pytest.mark.parametrize("prompt", ["", "   ", "\n"], ids=repr)
def test_a_prompt_of_nothing_but_the_first_token(name: str, prompt: str) -> None:
    """Case 97 with a tokenizer that adds a bos token: the answer is plain decoding's."""
    tokenizer = byte_tokenizer(adds_bos=True)
    target = HFTarget(tiny_llama(vocab_size=len(tokenizer)), tokenizer)
    engine = Engine(target, drafters(target)[name], tokenizer=tokenizer)
    drafted = engine.generate(prompt, max_new_tokens=12, ignore_eos=True)
    plain = engine.without_drafts().generate(prompt, max_new_tokens=12, ignore_eos=True)
    assert drafted.token_ids == plain.token_ids
    assert len(drafted.token_ids) == 12


@every_drafter
def test_a_prompt_of_nothing_at_all_is_refused(name: str) -> None:
    """Case 97 with a tokenizer that adds nothing; the next request is served."""
    engine = Engine(TableModel.random(len(WORDS), seed=1), drafters()[name], tokenizer=WORDS)
    with pytest.raises(PromptError, match="this model's tokenizer adds none"):
        engine.generate("")
    assert len(engine.generate("cat", max_new_tokens=5, ignore_eos=True).token_ids) == 5


# --- the end of the context -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_context() -> HFTarget:
    return HFTarget(tiny_llama(max_position_embeddings=64, eos_token_id=None))


@pytest.mark.parametrize("length", range(56, 64))
def test_a_draft_of_16_at_the_end_of_a_context_of_64(small_context: HFTarget, length: int) -> None:
    """Case 55: the context is filled to its last token, as `generate` fills it."""
    prompt = [(7 * i) % 97 for i in range(length)]
    ids = torch.tensor([prompt])
    expected = small_context.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=64 - length, do_sample=False
    )
    drafter = DraftModelDrafter(small_context)
    result = Engine(small_context, drafter, FixedPolicy.chain(16)).generate(prompt)
    assert list(result.token_ids) == expected[0, length:].tolist()
    assert result.finish_reason == "length"
    assert len(prompt) + len(result.token_ids) == 64


# --- streams ----------------------------------------------------------------------------------------


def test_an_unfinished_stream_has_no_result() -> None:
    with Engine(TARGET).stream(PROMPT, REQUEST) as stream:
        next(stream)
        with pytest.raises(ConfigError, match="the answer is not finished"):
            stream.result()


def test_a_streams_steps_are_its_result() -> None:
    with Engine(TARGET, NgramDrafter(1, 3)).stream(PROMPT, REQUEST) as stream:
        steps = list(stream)
        result = stream.result()
    assert tuple(token for step in steps for token in step.token_ids) == result.token_ids
    assert "".join(step.text for step in steps) == result.text
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_stream_that_is_left_early_frees_its_session(num_steps: int) -> None:
    """Case 76: the loop ends, memory is given back, and the next request is as any other."""
    parts = Parts()
    with parts.engine.stream(PROMPT, REQUEST) as stream:
        for _ in range(num_steps):
            next(stream)
    assert parts.all_closed
    assert list(stream) == []
    assert parts.engine.generate(PROMPT, REQUEST).token_ids == ANSWER


def test_a_stream_that_is_read_to_its_end_frees_its_session() -> None:
    parts = Parts()
    assert list(parts.engine.stream(PROMPT, REQUEST))
    assert parts.all_closed


def test_closing_twice_frees_once() -> None:
    parts = Parts()
    stream = parts.engine.stream(PROMPT, REQUEST)
    stream.close()
    stream.close()
    assert parts.target.num_closed == 1


# --- faults inside a round --------------------------------------------------------------------------

ANSWER = Engine(TARGET).generate(PROMPT, REQUEST).token_ids


class FragileModel(TableModel):
    """Counts the states it gave out and got back, and fails when it is told to."""

    num_started = num_closed = 0
    failing = ""

    def start(self, capacity: int) -> FragileState:
        self.num_started += 1
        return FragileState(self)


class FragileState(TableState):
    def __init__(self, model: FragileModel) -> None:
        super().__init__(model)
        self.model = model

    def prefill(self, token_ids: Sequence[int]) -> None:
        self._fail_in("prefill")
        super().prefill(token_ids)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        if self.length > len(PROMPT):
            self._fail_in("score")
        return super().score(token_ids, parents)

    def commit(self, path: Sequence[int]) -> None:
        if self.length > len(PROMPT):
            self._fail_in("commit")
        super().commit(path)

    def close(self) -> None:
        self.model.num_closed += 1
        super().close()

    def _fail_in(self, stage: str) -> None:
        if self.model.failing == stage:
            raise RuntimeError(f"out of memory in {stage}")


class Parts:
    """An engine whose target and drafter can be watched."""

    def __init__(self) -> None:
        self.target = FragileModel.random(8, 2, seed=1)
        self.drafter = Watched(DraftModelDrafter(DRAFT))
        self.engine = Engine(self.target, self.drafter)

    @property
    def all_closed(self) -> bool:
        drafters_closed = all(state.closed for state in self.drafter.states)
        return drafters_closed and self.target.num_closed == self.target.num_started > 0


@pytest.mark.parametrize("stage", ["prefill", "score", "commit"])
def test_a_fault_inside_a_round_frees_the_session(stage: str) -> None:
    """Case 75: the fault reaches the caller, and the next request is as any other."""
    parts = Parts()
    parts.target.failing = stage
    stream = parts.engine.stream(PROMPT, REQUEST)
    with pytest.raises(RuntimeError, match=f"out of memory in {stage}"):
        list(stream)
    assert parts.all_closed
    parts.target.failing = ""
    assert parts.engine.generate(PROMPT, REQUEST).token_ids == ANSWER


def test_a_drafters_fault_frees_the_session() -> None:
    def failing(so_far: Sequence[int]) -> Branches:
        raise RuntimeError("no draft today")

    target = FragileModel.random(8, 2, seed=1)
    with pytest.raises(RuntimeError, match="no draft today"):
        Engine(target, ScriptedDrafter(failing, max_nodes=4)).generate(PROMPT, REQUEST)
    assert target.num_closed == target.num_started == 1


def test_an_error_of_the_request_frees_the_session() -> None:
    """A processor that leaves no choice: found inside the first round."""
    parts = Parts()
    with pytest.raises(ForedraftError, match="logits processor forbids every token"):
        parts.engine.generate(PROMPT, REQUEST, suppress_tokens=list(range(8)))
    assert parts.all_closed


def test_an_engine_that_nobody_holds_is_freed() -> None:
    """With it goes the model: a process may load one after another."""
    engine = Engine(TableModel.random(300, seed=1), tokenizer=byte_tokenizer())
    engine.generate("the cat", max_new_tokens=4)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


# --- seeds and threads ------------------------------------------------------------------------------


def test_a_request_without_a_seed_reports_the_one_it_drew() -> None:
    engine = Engine(TARGET)
    first, second = (engine.generate(PROMPT, REQUEST, seed=None) for _ in range(2))
    assert first.seed != second.seed
    assert engine.generate(PROMPT, REQUEST, seed=first.seed).token_ids == first.token_ids


def test_a_greedy_request_has_no_seed() -> None:
    assert Engine(TARGET).generate(PROMPT, max_new_tokens=2, seed=5).seed is None


def in_threads(answer: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(answer, range(NUM_THREADS)))


@every_drafter
@pytest.mark.parametrize("kind", ["table", "llama"])
def test_requests_in_threads_answer_as_alone(name: str, kind: str) -> None:
    """Case 48: eight at once on one engine, greedy and with seeds of their own."""
    target: Any = TARGET if kind == "table" else HFTarget(tiny_llama(eos_token_id=None))
    engine = Engine(target, drafters(target)[name], FixedPolicy("2,1,1"))

    def answer(seed: int) -> tuple[int, ...]:
        temperature = 0.0 if seed % 4 == 0 else 0.9
        prompt = [*PROMPT, *range(seed % 7)]
        return engine.generate(prompt, REQUEST, seed=seed, temperature=temperature).token_ids

    assert in_threads(answer) == [answer(seed) for seed in range(NUM_THREADS)]


def test_a_draft_of_end_tokens_ends_nothing() -> None:
    """Case 20: the target never asks for token 0, which the drafter never stops proposing."""
    engine = Engine(TARGET, ScriptedDrafter(repeat(0, 4), max_nodes=4))
    options = REQUEST.replace(suppress_tokens=[0], eos_token_ids=[0])
    assert len(engine.generate(PROMPT, options).token_ids) == REQUEST.max_new_tokens


def test_closing_from_another_thread_ends_the_stream_after_its_round() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(ExactVerifier):
        def verify(self, tree: DraftTree, laws: Any, random: Any) -> Verdict:
            inside.set()
            go_on.wait(10)
            return super().verify(tree, laws, random)

    stream = Engine(TableModel.random(5), verifier=Slow()).stream([1], max_new_tokens=50)
    steps: list[Step] = []
    reader = threading.Thread(target=lambda: steps.extend(stream))
    reader.start()
    inside.wait(10)
    stream.close()
    go_on.set()
    reader.join(10)
    assert len(steps) == 1
    assert stream._session._closed


def test_a_round_that_ends_after_the_close_frees_the_session() -> None:
    """Also where nobody asks for another step."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(ExactVerifier):
        def verify(self, tree: DraftTree, laws: Any, random: Any) -> Verdict:
            inside.set()
            go_on.wait(10)
            return super().verify(tree, laws, random)

    parts = Parts()
    stream = Engine(parts.target, verifier=Slow()).stream(PROMPT, REQUEST)
    reader = threading.Thread(target=next, args=(stream,))
    reader.start()
    inside.wait(10)
    stream.close()
    assert parts.target.num_closed == 0
    go_on.set()
    reader.join(10)
    assert parts.target.num_closed == 1


def test_a_reader_that_comes_while_another_thread_closes_finds_the_end() -> None:
    closing, go_on = threading.Event(), threading.Event()

    class SlowToClose(TableState):
        def close(self) -> None:
            closing.set()
            go_on.wait(10)

    class Slow(TableModel):
        def start(self, capacity: int) -> TableState:
            return SlowToClose(self)

    stream = Engine(Slow.random(5)).stream([1], max_new_tokens=50)
    next(stream)
    closer = threading.Thread(target=stream.close)
    closer.start()
    closing.wait(10)
    threading.Timer(0.05, go_on.set).start()
    assert list(stream) == []
    closer.join(10)


def test_an_answer_may_close_its_own_stream() -> None:
    """From a callback, in the middle of a round, which ends first."""
    parts = Parts()
    streams: list[Any] = []

    def closes(token_id: int) -> bool:
        streams[0].close()
        return False

    streams.append(parts.engine.stream(PROMPT, REQUEST, criterion=closes))
    assert len(list(streams[0])) == 1
    assert parts.all_closed
