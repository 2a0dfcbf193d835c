"""Peers by name: their options, whether they are installed, and rounds counted by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft import GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.bench.peers import PEERS, Shared, common, parse_peer
from foredraft.bench.peers.rounds import Drafting, Emission, Pass, PassLog, answer_of, drafting_of
from foredraft.engine.stopping import end_tokens
from foredraft.errors import ConfigError, ModelError
from foredraft.results import STAGES
from tests.tiny_models import tiny_llama


def shared(**changes: object) -> Shared:
    """A tiny target and a draft model."""
    plain = Shared(HFTarget(tiny_llama()), None, tiny_llama(seed=1), "tiny")
    return replace(plain, **changes)  # type: ignore[arg-type]


class TestParsing:
    @pytest.mark.parametrize("name", PEERS)
    def test_every_peer_has_a_name(self, name: str) -> None:
        spec = parse_peer(name)
        assert (spec.name, spec.text) == (name, name)
        assert spec.needs_draft_model is (name == "hf-assisted")

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            (
                "hf-assisted:tokens=20:confidence=0.4:schedule=constant",
                {"tokens": 20, "confidence": 0.4, "schedule": "constant"},
            ),
            ("hf-lookup:tokens=5:ngram=3", {"tokens": 5, "ngram": 3}),
            ("llama.cpp:gguf=some/file.gguf:threads=2", {"gguf": "some/file.gguf", "threads": 2}),
            ("economize:cycle=6:ngram=4:match=latest", {"cycle": 6, "ngram": 4, "match": "latest"}),
            ("economize:technique=draft_model:confidence=0.5", {"confidence": 0.5}),
        ],
    )
    def test_options_are_read(self, text: str, options: dict[str, object]) -> None:
        spec = parse_peer(text)
        assert spec.text == text
        assert {name: getattr(spec.settings, name) for name in options} == options

    def test_economize_may_need_the_draft_model(self) -> None:
        assert parse_peer("economize:technique=draft_model").needs_draft_model

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("hf-lokup", "unknown peer 'hf-lokup'; did you mean 'hf-lookup'"),
            ("hf:tokens=2", r"no option 'tokens=2'"),
            ("hf-lookup:token=2", "did you mean 'tokens'"),
            ("hf-lookup:tokens", "no option 'tokens'"),
            ("hf-lookup:tokens=2:tokens=3", "gives tokens twice"),
            ("hf-lookup:tokens=two", "'tokens=two' of method 'hf-lookup' must be of type int"),
            ("hf-assisted:confidence=high", "must be of type float"),
            ("hf-lookup:tokens=0", "tokens=0 is not allowed; give 1 or more"),
            ("hf-assisted:confidence=nan", "confidence=nan is not allowed"),
            ("hf-assisted:confidence=1.5", r"confidence=1\.5 is not allowed; give 1 or less"),
            ("hf-assisted:schedule=steady", "unknown schedule 'steady'; available: constant"),
            ("llama.cpp:threads=0", "threads=0"),
            ("economize:technique=eagle3", "unknown technique 'eagle3'"),
            ("economize:cycle=1", "cycle=1 is not allowed; give 2 or more"),
            ("economize:match=first", "unknown match 'first'"),
            ("economize:technique=draft_model:confidence=2", "give 1 or less"),
            ("economize:confidence=0.5", r"confidence=0\.5 is for technique=draft_model"),
            ("economize:technique=draft_model:ngram=2", "ngram=2 is for technique=lookup"),
        ],
    )
    def test_what_cannot_be_is_an_error(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            parse_peer(text)


class TestMissing:
    @pytest.mark.parametrize(
        ("name", "module", "package"),
        [
            ("llama.cpp", "llama_cpp", "llama-cpp-python"),
            ("economize", "economize", "economize"),
            ("hf", "transformers", "transformers"),
        ],
    )
    def test_the_note_names_the_command(self, name: str, module: str, package: str) -> None:
        asked: list[str] = []
        note = parse_peer(name).missing(asked.append)
        assert asked == [module]
        assert note == f"its package {package} is not installed; `pip install {package}` adds it"

    def test_transformers_is_there(self) -> None:
        assert parse_peer("hf").missing() is None

    @pytest.mark.parametrize("name", ["hf-assisted", "hf-lookup"])
    def test_no_package_is_imported_to_find_out(self, name: str) -> None:
        assert parse_peer(name).missing(lambda module: object()) is None


class TestDraftModels:
    def test_none_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="'hf-assisted' needs a draft model"):
            parse_peer("hf-assisted").build(shared(draft_model=None))

    def test_the_target_is_none(self) -> None:
        target = HFTarget(tiny_llama())
        with pytest.raises(ModelError, match="the target itself"):
            parse_peer("hf-assisted").build(shared(target=target, draft_model=target.model))

    def test_another_vocabulary_is_refused(self) -> None:
        with pytest.raises(ModelError, match="size 97, and this one has 90"):
            parse_peer("hf-assisted").build(shared(draft_model=tiny_llama(vocab_size=90)))


class TestRequests:
    def test_each_option_asked_for_is_named(self) -> None:
        options = GenerationOptions(min_p=0.1, stop=["x"], temperature=1.0)
        reason = common.not_honoured(options, {"temperature"})
        assert reason == "it does not honour min_p=0.1, stop=('x',)"
        assert common.not_honoured(options, {"temperature", "min_p", "stop"}) is None

    def test_end_tokens(self) -> None:
        target = shared().target
        assert end_tokens(GenerationOptions(), target) == (2,)
        assert end_tokens(GenerationOptions(eos_token_ids=[5, 6]), target) == (5, 6)
        ignoring = GenerationOptions(eos_token_ids=[5], ignore_eos=True)
        assert end_tokens(ignoring, target) == ()

    def test_seeded_noise_leaves_the_generator_alone(self) -> None:
        state = torch.get_rng_state()
        with common.seeded(5, torch.device("cpu")):
            first = torch.rand(3)
        with common.seeded(5, torch.device("cpu")):
            assert torch.equal(torch.rand(3), first)
        assert torch.equal(torch.get_rng_state(), state)

    def test_any_seed_is_within_range(self) -> None:
        for seed in (-1, 2**70, 0):
            assert 0 <= common.seed_of(GenerationOptions(seed=seed), 100) < 100


class TestRounds:
    def test_counted_by_hand(self) -> None:
        emissions = [
            Emission(2, 10.0),
            Emission(
                3,
                11.0,
                num_drafted=4,
                num_accepted=2,
                target_s=0.5,
                drafting=Drafting((2, 1), 0.25),
            ),
            Emission(1, 11.5, num_drafted=1, num_accepted=1, cut=True),
        ]
        answer = answer_of(range(6), emissions, num_prompt=5, started=9.0, stages=STAGES)
        stats = answer.stats
        assert answer.token_ids == (0, 1, 2, 3, 4, 5)
        assert (stats.prefill_s, stats.ttft_s, stats.prompt_tokens) == (1.0, 1.0, 5)
        first, last = stats.rounds
        assert (first.context, first.widths, first.draft_rows) == (6, (1,) * 5, (2, 1))
        assert (first.num_accepted, first.num_emitted, first.total_s) == (2, 3, 1.0)
        assert (first.draft_s, first.target_s) == (0.25, 0.5)
        assert (last.context, last.num_emitted, last.cut, last.total_s) == (9, 1, True, 0.5)
        assert stats.completion_tokens == 4, "the first emission belongs to the prefill"
        assert stats.acceptance_rate == 0.5, "the cut round counts for nothing"

    @given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 9))
    def test_rounds_cover_the_answer(self, sizes: list[int], num_prompt: int) -> None:
        token_ids = random.Random(sum(sizes)).choices(range(3), k=sum(sizes))
        emissions = [Emission(size, float(i)) for i, size in enumerate(sizes)]
        stats = answer_of(
            token_ids, emissions, num_prompt=num_prompt, started=-1.0, stages=()
        ).stats
        assert sizes[0] + stats.completion_tokens == len(token_ids)
        assert len(stats.in_loop) == len(stats.rounds) == len(sizes) - 1
        assert stats.loop_tokens <= stats.completion_tokens
        contexts = [num_prompt - 1 + sum(sizes[:i]) for i in range(1, len(sizes))]
        assert [r.context for r in stats.rounds] == contexts

    def test_reading_the_prompt_late_is_prefill_and_no_round(self) -> None:
        emissions = [
            Emission(1, 10.0),
            Emission(2, 13.0, num_drafted=1, num_accepted=1, drafting=Drafting((1,), 0.5, 2.0)),
            Emission(1, 14.0),
        ]
        stats = answer_of(range(4), emissions, num_prompt=5, started=9.0, stages=STAGES).stats
        assert (stats.ttft_s, stats.prefill_s, stats.decode_s) == (1.0, 3.0, 2.0)
        assert [r.total_s for r in stats.rounds] == [1.0, 1.0]

    def test_an_emission_too_many_is_caught(self) -> None:
        with pytest.raises(AssertionError, match="every token belongs"):
            answer_of([1, 2], [Emission(1, 0.0)], num_prompt=1, started=0.0, stages=STAGES)


def log_of(*passes: tuple[int, float, float]) -> PassLog:
    """A log of passes with these rows, begins and ends."""
    log = PassLog(lambda: None)
    log.passes = [Pass(torch.zeros(1, rows), begin, end) for rows, begin, end in passes]
    return log


class TestDrafting:
    LATER = ((1, 5.0, 6.0), (1, 6.0, 8.0), (2, 20.0, 20.5), (1, 20.5, 22.0))
    """One row takes 1, 2 and 1.5 seconds."""

    def test_the_prompt_is_taken_out_of_the_first_pass(self) -> None:
        log = log_of((7, 1.0, 5.0), *self.LATER)
        assert drafting_of(log, 0.0, 10.0) == Drafting((1, 1, 1), 7.0 - 2.5, prompt_s=2.5)
        assert drafting_of(log, 10.0, 30.0) == Drafting((2, 1), 2.0)

    def test_a_prompt_read_before_the_first_emission_is_in_no_round(self) -> None:
        log = log_of((7, -9.0, -5.0), *self.LATER)
        assert drafting_of(log, 0.0, 10.0) == Drafting((1, 1), 3.0)

    def test_a_single_pass_is_the_prompts(self) -> None:
        assert drafting_of(log_of((7, 1.0, 5.0)), 0.0, 10.0) == Drafting((1,), 0.0, prompt_s=4.0)

    def test_a_prompt_that_took_no_time_takes_nothing_away(self) -> None:
        log = log_of((2, 1.0, 2.0), (1, 2.0, 4.0))
        assert drafting_of(log, 0.0, 10.0) == Drafting((1, 1), 3.0)

    def test_no_pass_is_no_drafting(self) -> None:
        assert drafting_of(log_of((1, 1.0, 2.0)), 3.0, 4.0) == Drafting()


class TestPassLog:
    def test_it_sees_rows_and_lets_go(self) -> None:
        model, waits = tiny_llama(), []
        log = PassLog(lambda: waits.append(1))
        with log.watching(model, model), torch.no_grad():
            model(torch.tensor([[5, 6, 7]]))
            model(input_ids=torch.tensor([[5]]))
        model(torch.tensor([[5, 6]]))
        assert [p.rows for p in log.passes] == [3, 1]
        assert len(waits) == 2
        assert log.passes[0].begin < log.passes[0].end <= log.passes[1].begin
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
