"""Heads on the command line: the same words as for other drafters, in every command that drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.cli.main import app
from foredraft.costs import CostTable
from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.head import EagleHead
from tests.tiny_folders import save_folder

FAILURE, USAGE = 1, 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model's folder and that of a head for it."""
    place = tmp_path_factory.mktemp("models")
    model = save_folder(place / "model")
    target = foredraft.load(model, drafter="none", dtype="float32").target
    assert isinstance(target, HFTarget)
    save_head(EagleHead.for_target(target.model, 3), place / "head")
    return str(model), str(place / "head")


def run(command: str, *arguments: str) -> Result:
    """A command in this process; faults of ours are raised."""
    done = CliRunner().invoke(app, [command, *arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def document(done: Result) -> dict[str, Any]:
    """The last line of stdout."""
    assert done.exit_code == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


@pytest.mark.parametrize("method", [None, "eagle", "eagle-chain-4", "eagle2:nodes=6"])
def test_generate_compares_a_head_with_plain_decoding(
    folders: tuple[str, str], method: str | None
) -> None:
    model, head = folders
    named = [] if method is None else ["--method", method]
    request = ["--prompt", "the cat", "--dtype", "float32", "--max-new-tokens", "12"]
    done = run(
        "generate", "--model", model, "--drafter", head, *named, *request, "--compare", "--json"
    )
    answer = document(done)
    assert answer["identical"] == "yes"
    assert answer["stats"]["drafted_tokens"] > 0


@pytest.mark.parametrize(
    ("chosen", "label"),
    [
        ((), "adaptive"),
        (("--method", "eagle-chain-2"), "eagle-chain-2"),
        (("--method", "eagle2:nodes=6"), "eagle2:nodes=6"),
        (("--tree", "2,1"), "eagle, tree 2,1"),
    ],
)
def test_a_comparison_is_labelled_with_the_methods_name(
    folders: tuple[str, str], chosen: tuple[str, ...], label: str
) -> None:
    model, head = folders
    request = ["--prompt", "the cat", "--dtype", "float32", "--max-new-tokens", "4", "--compare"]
    done = run("generate", "--model", model, "--drafter", head, *chosen, *request)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count(f"speculative decoding ({label})") == 2


@pytest.mark.parametrize("command", ["generate", "trace"])
def test_a_method_names_its_head(folders: tuple[str, str], tmp_path: Path, command: str) -> None:
    model, head = folders
    named = ["--model", model, "--method", f"eagle2:nodes=6:drafter={head}", "--dtype", "float32"]
    more = ["--compare", "--json"] if command == "generate" else ["--out", str(tmp_path / "page")]
    done = run(command, *named, "--prompt", "the cat", "--max-new-tokens", "8", *more)
    assert done.exit_code == 0, done.stderr
    if command == "generate":
        assert document(done)["identical"] == "yes"
        assert document(done)["stats"]["drafted_tokens"] > 0


def test_calibrate_times_a_head(
    folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    model, head = folders
    grid = ["--nodes", "1,4", "--contexts", "16", "--budget", "0.2", "--dtype", "float32"]
    done = run("calibrate", "--model", model, "--drafter", head, *grid, "--json")
    passes = CostTable.from_dict(document(done)).drafts["adaptive"].passes
    assert passes is not None
    assert passes.nodes == (1, 4)


def test_calibrate_writes_a_schedule_for_vllm(
    folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    named = ["--model", folders[0], "--drafter", folders[1], "--dtype", "float32"]
    grid = ["--nodes", "1,4", "--contexts", "16", "--budget", "0.2"]
    file = tmp_path / "config.json"
    asked = ["--export", "vllm", "--export-out", str(file), "--max-batch", "6"]
    done = run("calibrate", *named, *grid, *asked)
    assert done.exit_code == 0, done.stderr
    config = json.loads(file.read_text())
    assert (config["method"], config["model"]) == ("eagle3", folders[1])
    entries = config["num_speculative_tokens_per_batch_size"]
    assert (entries[0][0], entries[-1][1]) == (1, 6)
    assert "Draft lengths by batch size" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--export", "sglang"), "--export 'sglang' is unknown; available: vllm"),
        (("--export", "vllm", "--max-batch", "0"), "--max-batch 0 is not allowed"),
    ],
)
def test_schedules_that_cannot_be_written(
    folders: tuple[str, str], wrong: tuple[str, ...], said: str
) -> None:
    done = run("calibrate", "--model", folders[0], "--drafter", folders[1], *wrong)
    assert (done.exit_code, said in done.stderr) == (USAGE, True)


def test_rounded_weights_are_priced_and_traced_as_such(
    folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    named = ["--model", folders[0], "--drafter", folders[1], "--quantize", "int8"]
    grid = ["--nodes", "1,4", "--contexts", "16", "--budget", "0.2", "--dtype", "float32"]
    table = document(run("calibrate", *named, *grid, "--json"))
    assert table["provenance"]["dtype"] == "float32 with int8 weights"
    assert all("int8" in file.name for file in (tmp_path / "costs").iterdir())
    request = ["--prompt", "the cat", "--dtype", "float32", "--max-new-tokens", "4"]
    files = ["--out", str(tmp_path / "trace.html"), "--data", str(tmp_path / "trace.json")]
    assert run("trace", *named, *request, *files).exit_code == 0
    assert json.loads((tmp_path / "trace.json").read_text())["dtype"].endswith("int8 weights")


def test_trace_shows_a_head(folders: tuple[str, str], tmp_path: Path) -> None:
    model, head = folders
    page = tmp_path / "trace.html"
    request = ["--prompt", "the cat", "--dtype", "float32", "--max-new-tokens", "8"]
    done = run("trace", "--model", model, "--drafter", head, *request, "--out", str(page))
    assert done.exit_code == 0, done.stderr
    assert page.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--method", "eagle2"), USAGE, "needs an EAGLE head; pass --drafter FOLDER"),
        (("--method", "eagle2:drafter=eagle1"), USAGE, "neither shipped nor a folder"),
        (("--method", "eagle2:drafter=a:b"), USAGE, "a folder with a colon in its path cannot"),
        (("--method", "eagle2:drafter=.", "--drafter", "HEAD"), USAGE, "leave one out"),
        (("--method", "eagle-chain-0", "--drafter", "HEAD"), USAGE, "depth=0"),
        (("--method", "speculative", "--drafter", "HEAD"), USAGE, "given is an EAGLE head"),
        (("--method", "eagle", "--drafter", "MODEL"), USAGE, "given is a draft model"),
        (("--drafter", "BROKEN"), FAILURE, "fc.weight is missing"),
    ],
)
def test_mistakes_exit_with_one_sentence(
    folders: tuple[str, str], tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    model, head = folders
    places = {"HEAD": head, "MODEL": model, "BROKEN": str(broken(head, tmp_path))}
    named = [places.get(word, word) for word in arguments]
    done = run("generate", "--model", model, "--prompt", "the cat", *named)
    assert done.exit_code == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def broken(head: str, place: Path) -> Path:
    """The same head without the weight that fuses features."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(Path(head) / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, place / "model.safetensors")
    (place / "config.json").write_text((Path(head) / "config.json").read_text())
    return place
