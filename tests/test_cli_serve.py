"""`foredraft serve` as it is typed: what it refuses before it listens, and what it loads."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import foredraft
from foredraft import ConfigError
from foredraft.cli import serve as command
from foredraft.cli.main import app
from foredraft.engine.several import load_several
from foredraft.serve.settings import ServeSettings
from tests.tiny_folders import save_folder

FAILURE, USAGE = 1, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("draft"), seed=1)


def complaint(*arguments: str | Path, code: int = USAGE) -> str:
    """The one sentence on stderr of a command that is refused."""
    done = CliRunner().invoke(app, ["serve", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--methods", "ngrm"], "did you mean 'ngram'"),
        (["--methods", "ngram,"], "empty name"),
        (["--methods", "ngram,ngram"], "named twice"),
        (["--methods", "speculative"], "needs a draft model"),
        (["--methods", "eagle2"], "needs an EAGLE head"),
        (["--methods", "autoregressive", "--drafter", "ngram"], "stands for the method"),
        (["--max-batch", "0"], "--max-batch 0"),
        (["--max-queue", "-1"], "--max-queue -1"),
        (["--grace-s", "-1"], "--grace-s -1"),
        (["--time-limit-s", "0"], "--time-limit-s 0"),
        (["--api-key", " "], "empty key"),
        (["--api-key", "\udcff"], "not valid UTF-8"),
        (["--served-name", ""], "name the model"),
        (["--served-name", "\udcff"], "name the model"),
        (["--host", ""], "--host '' is not allowed"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    folder: Path, arguments: list[str], named: str
) -> None:
    assert named in complaint("--model", folder, *arguments)


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_key_does_not_open_the_server(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script gives it whose own variable is unset."""
    monkeypatch.setenv("FOREDRAFT_API_KEY", blank)
    assert "FOREDRAFT_API_KEY is set and holds no key" in complaint()


def test_a_drafter_that_no_method_uses_is_refused(folder: Path, draft_folder: Path) -> None:
    words = ("--model", folder, "--methods", "ngram", "--drafter", draft_folder)
    assert "not used" in complaint(*words)


def test_a_port_that_is_taken_is_told(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--model", folder, "--methods", "autoregressive", "--port", port)
        sentence = complaint(*words)
    assert "cannot listen" in sentence
    assert port in sentence


def test_a_missing_extra_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *rest: Any) -> Any:
        return None if name in ("uvicorn", "llguidance") else found(name, *rest)

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", find)
    sentence = complaint()
    assert "uvicorn, llguidance" in sentence
    assert "foredraft[serve]" in sentence


def test_help_loads_no_part_of_the_server() -> None:
    code = (
        "import sys; from foredraft.cli.main import app; from typer.testing import CliRunner\n"
        "done = CliRunner().invoke(app, ['serve', '--help']); assert done.exit_code == 0, done\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"fastapi", "uvicorn", "prometheus_client", "llguidance", "torch", "transformers"}
    assert not heavy & set(done.stdout.split())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command would have served."""
    seen: dict[str, Any] = {}

    def run(settings: ServeSettings, engines: Any, host: str, port: int) -> None:
        seen.update(settings=settings, engines=engines, address=(host, port))

    monkeypatch.setattr(command, "_run", run)
    return seen


def start(*arguments: str | Path, **env: str) -> None:
    words = ["serve", *map(str, arguments)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200", **env})
    assert done.exit_code == 0, done.stderr


def test_every_option_reaches_the_server(
    folder: Path, draft_folder: Path, served: dict[str, Any]
) -> None:
    start(
        *("--model", folder, "--drafter", draft_folder, "--dtype", "float32"),
        *("--methods", "speculative:tree=2,2,ngram", "--host", "::1", "--port", "0"),
        *("--served-name", "me", "--api-key", "a", "--api-key", "b", "--max-batch", "2"),
        *("--max-queue", "3", "--max-choices", "4", "--max-tokens", "5"),
        *("--max-body-bytes", "6", "--time-limit-s", "7", "--grace-s", "8"),
    )
    assert served["settings"] == ServeSettings(
        model_name="me",
        api_keys=("a", "b"),
        max_batch=2,
        max_queue=3,
        max_choices=4,
        max_tokens=5,
        max_body_bytes=6,
        time_limit_s=7,
        grace_s=8,
    )
    assert list(served["engines"]) == ["speculative:tree=2,2", "ngram"]
    assert served["address"] == ("::1", 0)


def test_what_is_not_said_is_local_and_named_after_the_model(
    folder: Path, served: dict[str, Any]
) -> None:
    start("--model", folder, "--drafter", "ngram", FOREDRAFT_API_KEY="k")
    settings = served["settings"]
    assert settings == ServeSettings(model_name=folder.name, api_keys=("k",))
    assert served["address"] == ("127.0.0.1", 8000)
    assert list(served["engines"]) == ["ngram"]


def test_engines_for_several_methods_share_their_models(folder: Path, draft_folder: Path) -> None:
    methods = ["speculative", "autoregressive", "speculative:depth=2"]
    engines = load_several(str(folder), methods, drafter=str(draft_folder), dtype="float32")
    assert list(engines) == methods
    assert len({id(engine.target) for engine in engines.values()}) == 1
    prompt, options = "the cat sat", {"max_new_tokens": 8, "seed": 1, "temperature": 1.0}
    plain = foredraft.load(folder, method="autoregressive", dtype="float32")
    expected = plain.generate(prompt, **options).token_ids
    for name, engine in engines.items():
        result = engine.generate(prompt, **options)
        assert result.token_ids == expected
        assert (result.stats.drafted_tokens > 0) == (name != "autoregressive")


def test_a_method_twice_is_refused_in_python_too(folder: Path) -> None:
    with pytest.raises(ConfigError, match="named twice"):
        load_several(str(folder), ["ngram", "ngram"])


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("me", False)],
)
def test_hosts_that_others_reach_are_known(host: str, local: bool) -> None:
    assert command._is_local(host) is local
