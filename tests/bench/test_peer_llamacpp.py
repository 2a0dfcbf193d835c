"""llama.cpp as a peer: which file it runs, and its answers on a tiny float32 model."""

from __future__ import annotations

import atexit
import importlib.metadata
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft import Engine, GenerationOptions, zoo
from foredraft.backends.hf import HFTarget
from foredraft.bench.contenders import Contender
from foredraft.bench.peers import Shared, parse_peer
from foredraft.bench.peers.llamacpp import demand_survival, gguf_file, placement
from foredraft.errors import ModelError
from tests.bench.tiny_gguf import save_gguf
from tests.tiny_models import tiny_llama

PROMPT = (92, 23, 60, 70, 92, 23)
FREE = GenerationOptions(max_new_tokens=9, ignore_eos=True)


@cache
def shared() -> Shared:
    """A tiny target."""
    return Shared(HFTarget(tiny_llama()), None, None, "owner/tiny")


class TestFile:
    def test_the_chosen_one_goes_first(self, tmp_path: Path) -> None:
        file = tmp_path / "chosen.bin"
        file.touch()
        assert gguf_file(str(file), replace(shared(), model_source="smollm2")) == file

    def test_the_model_itself_may_be_one(self, tmp_path: Path) -> None:
        file = tmp_path / "model.GGUF"
        file.touch()
        assert gguf_file(None, replace(shared(), model_source=str(file))) == file

    def test_the_embedded_model_has_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines: list[str] = []

        def fetch(name: str, *, report: Any) -> Path:
            report(f"fetching {name}")
            return Path("fetched.gguf")

        monkeypatch.setattr(zoo, "gguf_file", fetch)
        source = replace(shared(), model_source="smollm2", report=lines.append)
        assert gguf_file(None, source) == Path("fetched.gguf")
        assert lines == ["fetching smollm2"]

    def test_other_models_have_none(self) -> None:
        with pytest.raises(ModelError, match="no GGUF file of this model: 'owner/tiny' is none"):
            gguf_file(None, shared())

    def test_a_missing_one_is_named_as_it_was_given(self) -> None:
        with pytest.raises(ModelError, match=r"there is no file '~/away\.gguf'"):
            gguf_file("~/away.gguf", shared())


class TestPlacement:
    def test_a_target_on_the_cpu_keeps_it_there(self) -> None:
        assert placement(torch.device("cpu")) == {
            "n_gpu_layers": 0,
            "offload_kqv": 0,
            "op_offload": 0,
        }

    @pytest.mark.parametrize(("name", "number"), [("cuda", 0), ("cuda:3", 3)])
    def test_a_target_on_one_gpu_keeps_it_on_that_one(self, name: str, number: int) -> None:
        library = pytest.importorskip("llama_cpp", exc_type=ImportError)
        assert placement(torch.device(name)) == {
            "n_gpu_layers": -1,
            "split_mode": library.LLAMA_SPLIT_MODE_NONE,
            "main_gpu": number,
        }


