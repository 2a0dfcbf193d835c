"""EAGLE drafts against a second reading: every shape, by hand and through the engine, with real attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.eagle.checkpoint import load_head
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import (
    DraftContext,
    DraftLimits,
    FeatureDrafter,
    Policy,
    PolicyKind,
    PolicyState,
    Verdict,
    Verifier,
)
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness, SeededRandomness
from foredraft.tree import DraftTree, Proposal
from tests.drafters.contexts import context
from tests.drafters.eagle_rounds import true_features
from tests.drafters.test_eagle2_tree_reference import shape
from tests.eagle_checkpoints import CASES, Case
from tests.eagle_reference import (
    DraftLaws,
    eagle2_tree,
    static_tree,
    target_ids,
    tree_paths,
)
from tests.tiny_models import VOCAB_SIZE, tiny_llama

# --- drafts of a real head on a real target ---------------------------------------------------------

PROMPT = (3, 14, 15, 92, 6, 53)
HEADS = ("eagle1", "eagle3", "eagle3-full-vocabulary", "speculators-all")
every_head = pytest.mark.parametrize("name", HEADS)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(num_hidden_layers=7)


class Second:
    """The second reading of one head on one target."""

    def __init__(self, name: str, model: Any) -> None:
        self.case: Case = CASES[name]
        self.model = model
        self.taps = (7,) if self.case.variant == 1 else (2, 3, 4)
        size = self.case.config.get("draft_vocab_size", VOCAB_SIZE)
        self.ids = target_ids(self.case.tensors(), size)

    def laws(self, text: Sequence[int]) -> DraftLaws:
        """Laws after a text whose last token is the root, from true features and nothing else."""
        head = self.case.reference(self.model)
        features = true_features(self.model, text[:-1], self.taps).double()
        return DraftLaws(head, features, text, self.ids, VOCAB_SIZE)


class Rounds:
    """Plays rounds by hand with true features; what is accepted is the test's choice."""

    def __init__(
        self,
        name: str,
        model: Any,
        folder: Path,
        kind: Proposal = Proposal.COUPLED,
        prompt: Sequence[int] = PROMPT,
    ) -> None:
        self.second = Second(name, model)
        head = load_head(self.second.case.write(folder), model)
        self.drafter = EagleDrafter(head, kind)
        self.text, self.num_read = list(prompt), 0
        self.state = self.drafter.start_reading(200, self._take_features)
        self.state.prefill(self.text[:-1])

    def _take_features(self) -> Tensor:
        new = true_features(self.second.model, self.text[:-1], self.drafter.taps)[self.num_read :]
        self.num_read += len(new)
        return new

    def draft(self, policy: Policy, **options: Any) -> DraftTree:
        seen = context(self.text, vocab_size=VOCAB_SIZE, **options)
        self.tree = self.state.draft(seen, policy.start())
        return self.tree

    def take(self, tree: DraftTree, leaf: int) -> None:
        """Accept the path to `leaf`, and one token more, as a session does: text first."""
        self.text += [*tree.path_tokens(leaf), (7 * len(self.text)) % VOCAB_SIZE]
        self.state.commit(tree.path(leaf))


