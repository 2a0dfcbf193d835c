"""`foredraft generate` as it is typed: what it prints, how it exits, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import foredraft
from foredraft.cli.failures import clear_failures
from foredraft.cli.main import app
from foredraft.cli.show import _was_busy
from foredraft.methods import RECIPES
from foredraft.results import RoundRecord, Statistics
from tests.tiny_folders import WORDS, byte_tokenizer, save_folder

PROMPT = "the cat sat on the mat the cat"
PLAIN = ("--dtype", "float32", "--max-new-tokens", "24")
DOCUMENT_KEYS = {"text", "token_ids", "finish_reason", "seed", "stats", "dtype"}
FAILURE, USAGE = 1, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer."""
    return save_folder(tmp_path_factory.mktemp("draft"), seed=1)


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    """The command in this process; faults of ours are raised."""
    words = ["generate", *map(str, arguments)]
    done = CliRunner().invoke(app, words, input=stdin, env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def answer(*arguments: str | Path, stdin: str | bytes | None = None) -> dict[str, Any]:
    """The JSON document of a request that succeeds: the last line of stdout."""
    done = run(*arguments, "--json", stdin=stdin)
    assert done.exit_code == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def complaint(*arguments: str | Path, code: int, stdin: str | bytes | None = None) -> str:
    """The one sentence on stderr of a request that is refused."""
    done = run(*arguments, stdin=stdin)
    assert done.exit_code == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


# --- answers ----------------------------------------------------------------------------------------


def test_the_answers_text_is_printed(folder: Path) -> None:
    text = answer("--model", folder, *PLAIN, "--prompt", PROMPT)["text"]
    done = run("--model", folder, *PLAIN, "--prompt", PROMPT)
    assert done.exit_code == 0
    assert done.stdout == f"{text}\n"
    assert done.stderr.startswith("24 tokens, ")
    assert done.stderr.rstrip().endswith("ended by length")


def test_the_json_document_has_what_is_documented(folder: Path) -> None:
    document = answer("--model", folder, *PLAIN, "--prompt", PROMPT)
    assert set(document) == DOCUMENT_KEYS
    assert len(document["token_ids"]) == document["stats"]["completion_tokens"] == 24
    assert document["finish_reason"] == "length"


def test_a_comparison_has_both_answers(folder: Path, draft_folder: Path) -> None:
    document = answer(
        "--model", folder, "--drafter", draft_folder, *PLAIN, "--prompt", PROMPT, "--compare"
    )
    assert set(document) == DOCUMENT_KEYS | {"baseline", "speedup", "identical"}
    assert set(document["baseline"]) == DOCUMENT_KEYS - {"dtype"}
    assert document["identical"] == "yes"
    assert document["token_ids"] == document["baseline"]["token_ids"]
    assert document["stats"]["drafted_tokens"] > 0
    assert document["baseline"]["stats"]["drafted_tokens"] == 0
    assert document["speedup"] > 0


def test_a_sampled_comparison_shares_one_seed(folder: Path) -> None:
    document = answer(
        "--model", folder, *PLAIN, "--prompt", PROMPT, "--temperature", "1", "--compare"
    )
    assert document["identical"] == "yes"
    assert document["seed"] == document["baseline"]["seed"] is not None


def test_a_comparison_is_shown_side_by_side(folder: Path) -> None:
    done = run("--model", folder, *PLAIN, "--prompt", PROMPT, "--compare")
    assert done.exit_code == 0
    for part in ("plain decoding", "speculative decoding (adaptive)", "identical: yes"):
        assert part in done.stdout


@pytest.mark.parametrize("arguments", [("--prompt", "-"), ()], ids=["dash", "piped"])
def test_the_prompt_may_come_from_stdin(folder: Path, arguments: tuple[str, ...]) -> None:
    typed = answer("--model", folder, *PLAIN, "--prompt", PROMPT)
    piped = answer("--model", folder, *PLAIN, *arguments, stdin=PROMPT)
    assert piped["token_ids"] == typed["token_ids"]


def test_the_chat_template_is_applied_unless_the_prompt_is_raw(folder: Path) -> None:
    engine = foredraft.load(folder, dtype="float32")
    chat = answer("--model", folder, *PLAIN, "--prompt", PROMPT)
    raw = answer("--model", folder, *PLAIN, "--prompt", PROMPT, "--raw")
    messages = [{"role": "user", "content": PROMPT}]
    assert tuple(chat["token_ids"]) == engine.generate(messages, max_new_tokens=24).token_ids
    assert tuple(raw["token_ids"]) == engine.generate(PROMPT, max_new_tokens=24).token_ids
    assert chat["token_ids"] != raw["token_ids"]


def test_each_stop_string_may_end_the_answer(folder: Path) -> None:
    """The first of them to appear does."""
    text = answer("--model", folder, *PLAIN, "--prompt", PROMPT)["text"]
    early, late = text[4:6], text[10:12]
    document = answer(
        "--model", folder, *PLAIN, "--prompt", PROMPT, "--stop", late, "--stop", early
    )
    assert document["finish_reason"] == "stop"
    assert document["text"] == text[: text.index(early)]


# --- every option reaches the engine ----------------------------------------------------------------

SAMPLED = ("--temperature", "1.5", "--seed", "3")


@pytest.mark.parametrize(
    ("option", "one", "other", "beside"),
    [
        ("--max-new-tokens", "3", "9", ()),
        ("--temperature", "0", "1", ("--seed", "3")),
        ("--seed", "3", "4", ("--temperature", "1")),
        ("--top-k", "1", "0", SAMPLED),
        ("--top-p", "0.1", "1", SAMPLED),
        ("--min-p", "0.9", "0", SAMPLED),
        ("--repetition-penalty", "1", "3", ()),
        ("--stop", "never there", "the", ("--temperature", "0", "--repetition-penalty", "0.2")),
        ("--dtype", "float32", "bfloat16", ("--max-new-tokens", "200")),
        ("--quantize", "int8", "int4", ("--max-new-tokens", "200")),
    ],
)
def test_two_values_of_an_option_give_two_answers(
    folder: Path, option: str, one: str, other: str, beside: tuple[str, ...]
) -> None:
    """Case 30."""
    base = ("--model", folder, *PLAIN, "--prompt", PROMPT, *beside)
    answers = [answer(*base, option, value) for value in (one, other)]
    assert answers[0]["token_ids"] != answers[1]["token_ids"]


def test_the_least_number_of_tokens_reaches_the_engine(folder: Path, tmp_path: Path) -> None:
    """A model whose end token is the third of its own answer."""
    base = ("--prompt", PROMPT, *PLAIN)
    end = answer("--model", folder, *base)["token_ids"][2]
    ending = save_folder(tmp_path, eos_token_id=end)
    assert answer("--model", ending, *base)["finish_reason"] == "stop"
    document = answer("--model", ending, *base, "--min-new-tokens", "20")
    assert document["stats"]["completion_tokens"] >= 20


@pytest.mark.parametrize(
    "choices",
    [
        ("--method", "ngram:depth=2:min=1"),
        ("--tree", "4,2,2"),
        ("--drafter", "none"),
        ("--method", "autoregressive"),
        ("--drafter", "DRAFT"),
        ("--drafter", "DRAFT", "--tree", "4,2,2"),
        ("--drafter", "DRAFT", "--proposal", "deterministic"),
    ],
    ids=" ".join,
)
def test_another_way_to_draft_drafts_otherwise(
    folder: Path, draft_folder: Path, choices: tuple[str, ...]
) -> None:
    """What is drafted changes, and the answer does not."""
    base = ("--model", folder, *PLAIN, "--prompt", PROMPT, *SAMPLED)
    usual = answer(*base, "--method", "ngram:min=1")
    named = [str(draft_folder) if word == "DRAFT" else word for word in choices]
    document = answer(*base, *named)
    assert document["token_ids"] == usual["token_ids"]
    assert document["stats"]["drafted_tokens"] != usual["stats"]["drafted_tokens"]


def test_the_verifier_is_the_one_named(folder: Path, draft_folder: Path) -> None:
    """Rejection keeps the law and not the noise, which a comparison reports."""
    base = ("--model", folder, "--drafter", draft_folder, *PLAIN, "--prompt", PROMPT, *SAMPLED)
    assert answer(*base, "--compare")["identical"] == "yes"
    assert answer(*base, "--compare", "--verifier", "rejection")["identical"] == "n/a"


def test_a_seed_that_was_drawn_is_reported(folder: Path) -> None:
    base = ("--model", folder, *PLAIN, "--prompt", PROMPT, "--temperature", "1")
    first = answer(*base)
    assert answer(*base, "--seed", str(first["seed"]))["token_ids"] == first["token_ids"]


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "ngarm"), "unknown method 'ngarm'; did you mean 'ngram'?"),
        (("--method", "ngram:dept=3"), "did you mean 'depth'?"),
        (("--verifier", "exakt"), "unknown verifier 'exakt'; did you mean 'exact'?"),
        (("--verifier", "traversal"), "use --verifier 'exact'"),
        (("--proposal", "sampled"), "--proposal 'sampled' has no meaning for method 'ngram'"),
        (("--tree", "4,0,2"), "tree '4,0,2'"),
        (("--tree", "9,9,9,9"), "tree '9,9,9,9' needs more than 512 nodes"),
        (("--tree", "wide"), "tree 'wide'"),
        (("--drafter", "none", "--tree", "2"), "has no meaning for method 'autoregressive'"),
        (("--dtype", "int3"), "--dtype 'int3' is not allowed; give one of float32"),
        (("--quantize", "int3"), "--quantize 'int3' is not allowed; did you mean 'int8'?"),
        (("--device", "cuda:7"), "--device 'cuda:7' is not available"),
        (("--device", "tpu"), "--device 'tpu' is not available"),
        (("--temperature", "-1"), "--temperature -1.0 is not allowed"),
        (("--top-p", "2"), "--top-p 2.0 is not allowed"),
        (("--top-k", "-1"), "--top-k -1 is not allowed"),
        (("--max-new-tokens", "0"), "--max-new-tokens 0 is not allowed"),
        (("--min-new-tokens", "99"), "--min-new-tokens 99 is not allowed"),
        (("--stop", ""), "is not allowed; give a sequence of non-empty strings"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    if arguments[-1] == "cuda:7" and torch.cuda.device_count() > 7:
        pytest.skip("this machine has that device")
    message = complaint("--model", folder, *PLAIN, "--prompt", "cat", *arguments, code=USAGE)
    assert said in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--no-such-option", "1"), "--no-such-option"), (("--top-k", "x"), "--top-k")],
    ids=" ".join,
)
def test_what_cannot_be_parsed_exits_with_2(arguments: tuple[str, ...], named: str) -> None:
    done = run("--prompt", "cat", *arguments)
    assert done.exit_code == USAGE
    assert named in done.stderr


