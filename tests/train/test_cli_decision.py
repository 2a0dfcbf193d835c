"""`foredraft train decision` as it is typed, from a corpus to drafting with what came out."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import foredraft
from foredraft import ConfigError, GenerationOptions, ModelError
from foredraft.cli.main import app
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.drafters.student import build_student
from foredraft.drafters.student_files import save_student
from foredraft.engine import decisions
from foredraft.engine.load import load_models
from foredraft.methods import parse_method
from foredraft.policies.decision_model import DecisionPolicy
from foredraft.policies.decision_net import save_decision
from foredraft.policies.fixed import FixedPolicy
from foredraft.train.corpus import CorpusWriter, Sample
from foredraft.zoo.shipped import shipped_decisions
from tests.policies.decision_models import net
from tests.tiny_folders import byte_tokenizer, save_folder

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
SMALL = (
    "--prompts",
    "6",
    "--answer-tokens",
    "8",
    "--tree",
    "1,1,1",
    "--epochs",
    "2",
    "--held-out",
    "0.34",
)
OPTIONS = GenerationOptions(max_new_tokens=12, ignore_eos=True)


def run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a draft model cut from it, and a corpus of its tokens."""
    folder = tmp_path_factory.mktemp("decision")
    save_folder(folder / "model")
    target = foredraft.load(folder / "model", drafter="none", dtype="float32").target
    save_student(build_student(target.model, 1), folder / "draft")  # type: ignore[attr-defined]
    writer = CorpusWriter(folder / "data", {"vocab_size": len(byte_tokenizer())})
    generator = torch.Generator().manual_seed(0)
    samples = [
        Sample(torch.randint(3, 200, (20,), generator=generator).numpy(), ((6, 20),))
        for _ in range(12)
    ]
    writer.add_shard(samples)
    return folder


def train(place: Path, out: str, *more: str | Path) -> Result:
    asked = ("--model", place / "model", "--drafter", place / "draft", "--data", place / "data")
    return run(
        "train", "decision", *asked, "--out", place / out, "--dtype", "float32", *SMALL, *more
    )


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_trained_model_cuts_drafts_short_and_changes_no_text(place: Path, kind: str) -> None:
    done = train(place, f"new-{kind}", "--kind", kind)
    assert done.exit_code == 0, done.output
    method = f"speculative:depth=3:decision={place / f'new-{kind}'}:threshold=0.5"
    engine = foredraft.load(
        place / "model", method=method, drafter=place / "draft", dtype="float32"
    )
    assert isinstance(engine.policy, DecisionPolicy)
    assert engine.policy.threshold == 0.5
    answer = engine.generate([3, 4, 5], OPTIONS)
    assert answer.token_ids == engine.without_drafts().generate([3, 4, 5], OPTIONS).token_ids
    recipe = json.loads((place / f"new-{kind}" / "recipe.json").read_text())
    assert recipe["finished"]
    assert recipe["notes"]["command"]
    assert {"corpus", "options", "held_out", "target", "drafter"} <= recipe.keys()


def test_rounds_are_used_again_and_costs_may_come_of_a_table(place: Path) -> None:
    assert train(place, "first").exit_code == 0
    rounds = place / "first" / "rounds"
    before = {file: file.stat().st_mtime_ns for file in rounds.iterdir()}
    passes = PassCosts((1, 8), (512,), ((0.02, 0.03),))
    drafts = {
        "eagle2": DraftCosts(0.0, PassCosts((1,), (512,), ((0.001,),))),  # not this drafter's
        "speculative": DraftCosts(0.001, PassCosts((1,), (512,), ((0.005,),))),
        "speculative:drafter=nowhere": DraftCosts(0.0, PassCosts((1,), (512,), ((0.002,),))),
        "of-another-version": DraftCosts(0.0, PassCosts((1,), (512,), ((0.003,),))),
    }
    table = CostTable(passes, 0.001, drafts)
    (place / "costs.json").write_text(json.dumps(table.as_dict()))
    more = (
        "--rounds",
        rounds,
        "--objective",
        "cost",
        "--costs",
        place / "costs.json",
        "--tune-threshold",
    )
    done = train(place, "second", *more)
    assert done.exit_code == 0, done.output
    assert "tokens in the time of a pass on 1 held-out prompts" in done.output
    assert {file: file.stat().st_mtime_ns for file in rounds.iterdir()} == before
    assert not (place / "second" / "rounds").exists()
    levels = json.loads((place / "second" / "recipe.json").read_text())["costs"]["levels"]
    assert levels[0] == pytest.approx((0.005 + 0.01 / 7) / 0.02)


def test_an_interrupted_run_goes_on_to_the_same_model(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager
    from typing import Any

    from foredraft.cli import train_decision_run

    assert train(place, "whole").exit_code == 0
    with monkeypatch.context() as patch:
        asked = iter([False] * 3 + [True] * 9)

        @contextmanager
        def impatient(console: Any) -> Any:
            yield lambda: next(asked)

        patch.setattr(train_decision_run, "asked_to_stop", impatient)
        stopped = train(place, "cut")
        assert stopped.exit_code == INTERRUPTED
        assert "--resume goes on" in stopped.output
    assert train(place, "cut").exit_code == USAGE  # it holds a run
    assert train(place, "cut", "--resume").exit_code == 0
    whole, cut = (place / name / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--kind", "softer"), "'softer' is not allowed; give one of soft, hard"),
        (("--objective", "cost"), "--objective cost needs to know what drafts cost"),
        (("--tune-threshold",), "--tune-threshold needs to know what drafts cost"),
        (("--costs", "nowhere.json"), "--costs nowhere.json cannot be read"),
        (("--costs", "nowhere.json", "--tree", "2,1"), "branches, and --costs prices chains"),
        (("--costs", "x", "--draft-cost", "1"), "leave one out"),
        (("--draft-cost", "-1"), "-1.0 is not allowed; give a number of 0 or more"),
        (("--prompts", "13"), "has 12 prompts of at most 1024 tokens"),
        (("--kind", "hard", "--temperature", "1"), "give 0: hard labels are greedy matches"),
    ],
)
def test_bad_input_is_one_sentence(place: Path, more: tuple[str, ...], complaint: str) -> None:
    done = train(place, "bad", *more)
    assert done.exit_code in (USAGE, FAILURE)
    assert complaint in " ".join(done.stderr.split())
    assert done.stderr.count("error:") == 1
    shutil.rmtree(place / "bad", ignore_errors=True)


