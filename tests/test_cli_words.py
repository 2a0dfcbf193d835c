"""Errors on the command line speak of its options, and not of the arguments that Python takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from foredraft.cli.failures import in_options
from foredraft.cli.main import app
from foredraft.errors import ConfigError
from foredraft.methods import parse_method
from tests.tiny_folders import save_folder

OPTIONS = {"top_k": "--top-k", "seed": "--seed", "keep_states": "--keep-states"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("top_k=0 is not allowed; give 1, or None", "--top-k 0 is not allowed; give 1"),
        ("keep_states=True; leave keep_states out.", "--keep-states; leave --keep-states out."),
        ("give seed=... or top_k=...", "give --seed or --top-k"),
        ("made with seed=1, and this is seed=2", "made with --seed 1, and this is --seed 2"),
        ("made with options.seed=1", "made with --seed 1"),
        ("eagle2:top_k=0 is not allowed", "eagle2:top_k=0 is not allowed"),
        ("a seed in /data/keep_states/top_k=3", "a seed in /data/keep_states/top_k=3"),
        ("model 'keep_states' has a seed", "model 'keep_states' has a seed"),
    ],
)
def test_arguments_become_options(said: str, read: str) -> None:
    assert in_options(said, OPTIONS) == read
    assert in_options(said, {}) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "--max-new-tokens", "0"), "--max-new-tokens 0 is not allowed"),
        (("generate", "--dtype", "int3"), "--dtype 'int3' is not allowed"),
        (("generate", "--verifier", "traversal"), "use --verifier 'exact'"),
        (("generate", "--method", "speculative"), "pass --drafter MODEL"),
        (("generate", "--force-vocabulary"), "--force-vocabulary is for a draft model"),
        (("generate", "--method", "eagle2:top_k=0:drafter=."), "eagle2' needs an EAGLE head"),
        (("trace", "--top-k", "-1"), "--top-k -1 is not allowed"),
        (("bench run --out OUT", "--repeats", "0"), "--repeats 0 measures nothing"),
        (("bench run --out OUT", "--limit", "-1"), "--limit -1 leaves no question"),
        (("data generate --out OUT", "--tokens", "0"), "--tokens 0 is not allowed"),
        (("data generate --out OUT",), "never ends; give --tokens"),
        (
            ("data generate --out OUT", "--tokens", "9", "--max-length", "9999"),
            "--max-length 9999 is more than the model's context",
        ),
        (("data generate --out OUT", "--tokens", "9", "--taps", "1"), "ask for --keep-states too"),
        (("train eagle --out OUT --data OUT",), "give --steps, --epochs or --minutes"),
        (("train eagle --out OUT --data OUT", "--steps", "0"), "--steps 0 is not allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_every_command_names_its_options(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    command, *options = arguments
    words = [str(tmp_path / "out") if word == "OUT" else word for word in command.split()]
    prompt = ["--prompt", "cat"] if words[0] in ("generate", "trace") else []
    done = CliRunner().invoke(app, [*words, "--model", str(folder), *prompt, *options])
    assert done.exit_code == 2, done.output
    line = done.stderr.splitlines()[-1]
    assert said in line
    assert "None" not in line


def test_an_option_of_a_method_is_not_taken_for_one_of_the_request() -> None:
    for text, said in (
        ("eagle2:top_k=0", "eagle2:top_k=0 is not allowed"),
        ("eagle2:depth=90:top_k=90", "eagle2:depth=90 with eagle2:top_k=90"),
        ("eagle-chain-0", "a chain of depth=0"),
    ):
        method = parse_method(text)
        with pytest.raises(ConfigError, match=said):
            method.check("head")