@pytest.mark.parametrize("prompt", ["", "cat " * 3000], ids=["empty", "too-long"])
def test_a_prompt_that_cannot_be_answered_exits_with_1(folder: Path, prompt: str) -> None:
    message = complaint("--model", folder, *PLAIN, "--prompt", prompt, code=FAILURE)
    assert message.endswith(("give at least one word", "shorten the prompt"))


def test_an_empty_stdin_exits_with_1(folder: Path) -> None:
    message = complaint("--model", folder, *PLAIN, "--prompt", "-", code=FAILURE, stdin="")
    assert "the prompt '' has no tokens" in message


def test_a_prompt_that_nobody_gave_exits_with_2(folder: Path) -> None:
    """Stdin of a script that holds nothing is no answer to the question for one."""
    for stdin in ("", "\n"):
        message = complaint("--model", folder, *PLAIN, code=USAGE, stdin=stdin)
        assert "there is no prompt; give --prompt TEXT" in message


def test_input_that_is_no_text_exits_with_1(folder: Path) -> None:
    message = complaint("--model", folder, *PLAIN, code=FAILURE, stdin=b"caf\xe9")
    assert "the prompt on stdin is not text" in message


def test_a_drafter_with_another_vocabulary_exits_with_1(folder: Path, tmp_path: Path) -> None:
    foreign = save_folder(tmp_path, byte_tokenizer(words=WORDS[::-1]))
    message = complaint("--model", folder, "--drafter", foreign, "--prompt", "cat", code=FAILURE)
    assert "the drafter has another vocabulary: token 259 is" in message