def play(rounds: Rounds, num_rounds: int) -> Iterator[None]:
    """Between two drafts accept nothing, all, a branch, one token; leave rounds without a draft."""
    for i in range(num_rounds):
        yield
        tree = rounds.tree
        rounds.take(tree, (0, len(tree) - 1, len(tree) // 2, min(1, len(tree) - 1))[i % 4])
        for _ in range((0, 0, 1, 12)[i % 4]):
            rounds.take(DraftTree.root_only(rounds.text[-1]), 0)


@every_head
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("nodes", [1, 3, 10])
def test_dynamic_trees_are_those_of_the_paper(
    name: str, depth: int, nodes: int, model: Any, tmp_path: Path
) -> None:
    """Case 6 too: round by round the cache drafts what a pass from scratch over true features does."""
    rounds = Rounds(name, model, tmp_path)
    for _ in play(rounds, 5):
        tree = rounds.draft(DynamicTreePolicy(depth=depth, nodes=nodes, top_k=3))
        expected = eagle2_tree(rounds.second.laws(rounds.text), 3, depth, nodes)
        assert shape(tree) == set(tree_paths(*expected))


@every_head
@pytest.mark.parametrize("widths", ["1,1,1,1,1", "2,2,1"])
def test_chains_and_static_trees_take_the_likeliest(
    name: str, widths: str, model: Any, tmp_path: Path
) -> None:
    rounds, policy = Rounds(name, model, tmp_path), FixedPolicy(widths)
    for _ in play(rounds, 5):
        tree = rounds.draft(policy)
        tokens, parents = static_tree(rounds.second.laws(rounds.text), policy.k_config)
        assert tree.token_ids[1:] == tuple(tokens)
        assert tree.parents[1:] == tuple(parent + 1 for parent in parents)


@every_head
def test_sampled_drafts_report_the_law_they_are_drawn_from(
    name: str, model: Any, tmp_path: Path
) -> None:
    """q at every node that has children, after the temperature, over the target's ids."""
    rounds = Rounds(name, model, tmp_path, Proposal.SAMPLED)
    for _ in play(rounds, 5):
        tree = rounds.draft(FixedPolicy("2,2,1"), temperature=0.7, seed=3)
        laws = rounds.second.laws(rounds.text)
        assert set(tree.laws) == {node for node in range(len(tree)) if tree.children[node]}
        for node, law in tree.laws.items():
            expected = (laws.logits(tree.path_tokens(node)) / 0.7).double().softmax(-1)
            torch.testing.assert_close(law, expected, atol=1e-5, rtol=1e-4)


@every_head
def test_coupled_drafts_rank_by_the_targets_noise(name: str, model: Any, tmp_path: Path) -> None:
    """log q / temperature + G of the position and the target's id, whatever the draft vocabulary."""
    rounds = Rounds(name, model, tmp_path)
    for _ in play(rounds, 5):
        tree = rounds.draft(FixedPolicy("2,2,1"), temperature=0.7, seed=3)
        laws, length, noise = rounds.second.laws(rounds.text), len(rounds.text), SeededRandomness(3)

        def ranking(path: tuple[int, ...], laws=laws, length=length, noise=noise) -> Tensor:  # type: ignore[no-untyped-def]
            gumbel = noise.gumbel(length + len(path), VOCAB_SIZE)
            return laws.logits(path).double() / 0.7 + gumbel

        assert tree.token_ids[1:] == tuple(static_tree(ranking, (2, 2, 1))[0])


@every_head
def test_a_prompt_of_one_token_has_no_feature_yet(name: str, model: Any, tmp_path: Path) -> None:
    """Case 1: the first round has nothing to draft from; the second is like any other."""
    rounds, policy = Rounds(name, model, tmp_path, prompt=[5]), FixedPolicy("2,1")
    assert rounds.draft(policy) == DraftTree.root_only(5)
    rounds.take(rounds.tree, 0)
    for _ in play(rounds, 2):
        tree = rounds.draft(policy)
        expected = static_tree(rounds.second.laws(rounds.text), policy.k_config)
        assert tree.token_ids[1:] == tuple(expected[0])


# --- the same through the engine: features tapped from its own tree passes --------------------------


class Recorded:
    """A feature drafter whose drafts are kept, with the text that each was made for."""

    def __init__(self, drafter: EagleDrafter) -> None:
        self._drafter = drafter
        self.taps, self.proposals = drafter.taps, drafter.proposals
        self.default_policy = drafter.default_policy
        self.drafts: list[tuple[list[int], DraftLimits, DraftTree]] = []

    def start(self, capacity: int) -> Any:
        raise AssertionError("a feature drafter reads features")

    def start_reading(self, capacity: int, take_features: Callable[[], Tensor]) -> Any:
        return RecordedState(self._drafter.start_reading(capacity, take_features), self.drafts)


class RecordedState:
    """Passes everything on."""

    def __init__(self, state: Any, drafts: list[Any]) -> None:
        self._state, self._drafts = state, drafts
        self.prefill, self.commit, self.close = state.prefill, state.commit, state.close

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        tree: DraftTree = self._state.draft(context, policy)
        self._drafts.append((list(context.token_ids), context.limits, tree))
        return tree


class Arbitrary:
    """A verifier that accepts another node in every round, whatever the target thinks of it."""

    proposals, policies = frozenset(Proposal), frozenset(PolicyKind)
    chains_only = reads_rejected = False

    def __init__(self) -> None:
        self.rounds = 0

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        self.rounds += 1
        path = tree.path(5 * self.rounds % len(tree))
        return Verdict(path, (*(tree.token_ids[node] for node in path[1:]), laws.choose(path[-1])))


def drafts_of(
    name: str, model: Any, folder: Path, policy: Policy, verifier: Verifier | None
) -> list[tuple[list[int], DraftLimits, DraftTree]]:
    """What the engine drafts in one request, and after which text."""
    head = load_head(CASES[name].write(folder), model)
    drafter = Recorded(EagleDrafter(head))
    assert isinstance(drafter, FeatureDrafter)
    engine = Engine(HFTarget(model), drafter, policy, verifier)
    options = GenerationOptions(max_new_tokens=20, ignore_eos=True)
    result = engine.generate(PROMPT, options)
    if verifier is None:
        assert result.token_ids == engine.without_drafts().generate(PROMPT, options).token_ids
    return drafter.drafts


@every_head
def test_the_engines_dynamic_trees(name: str, model: Any, tmp_path: Path) -> None:
    """Features are tapped in tree passes and their rows move on commit; a wrong one changes drafts."""
    policy = DynamicTreePolicy(depth=3, nodes=8, top_k=3)
    drafts = drafts_of(name, model, tmp_path, policy, Arbitrary())
    assert {len(text) - len(drafts[i][0]) for i, (text, _, _) in enumerate(drafts[1:])} >= {2, 3}
    for text, limits, tree in drafts:
        expected = eagle2_tree(Second(name, model).laws(text), 3, min(3, limits.max_depth), 8)
        assert shape(tree) == set(tree_paths(*expected))


@every_head
@pytest.mark.parametrize("verifier", [None, Arbitrary()], ids=["exact", "arbitrary"])
def test_the_engines_chains(
    name: str, verifier: Verifier | None, model: Any, tmp_path: Path
) -> None:
    """Rejected, accepted in part and accepted whole."""
    for text, limits, tree in drafts_of(name, model, tmp_path, FixedPolicy.chain(3), verifier):
        expected = static_tree(Second(name, model).laws(text), (1,) * min(3, limits.max_depth))
        assert tree.token_ids[1:] == tuple(expected[0])
