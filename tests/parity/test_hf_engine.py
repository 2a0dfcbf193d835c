"""Real attention models through the engine: every draft, tree and verifier gives plain decoding's text.

In float32, so equality is exact: two tokens of these models are hardly ever as close as rounding.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import GPT2Config

from foredraft import CacheError, ConfigError, Engine, GenerationOptions, ModelError, PromptError
from foredraft.backends.hf import HFState, HFTarget
from foredraft.backends.kv_cache import KVCache, _ArenaLayer
from foredraft.backends.tree_attention import TREES_KEPT
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.agreement import compare
from foredraft.engine.decoder import decode
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, Drafter, Frontier, Policy, Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers import verifier
from foredraft.verifiers.exact import ExactVerifier
from tests.scripted import (
    Script,
    ScriptedDrafter,
    Watched,
    checked_rounds,
    cycle,
    noise,
    perfect,
    repeat,
    right,
    with_siblings,
    wrong,
)
from tests.tiny_models import (
    TREE_MODELS,
    VOCAB_SIZE,
    WINDOW,
    build,
    tiny_bf16_llama,
    tiny_llama,
    tiny_rope,
)

LENGTH = 16
GREEDY = GenerationOptions(max_new_tokens=LENGTH)
SAMPLING = GREEDY.replace(temperature=0.9, seed=5)
both = pytest.mark.parametrize("options", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
SWEEP = [(k, j) for k in range(1, 9) for j in range(k + 1)]
PADDED_ROWS = 128


class Tokenizer:
    """As much of one as bounds a vocabulary."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def endless(model: Any) -> Any:
    """The same model without end tokens: answers are cut by their length alone."""
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    return model


MODELS: dict[str, Callable[[], HFTarget]] = {
    **{name: lambda make=make: HFTarget(endless(make())) for name, make in TREE_MODELS.items()},
    "padded": lambda: HFTarget(endless(tiny_llama(vocab_size=PADDED_ROWS)), Tokenizer(VOCAB_SIZE)),
}
every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def target_of(name: str) -> HFTarget:
    return MODELS[name]()


@functools.cache
def near(name: str) -> HFTarget:
    """A draft model that agrees with the target for a while: its weights, slightly moved."""
    target = target_of(name)
    return HFTarget(moved(target.model), target.tokenizer)


def moved(model: Any, scale: float = 0.02) -> Any:
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model


def tokens(count: int, seed: int = 0) -> list[int]:
    """Few different ones, so that n-grams come back."""
    generator = random.Random(seed)
    return [generator.randrange(3, 9) for _ in range(count)]


def generated(model: Any, prompt: Sequence[int], length: int, **options: Any) -> list[int]:
    """The library's own greedy answer."""
    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)
    found = model.generate(
        ids, attention_mask=mask, max_new_tokens=length, do_sample=False, pad_token_id=0, **options
    )
    answer: list[int] = found[0, len(prompt) :].tolist()
    return answer


def plain(target: HFTarget, prompt: Sequence[int], options: GenerationOptions) -> tuple[int, ...]:
    return _plain(target, tuple(prompt), options)


@functools.cache
def _plain(
    target: HFTarget, prompt: tuple[int, ...], options: GenerationOptions
) -> tuple[int, ...]:
    return Engine(target).generate(prompt, options).token_ids


def assert_plain(engine: Engine, prompt: Sequence[int], options: GenerationOptions) -> int:
    """The answer is plain decoding's, and the caches hold what they should after each round.

    Returns:
        How many draft tokens were accepted.
    """
    steps = list(checked_rounds(engine, list(prompt), options))
    found = tuple(token for step in steps for token in step.token_ids)
    assert found == plain(engine.target, prompt, options)
    return sum(step.num_accepted for step in steps)


# --- drafters, shapes, verifiers --------------------------------------------------------------------


class Lopsided(FixedPolicy):
    """Three children for the first node of a level, fewer for each next one."""

    def __init__(self) -> None:
        super().__init__("3,3,3")

    def grow(self, frontier: Frontier) -> Sequence[int]:
        return [max(0, 3 - i) if frontier.depth < 4 else 0 for i in range(len(frontier.nodes))]


