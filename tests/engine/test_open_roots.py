"""The engine where drafts start from open roots: greedy rounds, caches, passes, stops, metrics, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.config import MAX_TREE_NODES
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import ForedraftError
from foredraft.methods import parse_method
from foredraft.policies.fixed import FixedPolicy
from foredraft.sampling.randomness import SeededRandomness
from foredraft.tree import Proposal
from foredraft.verifiers.multi_root import MultiRootVerifier
from tests.drafters.contexts import context
from tests.drafters.eagle_rounds import from_scratch, make_head, true_features
from tests.engine.root_rounds import (
    Counting,
    Forced,
    best,
    checked,
    counting,
    engine,
    greedy_rounds,
    model_logits,
    near,
    table_logits,
)
from tests.tiny_folders import byte_tokenizer
from tests.tiny_models import tiny_bloom, tiny_llama

PROMPT = (1, 2, 3, 1, 2)
GREEDY = GenerationOptions(max_new_tokens=24, ignore_eos=True)
SAMPLING = GREEDY.replace(temperature=1.0, seed=3)
TARGET = counting(8, 2, seed=1)
DRAFT = near(TARGET, seed=2)
any_request = pytest.mark.parametrize("options", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
any_tree = pytest.mark.parametrize("tree", ["1,1", "1,2,2", "2,1", "2,2,1", "3,2,1,1", "8,1"])


@pytest.fixture(scope="module")
def llama() -> HFTarget:
    return HFTarget(tiny_llama())


@pytest.fixture(scope="module")
def draft_llama() -> HFTarget:
    """Close enough to be right now and then."""
    model, other = tiny_llama(), tiny_llama(seed=1)
    with torch.no_grad():
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            mine.lerp_(its, 0.15)
    return HFTarget(model)


# --- temperature 0 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("roots", ["multinomial", "topk", "nucleus"])
@pytest.mark.parametrize("tree", ["1,1", "1,3,2", "1,2,2,1"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"repetition_penalty": 1.4, "frequency_penalty": 0.5}, {"suppress_tokens": [3, 5]}],
    ids=["plain", "penalised", "suppressed"],
)
def test_one_root_is_greedy_decoding(tree: str, roots: str, changes: dict[str, Any]) -> None:
    options = GREEDY.replace(**changes)
    made = engine(f"tree={tree}:roots={roots}", TARGET, DRAFT)
    assert made.generate(PROMPT, options).token_ids == (
        Engine(TARGET).generate(PROMPT, options).token_ids
    )


def test_one_root_is_greedy_decoding_where_tokens_tie() -> None:
    """Four tokens are equally likely after any other."""
    table = torch.tensor([[3, 3, 3, 1, 3]], dtype=torch.float64).expand(5, 5) / 13
    target = TableModel(table)
    plain = Engine(target).generate([0], GREEDY).token_ids
    for roots in ("multinomial", "topk", "nucleus"):
        made = engine(f"tree=1,2:roots={roots}", target, target)
        assert made.generate([0], GREEDY).token_ids == plain


def test_one_root_is_greedy_decoding_of_a_real_model(
    llama: HFTarget, draft_llama: HFTarget
) -> None:
    for tree in ("1,1", "1,3,2"):
        made = engine(f"tree={tree}", llama, draft_llama)
        assert made.generate(PROMPT, GREEDY).token_ids == (
            Engine(llama).generate(PROMPT, GREEDY).token_ids
        )


@any_tree
def test_greedy_rounds_take_the_longest_continuation(tree: str) -> None:
    num_roots, *widths = map(int, tree.split(","))
    for start in range(0, 8, 2):
        expected = greedy_rounds(
            table_logits(TARGET), table_logits(DRAFT), [start], num_roots, widths, 24
        )
        made = engine(f"tree={tree}", TARGET, DRAFT)
        assert [step.token_ids for _, step in checked(made, [start], GREEDY)] == expected


@pytest.mark.parametrize("tree", ["2,2,1", "4,1,1"])
def test_greedy_rounds_of_a_real_model(llama: HFTarget, draft_llama: HFTarget, tree: str) -> None:
    num_roots, *widths = map(int, tree.split(","))
    made = engine(f"tree={tree}", llama, draft_llama)
    logits = model_logits(llama.model), model_logits(draft_llama.model)
    expected = greedy_rounds(*logits, PROMPT, num_roots, widths, 24)
    assert [step.token_ids for _, step in checked(made, PROMPT, GREEDY)] == expected
    assert max(map(len, expected)) > 1
    plain = Engine(llama).generate(PROMPT, GREEDY).token_ids
    assert tuple(token for tokens in expected for token in tokens) != plain  # it is lossy


def test_greedy_roots_are_the_targets_best() -> None:
    """After a rejection too: what was rejected may be the best token all the same."""
    made = engine("tree=3,1", TARGET, DRAFT)
    texts = [before for before, _ in checked(made, PROMPT, GREEDY)]
    trees = made.drafter.drafts  # type: ignore[union-attr]
    assert len(trees) > 5
    for text, tree in zip(texts, trees, strict=False):
        assert list(tree.token_ids[:3]) == best(TARGET.logits_after(text).numpy(), 3)


# --- caches -----------------------------------------------------------------------------------------

RIGHT = {"none": [0], "one": [1], "all": [9], "mixed": [0, 2, 1, 0, 9, 1]}
SHAPES = {"one": (1, "2,1"), "two": (2, "1,1,1"), "three": (3, "2,2")}
every_outcome = pytest.mark.parametrize("right", RIGHT)
every_shape = pytest.mark.parametrize("shape", SHAPES)
FEW = GenerationOptions(max_new_tokens=100, temperature=1.0, seed=3, ignore_eos=True)
NUM_ROUNDS = 5


def played(target: Any, drafter: Any, shape: str, right: str, prompt: Any = PROMPT) -> Any:
    """(text, tree, the target's laws) of some rounds whose outcome is forced."""
    num_roots, widths = SHAPES[shape]
    verifier = Forced(num_roots, RIGHT[right])
    policy = FixedPolicy([int(k) for k in widths.split(",")], num_roots)
    made = Engine(target, drafter, policy, verifier)
    rounds = checked(made, prompt, FEW)
    texts = [next(rounds)[0] for _ in range(NUM_ROUNDS)]
    return list(zip(texts, verifier.trees, verifier.beliefs, strict=True))


def close(law: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(law, torch.as_tensor(expected).double(), atol=1e-4, rtol=0)


def law_after(model: Any, text: Any) -> torch.Tensor:
    return torch.from_numpy(model_logits(model)(text)).double().softmax(-1)


@every_outcome
@every_shape
@pytest.mark.parametrize("length", [1, 5])
def test_laws_of_target_and_draft_model_are_those_of_the_text_alone(
    llama: HFTarget, draft_llama: HFTarget, shape: str, right: str, length: int
) -> None:
    """After roots and nodes, whatever the round before accepted; behind a prompt of one token too."""
    drafter = DraftModelDrafter(draft_llama, Proposal.SAMPLED)
    for text, tree, beliefs in played(llama, drafter, shape, right, PROMPT[:length]):
        assert tree.num_roots == SHAPES[shape][0]
        for node in range(len(tree)):
            so_far = [*text, *tree.path_tokens(node)]
            close(beliefs[node], law_after(llama.model, so_far))
            if tree.children[node]:
                close(tree.laws[node], law_after(draft_llama.model, so_far))


@every_outcome
@every_shape
@pytest.mark.parametrize(("name", "length"), [("eagle1", 5), ("eagle3", 1)])
def test_laws_of_a_head_are_those_of_true_features(
    llama: HFTarget, name: str, shape: str, right: str, length: int
) -> None:
    head = make_head(llama.model, name)
    drafter = EagleDrafter(head, Proposal.SAMPLED)
    for text, tree, beliefs in played(llama, drafter, shape, right, PROMPT[:length]):
        features = true_features(llama.model, text, head.config.taps)
        for node in range(len(tree)):
            root, *path = tree.path_tokens(node)
            close(beliefs[node], law_after(llama.model, [*text, root, *path]))
            if tree.children[node]:
                expected = from_scratch(head, features, [*text, root], path)
                close(tree.laws[node], expected.double().exp())


@every_outcome
@every_shape
def test_copies_are_those_of_the_text_alone(shape: str, right: str) -> None:
    num_roots, widths = SHAPES[shape]
    drafted = 0
    for text, tree, _ in played(TARGET, NgramDrafter(1, 3), shape, right, PROMPT * 3):
        fresh = NgramDrafter(1, 3).start(0)
        roots = tree.token_ids[:num_roots]
        policy = FixedPolicy([int(k) for k in widths.split(",")])
        opened = replace(context(text, vocab_size=8), open_roots=roots)
        assert fresh.draft(opened, policy) == tree
        drafted += tree.num_drafted
        for root in set(roots) - {
            text[-1]
        }:  # a run that begins with the root is not in the text yet
            closed = NgramDrafter(1, 3).start(0)
            alone = closed.draft(context([*text, root], vocab_size=8), policy)
            below = {alone.path_tokens(node) for node in range(len(alone))}
            under = {p[1:] for p in map(tree.path_tokens, range(len(tree))) if p[0] == root}
            assert under == below
    assert drafted


@any_request
@any_tree
def test_caches_of_tables_hold_the_text(tree: str, options: GenerationOptions) -> None:
    made = engine(f"tree={tree}", TARGET, DRAFT)
    for before, step in checked(made, PROMPT, options):
        state = made.drafter.states[-1].state  # type: ignore[union-attr]
        text = [*before, *step.token_ids]
        assert state._state.committed == text[: state.length]
        if step.num_drafted:
            assert state.length > len(before)  # its root at least
    assert len(text) == len(PROMPT) + 24


@any_request
def test_a_draft_model_of_a_smaller_context(options: GenerationOptions) -> None:
    """It drafts as far as it has room, and the answer goes on without it."""
    draft = counting(8, 2, seed=1, context_length=12)
    made = engine("tree=2,1,1", TARGET, draft)
    steps = [step for _, step in checked(made, PROMPT, options)]
    assert sum(len(step.token_ids) for step in steps) == 24
    assert draft.longest == 12
    assert steps[0].num_drafted
    assert not steps[-1].num_drafted


@any_request
@any_tree
def test_a_target_at_the_end_of_its_context(tree: str, options: GenerationOptions) -> None:
    target = counting(8, 2, seed=1, context_length=12)
    result = engine(f"tree={tree}", target, DRAFT).generate(PROMPT, options)
    assert (len(result.token_ids), result.finish_reason) == (7, "length")
    assert target.longest <= 12


# --- passes and metrics -----------------------------------------------------------------------------


@any_request
@any_tree
@pytest.mark.parametrize("length", [1, 5])
def test_rounds_record_their_passes(tree: str, options: GenerationOptions, length: int) -> None:
    """Before them the prompt's last token is scored; a last token that is all there is room for is not."""
    target, prompt = counting(8, 2, seed=1), PROMPT[:length]
    draft = near(target, seed=2)
    made = engine(f"tree={tree}", target, draft)
    stats = made.generate(prompt, options).stats
    rounds = stats.rounds
    assert stats.target_passes == len(target.passes)
    assert stats.tokens_per_pass == stats.completion_tokens / len(target.passes)
    before = [len(prompt), *accumulate((r.num_emitted for r in rounds), initial=len(prompt))][1:]
    assert [r.context for r in rounds] == before[:-1]
    scored = [(r.context, sum(r.widths)) for r in rounds]
    if rounds[-1].context == len(prompt) + 24 - 1:
        assert (rounds[-1].widths, rounds[-1].draft_rows) == ((1,), ())
        scored.pop()
    assert target.passes == [(len(prompt) - 1, 1), *scored]
    assert [n for r in rounds for n in r.draft_rows] == [n for _, n in draft.passes]


@any_request
@any_tree
def test_one_token_needs_no_round_of_passes(tree: str, options: GenerationOptions) -> None:
    """The law after the prompt is all it takes."""
    target = counting(8, 2, seed=1)
    draft = near(target, seed=2)
    result = engine(f"tree={tree}", target, draft).generate(PROMPT, options, max_new_tokens=1)
    assert (len(result.token_ids), result.finish_reason) == (1, "length")
    assert target.passes == [(len(PROMPT) - 1, 1)]
    assert draft.passes == []
    assert [(r.widths, r.target_passes) for r in result.stats.rounds] == [((1,), 1)]


@any_request
@any_tree
def test_roots_are_neither_drafted_nor_accepted(tree: str, options: GenerationOptions) -> None:
    made = engine(f"tree={tree}", TARGET, DRAFT)
    result = made.generate(PROMPT, options)
    stats, rounds = result.stats, result.stats.rounds
    trees = made.drafter.drafts  # type: ignore[union-attr]
    drafting = rounds[: len(trees)]
    assert len(rounds) - len(trees) in (0, 1)  # the last one may have no room for a draft
    assert [r.widths for r in drafting] == [t.widths for t in trees]
    assert [r.num_drafted for r in drafting] == [len(t) - t.num_roots for t in trees]
    assert all(r.widths[0] == int(tree.split(",")[0]) for r in drafting)
    assert all(r.num_emitted == r.num_accepted + 1 for r in rounds if not r.cut)
    assert stats.drafted_tokens == sum(len(t) - t.num_roots for t in trees)
    assert stats.accepted_tokens == sum(r.num_accepted for r in rounds)
    assert stats.accepted_tokens == 24 - len(rounds)
    assert stats.mean_acceptance_length == pytest.approx(1 + stats.accepted_tokens / len(rounds))
    assert stats.mean_acceptance_length == pytest.approx(24 / len(rounds))
    assert stats.acceptance_rate == stats.accepted_tokens / stats.drafted_tokens
    assert stats.completion_tokens == len(result.token_ids) == 24


@any_tree
@pytest.mark.parametrize("count", range(1, 8))
def test_answers_are_exactly_as_long_as_asked(tree: str, count: int) -> None:
    made = engine(f"tree={tree}", TARGET, DRAFT)
    for seed in range(3):
        result = made.generate(PROMPT, SAMPLING, seed=seed, max_new_tokens=count)
        assert (len(result.token_ids), result.finish_reason) == (count, "length")
        assert result.stats.completion_tokens == count
        assert result.stats.cut_rounds == 0


def test_a_seed_gives_the_same_answer_again() -> None:
    made = engine("tree=2,2,1", TARGET, DRAFT)
    answers = [made.generate(PROMPT, SAMPLING, seed=seed).token_ids for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]
    assert not made.keeps_seeds


# --- where answers end ------------------------------------------------------------------------------


def test_end_tokens_of_greedy_rounds() -> None:
    """As a root, in the winning path, and in a losing one."""
    seen = set()
    for tree in ("1,2,2", "2,2,1", "3,2,1,1"):
        num_roots, *widths = map(int, tree.split(","))
        for end in range(8):
            for start in (0, 3, 6):
                made = engine(f"tree={tree}", TARGET, DRAFT)
                expected = greedy_rounds(
                    table_logits(TARGET), table_logits(DRAFT), [start], num_roots, widths, 24, [end]
                )
                options = GREEDY.replace(ignore_eos=False, eos_token_ids=(end,))
                result = made.generate([start], options)
                assert result.token_ids == tuple(t for tokens in expected for t in tokens)
                seen |= places_of(end, made, expected)
                ended = result.token_ids[-1] == end
                assert result.finish_reason == ("stop" if ended else "length")
                assert result.stopped_by == (end if ended else None)
    assert seen == {"root", "path", "losing root", "losing node"}


def places_of(end: int, made: Engine, expected: list[tuple[int, ...]]) -> set[str]:
    seen = set()
    for tree, tokens in zip(made.drafter.drafts, expected, strict=False):  # type: ignore[union-attr]
        if end in tokens:
            seen.add("root" if tokens[0] == end else "path")
            continue
        holders = [node for node in range(len(tree)) if tree.token_ids[node] == end]
        seen |= {"losing root" if tree.depths[node] == 0 else "losing node" for node in holders}
        assert not any(tree.children[node] for node in holders)
    return seen


@any_tree
def test_end_tokens_of_sampled_rounds(tree: str) -> None:
    made = engine(f"tree={tree}", TARGET, DRAFT)
    lengths = set()
    for seed in range(20):
        options = SAMPLING.replace(ignore_eos=False, eos_token_ids=(2, 6), seed=seed)
        result = made.generate(PROMPT, options)
        ends = [token in (2, 6) for token in result.token_ids]
        assert not any(ends[:-1])
        assert ends[-1] == (result.finish_reason == "stop")
        assert result.stats.completion_tokens == len(result.token_ids)
        lengths.add(len(result.token_ids))
    assert len(lengths) > 3


@any_request
@pytest.mark.parametrize("tree", ["1,2", "2,2,1", "8,2", "8,8"])
def test_no_end_token_comes_too_early(tree: str, options: GenerationOptions) -> None:
    """As roots go by rank at temperature 0, an end token that is forbidden must not fill them up."""
    ends = (0, 1, 2, 3, 4, 5)
    made = engine(f"tree={tree}", TARGET, DRAFT)
    options = options.replace(ignore_eos=False, eos_token_ids=ends, min_new_tokens=9)
    steps = list(checked(made, PROMPT, options))
    answer = [token for _, step in steps for token in step.token_ids]
    assert len(answer) >= 10
    assert not set(answer[:9]) & set(ends)
    for (before, _), tree_ in zip(steps, made.drafter.drafts, strict=False):  # type: ignore[union-attr]
        roots = tree_.token_ids[: tree_.num_roots]
        if len(before) - len(PROMPT) < 9:
            assert not set(roots) & set(ends)
            assert len(roots) == min(2, int(tree.split(",")[0]))


@any_request
def test_suppressed_tokens_are_no_roots(options: GenerationOptions) -> None:
    made = engine("tree=8,2", TARGET, DRAFT)
    made.generate(PROMPT, options, suppress_tokens=[1, 4])
    for tree in made.drafter.drafts:  # type: ignore[union-attr]
        assert sorted(tree.token_ids[: tree.num_roots]) == [0, 2, 3, 5, 6, 7]


def test_filters_leave_fewer_roots() -> None:
    made = engine("tree=4,1", TARGET, DRAFT)
    made.generate(PROMPT, SAMPLING, top_k=3)
    assert {t.num_roots for t in made.drafter.drafts} <= {1, 2, 3}  # type: ignore[union-attr]
    made = engine("tree=4,1", TARGET, DRAFT)
    made.generate(PROMPT, SAMPLING, top_k=1)
    assert {t.num_roots for t in made.drafter.drafts} == {1}  # type: ignore[union-attr]


def test_only_forbidden_tokens_is_an_error() -> None:
    target = counting(8, 2, seed=1)
    with pytest.raises(ForedraftError, match="forbids every token"):
        engine("tree=2,2", target, DRAFT).generate(PROMPT, suppress_tokens=list(range(8)))
    assert target.num_closed == target.num_started


@any_request
def test_a_draft_that_is_no_law_is_no_draft(options: GenerationOptions) -> None:
    """Case 45: a draft model of NaNs leaves the roots alone, and the rounds go on."""
    broken = counting(8, 2, seed=1)
    broken._logits.fill_(torch.nan)
    made = engine("tree=2,2", TARGET, broken)
    steps = [step for _, step in checked(made, PROMPT, options)]
    assert [(len(s.token_ids), s.num_drafted) for s in steps] == [(1, 0)] * 24
    plain = engine("tree=1,2", TARGET, broken).generate(PROMPT, GREEDY).token_ids
    assert plain == Engine(TARGET).generate(PROMPT, GREEDY).token_ids


@any_request
def test_a_target_that_is_no_law_is_an_error(options: GenerationOptions) -> None:
    """Case 45: after the prompt, and after a node of a round."""
    for bad in (PROMPT[-1:], (0, 4)):
        target = counting(8, 1, seed=1)
        target._logits[list(bad)] = torch.nan
        with pytest.raises(ForedraftError, match="position"):
            engine("tree=2,2", target, DRAFT).generate(PROMPT, options, max_new_tokens=100)
        assert target.num_closed == target.num_started == 1


@pytest.mark.parametrize("roots", ["multinomial", "topk", "nucleus"])
@pytest.mark.parametrize("vocab_size", [5, 600, 49_152])
def test_the_first_greedy_root_is_the_token_that_plain_decoding_takes(
    roots: str, vocab_size: int
) -> None:
    """Of equally likely tokens too, which half precision has many of."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ranks = torch.randint(0, 4, (vocab_size,), generator=generator)
        law = ranks.double().exp()
        law /= law.sum()
        for count in (1, 3):
            chosen = MultiRootVerifier(count, roots).choose_roots(law, True, SeededRandomness(0))
            assert chosen[0] == int(law.argmax())
            assert len(set(chosen)) == count
            assert list(law[list(chosen)]) == sorted(law.tolist(), reverse=True)[:count]


# --- text -------------------------------------------------------------------------------------------

TOKENIZER = byte_tokenizer()
LETTERS = TableModel.random(len(TOKENIZER), seed=1, sharpness=3.0)
OTHER_LETTERS = near(LETTERS, seed=2, share=0.3)
TEXT = SAMPLING.replace(max_new_tokens=40)


@pytest.mark.parametrize("tree", ["1,2,1", "2,2,1"])
def test_streamed_texts_join_to_the_whole(tree: str) -> None:
    made = engine(f"tree={tree}", LETTERS, OTHER_LETTERS, TOKENIZER)
    with made.stream("the cat", TEXT) as stream:
        steps = list(stream)
        result = stream.result()
    assert result.text == made.decode(result.token_ids) == made.generate("the cat", TEXT).text
    assert "".join(step.text for step in steps) == result.text
    assert tuple(token for step in steps for token in step.token_ids) == result.token_ids
    assert max(len(step.token_ids) for step in steps) > 1


@pytest.mark.parametrize("tree", ["1,2,1", "2,2,1"])
def test_stop_strings(tree: str) -> None:
    """Every two characters of the answer in turn, wherever in a round they come to stand."""
    made = engine(f"tree={tree}", LETTERS, OTHER_LETTERS, TOKENIZER)
    whole = made.generate("the cat", TEXT)
    for start in range(0, len(whole.text) - 1, 2):
        stop = whole.text[start : start + 2]
        if "\ufffd" in stop:
            continue
        result = made.generate("the cat", TEXT, stop=(stop,))
        assert result.text == whole.text[: whole.text.index(stop)]
        assert result.token_ids == whole.token_ids[: len(result.token_ids)]
        assert (result.finish_reason, result.stopped_by) == ("stop", stop)
        assert result.stats.completion_tokens == len(result.token_ids)


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_stream_that_is_left_early_frees_its_session(num_steps: int) -> None:
    target = counting(8, 2, seed=1)
    draft = near(target, seed=2)
    made = engine("tree=2,2,1", target, draft)
    with made.stream(PROMPT, SAMPLING) as stream:
        for _ in range(num_steps):
            next(stream)
    assert list(stream) == []
    assert (target.num_closed, draft.num_closed) == (1, 1)
    answer = made.generate(PROMPT, SAMPLING).token_ids
    assert answer == engine("tree=2,2,1", TARGET, DRAFT).generate(PROMPT, SAMPLING).token_ids


# --- what is refused --------------------------------------------------------------------------------


def keep(token_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores


@pytest.mark.parametrize("tree", ["2,2", "3,1"])
def test_processors_of_the_users_own_are_refused(tree: str) -> None:
    """They would see the paths of roots that lose."""
    target = counting(8, 2, seed=1)
    with pytest.raises(ConfigError, match="logits_processors"):
        engine(f"tree={tree}", target, DRAFT).generate(PROMPT, logits_processors=[keep])
    assert target.num_closed == target.num_started


class Chains(Counting):
    """Ignores masks."""

    scores_trees = False


def test_several_roots_need_a_target_that_scores_trees() -> None:
    target = Chains(TARGET._logits.exp())
    with pytest.raises(ConfigError, match="scores chains alone; use 1 root"):
        engine("tree=2,1", target, DRAFT)
    with pytest.raises(ConfigError, match="scores chains alone; use 1 root"):
        Engine(target, verifier=MultiRootVerifier(2))


@any_request
def test_one_root_needs_chains_alone(options: GenerationOptions) -> None:
    target = Chains(TARGET._logits.exp())
    made = engine("tree=1,1,1", target, DRAFT)
    same = engine("tree=1,1,1", TARGET, DRAFT)
    assert made.generate(PROMPT, options).token_ids == same.generate(PROMPT, options).token_ids
    with pytest.warns(UserWarning, match="kept to chains"):
        made = engine("tree=1,2,2", target, DRAFT)
    for _ in checked(made, PROMPT, options):
        assert made.drafter.drafts[-1].is_chain  # type: ignore[union-attr]


def test_a_real_target_that_ignores_masks() -> None:
    bloom, draft = HFTarget(tiny_bloom()), HFTarget(tiny_llama())
    with pytest.raises(ConfigError, match="use 1 root"):
        engine("tree=2,1", bloom, draft)
    made = engine("tree=1,1,1", bloom, draft)
    plain = Engine(bloom).generate(PROMPT, GREEDY).token_ids
    assert made.generate(PROMPT, GREEDY).token_ids == plain


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("tree=2", "has roots and no drafts"),
        ("tree=8", "has roots and no drafts"),
        ("tree=2,0", "every width must be 1 or more"),
        ("tree=0,2", "every width must be 1 or more"),
        ("tree=", "write it like"),
        ("tree=20,10,10", "use smaller widths or fewer depths"),
        (f"tree={MAX_TREE_NODES},1", "use smaller widths or fewer depths"),
        ("roots=nucleuss", "'nucleus'"),
        ("roots=top_k", "'topk'"),
        ("roots=multi", "'multinomial'"),
        ("roots=nucleus:root_top_p=0", "0"),
        ("roots=nucleus:root_top_p=1.5", "1.5"),
        ("roots=nucleus:root_top_p=nan", "nan"),
        ("root=topk", "'roots'"),
        ("verifier=exact", "no option"),
        ("depth=3", "no option"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_sentence(options: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine(options, TARGET, DRAFT)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 200


def test_the_largest_tree_fits_and_one_node_more_does_not() -> None:
    """Roots count as nodes of the pass."""
    half = MAX_TREE_NODES // 2
    for num_roots in (2, half):
        width = MAX_TREE_NODES // num_roots - 1
        fits = FixedPolicy([width], num_roots)
        Engine(TARGET, NgramDrafter(), fits, MultiRootVerifier(num_roots))
        wider = FixedPolicy([width + 1], num_roots)
        with pytest.raises(ConfigError, match="may draft"):
            Engine(TARGET, NgramDrafter(), wider, MultiRootVerifier(num_roots))


def test_coupled_drafts_are_refused() -> None:
    drafter = DraftModelDrafter(DRAFT, Proposal.COUPLED)
    with pytest.raises(ConfigError, match="coupled proposals"):
        Engine(TARGET, drafter, None, MultiRootVerifier(2))


def test_it_needs_something_to_draft_with() -> None:
    with pytest.raises(ConfigError, match="needs a draft model"):
        parse_method("mcsd-improved-lossy").build()