# --- models that cannot be used ---------------------------------------------------------------------


def truncated(folder: Path) -> Path:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    return folder


def corrupt(folder: Path) -> Path:
    weights = folder / "model.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    return folder


def without_config(folder: Path) -> Path:
    (folder / "config.json").unlink()
    return folder


def truncated_gguf(folder: Path) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00\x01")
    return file


def not_a_number(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "check that its files are whole"),
        (corrupt, "check that its files are whole"),
        (without_config, "has no config.json"),
        (truncated_gguf, "check that its files are whole"),
        (not_a_number, "its logits are NaN; check the weights, or try --dtype float32"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_model_exits_with_1(
    tmp_path: Path, damage: Callable[[Path], Path], said: str
) -> None:
    model = damage(save_folder(tmp_path / "model"))
    message = complaint("--model", model, *PLAIN, "--prompt", "cat", code=FAILURE)
    assert said in message


@pytest.mark.parametrize("name", ["nobody/nothing", "./nowhere", "missing.gguf"])
def test_an_unknown_model_exits_with_1(name: str) -> None:
    assert repr(name) in complaint("--model", name, "--prompt", "cat", code=FAILURE)


def out_of_memory(device: str) -> None:
    if device == "cuda":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    if device == "host":
        raise MemoryError
    torch.empty(1 << 50)


@pytest.mark.parametrize("device", ["cpu", "cuda", "host"])
def test_too_little_memory_is_one_sentence(capsys: pytest.CaptureFixture[str], device: str) -> None:
    with pytest.raises(typer.Exit) as left, clear_failures():
        out_of_memory(device)
    assert left.value.exit_code == FAILURE
    assert capsys.readouterr().err.startswith("error: not enough memory; use a smaller model")


def test_a_fault_of_ours_is_not_taken_for_one() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), clear_failures():
        raise RuntimeError("shapes differ")