class Budgeted(FixedPolicy):
    """A product tree of which a budget pays the first nodes."""

    def __init__(self, depth: int, width: int, budget: int) -> None:
        super().__init__([width] + [1] * (depth - 1))
        self.max_nodes = budget


SHAPES: dict[str, Callable[[], Policy]] = {
    "single": lambda: FixedPolicy("1"),
    "chain": lambda: FixedPolicy.chain(4),
    "long chain": lambda: FixedPolicy.chain(12),
    "wide": lambda: FixedPolicy("12"),
    "wide then narrow": lambda: FixedPolicy("6,1,1"),
    "narrow then wide": lambda: FixedPolicy("1,1,6"),
    "binary": lambda: FixedPolicy("2,2,2"),
    "three siblings a level": lambda: FixedPolicy("3,3"),
    "deep": lambda: FixedPolicy("2,1,1,1,1,1"),
    "lopsided": Lopsided,
}


def drafters(name: str) -> dict[str, Drafter]:
    kinds = {kind.value: DraftModelDrafter(near(name), kind) for kind in Proposal}
    return {
        **kinds,
        "self": DraftModelDrafter(target_of(name)),
        "ngram": NgramDrafter(1, 4),
    }


DRAFTERS = (*(kind.value for kind in Proposal), "self", "ngram")
every_drafter = pytest.mark.parametrize("drafter", DRAFTERS)
PROMPT_LENGTHS = (1, 4, 8, 9, 40)


@every_model
def test_plain_decoding_is_the_librarys_own(name: str) -> None:
    """Case 3: the same cap, no end token on either side, nothing normalised."""
    target = target_of(name)
    unknown = list(range(target.vocab_size, target.forward.num_rows))
    for length in PROMPT_LENGTHS:
        prompt = tokens(length, seed=length)
        expected = generated(target.model, prompt, LENGTH, suppress_tokens=unknown or None)
        assert list(plain(target, prompt, GREEDY)) == expected


@every_model
@every_drafter
@both
def test_every_shape_of_every_drafter(name: str, drafter: str, options: GenerationOptions) -> None:
    """Cases 4 and 10: trees larger than the window among them, prompts on both sides of it."""
    made, accepted = drafters(name)[drafter], 0
    every = slice(None) if options is GREEDY else slice(1, None, 2)
    for i, shape in list(enumerate(SHAPES.values()))[every]:
        length = PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)]
        engine = Engine(target_of(name), Watched(made), shape())
        accepted += assert_plain(engine, tokens(length, seed=i), options.replace(seed=i))
    assert accepted > 0 or drafter == "ngram"  # what it copies may never be right


