"""Peers on shared tiny models: their answers are plain decoding's own, and they leave no trace."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from transformers.utils import logging

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.bench.contenders import Contender
from foredraft.bench.peers import Shared, parse_peer
from foredraft.errors import ModelError, PromptError
from foredraft.results import RoundRecord
from tests.tiny_models import tiny_bloom, tiny_llama

HF = ("hf", "hf-assisted:tokens=3:confidence=0", "hf-assisted", "hf-lookup")
ECONOMIZE = ("economize", "economize:technique=draft_model", "economize:cycle=9:match=latest")
ALIKE, OTHER = 0, 1
"""Seeds of draft models: the target's own weights, and others."""
PROMPT = (92, 23, 60, 70, 92, 23)
"""Plain decoding answers it with 14 tokens that are all different."""
LOOP = (18, 79, 59, 88, 18, 79)
"""The answer ends in a loop, which lookup finds."""
LONG = tuple(3 + i % 90 for i in range(600))
"""Reading it takes a multiple of what a pass over one token takes."""
ENDING = (63,)
"""The answer holds the model's own end token."""
LENGTH = 14
FREE = GenerationOptions(max_new_tokens=LENGTH, ignore_eos=True)


@dataclass(frozen=True)
class Table:
    """The models of one run, with a draft model of the given seed."""

    shared: Shared

    def peer(self, name: str) -> Contender:
        """A contender; its test is skipped where the package is not installed."""
        spec = parse_peer(name)
        if spec.missing():
            pytest.skip(f"{name} is not installed")
        return spec.build(self.shared)

    def plain(self, prompt: Sequence[int], options: GenerationOptions = FREE) -> tuple[int, ...]:
        """What plain decoding answers."""
        return Engine(self.shared.target).generate(list(prompt), options).token_ids


@cache
def table(draft_seed: int = OTHER) -> Table:
    """Loaded once: peers leave models as they were."""
    return Table(Shared(HFTarget(tiny_llama()), None, tiny_llama(seed=draft_seed), "tiny"))


def shapes(rounds: Sequence[RoundRecord]) -> list[tuple[Any, ...]]:
    """Context, drafted, draft rows, accepted, emitted and cut of each round."""
    return [
        (r.context, r.num_drafted, r.draft_rows, r.num_accepted, r.num_emitted, r.cut)
        for r in rounds
    ]


@pytest.fixture(params=[*HF, *ECONOMIZE])
def name(request: pytest.FixtureRequest) -> str:
    """Every peer that runs the shared model."""
    found: str = request.param
    return found


class TestGreedyAnswers:
    @pytest.mark.parametrize("draft_seed", [ALIKE, OTHER])
    @pytest.mark.parametrize("prompt", [PROMPT, LOOP, ENDING], ids=["prompt", "loop", "one token"])
    def test_every_limit(self, name: str, prompt: tuple[int, ...], draft_seed: int) -> None:
        peer, answer = table(draft_seed).peer(name), table().plain(prompt)
        for cap in (1, 2, 7, LENGTH):
            found = peer.answer(prompt, FREE.replace(max_new_tokens=cap))
            assert found.token_ids == answer[:cap]
            check_counts(found.stats.rounds, found.token_ids, found.stats.completion_tokens)

    @pytest.mark.parametrize("draft_seed", [ALIKE, OTHER])
    def test_an_end_token_anywhere(self, name: str, draft_seed: int) -> None:
        peer, answer = table(draft_seed).peer(name), table().plain(PROMPT)
        assert len(set(answer)) == LENGTH, "each token must be able to be the first end"
        for place, end in enumerate(answer, 1):
            options = GenerationOptions(max_new_tokens=LENGTH, eos_token_ids=[end])
            found = peer.answer(PROMPT, options)
            assert found.token_ids == answer[:place]
            check_counts(found.stats.rounds, found.token_ids, found.stats.completion_tokens)

    def test_the_models_own_end_tokens(self, name: str) -> None:
        options = GenerationOptions(max_new_tokens=LENGTH)
        found = table().peer(name).answer(ENDING, options)
        assert found.token_ids == table().plain(ENDING, options)
        assert (len(found.token_ids), found.token_ids[-1]) == (7, 2)

    def test_defaults_of_the_model_do_not_count(self, name: str) -> None:
        peer = table().peer(name)
        model = table().shared.target.model
        model.generation_config.repetition_penalty = 5.0
        try:
            assert peer.answer(PROMPT, FREE).token_ids == table().plain(PROMPT)
            assert model.generation_config.repetition_penalty == 5.0
        finally:
            model.generation_config.repetition_penalty = None

    def test_the_context_is_the_limit(self, name: str) -> None:
        small = tiny_llama(max_position_embeddings=12)
        shared = Shared(HFTarget(small), None, tiny_llama(max_position_embeddings=12), "tiny")
        peer = Table(shared).peer(name)
        assert len(peer.answer(PROMPT, FREE).token_ids) == 6
        with pytest.raises(PromptError, match="leaves no room"):
            peer.answer(range(3, 15), FREE)


