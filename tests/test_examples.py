"""Every example runs as it is typed, on a tiny model, and docs/extending.md shows what is in them."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.fixed import FixedPolicy
from tests.laws.engine_laws import LAW_ATOL, Reference, answer_law, random_table, table_model
from tests.tiny_folders import save_folder
from tests.train.stock_templates import CHATML

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
LONGEST_PART = 30

Run = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"), CHATML.tokenizer())


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example as a program; what it prints."""

    def run(example: str, *more: str) -> str:
        words = [example, "--model", str(folder), *more]
        monkeypatch.setattr("sys.argv", words)
        runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def part(example: str, name: str) -> Any:
    """A class of an example."""
    return runpy.run_path(str(ROOT / "examples" / f"{example}.py"))[name]


@pytest.mark.parametrize("example", [file.stem for file in EXAMPLES if file.stem != "train_head"])
def test_an_example_runs(example: str, run: Run) -> None:
    printed = run(example)
    assert printed.strip()
    if example != "batch":
        assert re.search("the same words .*: True", printed, re.IGNORECASE), printed


def test_a_head_is_trained_and_drafts(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = ("--tokens", "600", "--max-length", "64", "--minutes", "0.03")
    printed = run("train_head", *small, "--out", str(out))
    assert (out / "head" / "model.safetensors").is_file()
    assert f"tokens a pass with the head in {out / 'head'}" in printed


def test_the_list_names_every_example() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert all(f"({file.name})" in listed for file in EXAMPLES)


# --- the parts of one's own ---------------------------------------------------------------------------


def test_the_policy_follows_what_was_accepted() -> None:
    """A model that always repeats itself is drafted for longer and longer."""
    state = part("own_policy", "GrowAndShrink")().start()
    engine = foredraft.Engine(
        TableModel.random(6, seed=1, sharpness=50.0),
        NgramDrafter(),
        policy=part("own_policy", "GrowAndShrink")(),
    )
    result = engine.generate((1, 2, 1, 2), max_new_tokens=120)
    plain = engine.without_drafts().generate((1, 2, 1, 2), max_new_tokens=120)
    assert result.token_ids == plain.token_ids
    depths = [record.depth for record in result.stats.rounds]
    assert max(depths) > state.length
    assert max(depths) <= 16


def test_the_drafter_drafts_its_phrases() -> None:
    drafter = part("own_drafter", "PhraseDrafter")([[5, 1, 2, 3, 4]])
    assert drafter.rest([0, 5, 1]) == [2, 3, 4]
    assert drafter.rest([0, 5]) == []
    assert drafter.rest([5, 1, 2, 3, 4]) == []
    target = TableModel.random(6, seed=1, sharpness=2.0)
    phrase = target_says(target, (0, 1), 8)
    engine = foredraft.Engine(target, part("own_drafter", "PhraseDrafter")([(0, 1, *phrase)]))
    result = engine.generate((0, 1), max_new_tokens=8)
    assert result.token_ids == phrase
    assert result.stats.target_passes == 1


def target_says(target: TableModel, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Plain decoding's greedy answer."""
    return foredraft.Engine(target).generate(prompt, max_new_tokens=count).token_ids


@pytest.mark.parametrize("tree", ["1,1", "2,1"])
def test_the_verifier_keeps_the_law(tree: str) -> None:
    """Every outcome of its draws, over whole answers, against the model's own law."""
    table = random_table(3, 1, seed=4)
    options = GenerationOptions(max_new_tokens=3, temperature=0.7, eos_token_ids=())
    engine = foredraft.Engine(
        table_model(table),
        NgramDrafter(min_match=1),
        policy=FixedPolicy(tree),
        verifier=part("own_verifier", "FreshDraws")(),
    )
    expected = Reference(table, options).answers()
    law = answer_law(engine, options)
    assert law.keys() == expected.keys()
    assert all(abs(law[answer] - expected[answer]) < LAW_ATOL for answer in law)


# --- the page -----------------------------------------------------------------------------------------


def test_the_page_shows_what_is_tested() -> None:
    """Each part on the page stands in its example, word for word, and is short."""
    parts = [block for block in BLOCKS if "class " in block]
    assert len(parts) == 3
    for block in parts:
        assert any(block in file.read_text(encoding="utf-8") for file in EXAMPLES), block
        assert len(block.splitlines()) <= LONGEST_PART
