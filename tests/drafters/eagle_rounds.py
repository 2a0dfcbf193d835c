"""EAGLE heads for tiny targets, rounds whose outcome the test decides, and what the head should say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.decoder import decode
from foredraft.protocols import (
    Candidates,
    Drafter,
    DraftLimits,
    Frontier,
    Policy,
    PolicyKind,
    PolicyState,
    RoundOutcome,
    SelectingState,
    Verdict,
)
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from tests.drafters.head_attention import CausalAttention
from tests.tiny_models import VOCAB_SIZE

HEADS = {
    "eagle1": {"variant": 1},
    "eagle3": {"variant": 3},
    "reduced": {"variant": 3, "draft_ids": torch.arange(3, 90, 2)},
}


def make_head(model: Any, name: str, seed: int = 0) -> EagleHead:
    """A head of random weights, large enough for positions, masks and features to matter."""
    torch.manual_seed(seed)
    head = EagleHead.for_target(model, init="random", **HEADS[name])
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return head


# --- what the head says, worked out from nothing but the text ---------------------------------------


@torch.no_grad()
def true_features(model: Any, text: Sequence[int], taps: Sequence[int]) -> Tensor:
    """[T, F] from the model's own pass over the whole text."""
    if not text:
        return torch.zeros(0, len(taps) * model.config.hidden_size)
    states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.cat([states[tap][0] for tap in taps], -1)


@torch.no_grad()
def from_scratch(
    head: EagleHead,
    features: Tensor,
    text: Sequence[int],
    path: Sequence[int],
    window: int = 10**9,
) -> Tensor:
    """log q [Vd] after the text and then the draft tokens `path`, in one go.

    `features` [T - 1, F] are the true ones of all of the text but its last token.
    """
    attend = CausalAttention(window)
    count = len(features)
    embeds = head.embed(torch.tensor([text[1:]])).to(head.dtype)
    output = head.step(embeds, head.fuse(features)[None], head.rotary(torch.arange(count)), attend)[
        :, -1:
    ]
    for depth, token in enumerate(path):
        embeds = head.embed(torch.tensor([[token]])).to(head.dtype)
        rotary = head.rotary(torch.tensor([count + depth]))
        output = head.step(embeds, head.recycle(output), rotary, attend)
    return head.logits(output)[0, 0].float().log_softmax(-1)


# --- rounds of which everything is seen -------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """The head's law after one node of a draft."""

    path: tuple[int, ...]
    log_probs: Tensor


class Reading:
    """A policy that reads every law before it asks the real policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.kind, self.branches, self.max_nodes = policy.kind, policy.branches, policy.max_nodes
        self.said: list[Said] = []

    def start(self) -> PolicyState:
        state = self._policy.start()
        kind = SelectingReader if isinstance(state, SelectingState) else Reader
        return kind(state, self.said)


class Reader:
    """One request's reader."""

    def __init__(self, policy: PolicyState, said: list[Said]) -> None:
        self._policy, self._said = policy, said
        self._paths: dict[int, tuple[int, ...]] = {}

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        self._paths = {}
        return self._policy.plan(limits, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        laws = frontier.log_probs()
        assert laws is not None
        for i, node in enumerate(frontier.nodes):
            above = self._paths.get(frontier.parents[i])
            self._paths[node] = () if above is None else (*above, frontier.token_ids[i])
            self._said.append(Said(self._paths[node], laws[i]))
        return self._policy.grow(frontier)

    def observe(self, outcome: RoundOutcome) -> None:
        self._policy.observe(outcome)


class SelectingReader(Reader):
    """A reader in front of a policy that selects."""

    _policy: SelectingState

    @property
    def max_candidates(self) -> int:
        return self._policy.max_candidates

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        return self._policy.select(candidates, max_nodes)


class Accepting:
    """RIGHT(j): accepts the first j nodes of the path to the last leaf, with j from a list in turn."""

    proposals = frozenset(Proposal)
    policies = frozenset(PolicyKind)
    chains_only = reads_rejected = False

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._round = tuple(lengths), 0

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        length = self._lengths[self._round % len(self._lengths)]
        self._round += 1
        path = tree.path(len(tree) - 1)[: length + 1]
        tokens = tuple(tree.token_ids[node] for node in path[1:])
        return Verdict(path, (*tokens, (7 * self._round + 3) % VOCAB_SIZE))


@dataclass(frozen=True)
class Round:
    """One round: the text it began with, and what the head said in it."""

    text: tuple[int, ...]
    said: tuple[Said, ...]
    num_accepted: int
    num_drafted: int
    draft_rows: tuple[int, ...]


def rounds(
    target: HFTarget,
    drafter: Drafter,
    policy: Policy,
    lengths: Sequence[int],
    prompt: Sequence[int],
    options: GenerationOptions,
    wrapped: Callable[[Policy], Policy] = lambda reading: reading,
) -> Iterator[Round]:
    """Rounds that accept these numbers of draft tokens in turn.

    Args:
        wrapped: the policy of the engine, made of one that reads what `policy` sees.
    """
    reading = Reading(policy)
    engine = Engine(target, drafter, wrapped(reading), Accepting(lengths))
    options = replace(options, ignore_eos=True)
    session = engine.session(prompt, options, engine.randomness(0))
    text = tuple(prompt)
    for step in decode(session, engine.verifier):
        rows = session.rounds[-1].draft_rows
        yield Round(text, tuple(reading.said), step.num_accepted, step.num_drafted, rows)
        reading.said.clear()
        text += step.token_ids


def check_laws(
    head: EagleHead, target: HFTarget, played: Iterable[Round], window: int = 10**9
) -> int:
    """Every law the head told equals the one worked out from the text alone; how many there were."""
    count = 0
    for one in played:
        if not one.said:
            continue
        features = true_features(target.model, one.text[:-1], head.config.taps)
        for said in one.said:
            expected = from_scratch(head, features, one.text, said.path, window)
            torch.testing.assert_close(said.log_probs, expected, atol=1e-3, rtol=1e-3)
            count += 1
    return count
