"""`foredraft bench profile` as it is typed, on a tiny model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from foredraft.bench.profile import run as profile_run
from foredraft.bench.profile.floor import measure_bandwidth
from foredraft.cli.main import app
from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.load import load
from tests.tiny_folders import save_folder

USAGE = 2
QUICK = ("--dtype", "float32", "--context", "48", "--repeats", "3", "--rows", "1,4")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model's folder and that of a head for it."""
    place = tmp_path_factory.mktemp("models")
    model = save_folder(place / "model")
    target: Any = load(model, method="autoregressive", dtype="float32").target
    save_head(EagleHead.for_target(target.model, 3), place / "head")
    return str(model), str(place / "head")


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth has tests of its own; here its buffer would take most of the time."""

    def small(*arguments: Any) -> Any:
        return measure_bandwidth(*arguments, buffer_bytes=1 << 20, repeats=2)

    monkeypatch.setattr(profile_run.floor, "measure_bandwidth", small)


def profile(*arguments: str) -> Result:
    done = CliRunner().invoke(app, ["bench", "profile", *arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_profile_of_a_head(folders: tuple[str, str], tmp_path: Path) -> None:
    model, head = folders
    chosen = ("--model", model, "--drafter", head, "--method", "eagle2:nodes=4")
    out = tmp_path / "profile"
    done = profile(*chosen, *QUICK, "--memory-context", "64", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert {file.name for file in out.iterdir()} - {".lock"} == {
        "profile.json",
        "profile.md",
        "operators.png",
    }
    document = json.loads((out / "profile.json").read_text())
    check_document(document)
    names = [row["name"] for row in document["passes"]]
    assert names == [
        *("target, 1 row", "target, 4 rows", "hf"),
        *("draft, 1 row", "draft, 8 rows"),
    ]
    assert document["draft_floor"]["weights_mb"] > 0
    assert document["memory"]["note"] is None or document["memory"]["growth_mb"] is None
    assert document["provenance"]["dtype"] == "float32"
    assert document["loading"] == {"dtype": "float32"}
    stages = {stage["name"] for stage in document["rounds"]["sampled"]["stages"]}
    assert {"draft pass 0", "policy", "verification", "target pass"} <= stages
    written = (out / "profile.md").read_text()
    for text in ("In short", "Rounds of eagle2:nodes=4, temperature 0", "linear layers", "Memory"):
        assert text in done.output
        assert text in written


def check_document(document: dict[str, Any]) -> None:
    for entry in document["operators"]:
        assert sum(group["share"] for group in entry["groups"]) == pytest.approx(1)
        assert entry["unknown"] == []
    for entry in filter(None, (document["rounds"][k] for k in ("plain", "greedy", "sampled"))):
        assert sum(stage["share"] for stage in entry["stages"]) == pytest.approx(1)
    passes = {row["name"]: row for row in document["passes"]}
    assert passes["hf"]["vs_hf"] == 1
    one = passes["target, 1 row"]
    assert one["vs_floor"] == pytest.approx(one["median_ms"] / document["floor"]["ms"])
    assert document["headlines"]["rows_vs_hf"]["1"] == one["vs_hf"]


@pytest.mark.parametrize("method", ["autoregressive", "ngram"])
def test_what_does_not_exist_is_none(folders: tuple[str, str], method: str) -> None:
    more = ("--method", method, *QUICK, "--memory-context", "0", "--json")
    done = profile("--model", folders[0], *more)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    check_document(document)
    assert document["draft_floor"] is None
    assert document["memory"] is None
    assert document["headlines"]["draft_level_share"] is None
    assert document["headlines"]["memory_growth_ratio"] is None
    drafts = method == "ngram"
    assert (document["rounds"]["greedy"] is not None) is drafts
    assert (document["headlines"]["method_speedup_vs_hf"] is not None) is drafts


def test_a_context_that_fills_the_model_is_profiled(tmp_path: Path) -> None:
    model = str(save_folder(tmp_path / "short", max_position_embeddings=64))
    chosen = ("--method", "ngram", "--context", "59", "--repeats", "3", "--rows", "1")
    done = profile("--model", model, *chosen, "--memory-context", "0", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["context"] == 59
    assert document["decoding"]["tokens"] == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--context", "0"), "--context 0 is not allowed; give 1 token or more"),
        (("--context", "2040"), "--context 2040 leaves no room for 32 tokens in this model's 2048"),
        (("--rows", "1,x"), "--rows '1,x' is no list of whole numbers"),
        (("--rows", "0,4"), "--rows 0 is not allowed; a pass has 1 to 512 rows"),
        (("--rows", "513"), "--rows 513 is not allowed; a pass has 1 to 512 rows"),
        (("--repeats", "2"), "--repeats 2 is not allowed; give 3 or more"),
        (("--memory-context", "1"), "--memory-context 1 is not allowed; give 2 tokens or more"),
        (("--out", "/proc/none"), "give another --out"),
    ],
)
def test_mistakes_exit_with_one_sentence(
    folders: tuple[str, str], arguments: tuple[str, ...], sentence: str
) -> None:
    done = profile("--model", folders[0], "--method", "autoregressive", *arguments)
    assert done.exit_code == USAGE
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert sentence in said[0]