class TestSurvival:
    def test_a_crash_is_a_reason_and_no_crash(self) -> None:
        program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        with pytest.raises(ModelError, match=r"crashes on this machine \(signal 11\)"):
            demand_survival(program)

    def test_a_program_that_hangs_is_ended(self) -> None:
        with pytest.raises(ModelError, match=r"and read 32 tokens in 0\.2 s; give a smaller file"):
            demand_survival("import time; time.sleep(60)", timeout_s=0.2)

    def test_other_endings_are_none(self) -> None:
        demand_survival("import sys; sys.exit(int(sys.argv[1]))", "3")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own weights as a file."""
    utils = pytest.importorskip("llama_cpp._utils", exc_type=ImportError)
    for file in (utils.outnull_file, utils.errnull_file):
        atexit.register(file.close)  # the library leaves them open, which would be told at the end
    return save_gguf(shared().target.model, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def peer(model: Path) -> Contender:
    """llama.cpp on that file."""
    return parse_peer(f"llama.cpp:gguf={model}:threads=1").build(shared())


def plain(prompt: tuple[int, ...], options: GenerationOptions = FREE) -> tuple[int, ...]:
    """What plain decoding answers."""
    return Engine(shared().target).generate(list(prompt), options).token_ids


class TestAnswers:
    @pytest.mark.parametrize("prompt", [PROMPT, (63,)], ids=["prompt", "one token"])
    def test_float32_weights_give_plain_decodings_answer(
        self, peer: Contender, prompt: tuple[int, ...]
    ) -> None:
        for cap in (1, 2, 9):
            answer = peer.answer(prompt, FREE.replace(max_new_tokens=cap))
            assert answer.token_ids == plain(prompt)[:cap]
            assert len(answer.stats.rounds) == answer.stats.completion_tokens == cap - 1

    def test_an_end_token_anywhere(self, peer: Contender) -> None:
        for place, end in enumerate(plain(PROMPT), 1):
            options = GenerationOptions(max_new_tokens=9, eos_token_ids=[end])
            assert peer.answer(PROMPT, options).token_ids == plain(PROMPT)[:place]

    def test_a_round_is_a_token(self, peer: Contender) -> None:
        stats = peer.answer(PROMPT, FREE).stats
        assert [r.context for r in stats.rounds] == list(range(6, 14))
        assert {(r.widths, r.num_emitted, r.cut) for r in stats.rounds} == {((1,), 1, False)}
        assert stats.stages == ()
        assert 0 < stats.prefill_s == stats.ttft_s

    def test_no_prompt_is_used_again(
        self, peer: Contender, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        llama = pytest.importorskip("llama_cpp").Llama
        read, evaluate = [], llama.eval

        def count(self: Any, tokens: list[int]) -> None:
            read.append(len(tokens))
            evaluate(self, tokens)

        monkeypatch.setattr(llama, "eval", count)
        for _ in range(2):
            peer.answer(PROMPT, FREE.replace(max_new_tokens=3))
        assert read == [6, 1, 1, 6, 1, 1]

    def test_the_cache_grows_with_the_answer(self, peer: Contender) -> None:
        long = tuple(3 + i % 90 for i in range(1020))
        assert peer.answer(long, FREE).token_ids == plain(long)

    def test_a_seed_gives_one_answer(self, peer: Contender) -> None:
        hot = FREE.replace(temperature=1.0, top_p=0.95)
        answers = [peer.answer(PROMPT, hot.replace(seed=s)).token_ids for s in (1, 1, 2)]
        assert answers[0] == answers[1] != answers[2]

    def test_top_k_of_one_is_greedy(self, peer: Contender) -> None:
        options = FREE.replace(temperature=0.7, top_k=1, seed=1)
        assert peer.answer(PROMPT, options).token_ids == plain(PROMPT)

    def test_nothing_is_said(self, peer: Contender, capfd: pytest.CaptureFixture[str]) -> None:
        peer.answer(PROMPT, FREE)
        assert capfd.readouterr() == ("", "")


class TestFailures:
    def test_after_an_error_it_answers_on(self, peer: Contender) -> None:
        with pytest.raises(RuntimeError, match="llama_decode returned"):
            peer.answer((*PROMPT, 10_000), FREE)
        assert peer.answer(PROMPT, FREE).token_ids == plain(PROMPT)

    def test_what_works_is_kept_until_the_larger_cache_is_there(
        self, peer: Contender, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh = parse_peer(f"llama.cpp:gguf={model}:threads=1").build(shared())

        def fail(*arguments: Any, **named: Any) -> None:
            raise ValueError("Failed to create llama_context")

        monkeypatch.setattr("llama_cpp.Llama", fail)
        with pytest.raises(
            ModelError, match=r"cannot load tiny\.gguf with room for 2048 tokens \(Failed to create"
        ):
            fresh.answer(tuple(3 + i % 90 for i in range(1020)), FREE)
        assert fresh.answer(PROMPT, FREE).token_ids == plain(PROMPT)
        fresh.close()

    def test_another_version_is_named(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        version = importlib.metadata.version("llama-cpp-python")
        monkeypatch.delattr("llama_cpp.llama_supports_gpu_offload")
        monkeypatch.delattr("llama_cpp.Llama")
        with pytest.raises(ModelError) as caught:
            parse_peer(f"llama.cpp:gguf={model}").build(shared())
        assert str(caught.value) == (
            f"llama-cpp-python {version} has another interface (AttributeError: module 'llama_cpp' has "
            "no attribute 'Llama'); tested with 0.3.36"
        )


class TestRefusals:
    def test_it_need_not_agree(self, peer: Contender) -> None:
        assert peer.comparable is not None
        assert peer.comparable.startswith("it computes with the weights in tiny.gguf (llama ")
        assert "F32" in peer.comparable, "the weights' own type"
        assert peer.comparable.endswith("whatever the dtype of the run, and in its own way")

    def test_options_it_lacks(self, peer: Contender) -> None:
        assert peer.refuse(FREE.replace(min_p=0.1)) == "it does not honour min_p=0.1"
        assert peer.refuse(FREE.replace(temperature=0.7, top_k=4, seed=1)) is None

    def test_top_p_means_something_else_there(self, peer: Contender) -> None:
        assert peer.refuse(FREE.replace(temperature=1.0, top_p=0.9)) is None
        reason = peer.refuse(FREE.replace(temperature=0.7, top_p=0.9))
        assert reason is not None
        assert reason.startswith("it applies top_p=0.9 before temperature=0.7")

    def test_a_file_of_another_model(self, peer: Contender, tmp_path: Path) -> None:
        file = save_gguf(tiny_llama(vocab_size=90), tmp_path / "other.gguf")
        with pytest.raises(ModelError, match=r"other\.gguf is of another model: it has 90 tokens"):
            parse_peer(f"llama.cpp:gguf={file}").build(shared())

    @pytest.mark.usefixtures("model")
    def test_a_file_that_is_no_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "broken.gguf"
        file.write_bytes(b"GGUF")
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(
            ModelError, match=r"llama-cpp-python cannot load broken\.gguf"
        ) as caught:
            parse_peer("llama.cpp:gguf=~/broken.gguf").build(shared())
        assert str(tmp_path) not in str(caught.value)