def check_counts(rounds: Sequence[RoundRecord], token_ids: Sequence[int], num_counted: int) -> None:
    """What must hold for the rounds of any answer."""
    first = len(token_ids) - num_counted
    assert first >= 1
    position = len(PROMPT) + first - 1
    for number, r in enumerate(rounds):
        assert r.context - position in (0, 1 - len(PROMPT)), "a prompt of six tokens, or of one"
        assert r.num_emitted <= r.num_accepted + 1 <= r.num_drafted + 1
        assert r.cut == (r.num_emitted < r.num_accepted + 1)
        assert not r.cut or number == len(rounds) - 1
        assert r.total_s > r.target_s > 0
        assert r.total_s >= r.target_s + r.draft_s
        position += r.num_emitted


class TestRoundsByHand:
    def test_plain(self) -> None:
        stats = table().peer("hf").answer(PROMPT, FREE.replace(max_new_tokens=4)).stats
        assert shapes(stats.rounds) == [(6 + i, 0, (), 0, 1, False) for i in range(3)]

    def test_a_draft_model_that_is_right(self) -> None:
        peer = table(ALIKE).peer("hf-assisted:tokens=3:confidence=0")
        answer = peer.answer(PROMPT, FREE.replace(max_new_tokens=10))
        # The prefill verifies three tokens too; the last round has room for one and a bonus.
        assert shapes(answer.stats.rounds) == [
            (9, 3, (2, 1, 1), 3, 4, False),
            (13, 1, (2,), 1, 2, False),
        ]
        assert answer.stats.completion_tokens == 6
        assert answer.stats.acceptance_rate == 1.0

    def test_a_draft_model_that_is_wrong(self) -> None:
        peer = table(OTHER).peer("hf-assisted:tokens=3:confidence=0")
        answer = peer.answer(PROMPT, FREE.replace(max_new_tokens=6))
        plain = table().plain(PROMPT)
        draft = Engine(HFTarget(tiny_llama(seed=OTHER)))
        own = [draft.generate([*PROMPT, *plain[:n]], FREE).token_ids[0] for n in range(6)]
        assert all(a != b for a, b in zip(own, plain, strict=False)), "nothing may be right here"
        rounds = answer.stats.rounds
        assert [(r.num_drafted, r.num_accepted, r.num_emitted) for r in rounds] == [
            (3, 0, 1),
            (3, 0, 1),
            (2, 0, 1),
            (1, 0, 1),
            (0, 0, 1),
        ]

    def test_an_end_inside_a_draft_cuts_the_round(self) -> None:
        end = table().plain(PROMPT)[5]
        peer = table(ALIKE).peer("hf-assisted:tokens=3:confidence=0")
        options = GenerationOptions(max_new_tokens=LENGTH, eos_token_ids=[end])
        # The draft model stops at the end token as well; the target's bonus behind it is trimmed.
        assert shapes(peer.answer(PROMPT, options).stats.rounds) == [(9, 2, (2, 1), 2, 2, True)]

    def test_the_bonus_token_may_be_the_end(self) -> None:
        end = table().plain(PROMPT)[7]
        peer = table(ALIKE).peer("hf-assisted:tokens=3:confidence=0")
        options = GenerationOptions(max_new_tokens=LENGTH, eos_token_ids=[end])
        assert shapes(peer.answer(PROMPT, options).stats.rounds) == [(9, 3, (2, 1, 1), 3, 4, False)]

    def test_economize_with_a_draft_model_that_is_right(self) -> None:
        peer = table(ALIKE).peer("economize:technique=draft_model:cycle=4")
        answer = peer.answer(PROMPT, FREE.replace(max_new_tokens=8))
        # It drafts past the limit. The draft model reads the prompt in the first round: no row of it counts.
        assert shapes(answer.stats.rounds) == [
            (6, 3, (1, 1, 1), 3, 4, False),
            (10, 3, (2, 1, 1), 3, 3, True),
        ]

    def test_economize_reads_the_draft_models_prompt_as_prefill(self) -> None:
        peer = table(ALIKE).peer("economize:technique=draft_model:cycle=4")
        stats = peer.answer(LONG, FREE).stats
        assert stats.prefill_s > stats.ttft_s > 0
        assert max(row for r in stats.rounds for row in r.draft_rows) <= 2

    def test_assisted_generation_reads_it_before_the_first_token(self) -> None:
        peer = table(ALIKE).peer("hf-assisted:tokens=3:confidence=0")
        stats = peer.answer(LONG, FREE).stats
        assert stats.prefill_s == stats.ttft_s
        assert max(row for r in stats.rounds for row in r.draft_rows) <= 2

    def test_only_stages_that_are_seen_are_told(self, name: str) -> None:
        stats = table().peer(name).answer(PROMPT, FREE).stats
        has_draft_model = name.startswith(("hf-assisted", "economize:technique"))
        assert stats.stages == (("draft", "target") if has_draft_model else ("target",))

    @pytest.mark.parametrize("peer", ["hf-lookup", "economize"])
    def test_lookup_drafts_without_a_model(self, peer: str) -> None:
        stats = table().peer(peer).answer(LOOP, FREE.replace(max_new_tokens=30)).stats
        assert all(r.draft_rows == () and r.draft_s == 0 for r in stats.rounds)
        assert stats.accepted_tokens > 0


