"""The law of the winning root: exact given the drafts, and equal to what verification really does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.backends.table import TableModel
from foredraft.bench.quality.contexts import RootChoices, root_choices, sampled_context
from foredraft.bench.quality.roots import (
    ROOTS,
    emitted_law,
    length_law,
    total_variation,
    winners,
)
from foredraft.config import GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.engine import Engine
from foredraft.policies.fixed import FixedPolicy
from foredraft.tree import Proposal
from foredraft.verifiers.multi_root import NUCLEUS, MultiRootVerifier, RootChoice, nucleus
from foredraft.verifiers.rejection import RejectionVerifier
from tests.enumeration import EnumeratingRandomness, enumerate_outcomes

V = 3
ATOL = 1e-12
"""Sums of a few hundred products in float64."""
OPTIONS = GenerationOptions(temperature=1.0, max_new_tokens=16, seed=0)
TEXT = [1, 2]


def engine_of(tree: str, *, seed: int = 0) -> Engine:
    """Recursive rejection over sampled trees of two tables."""
    target = TableModel.random(V, seed=seed)
    drafter = DraftModelDrafter(TableModel.random(V, seed=seed + 1), Proposal.SAMPLED)
    return Engine(target, drafter, FixedPolicy(tree), RejectionVerifier())


def random_law(size: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).dirichlet(np.ones(size)))[::-1].copy()


def random_lengths(size: int, depth: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(depth + 1), size=size)


# --- accepted lengths -------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["1", "2", "2,1", "1,2", "2,2,1"])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_law_of_lengths_is_that_of_the_verifier(tree: str, seed: int) -> None:
    engine = engine_of(tree, seed=seed)
    session = engine.session(TEXT, OPTIONS, engine.randomness(3))
    session.prefill()
    drafted = session.draft()
    laws = session.laws(drafted, session.target.score(drafted.token_ids, drafted.parents))
    found = np.zeros(drafted.depth + 1)
    for weight, verdict in enumerate_outcomes(
        lambda random: engine.verifier.verify(drafted, laws, random)
    ):
        found[verdict.num_accepted] += weight
    np.testing.assert_allclose(length_law(drafted, laws), found, atol=ATOL)
    session.close()


# --- the winner -------------------------------------------------------------------------------------


def brute_force(
    p: np.ndarray, lengths: np.ndarray, num_roots: int, roots: RootChoice
) -> np.ndarray:
    """The emitted law by playing every game: draw the roots, draw their lengths, take the longest."""

    def play(random: EnumeratingRandomness) -> int:
        left, drawn = torch.tensor(p), []
        if roots == "nucleus":
            left = nucleus(left, NUCLEUS)
        for rank in range(min(num_roots, int(left.count_nonzero()))):
            token = rank if roots == "topk" else random.categorical(left)
            drawn.append(token)
            left = left.clone()
            left[token] = 0
        accepted = [random.categorical(torch.tensor(lengths[token])) for token in drawn]
        return drawn[accepted.index(max(accepted))]

    law = np.zeros(len(p))
    for weight, token in enumerate_outcomes(play):
        law[token] += weight
    return law


@pytest.mark.parametrize("roots", ROOTS)
@pytest.mark.parametrize("num_roots", [1, 2, 3])
def test_the_emitted_law_is_that_of_every_game(num_roots: int, roots: RootChoice) -> None:
    p, lengths = random_law(4, seed=num_roots), random_lengths(4, 2, seed=7)
    found = emitted_law(p, lengths, num_roots, roots)
    np.testing.assert_allclose(found, brute_force(p, lengths, num_roots, roots), atol=ATOL)
    assert found.sum() == pytest.approx(1)


def test_one_drawn_root_keeps_the_law_and_more_do_not() -> None:
    p, lengths = random_law(8, seed=1), random_lengths(8, 4, seed=2)
    changes = [total_variation(p, emitted_law(p, lengths, w, "multinomial")) for w in (1, 2, 3, 4)]
    assert changes[0] == pytest.approx(0, abs=ATOL)
    assert min(changes[1:]) > 0.01


def test_roots_of_equal_drafts_keep_the_order_of_their_draw() -> None:
    """Ties go to the first drawn, whose law is p; so drafts that never differ change nothing."""
    p = random_law(6, seed=3)
    never = np.tile([1.0, 0.0], (6, 1))
    for w in (2, 3):
        np.testing.assert_allclose(emitted_law(p, never, w, "multinomial"), p, atol=ATOL)
    np.testing.assert_allclose(winners(never[:3]), [1, 0, 0], atol=ATOL)


def test_the_likeliest_roots_of_a_greedy_law_may_lose() -> None:
    p = np.array([1.0, 0.0])
    lengths = np.array([[0.5, 0.5], [0.0, 1.0]])
    for roots in ROOTS:  # at temperature 0 all of them take the likeliest
        assert emitted_law(p, lengths, 2, roots) == pytest.approx([0.5, 0.5])


def test_a_law_that_is_nearly_a_point_has_runners_up() -> None:
    p = np.array([1.0, 3e-20, 1e-20])
    lengths = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    law = emitted_law(p, lengths, 2, "multinomial")
    assert law == pytest.approx([0.0, 0.75, 0.25])


def test_fewer_tokens_than_roots_leave_fewer_roots() -> None:
    p = np.array([0.7, 0.3])
    lengths = random_lengths(2, 1, seed=0)
    for roots in ("multinomial", "topk"):
        many = emitted_law(p, lengths, 4, roots)
        np.testing.assert_allclose(many, emitted_law(p, lengths, 2, roots), atol=ATOL)


def mean_lengths(tree: str, text: list[int]) -> np.ndarray:
    """The law of a draft's accepted length behind a text, over every draft there could be."""
    engine = engine_of(tree)

    def lengths(random: EnumeratingRandomness) -> np.ndarray:
        session = engine.session(text, OPTIONS, random)
        session.prefill()
        drafted = session.draft()
        logits = session.target.score(drafted.token_ids, drafted.parents)
        return length_law(drafted, session.laws(drafted, logits))

    return sum(weight * law for weight, law in enumerate_outcomes(lengths))  # type: ignore[return-value]