def test_a_model_without_a_shipped_drafter_needs_one(place: Path) -> None:
    asked = ("--model", place / "model", "--data", place / "data", "--out", place / "none")
    done = run("train", "decision", *asked)
    assert done.exit_code == USAGE
    assert "no draft model ships for" in done.stderr


# --- decision= of methods ---------------------------------------------------------------------------


def load(place: Path, method: str) -> foredraft.Engine:
    return foredraft.load(place / "model", method=method, drafter=place / "draft", dtype="float32")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            "decision=no-such",
            "decision=no-such is neither a decision model that ships nor a folder",
        ),
        ("threshold=0.3", "threshold=0.3 is for a decision model; give "),
        ("rule=path", "rule=path is for a decision model"),
        ("decision={net}:rule=most", "rule='most' is not known; give one of any, path"),
        ("decision={net}:threshold=7", "threshold=7.0 is not allowed; give a number from 0 to 1"),
        ("decision={net}:threshold=x", "must be of type float"),
        ("decision={wide}", "hidden states of 8 numbers, and this drafter's have 32"),
    ],
)
def test_choices_that_cannot_work(
    place: Path, options: str, complaint: str, tmp_path: Path
) -> None:
    save_decision(net("hard"), tmp_path / "net")
    save_decision(net("soft", hidden_size=8), tmp_path / "wide")
    options = options.format(net=tmp_path / "net", wide=tmp_path / "wide")
    with pytest.raises(ConfigError) as caught:
        load(place, f"speculative:{options}")
    assert complaint in str(caught.value)


def test_a_folder_without_a_decision_model(place: Path) -> None:
    with pytest.raises(ModelError, match="decision model"):
        load(place, f"speculative:decision={place / 'draft'}")


def test_a_decision_model_that_ships_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_decision(net("hard", threshold=0.25), tmp_path)
    monkeypatch.setattr(decisions, "shipped_decisions", lambda *model: {"decision-hard": tmp_path})
    policy = load(place, "speculative:tree=2,1:decision=decision-hard").policy
    assert isinstance(policy, DecisionPolicy)
    assert (policy.k_config, policy.threshold) == ((2, 1), 0.25)
    with pytest.raises(ConfigError, match="did you mean 'decision-hard'"):
        load(place, "speculative:decision=decision-hrd")


def test_weights_are_read_once_until_they_change(tmp_path: Path) -> None:
    save_decision(net("hard"), tmp_path)
    first = decisions.named_decision(str(tmp_path))
    assert decisions.named_decision(str(tmp_path)) is first
    save_decision(net("hard", seed=1), tmp_path)
    assert decisions.named_decision(str(tmp_path)) is not first


def test_another_targets_decision_model_is_warned_of(place: Path, tmp_path: Path) -> None:
    save_decision(net("hard", target={"dtype": "float32", "weights": "x"}), tmp_path)
    with pytest.warns(UserWarning, match="trained for other weights"):
        load(place, f"speculative:decision={tmp_path}")


def test_another_drafters_decision_model_is_warned_of(place: Path, tmp_path: Path) -> None:
    assert train(place, "of-draft", "--kind", "hard").exit_code == 0
    method = f"speculative:decision={place / 'of-draft'}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = load_models(place / "model", place / "draft", dtype="float32")
        models.engine(parse_method(method))
    save_student(build_student(models.target.model, 2), tmp_path / "other")  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=r"for another drafter \(draft\) than the one"):
        foredraft.load(place / "model", method=method, drafter=tmp_path / "other", dtype="float32")


def test_a_name_means_the_decision_model_of_the_model_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model, threshold in (("one", 0.1), ("two", 0.2)):
        save_decision(net("hard", threshold=threshold), tmp_path / model / "decision-hard")
    save_decision(net("soft"), tmp_path / "one" / "decision-soft")
    monkeypatch.setattr(
        decisions, "shipped_decisions", partial(shipped_decisions, weights=tmp_path)
    )
    monkeypatch.setattr(decisions.zoo, "is_embedded", {"one", "two"}.__contains__)
    asked = {"decision": "decision-hard", "depth": 3}
    for model in ("one", "two"):
        found = decisions.with_shipped_decision(asked, model)
        assert found == {"decision": str(tmp_path / model / "decision-hard"), "depth": 3}
    assert decisions.with_shipped_decision(asked, Path("elsewhere")) == asked
    assert decisions.with_shipped_decision({"decision": "a/folder"}, "two") == {
        "decision": "a/folder"
    }
    with pytest.raises(ConfigError, match=r"'decision-soft' ships for two .*are decision-hard"):
        decisions.with_shipped_decision({"decision": "decision-soft"}, "two")


def test_the_shape_stays_as_it_is_without_a_decision(place: Path) -> None:
    assert isinstance(load(place, "speculative:depth=3").policy, FixedPolicy)
