"""What each verifier accepts, refuses, reads and decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.protocols import PolicyKind, Verdict, Verifier
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness, SeededRandomness
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from foredraft.verifiers import VERIFIERS, verifier
from foredraft.verifiers.exact import ExactVerifier
from tests.enumeration import EnumeratingRandomness, enumerate_outcomes
from tests.verifiers.toys import (
    BREAK_ATOL,
    LAW_ATOL,
    ROOT,
    DrawnLaws,
    Table,
    error_of,
    grower,
    laws_of,
    request,
)

SAMPLED, RESAMPLED = Proposal.SAMPLED, Proposal.RESAMPLED
TARGET, DRAFT = Table(seed=1), Table(seed=2)
TREE_VERIFIERS = [name for name in VERIFIERS if not verifier(name).chains_only]


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_name_gives_a_verifier(name: str) -> None:
    made = verifier(name)
    assert isinstance(made, Verifier)
    assert PolicyKind.GROWS in made.policies
    assert (PolicyKind.SELECTS in made.policies) == (name == "exact")
    assert (Proposal.COUPLED in made.proposals) == (name == "exact")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'rejection'\? available: exact, "):
        verifier("rejecton")


@pytest.mark.parametrize("name", VERIFIERS)
def test_an_empty_draft_is_plain_decoding(name: str) -> None:
    grow = grower(DRAFT, (), SAMPLED)
    assert error_of(verifier(name), TARGET, grow, 1) < LAW_ATOL


def real_laws(
    target: Table,
    tree: DraftTree,
    random: Randomness,
    before: tuple[int, ...] = (),
    temperature: float = 1.0,
) -> TargetLaws:
    """The laws that the engine reads, coupled by Gumbel noise, after the tokens `before`."""
    rows = [target.law((*before, *tree.path_tokens(node))) for node in range(len(tree))]
    options = request(target.vocab_size, temperature)
    return options.laws(tree, torch.stack(rows).log(), [ROOT, *before], random)


def wide_tree() -> DraftTree:
    """Two sampled children of the root, and children of both."""
    return grower(DRAFT, (2, 2), SAMPLED)(SeededRandomness(seed=3))


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("seed", range(4))
def test_at_temperature_0_every_verifier_follows_the_argmax(name: str, seed: int) -> None:
    target = Table(seed)
    tree = grower(DRAFT, (1, 1) if name == "block" else (2, 2), SAMPLED)(SeededRandomness(seed))

    def greedy(random: Randomness) -> Verdict:
        return verifier(name).verify(tree, real_laws(target, tree, random, temperature=0), random)

    ((weight, verdict),) = enumerate_outcomes(greedy)
    assert weight == 1
    assert verdict.token_ids == greedy_tokens(target, tree)


def greedy_tokens(target: Table, tree: DraftTree) -> tuple[int, ...]:
    """The target's argmax path as far as the tree holds it, and one token more."""
    paths = {tree.path_tokens(node) for node in range(len(tree))}
    tokens: tuple[int, ...] = ()
    while tokens in paths:
        tokens = (*tokens, int(target.law(tokens).argmax()))
    return tokens


# --- refusals -------------------------------------------------------------------------------------


def chain_of(proposal: Proposal, q: Tensor | None) -> DraftTree:
    builder = TreeBuilder(ROOT)
    builder.add(0, 1, proposal)
    if q is not None:
        builder.set_law(0, q)
    return builder.build()


@pytest.mark.parametrize(
    ("name", "proposal"),
    [
        ("rejection", Proposal.COUPLED),
        ("block", Proposal.COUPLED),
        ("block", Proposal.DETERMINISTIC),
        ("traversal", Proposal.COUPLED),
        ("traversal", Proposal.DETERMINISTIC),
    ],
)
def test_a_proposal_that_would_bias_the_law_is_refused(name: str, proposal: Proposal) -> None:
    tree, random = chain_of(proposal, DRAFT.law(())), SeededRandomness(0)
    with pytest.raises(ConfigError, match=f"has a {proposal.value} one; use exact verification"):
        verifier(name).verify(tree, laws_of(TARGET, tree, random), random)


def test_block_verification_refuses_a_branching_draft() -> None:
    tree, random = wide_tree(), SeededRandomness(0)
    with pytest.raises(ConfigError, match="handles chains only"):
        verifier("block").verify(tree, laws_of(TARGET, tree, random), random)


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
@pytest.mark.parametrize("q", [None, torch.ones(5, dtype=torch.float64) / 5])
def test_a_sampled_child_needs_a_law_over_the_targets_tokens(name: str, q: Tensor | None) -> None:
    tree, random = chain_of(SAMPLED, q), SeededRandomness(0)
    with pytest.raises(ConfigError, match="draft"):
        verifier(name).verify(tree, laws_of(TARGET, tree, random), random)


# --- what is read ---------------------------------------------------------------------------------


class WatchedLaws(DrawnLaws):
    """Notes the nodes whose laws are read."""

    def scores(self, node: int) -> Tensor:
        self.read = {*getattr(self, "read", ()), node}
        return super().scores(node)


def read_and_path(name: str, tree: DraftTree, seed: int) -> tuple[set[int], tuple[int, ...]]:
    random = SeededRandomness(seed)
    logits = torch.stack([TARGET.law(tree.path_tokens(n)).log() for n in range(len(tree))])
    laws = WatchedLaws(request(), tree, logits, [ROOT], random)
    path = verifier(name).verify(tree, laws, random).path
    return laws.read, path


@pytest.mark.parametrize("name", ["exact", "rejection"])
def test_only_the_visited_path_is_read(name: str) -> None:
    for seed in range(20):
        read, path = read_and_path(name, wide_tree(), seed)
        assert read == set(path)