VERIFIERS = {
    "rejection": (Proposal.DETERMINISTIC, Proposal.SAMPLED, Proposal.RESAMPLED),
    "traversal": (Proposal.SAMPLED, Proposal.RESAMPLED),
    "block": (Proposal.SAMPLED, Proposal.RESAMPLED),
}


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize(
    ("kind", "rule"), [(kind, rule) for rule, kinds in VERIFIERS.items() for kind in kinds]
)
def test_every_verifier_is_greedy_at_temperature_0(name: str, kind: Proposal, rule: str) -> None:
    made, accepted = DraftModelDrafter(near(name), kind), 0
    for shape in ("1,1,1,1",) if rule == "block" else ("1,1,1,1", "3,3", "2,1,1,1,1,1"):
        engine = Engine(target_of(name), Watched(made), FixedPolicy(shape), verifier(rule))
        accepted += assert_plain(engine, tokens(9), GREEDY)
    assert accepted > 0


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("rule", ["rejection", "traversal", "block"])
def test_a_sampling_verifier_reproduces_its_own_seed(name: str, rule: str) -> None:
    drafter = DraftModelDrafter(near(name), Proposal.SAMPLED)
    engine = Engine(target_of(name), drafter, FixedPolicy("1,1,1"), verifier(rule))
    texts = [engine.generate(tokens(9), SAMPLING, seed=seed).token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("width", [1, 3])
def test_every_budget_of_every_grid(name: str, depth: int, width: int) -> None:
    """Case 8: a budget below the depth, of one node, and larger than the tree."""
    for budget in (1, 2, 4, 64):
        drafter = Watched(DraftModelDrafter(near(name)))
        engine = Engine(target_of(name), drafter, Budgeted(depth, width, budget))
        assert_plain(engine, tokens(9), SAMPLING)
        largest = max(tree.num_drafted for tree in drafter.drafts)
        assert 1 <= largest <= min(budget, depth * width)


class RowsRecorded(ExactVerifier):
    """Keeps the scores that each emitted token was chosen from."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        verdict = super().verify(tree, laws, random)
        self.rows += [laws.scores(node).clone() for node in verdict.path]
        return verdict


@every_model
@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_rows_are_those_of_one_pass_without_a_cache(name: str, shape: str) -> None:
    """Cases 4 and 57."""
    target, prompt, recorder = target_of(name), tokens(9), RowsRecorded()
    engine = Engine(target, DraftModelDrafter(near(name)), SHAPES[shape](), recorder)
    text = [*prompt, *engine.generate(prompt, GREEDY).token_ids]
    expected = target.forward(text)[len(prompt) - 1 : -1, : target.vocab_size]
    # The last round's surplus rows were trimmed. Sums over cached rows round otherwise.
    found = torch.stack(recorder.rows[:LENGTH])
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-5)


def test_rows_up_to_the_end_of_the_context() -> None:
    """Case 57: the last k positions among them, with learned positions that end there."""
    target, prompt, recorder = small_context(), tokens(40), RowsRecorded()
    engine = Engine(target, DraftModelDrafter(target), FixedPolicy.chain(6), recorder)
    answer = engine.generate(prompt).token_ids
    text = [*prompt, *answer]
    assert len(text) == CONTEXT
    expected = target.forward(text)[len(prompt) - 1 : -1]
    found = torch.stack(recorder.rows[: len(answer)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


# --- prompts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "j"), SWEEP)
def test_positions_of_a_one_token_prompt(k: int, j: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 1: what is kept of each round's positions runs on without a gap or a repeat."""
    target, seen = target_of("llama"), list[list[int]]()
    expected = [7, *plain(target, [7], GREEDY)]
    forward = target.model.forward

    def recorded(**arguments: Any) -> Any:
        seen.append(arguments["position_ids"][0].tolist())
        return forward(**arguments)

    monkeypatch.setattr(target.model, "forward", recorded)
    drafter = ScriptedDrafter(right(expected, j, k, VOCAB_SIZE), max_nodes=k)
    steps = list(checked_rounds(Engine(target, drafter), [7], GREEDY))
    assert [7, *(token for step in steps for token in step.token_ids)] == expected
    kept = [seen[i][: len(step.token_ids)] for i, step in enumerate(steps)]
    assert [position for row in kept for position in row] == list(range(LENGTH))
    assert all(row == list(range(row[0], row[0] + len(row))) for row in seen)


@pytest.mark.parametrize("token", range(3, 15, 3))
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral", "gpt2"])
def test_one_word_repeated_48_times(name: str, token: int) -> None:
    """Case 2 in float32."""
    prompt, options = [token] * 48, GREEDY.replace(max_new_tokens=32)
    engine = Engine(target_of(name), Watched(NgramDrafter(2, 5)), FixedPolicy.chain(4))
    assert_plain(engine, prompt, options)


def test_one_word_repeated_48_times_in_bfloat16() -> None:
    """Case 2: what differs, if anything does here, is a tie: by the last pass or by rows of the cache."""
    target, options = HFTarget(endless(tiny_bf16_llama())), GREEDY.replace(max_new_tokens=32)
    kinds = set()
    for drafter in (NgramDrafter(2, 5), DraftModelDrafter(target)):
        engine = Engine(target, drafter, FixedPolicy.chain(4))
        for token in range(3, 40):
            answers = [e.generate([token] * 48, options) for e in (engine.without_drafts(), engine)]
            kinds.add(compare(engine, *answers, options).kind)
    assert "yes" in kinds <= {"yes", "tie"}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_many_prompts_under_the_librarys_stop_rules(name: str) -> None:
    """Case 3: 40 prompts with end tokens and a cap, against `generate` itself."""
    model = copy.deepcopy(target_of(name).model)
    model.generation_config.eos_token_id = [11, 23, 42]
    target, reasons = HFTarget(model), set()
    engine = Engine(target, DraftModelDrafter(near(name)), FixedPolicy("2,1,1"))
    for seed in range(40):
        prompt = tokens(1 + seed, seed)
        result = engine.generate(prompt, GREEDY)
        assert list(result.token_ids) == generated(model, prompt, LENGTH)
        reasons.add(result.finish_reason)
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("length", range(28, 32))
@pytest.mark.parametrize("k", [1, 4, 8])
def test_rotary_embeddings_that_switch(kind: str, length: int, k: int) -> None:
    """Case 17: the answer ends where they would; up to there it is the library's."""
    target, prompt = rope(kind), tokens(length)
    expected = generated(target.model, prompt, 32 - length)
    for num_right in range(k + 1):
        script = right([*prompt, *expected], num_right, k, VOCAB_SIZE)
        steps = list(checked_rounds(Engine(target, ScriptedDrafter(script, k)), prompt, GREEDY))
        assert [token for step in steps for token in step.token_ids] == expected
        assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_prompts_that_reach_the_switch_are_refused(kind: str) -> None:
    with pytest.raises(PromptError, match="has 32 tokens and this model's context holds 32"):
        Engine(rope(kind)).generate(tokens(32))


@functools.cache
def rope(kind: str) -> HFTarget:
    return HFTarget(endless(tiny_rope(kind)))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_prompt_at_all(drafter: str) -> None:
    """Case 97, without a tokenizer; the next request is served."""
    engine = Engine(target_of("llama"), drafters("llama")[drafter])
    with pytest.raises(PromptError, match="has no tokens"):
        engine.generate([])
    assert len(engine.generate([5], GREEDY).token_ids) == LENGTH


# --- caches -----------------------------------------------------------------------------------------


def test_drafters_are_never_given_the_targets_state() -> None:
    """Case 5: nothing of it is in what a drafter receives, and a request takes no cache."""
    assert {f.name for f in dataclasses.fields(DraftContext)} == {
        "token_ids",
        "limits",
        "law",
        "random",
        "open_roots",  # token ids, drawn by the session
    }
    engine = Engine(target_of("llama"), DraftModelDrafter(target_of("llama")))
    for option in ("past_key_values", "cache"):
        with pytest.raises(ConfigError, match=f"unknown generation option '{option}'"):
            engine.generate([5, 6], **{option: transformers.DynamicCache()})


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_self_drafts_caches_share_no_memory(name: str) -> None:
    """Case 5: one model in both roles, and a second turn behind the first one's answer."""
    target, drafter = target_of(name), Watched(DraftModelDrafter(target_of(name)))
    engine = Engine(target, drafter, FixedPolicy("2,2"))
    prompt = tokens(30)
    for _ in range(2):
        session = engine.session(prompt, GREEDY, engine.randomness(None))
        mine, theirs = session.target, drafter.states[-1].state._state  # type: ignore[attr-defined]
        assert buffers(mine).isdisjoint(buffers(theirs))
        session.close()
        assert_plain(engine, prompt, GREEDY)
        prompt = [*prompt, *plain(target, prompt, GREEDY), 5, 6]


def buffers(state: Any) -> set[int]:
    assert isinstance(state, HFState)
    arenas = state.cache._arenas
    return {buffer.data_ptr() for arena in arenas for buffer in (arena.keys, arena.values)}


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("shape", ["1", "1,1,1", "1,1,1,1,1,1,1,1", "3,2,2"])
def test_a_self_draft_is_never_rejected(name: str, shape: str) -> None:
    """Cases 6 and 7, over 200 tokens: one wrong row in the draft cache, and it would be."""
    drafter = Watched(DraftModelDrafter(target_of(name)))
    engine = Engine(target_of(name), drafter, FixedPolicy(shape))
    for options in (GREEDY, SAMPLING):
        steps = list(checked_rounds(engine, tokens(9), options.replace(max_new_tokens=200)))
        depths = [tree.depth for tree in drafter.states[-1].drafts]
        assert [step.num_accepted for step in steps] == [*depths, 0][: len(steps)]


def test_windows_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 12: over 500 tokens, the target's layers and the drafter's."""
    sizes: list[int] = []
    update = _ArenaLayer.update

    def recorded(self: _ArenaLayer, *arguments: Any, **options: Any) -> Any:
        keys, values = update(self, *arguments, **options)
        sizes.append(keys.shape[-2])
        return keys, values

    monkeypatch.setattr(_ArenaLayer, "update", recorded)
    drafter = DraftModelDrafter(target_of("mistral"))
    engine = Engine(target_of("mistral"), drafter, FixedPolicy.chain(6))
    engine.generate(tokens(5), GREEDY, max_new_tokens=500)
    assert max(sizes) <= WINDOW - 1 + 7


def test_the_librarys_rollback_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 13: it may do nothing without saying so."""

    def crop(*_: Any) -> None:
        raise AssertionError("the library's crop was called")

    monkeypatch.setattr(transformers.Cache, "crop", crop)
    engine = Engine(target_of("mistral"), Watched(DraftModelDrafter(near("mistral"))))
    assert_plain(engine, tokens(40), GREEDY)


def test_a_layer_that_stops_writing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 13: in the middle of an answer; the session is freed and the next request is right."""
    target, rounds = target_of("llama"), 0
    engine = Engine(target, NgramDrafter(1, 3))
    expected = engine.generate(tokens(9), GREEDY).token_ids
    spare = len(target._spare)
    update = _ArenaLayer.update

    def forgetful(self: _ArenaLayer, keys: Tensor, values: Tensor, *rest: Any, **named: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds != 9:
            return update(self, keys, values, *rest, **named)
        arena = self._arena  # the rows of the pass are there to be seen, and never stored
        return arena.seen_keys[self._slot], arena.seen_values[self._slot]

    with monkeypatch.context() as patch:
        patch.setattr(_ArenaLayer, "update", forgetful)
        with pytest.raises(CacheError, match="wrote 0 rows into its KV cache"):
            engine.generate(tokens(9), GREEDY)
    assert len(target._spare) == spare
    assert engine.generate(tokens(9), GREEDY).token_ids == expected


@pytest.mark.parametrize("kind", ["static", "quantized", "offloaded"])
def test_caches_that_cannot_be_rolled_back_are_not_used(kind: str) -> None:
    """Cases 11, 14 and 65: what the model's config asks for is the library's business."""
    model = copy.deepcopy(target_of("llama").model)
    model.generation_config.cache_implementation = kind
    engine = Engine(HFTarget(model), Watched(DraftModelDrafter(near("llama"))), FixedPolicy("2,2"))
    assert_plain(engine, tokens(9), GREEDY)
    assert plain(engine.target, tokens(9), GREEDY) == plain(target_of("llama"), tokens(9), GREEDY)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_many_requests_use_the_same_buffers(name: str) -> None:
    """Case 77: one spare cache a model, and none is larger than the largest request needed."""
    target, draft = MODELS[name](), HFTarget(moved(target_of(name).model))
    engine = Engine(target, DraftModelDrafter(draft), FixedPolicy("2,2"))
    engine.generate(tokens(300), GREEDY)
    spares = [target._spare[0], draft._spare[0]]
    sizes = [num_bytes(cache) for cache in spares]
    num_caches = count_caches()
    for seed in range(40):
        with engine.stream(tokens(1 + 7 * seed, seed), GREEDY.replace(seed=seed)) as stream:
            for _ in zip(range(seed % 4), stream, strict=False):
                pass
        engine.generate(tokens(1 + 7 * seed, seed), GREEDY, max_new_tokens=3)
    assert [target._spare[0], draft._spare[0]] == spares
    assert [num_bytes(cache) for cache in spares] == sizes
    assert count_caches() == num_caches


def count_caches() -> int:
    gc.collect()
    return sum(issubclass(type(thing), KVCache) for thing in gc.get_objects())


def num_bytes(cache: KVCache) -> int:
    return sum(arena.keys.nbytes + arena.values.nbytes for arena in cache._arenas)


def test_nothing_is_held_that_grows_with_the_rounds() -> None:
    """Case 77: 1,000 rounds of trees of every size; masks are kept for the largest alone."""
    script = noise(1, 12, VOCAB_SIZE)
    drafter = ScriptedDrafter(lambda so_far: script(so_far)[: len(so_far) % 13], max_nodes=12)
    engine = Engine(target_of("llama"), drafter)
    session = engine.session([5], GREEDY.replace(max_new_tokens=1000), engine.randomness(None))
    topology = session.target.topology  # type: ignore[attr-defined]
    assert sum(1 for _ in decode(session, engine.verifier)) > 500
    assert [len(tree.rows) for tree in topology._trees] == [64] * len(topology._trees)
    assert len(topology._trees) <= TREES_KEPT


# --- end tokens -------------------------------------------------------------------------------------


def ending(name: str, ends: Any) -> HFTarget:
    """The same model with end tokens of its generation config."""
    model = copy.deepcopy(target_of(name).model)
    model.generation_config.eos_token_id = ends
    return HFTarget(model)


@both
def test_every_token_of_a_block_may_be_the_end(options: GenerationOptions) -> None:
    """Case 18: declared by the generation config, in blocks of 16."""
    prompt = tokens(9)
    answer = plain(target_of("llama"), prompt, options)
    for token in dict.fromkeys(answer):
        engine = Engine(
            ending("llama", token), ScriptedDrafter(perfect([*prompt, *answer], 16), 16)
        )
        steps = list(checked_rounds(engine, prompt, options))
        found = tuple(t for step in steps for t in step.token_ids)
        assert found == answer[: answer.index(token) + 1]
        assert (steps[-1].finish_reason, steps[-1].stopped_by) == ("stop", token)


@both
@pytest.mark.parametrize("places", [(3, 9, 14), (9, 4, 5), (0, 1, 2)], ids=str)
def test_the_earliest_of_several_end_tokens(
    places: tuple[int, ...], options: GenerationOptions
) -> None:
    """Case 22: from the generation config, from the call, and in the library."""
    prompt = tokens(9)
    answer = plain(target_of("llama"), prompt, options)
    ends = [answer[place] for place in places]
    first = min(answer.index(end) for end in ends)
    script = perfect([*prompt, *answer], 16)
    for target, request in [
        (ending("llama", ends), options),
        (target_of("llama"), options.replace(eos_token_ids=ends)),
        (ending("llama", [answer[0]]), options.replace(eos_token_ids=ends)),
    ]:
        result = Engine(target, ScriptedDrafter(script, 16)).generate(prompt, request)
        assert result.token_ids == answer[: first + 1]
        assert result.stopped_by == answer[first]
    if options.temperature == 0:
        model = ending("llama", ends).model
        assert generated(model, prompt, LENGTH) == list(answer[: first + 1])


@every_drafter
def test_no_end_token_at_all(drafter: str) -> None:
    """Case 19: a repeated n-gram, and nothing that could end the answer or pad it."""
    target = target_of("llama")
    assert target.eos_token_ids == ()
    result = Engine(target, drafters("llama")[drafter]).generate([5, 6, 7, 5, 6, 7, 5], GREEDY)
    assert len(result.token_ids) == LENGTH
    assert result.finish_reason == "length"


@both
def test_end_tokens_that_are_only_drafted_end_nothing(options: GenerationOptions) -> None:
    """Case 20: and nothing is drafted behind one."""
    answer = plain(target_of("llama"), tokens(9), options)
    unwanted = next(token for token in range(VOCAB_SIZE) if token not in answer)
    target = ending("llama", [unwanted])
    assert_plain(Engine(target, ScriptedDrafter(repeat(unwanted, 4), 4)), tokens(9), options)
    drafter = Watched(DraftModelDrafter(target_of("llama"), Proposal.DETERMINISTIC))
    assert_plain(Engine(target, drafter, FixedPolicy("60,1")), tokens(9), options)
    ends = [
        (tree, node)
        for tree in drafter.drafts
        for node in range(1, len(tree))
        if tree.token_ids[node] == unwanted
    ]
    assert ends
    assert all(not tree.children[node] for tree, node in ends)


@both
def test_an_accepted_end_has_nothing_behind_it(options: GenerationOptions) -> None:
    """Case 21: no bonus token, wherever in the block it stands and where the cap lands on it."""
    prompt = tokens(9)
    answer = plain(target_of("llama"), prompt, options)
    for end in (0, 3, 7):
        first = answer.index(answer[end])
        for cap in (first + 1, first + 2, LENGTH):
            target, script = ending("llama", answer[end]), perfect([*prompt, *answer], first + 1)
            engine = Engine(target, ScriptedDrafter(script, 16))
            result = engine.generate(prompt, options, max_new_tokens=cap)
            assert result.token_ids == answer[: first + 1]
            assert result.finish_reason == "stop"
            assert result.stats.completion_tokens == first + 1


# --- scripts, limits, histories ---------------------------------------------------------------------


@both
@pytest.mark.parametrize(("k", "j"), SWEEP)
def test_drafts_that_are_right_for_a_while(k: int, j: int, options: GenerationOptions) -> None:
    """Case 44: on a model with windows."""
    prompt = tokens(9)
    text = [*prompt, *plain(target_of("gemma3"), prompt, options)]
    drafter = Watched(ScriptedDrafter(right(text, j, k, VOCAB_SIZE), k))
    steps = list(checked_rounds(Engine(target_of("gemma3"), drafter), prompt, options))
    assert [*prompt, *(token for step in steps for token in step.token_ids)] == text
    whole = [step for step in steps if step.num_drafted == k]
    assert whole
    assert all(len(step.token_ids) == j + 1 for step in whole)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral", "gpt2"])
@both
def test_scripts_of_every_kind(name: str, options: GenerationOptions) -> None:
    prompt = tokens(9)
    text = [*prompt, *plain(target_of(name), prompt, options)]
    for index, script in enumerate(scripts(text)):
        drafter = Watched(ScriptedDrafter(script, 40, branches=True))
        accepted = assert_plain(Engine(target_of(name), drafter), prompt, options)
        assert index > 3 or accepted > 0


def scripts(text: Sequence[int]) -> Iterator[Script]:
    yield perfect(text, 5)
    yield cycle(text, 6)
    yield with_siblings(right(text, 2, 4, VOCAB_SIZE), 3, 1, VOCAB_SIZE)
    yield with_siblings(perfect(text, 4), 4, 3, VOCAB_SIZE)
    yield wrong(text, 5, VOCAB_SIZE)
    yield noise(3, 6, VOCAB_SIZE)


CONTEXT = 64


@functools.cache
def small_context() -> HFTarget:
    """Learned positions, so that one past the last is an error."""
    shape = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return HFTarget(endless(build(GPT2Config(**shape, n_positions=CONTEXT))))


@pytest.mark.parametrize("length", range(CONTEXT - 8, CONTEXT))
@pytest.mark.parametrize("shape", ["long chain", "wide then narrow", "lopsided"])
def test_drafts_at_the_end_of_the_context(length: int, shape: str) -> None:
    """Case 55."""
    target, prompt = small_context(), tokens(length)
    expected = generated(target.model, prompt, CONTEXT - length)
    for drafter in (DraftModelDrafter(target), NgramDrafter(1, 3)):
        engine = Engine(target, Watched(drafter), SHAPES[shape]())
        steps = list(checked_rounds(engine, prompt, GREEDY))
        assert [token for step in steps for token in step.token_ids] == expected
        assert steps[-1].finish_reason == "length"


def test_histories_that_shrink_and_change() -> None:
    """Case 58: one engine, and each request drafts as it would alone."""
    engine = Engine(target_of("llama"), NgramDrafter(1, 3))
    text = tokens(60)
    for prompt in (text, text[:5], [*text[:20], 90, *text[21:]], text[:1], [*text, *text], text):
        used, alone = (
            each.generate(prompt, GREEDY)
            for each in (engine, Engine(target_of("llama"), NgramDrafter(1, 3)))
        )
        assert used.token_ids == alone.token_ids == plain(engine.target, prompt, GREEDY)
        assert used.stats.accepted_histogram == alone.stats.accepted_histogram


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_request_leaves_nothing_to_the_next(drafter: str) -> None:
    """Case 73: a long text, a short one of other tokens, and the long one again."""
    watched = Watched(drafters("llama")[drafter])
    engine = Engine(target_of("llama"), watched, FixedPolicy("2,2"))
    long, short = tokens(60), [50, 51, 50, 51, 50]
    results = [engine.generate(prompt, GREEDY) for prompt in (long, short, long)]
    assert results[0].token_ids == results[2].token_ids
    assert results[0].stats.accepted_histogram == results[2].stats.accepted_histogram
    alone = Watched(drafters("llama")[drafter])
    Engine(target_of("llama"), alone, FixedPolicy("2,2")).generate(short, GREEDY)
    assert [t.token_ids for t in watched.states[1].drafts] == [t.token_ids for t in alone.drafts]


# --- vocabularies, devices, quantisation ------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", list(Proposal))
@pytest.mark.parametrize("rows", [(128, 120), (120, 128)], ids=str)
def test_vocabularies_padded_differently(
    rows: tuple[int, int], kind: Proposal, options: GenerationOptions
) -> None:
    """Case 60: the tokenizer has 110; what is beyond is neither drafted nor emitted."""
    target, draft = (padded(r) for r in rows)
    drafter = Watched(DraftModelDrafter(draft, kind))
    prompt = [3, 109, 3, 108, 109]
    assert_plain(Engine(target, drafter, FixedPolicy("3,2")), prompt, options)
    assert max(max(tree.token_ids) for tree in drafter.drafts) < 110


@functools.cache
def padded(rows: int) -> HFTarget:
    return HFTarget(endless(tiny_llama(vocab_size=rows, seed=rows)), Tokenizer(110))


@both
def test_a_drafter_that_means_other_tokens(options: GenerationOptions) -> None:
    """Case 61, when it was forced: its ids are only proposals."""
    model = copy.deepcopy(target_of("llama").model)
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            matrix.copy_(matrix[order])
    drafter = Watched(DraftModelDrafter(HFTarget(model)))
    assert_plain(Engine(target_of("llama"), drafter, FixedPolicy("2,2")), tokens(9), options)


def test_no_filler_reaches_an_embedding() -> None:
    """Case 62: whatever is drafted, and however unevenly."""
    target, draft = MODELS["llama"](), HFTarget(moved(target_of("llama").model))
    seen: list[Tensor] = []
    for each in (target, draft):
        each.model.get_input_embeddings().register_forward_pre_hook(
            lambda _, arguments: seen.append(arguments[0].clone())
        )
    for drafter in (DraftModelDrafter(draft), NgramDrafter(1, 3)):
        for shape in SHAPES.values():
            Engine(target, drafter, shape()).generate(tokens(9), GREEDY)
    ids = torch.cat([row.flatten() for row in seen])
    assert 0 <= int(ids.min()) <= int(ids.max()) < VOCAB_SIZE


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_weights_that_are_nowhere_are_refused(role: str) -> None:
    """Case 63: when the part is built, not in the middle of an answer."""
    with pytest.raises(ModelError, match="weights on the meta device"):
        HFTarget(tiny_llama().to("meta"))


class Int8Linear(nn.Module):
    """Weights rounded to 8 bits a row, and nothing that tells its shape but the rows themselves."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("rows", (linear.weight.detach() / scale).round().to(torch.int8))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ (self.rows.float() * self.scale).T


def quantised(model: Any) -> Any:
    """A copy whose linear layers, but the head, hold 8 bits."""
    model = copy.deepcopy(model)
    for module in list(model.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    return model


@functools.cache
def int8_target() -> HFTarget:
    return HFTarget(quantised(target_of("llama").model))


def linear_types(model: Any) -> list[type]:
    return [type(m) for m in model.modules() if isinstance(m, nn.Linear | Int8Linear)]


@both
@pytest.mark.parametrize("reverse", [False, True], ids=["target", "drafter"])
def test_one_of_the_two_is_quantised(reverse: bool, options: GenerationOptions) -> None:
    """Case 64: the other one's layers and rows stay as they were."""
    target, draft = int8_target(), target_of("llama")
    if reverse:
        target, draft = draft, target
    types, rows = linear_types(draft.model), draft.forward(tokens(9))
    engine = Engine(target, Watched(DraftModelDrafter(draft)), FixedPolicy("2,2"))
    assert assert_plain(engine, tokens(9), options) > 0
    if options.temperature == 0:
        expected = generated(target.model, tokens(9), LENGTH)
        assert list(plain(target, tokens(9), options)) == expected
    assert linear_types(draft.model) == types
    assert torch.equal(draft.forward(tokens(9)), rows)


def test_a_quantised_target_in_threads() -> None:
    """Case 66: 40 requests in 8 threads, each as it is alone."""
    engine = Engine(int8_target(), DraftModelDrafter(target_of("llama")), FixedPolicy("2,1,1"))

    def answer(seed: int) -> tuple[int, ...]:
        options = GREEDY if seed % 2 else SAMPLING.replace(seed=seed)
        return engine.generate(tokens(1 + seed, seed), options).token_ids

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answer, range(40)))
    assert together == [answer(seed) for seed in range(40)]