@pytest.mark.parametrize(("num_roots", "tree"), [(1, "2"), (2, "1"), (2, "2"), (3, "1")])
@pytest.mark.parametrize("roots", ["multinomial", "topk"])
def test_the_lossy_engine_emits_that_law(num_roots: int, tree: str, roots: RootChoice) -> None:
    """The real engine's first token, over every root, draft and verdict there could be."""
    single = engine_of(tree)
    policy = FixedPolicy(single.policy.k_config, num_roots)  # type: ignore[union-attr]
    verifier = MultiRootVerifier(num_roots, roots)
    engine = Engine(single.target, single.drafter, policy, verifier)

    def first_token(random: EnumeratingRandomness) -> int:
        session = engine.session(TEXT, OPTIONS, random)
        session.prefill()
        drafted = session.draft()
        laws = session.laws(drafted, session.score(drafted))
        return engine.verifier.verify(drafted, laws, random).token_ids[0]

    emitted = np.zeros(V)
    for weight, token in enumerate_outcomes(first_token):
        emitted[token] += weight
    p = TableModel.random(V, seed=0).logits_after(TEXT).exp()
    order = p.argsort(descending=True).tolist()
    lengths = np.stack([mean_lengths(tree, [*TEXT, token]) for token in order])
    predicted = emitted_law(p[order].numpy(), lengths, num_roots, roots)
    np.testing.assert_allclose(predicted, emitted[order], atol=ATOL)
    assert (total_variation(p.numpy(), emitted) < ATOL) is engine.lossless


# --- contexts ---------------------------------------------------------------------------------------


def choices_of(tree: str, options: GenerationOptions, drafts: int = 3) -> RootChoices:
    engine = engine_of(tree)
    names = ("c", "d")
    return root_choices(
        Engine(engine.target), engine, TEXT, options, names=names, candidates=V, drafts=drafts
    )


def test_every_draft_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the context, the candidate and the draft's number; made again it has the same."""
    engine, seeds = engine_of("2,1"), list[int | None]()
    randomness = engine.randomness
    monkeypatch.setattr(engine, "randomness", lambda seed: seeds.append(seed) or randomness(seed))

    def drafted(name: str, seed: int) -> list[int | None]:
        seeds.clear()
        options = OPTIONS.replace(seed=seed)
        names = (name, "d")
        root_choices(
            Engine(engine.target), engine, TEXT, options, names=names, candidates=V, drafts=4
        )
        return list(seeds)

    first, second = drafted("s/q/0", 0), drafted("s/q/1", 1)
    assert len({*first, *second}) == 2 * V * 4
    assert drafted("s/q/0", 0) == first
    assert not {*drafted("s/q/0", 9)} & {*first}


def test_candidates_are_the_targets_own_likeliest() -> None:
    found = choices_of("2,1", OPTIONS)
    law = TableModel.random(V, seed=0).logits_after(TEXT).exp()
    assert found.probs == pytest.approx(sorted(law.tolist(), reverse=True))
    assert found.tokens == tuple(law.argsort(descending=True).tolist())
    assert found.tail == pytest.approx(0)
    assert np.sum(found.lengths, axis=1) == pytest.approx(np.ones(V))


def test_greedy_laws_have_their_runners_up_by_score() -> None:
    found = choices_of("1,1", OPTIONS.replace(temperature=0.0, seed=None))
    assert found.probs == (1.0, 0.0, 0.0)
    assert all(sum(map(bool, law)) == 1 for law in found.lengths)  # greedy acceptance is certain


def test_choices_survive_their_file() -> None:
    from dataclasses import asdict

    found = choices_of("1", OPTIONS)
    assert RootChoices.from_dict(asdict(found)) == found


def test_contexts_are_a_function_of_their_name() -> None:
    plain = Engine(TableModel.random(V, seed=0))
    contexts = [sampled_context(plain, TEXT, OPTIONS, name) for name in ("a", "b", "a")]
    assert contexts[0] == contexts[2] != contexts[1]
    assert all(context[: len(TEXT)] == TEXT for context in contexts)