def test_traversal_says_that_it_reads_rejected_nodes() -> None:
    outcomes = [read_and_path("traversal", wide_tree(), seed) for seed in range(20)]
    assert verifier("traversal").reads_rejected
    assert any(read > set(path) for read, path in outcomes)


@pytest.mark.parametrize("name", ["block", "traversal"])
def test_nothing_is_read_behind_a_token_that_cannot_be_accepted(name: str) -> None:
    tree, random = grower(DRAFT, (1, 1, 1), SAMPLED)(SeededRandomness(0)), SeededRandomness(0)
    logits = torch.full((len(tree), TARGET.vocab_size), float("nan"), dtype=torch.float64)
    logits[0] = 0
    logits[0, tree.token_ids[1]] = -torch.inf
    laws = request().laws(tree, logits, [ROOT], random)
    assert verifier(name).verify(tree, laws, random).path == (0,)


# --- the coupled walk -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Proposal)
@pytest.mark.parametrize("widths", [(), (1, 1, 1), (3, 1), (2, 2, 2)])
def test_the_same_seed_gives_the_text_of_plain_decoding(
    kind: Proposal, widths: tuple[int, ...]
) -> None:
    for seed in range(20):
        random = SeededRandomness(seed)
        tree = grower(DRAFT, widths, kind)(random)
        emitted = verifier("exact").verify(tree, real_laws(TARGET, tree, random), random).token_ids
        plain: tuple[int, ...] = ()
        while len(plain) < len(emitted):
            root = DraftTree.root_only(ROOT)
            laws = real_laws(TARGET, root, SeededRandomness(seed), before=plain)
            plain = (*plain, laws.choose(0))
        assert emitted == plain


def test_the_first_of_equal_siblings_is_taken() -> None:
    builder = TreeBuilder(ROOT)
    for _ in range(2):
        builder.add(0, 1, RESAMPLED)
    tree, random = builder.build(), EnumeratingRandomness()
    logits = torch.tensor([[0.0, 9.0, 0.0]] * 3, dtype=torch.float64)
    laws = request(temperature=0).laws(tree, logits, [ROOT], random)
    assert verifier("exact").verify(tree, laws, random).path == (0, 1)


class DrawPerCandidate(ExactVerifier):
    """The mistake of case 43: every candidate row compares itself with target draws of its own."""

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        best = Verdict((0,), (laws.choose(0),))
        for leaf in (node for node in range(len(tree)) if not tree.children[node]):
            path, tokens = tree.path(leaf), tuple(laws.choose(node) for node in tree.path(leaf))
            matched = 0
            while matched < len(path) - 1 and tokens[matched] == tree.token_ids[path[matched + 1]]:
                matched += 1
            if matched > best.num_accepted:
                best = Verdict(path[: matched + 1], tokens[: matched + 1])
        return best


def candidates_sharing_a_prefix(_: Randomness) -> DraftTree:
    """ab, ac, ad and ef."""
    a, b, c, d, e, f = range(6)
    builder = TreeBuilder(ROOT)
    first, other = (builder.add(0, token, Proposal.DETERMINISTIC) for token in (a, e))
    for parent, token in ((first, b), (first, c), (first, d), (other, f)):
        builder.add(parent, token, Proposal.DETERMINISTIC)
    return builder.build()


class ForkedTable(Table):
    """p(a) = p(e) = 0.5, then b or c after a, f after e; then a."""

    def _law(self, path: tuple[int, ...]) -> Tensor:
        options = {(): (0, 4), (0,): (1, 2), (4,): (5,)}.get(path, (0,))
        law = torch.zeros(self.vocab_size, dtype=torch.float64)
        law[list(options)] = 1 / len(options)
        return law


def test_one_draw_per_node_not_per_candidate() -> None:
    """Case 43."""
    target = ForkedTable(seed=0, vocab_size=6)
    for name in ("exact", "rejection"):
        assert error_of(verifier(name), target, candidates_sharing_a_prefix, 3) < LAW_ATOL
    wrong = DrawPerCandidate()
    assert error_of(wrong, target, candidates_sharing_a_prefix, 3) > BREAK_ATOL


# --- rounding (case 46) ---------------------------------------------------------------------------


class WorstUniform(SeededRandomness):
    """Every uniform is the largest below 1; draws note their law and take its likeliest token."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.drawn_from: Tensor | None = None

    def bernoulli(self, prob: float) -> bool:
        return prob > 1 - 2.0**-53

    def categorical(self, probs: Tensor) -> int:
        self.drawn_from = probs
        return int(probs.argmax())


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
@pytest.mark.parametrize("ulps", [-2, -1, 0, 1, 2])
def test_a_draft_law_an_ulp_away_falls_back_to_p(name: str, ulps: int) -> None:
    p = TARGET.law(())
    q = p.clone()
    q[1] += ulps * torch.finfo(torch.float64).eps * q[1]
    tree, random = chain_of(SAMPLED, q), WorstUniform()
    verdict = verifier(name).verify(tree, laws_of(TARGET, tree, random), random)
    expected = TARGET.law(verdict.token_ids[:-1])
    torch.testing.assert_close(random.drawn_from, expected, rtol=0, atol=LAW_ATOL)


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_disjoint_laws_fall_back_to_p(name: str) -> None:
    tree, random = chain_of(SAMPLED, torch.tensor([0, 1, 0], dtype=torch.float64)), WorstUniform()
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    laws = request().laws(tree, logits, [ROOT], random)
    assert verifier(name).verify(tree, laws, random).token_ids == (2,)
    torch.testing.assert_close(random.drawn_from, logits[0].softmax(-1))
