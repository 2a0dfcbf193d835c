"""Input that nobody types on purpose: a sentence and an exit code, wherever it comes in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
import torch

import foredraft
from foredraft import ConfigError, GenerationOptions, ModelError
from foredraft.drafters.ngram import LONGEST_MATCH, NgramDrafter
from foredraft.methods import parse_method
from foredraft.policies.fixed import FixedPolicy
from foredraft.zoo import store
from tests.tiny_folders import byte_tokenizer, save_folder
from tests.tiny_models import tiny_llama

HALF_A_CHARACTER = "\ud83d"
BEYOND_INT64 = 10**30

# --- shapes and options of methods ------------------------------------------------------------------


@pytest.mark.parametrize("depth", [-(10**9), 0, 512, 10**9, BEYOND_INT64])
def test_chains_of_any_length_are_refused_at_once(depth: int) -> None:
    with pytest.raises(ConfigError, match=f"depth={depth} cannot be drafted; give 1 to 511"):
        FixedPolicy.chain(depth)


@pytest.mark.parametrize("longest", [LONGEST_MATCH + 1, 10**9, BEYOND_INT64])
def test_an_index_of_very_long_matches_is_refused_at_once(longest: int) -> None:
    with pytest.raises(ConfigError, match=f"2..{longest} are not a range; give .* <= 64"):
        NgramDrafter(2, longest)


def test_an_option_given_twice_is_refused() -> None:
    """Which of the two was meant is not ours to guess."""
    with pytest.raises(ConfigError, match="gives depth twice; leave one out"):
        parse_method("ngram:depth=2:min=1:depth=3")


# --- names of models --------------------------------------------------------------------------------

STRANGE_NAMES = [
    "",
    "a" * 5000,
    f"{'a' * 5000}.gguf",
    "~no-such-user/model",
    "a\0b",
    HALF_A_CHARACTER,
    "/dev/null",
    "-",
    "owner/name/too/deep",
]


@pytest.mark.parametrize("name", STRANGE_NAMES, ids=lambda name: ascii(name[:20]))
def test_strange_names_are_models_that_are_not_there(name: str) -> None:
    with pytest.raises(ModelError):
        foredraft.load(name)


@pytest.mark.parametrize(
    "thing", [5, 1.5, b"x", [], {}, torch.nn.Linear(2, 2), byte_tokenizer()], ids=type
)
def test_things_that_are_no_models_are_refused(thing: Any) -> None:
    with pytest.raises(ModelError, match="is not a transformers model"):
        foredraft.load(thing)


def test_a_tokenizer_by_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokenizer='gpt2' is a name; give a loaded tokenizer"):
        foredraft.load(tiny_llama(), tokenizer="gpt2")


def test_a_home_that_nobody_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no folder to keep models in .*; set FOREDRAFT_HOME"):
        store.home({"FOREDRAFT_HOME": "~no-such-user"})


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(ConfigError, match="Could not determine home directory"):
        store.home({})


# --- text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["stop", "bad_words"])
def test_half_characters_are_refused(option: str) -> None:
    """No answer could hold them, so the option would be ignored; tokenizers fail on them."""
    with pytest.raises(ConfigError, match=f"{option}=.* is not allowed"):
        GenerationOptions(**{option: [f"a{HALF_A_CHARACTER}"]})


STRANGE_TEXTS = {
    "NUL": "a\0b",
    "family": "👩‍👩‍👧‍👦",
    "right to left": "\u202eabc",
    "combining": "e" + "\u0301" * 300,
    "Hangul": "한국어",
    "private use": "\ue000\U0010ffff",
    "not a character": "\ufffe\uffff",
    "replacement": "\ufffd",
    "blank": " \t\r\n\u00a0\u200b",
    "special token": "</s><pad></s>",
    "long word": "a" * 5000,
}


@pytest.mark.parametrize("text", STRANGE_TEXTS.values(), ids=STRANGE_TEXTS)
def test_strange_text_is_answered(text: str) -> None:
    tokenizer = byte_tokenizer()
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=16384)
    engine = foredraft.load(model, tokenizer=tokenizer, method="ngram:min=1")
    request = GenerationOptions(max_new_tokens=12, ignore_eos=True)
    for prompt in (text, [{"role": text, "content": text}]):
        result = engine.generate(prompt, request)
        assert result.token_ids == engine.without_drafts().generate(prompt, request).token_ids
        assert result.text == engine.decode(result.token_ids)


# --- streams of the command line --------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"))


def start(
    folder: Path, *arguments: str, redirect: str = "", **environment: str
) -> subprocess.Popen[bytes]:
    """`foredraft generate` through a shell that redirects its streams."""
    shell = ["bash", "-c", f'exec "$@" {redirect}', "bash"]
    program = [sys.executable, "-c", "from foredraft.cli.main import main; main()"]
    command = ["generate", "--model", str(folder), "--dtype", "float32", *arguments]
    return subprocess.Popen(
        [*shell, *program, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def test_a_full_disk_behind_stdout_is_one_sentence(folder: Path) -> None:
    code, _, err = finish(start(folder, "--prompt", "the cat", redirect=">/dev/full"))
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: ")
    assert "No space left on device" in err


def test_a_closed_stdin_is_no_prompt(folder: Path) -> None:
    code, out, err = finish(start(folder, redirect="<&-"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: there is no prompt")


def test_a_terminal_that_lacks_characters_shows_others(folder: Path) -> None:
    """A random model's text holds broken bytes, which no such terminal can show."""
    request = ("--prompt", "é한", "--raw", "--max-new-tokens", "24")
    code, out, err = finish(start(folder, *request, PYTHONIOENCODING="latin-1"))
    assert code == 0, err
    assert "?" in out


def first_byte(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.read(1)


def test_a_reader_that_leaves_ends_the_answer(folder: Path) -> None:
    with start(folder, "--prompt", "the cat", "--max-new-tokens", "2000") as process:
        assert first_byte(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert first_byte(process.stderr) == b""
        assert process.wait(timeout=120) == 1


def test_an_interrupt_ends_the_answer_without_a_trace(folder: Path) -> None:
    process = start(folder, "--prompt", "the cat", "--max-new-tokens", "2000")
    assert first_byte(process.stdout)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert "Traceback" not in err