class TestSampling:
    OPTIONS = FREE.replace(temperature=1.0, top_p=0.9)

    def test_a_seed_gives_one_answer(self, name: str) -> None:
        peer, state = table().peer(name), torch.get_rng_state()
        answers = [
            peer.answer(PROMPT, self.OPTIONS.replace(seed=seed)).token_ids for seed in (1, 1, 2)
        ]
        assert answers[0] == answers[1] != answers[2]
        assert torch.equal(torch.get_rng_state(), state)

    def test_counts_hold(self, name: str) -> None:
        for seed in range(4):
            answer = table(ALIKE).peer(name).answer(PROMPT, self.OPTIONS.replace(seed=seed))
            assert len(answer.token_ids) == LENGTH
            check_counts(answer.stats.rounds, answer.token_ids, answer.stats.completion_tokens)

    def test_top_k_of_one_is_greedy(self) -> None:
        options = FREE.replace(temperature=1.0, top_k=1, seed=0)
        for name in HF:
            assert table().peer(name).answer(PROMPT, options).token_ids == table().plain(PROMPT)


class TestSamplingWork:
    """`generate` does what was asked for on the vocabulary, and nothing else."""

    @pytest.mark.parametrize("peer", HF)
    @pytest.mark.parametrize(
        ("asked", "warpers"),
        [
            ({"temperature": 0.0}, []),
            ({"temperature": 1.0}, []),
            ({"temperature": 0.7}, ["Temperature"]),
            ({"temperature": 1.0, "top_p": 0.9}, ["TopP"]),
            ({"temperature": 1.0, "top_k": 5}, ["TopK"]),
            ({"temperature": 1.0, "min_p": 0.1}, ["MinP"]),
        ],
    )
    def test_processors(
        self,
        peer: str,
        asked: dict[str, Any],
        warpers: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        model = table().shared.target.model
        built, build = [], model._get_logits_processor

        def keep(*arguments: Any, **named: Any) -> Any:
            built.append(build(*arguments, **named))
            return built[-1]

        monkeypatch.setattr(model, "_get_logits_processor", keep)
        brief = FREE.replace(max_new_tokens=2, seed=1)
        table().peer(peer).answer(PROMPT, brief.replace(**asked))
        names = [[type(p).__name__ for p in processors] for processors in built]
        assert names == [[f"{warper}LogitsWarper" for warper in warpers]]


class TestNoTrace:
    @pytest.fixture
    def traces(self) -> Iterator[None]:
        """The models and the library's settings before a test and after it."""
        models = [table().shared.target.model, table().shared.draft_model]
        before = self.state(models)
        yield
        assert self.state(models) == before

    def state(self, models: Sequence[Any]) -> list[Any]:
        """Hooks, defaults and verbosity."""
        hooks = [
            len(m._forward_hooks) + len(m._forward_pre_hooks)
            for model in models
            for m in model.modules()
        ]
        defaults = [(id(m.generation_config), m.generation_config.to_dict()) for m in models]
        return [sum(hooks), defaults, [m.training for m in models], logging.get_verbosity()]

    def test_after_an_answer(self, name: str, traces: None) -> None:
        peer = table().peer(name)
        peer.answer(PROMPT, FREE)
        peer.close()

    def test_after_an_error(self, name: str, traces: None) -> None:
        with pytest.raises(IndexError):
            table().peer(name).answer((5, 10_000), FREE)
        assert table().peer(name).answer(PROMPT, FREE).token_ids == table().plain(PROMPT)

    def test_a_schedule_starts_anew_with_every_answer(self, traces: None) -> None:
        peer = table(ALIKE).peer("hf-assisted:tokens=2:confidence=0:schedule=heuristic")
        first, second = (peer.answer(PROMPT, FREE).stats.rounds for _ in range(2))
        assert shapes(first) == shapes(second)
        assert len({r.num_drafted for r in first}) > 1, "the schedule must have changed something"

    def test_interleaved_peers_do_not_disturb_one_another(self) -> None:
        names = ("hf", "hf-assisted:tokens=3:confidence=0", "hf-lookup")
        peers = [table(ALIKE).peer(name) for name in names]
        alone = [shapes(peer.answer(PROMPT, FREE).stats.rounds) for peer in peers]
        for _ in range(2):
            for peer, expected in zip(peers, alone, strict=True):
                peer.answer((9, 4), FREE.replace(max_new_tokens=3))
                assert shapes(peer.answer(PROMPT, FREE).stats.rounds) == expected

    def test_nothing_is_said(self, name: str, capfd: pytest.CaptureFixture[str]) -> None:
        peer = table().peer(name)
        peer.answer(PROMPT, FREE)
        peer.answer(PROMPT, FREE.replace(temperature=0.7, seed=1))
        assert capfd.readouterr() == ("", "")


class TestRefusals:
    @pytest.mark.parametrize(
        "asked",
        [{"stop": ["x"]}, {"repetition_penalty": 1.2}, {"logit_bias": {3: 1.0}}, {"choice": 1}],
    )
    def test_what_no_peer_honours(self, name: str, asked: dict[str, Any]) -> None:
        peer = table().peer(name)
        assert peer.comparable is None
        reason = peer.refuse(FREE.replace(**asked))
        assert reason is not None
        assert next(iter(asked)) in reason

    def test_what_a_benchmark_asks_for(self, name: str) -> None:
        sampled = GenerationOptions(temperature=0.7, top_p=0.9, seed=3)
        assert table().peer(name).refuse(sampled) is None

    def test_another_version_of_economize_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoding = pytest.importorskip("economize.decoding")
        version = importlib.metadata.version("economize")
        monkeypatch.delattr(decoding, "CycleDecoder")
        with pytest.raises(ModelError) as caught:
            table().peer("economize")
        assert str(caught.value).startswith(
            f"economize {version} has another interface (ImportError: "
        )
        assert str(caught.value).endswith("; tested with 0.3.2")

    def test_economize_has_no_top_k(self) -> None:
        peer = table().peer("economize")
        assert peer.refuse(FREE.replace(top_k=5)) == "it does not honour top_k=5"

    def test_economize_does_not_know_every_model(self) -> None:
        shared = Shared(HFTarget(tiny_bloom()), None, None, "bloom")
        with pytest.raises(ModelError, match="economize knows no model of type 'bloom'"):
            Table(shared).peer("economize")