# --- as a program -----------------------------------------------------------------------------------


def program(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from foredraft.cli.main import main; main()", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=60)


def test_the_last_line_of_a_programs_output_is_the_document(folder: Path) -> None:
    done = program("generate", "--model", folder, *PLAIN, "--json", stdin=PROMPT.encode())
    assert done.returncode == 0
    assert set(json.loads(done.stdout.splitlines()[-1])) == DOCUMENT_KEYS


def test_a_program_that_fails_says_one_sentence(tmp_path: Path) -> None:
    """Libraries that log, warn or show progress say nothing beside it."""
    model = truncated(save_folder(tmp_path / "model"))
    done = program("generate", "--model", model, "--prompt", "cat")
    assert done.returncode == FAILURE
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: model ")
    assert done.stderr.count(b"\n") == 1


def test_the_version() -> None:
    done = program("--version")
    assert done.stdout.decode().split() == ["foredraft", foredraft.__version__]


def test_it_runs_as_a_module_too() -> None:
    command = [sys.executable, "-m", "foredraft", "--version"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["foredraft", foredraft.__version__]


@pytest.mark.parametrize("command", [("generate",), ("trace",), ("bench", "run")])
def test_the_help_lists_every_method(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "400"})
    for name in RECIPES:
        assert name in done.stdout


# --- what is nearly right ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "meant", "code"),
    [
        (("--model", "smolm2"), "smollm2", FAILURE),
        (("--model", "smollm-2"), "smollm2", FAILURE),
        (("--drafter", "ngramm"), "ngram", USAGE),
        (("--drafter", "none."), "none", USAGE),
    ],
)
def test_a_name_that_is_nearly_right_is_found_at_once(
    arguments: tuple[str, ...], meant: str, code: int
) -> None:
    assert f"did you mean {meant!r}?" in complaint(*arguments, "--prompt", "cat", code=code)


@pytest.mark.parametrize("choice", [("--drafter", "none"), ("--method", "autoregressive")])
def test_nothing_is_compared_with_itself(choice: tuple[str, str]) -> None:
    message = complaint("--model", "no/model", *choice, "--compare", "--prompt", "cat", code=USAGE)
    assert "this method drafts nothing" in message


def _busy(plain_ms: float, tree_ms: float) -> bool:
    def statistics(pass_ms: float) -> Statistics:
        one = RoundRecord(9, (1,), (), 0, 1, False, 0.0, pass_ms / 1000, 0.0, pass_ms / 1000)
        return Statistics((one,), 9, (False,), 0, 0.0, 0.0)

    return _was_busy(statistics(plain_ms), statistics(tree_ms))


def test_a_busy_machine_is_told_from_a_fast_method() -> None:
    """A pass over a draft never takes less than one over a token, unless something else ran."""
    assert not _busy(plain_ms=20, tree_ms=25)
    assert not _busy(plain_ms=20, tree_ms=18)
    assert _busy(plain_ms=40, tree_ms=20)
