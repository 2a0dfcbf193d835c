"""Recording with the real engine, and training on what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft import ConfigError, DataError
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.decision_model import hard_features
from foredraft.policies.decision_net import read_decision
from foredraft.train.corpus import CorpusWriter, Sample
from foredraft.train.decision import fit_decision
from foredraft.train.decision_examples import DecisionResult, split
from foredraft.train.decision_gain import best_depth, gain_of
from foredraft.train.decision_objective import RoundCosts, chains_of
from foredraft.train.decision_options import DecisionOptions
from foredraft.train.decision_recording import (
    PROPOSALS,
    Recorder,
    recording_engine,
)
from foredraft.train.decision_rounds import RecordedRows, RoundsFolder, prompts_of, record
from foredraft.train.folder import TrainFolder
from foredraft.tree import Proposal
from tests.drafters.eagle_rounds import make_head
from tests.policies.decision_models import Showing
from tests.tiny_models import VOCAB_SIZE, tiny_llama

CPU = torch.device("cpu")
COSTS = RoundCosts.flat(0.3, 4)
V = 7
TARGET = TableModel.random(V, seed=1, sharpness=1.5)
DRAFT = Showing(TableModel.random(V, seed=2, sharpness=1.5)._logits.exp())


# --- recording --------------------------------------------------------------------------------------


def recorded(options: DecisionOptions, folder: Path, **changes: Any) -> RecordedRows:
    """Rounds of table models."""
    recorder = Recorder(options.kind)
    drafter = DraftModelDrafter(DRAFT, PROPOSALS[options.kind])
    engine = recording_engine(TARGET, drafter, options.tree, recorder)
    prompts = [[1, 2, 3], [4, 5], [6, 1, 1, 2]]
    rounds = RoundsFolder(folder, options.collected())
    assert record(engine, recorder, prompts, options, rounds, **changes)
    return rounds.read(len(prompts))


@pytest.mark.parametrize("tree", ["1,1,1", "3,1"])
def test_soft_labels_are_min_1_p_over_q_of_the_first_child(tree: str, tmp_path: Path) -> None:
    """The hidden state of the table names the last token, and its laws depend on nothing else."""
    rows = recorded(DecisionOptions(kind="soft", tree=tree, answer_tokens=12), tmp_path)
    p, q = (m._logits.softmax(-1).numpy() for m in (TARGET, DRAFT))
    for features, label in zip(rows.features.tolist(), rows.labels.tolist(), strict=True):
        possible = np.minimum(1, p / q)[int(features[0])]
        assert np.abs(possible - label).min() < 1e-6
    assert len(set(rows.labels.tolist())) > 5
    assert rows.prompts.unique().tolist() == [0, 1, 2]  # type: ignore[no-untyped-call]


def test_hard_labels_are_greedy_matches(tmp_path: Path) -> None:
    rows = recorded(DecisionOptions(kind="hard", tree="1,1,1", answer_tokens=12), tmp_path)
    laws = hard_features(DRAFT._logits.log_softmax(-1))
    matches = (TARGET._logits.argmax(-1) == DRAFT._logits.argmax(-1)).float()
    for features, label in zip(rows.features, rows.labels, strict=True):
        token = int((laws - features).abs().sum(-1).argmin())
        torch.testing.assert_close(features, laws[token])
        assert float(label) == float(matches[token])


def test_rows_are_placed_on_their_chain(tmp_path: Path) -> None:
    rows = recorded(
        DecisionOptions(kind="soft", tree="1,1,1", answer_tokens=30), tmp_path / "chain"
    )
    for number in rows.rounds.unique().tolist():  # type: ignore[no-untyped-call]
        depths = rows.depths[rows.rounds == number].tolist()
        assert depths == list(range(len(depths)))
    rows = recorded(DecisionOptions(kind="soft", tree="3,1", answer_tokens=30), tmp_path / "fork")
    assert rows.depths[rows.rounds == 0].tolist() == [0, 1, -1, -1]


def test_an_interrupted_recording_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    options = DecisionOptions(kind="soft", tree="1,1", answer_tokens=10)
    whole = recorded(options, tmp_path / "whole")
    answers = iter([False, False, True])
    recorder = Recorder("soft")
    drafter = DraftModelDrafter(DRAFT, Proposal.SAMPLED)
    engine = recording_engine(TARGET, drafter, options.tree, recorder)
    rounds = RoundsFolder(tmp_path / "cut", options.collected())
    prompts = [[1, 2, 3], [4, 5], [6, 1, 1, 2]]
    assert not record(engine, recorder, prompts, options, rounds, stop=lambda: next(answers))
    assert rounds.num_prompts == 2
    again = recorded(options, tmp_path / "cut")
    for name in ("features", "labels", "depths", "rounds", "prompts"):
        assert torch.equal(getattr(again, name), getattr(whole, name))


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_head_is_recorded_like_a_model(kind: Any, tmp_path: Path) -> None:
    target = HFTarget(tiny_llama())
    drafter = EagleDrafter(make_head(target.model, "eagle3"), PROPOSALS[kind])
    options = DecisionOptions(kind=kind, tree="2,1", answer_tokens=8)
    recorder = Recorder(kind)
    rounds = RoundsFolder(tmp_path, options.collected())
    engine = recording_engine(target, drafter, options.tree, recorder)
    record(engine, recorder, [[3, 14, 15], [9, 26, 5]], options, rounds)
    rows = rounds.read(2)
    assert rows.features.shape[1] == (32 if kind == "soft" else 11)
    assert bool(((rows.labels >= 0) & (rows.labels <= 1)).all())


def test_other_proposals_than_the_labels_need_are_refused() -> None:
    with pytest.raises(ConfigError, match="learns from sampled proposals, and NgramDrafter"):
        recording_engine(TARGET, NgramDrafter(), "1,1", Recorder("soft"))


def test_rounds_of_another_kind_are_not_mixed(tmp_path: Path) -> None:
    recorded(DecisionOptions(kind="soft", tree="1,1", answer_tokens=10), tmp_path)
    with pytest.raises(ConfigError, match="recorded with tree='1,1', and this is tree='1,1,1'"):
        recorded(DecisionOptions(kind="soft", tree="1,1,1", answer_tokens=10), tmp_path)


def test_a_damaged_recording_says_so(tmp_path: Path) -> None:
    options = DecisionOptions(kind="soft", tree="1,1", answer_tokens=10)
    recorded(options, tmp_path)
    (tmp_path / "part-00000.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="is no part of recorded rounds"):
        recorded(options, tmp_path)
    (tmp_path / "rounds.json").write_text("{}")
    with pytest.raises(DataError, match=r"rounds\.json cannot be read"):
        recorded(options, tmp_path)


def test_prompts_end_before_a_reply_and_more_of_them_begin_alike(tmp_path: Path) -> None:
    from foredraft.train.corpus import Corpus

    writer = CorpusWriter(tmp_path, {"vocab_size": VOCAB_SIZE})
    samples = [Sample(np.arange(10 + i, dtype=np.uint16), ((4, 6), (8, 10))) for i in range(20)]
    writer.add_shard(samples)
    corpus = Corpus(tmp_path)
    few = prompts_of(corpus, DecisionOptions(kind="soft", prompts=5))
    more = prompts_of(corpus, DecisionOptions(kind="soft", prompts=9))
    assert more[:5] == few
    assert {len(prompt) for prompt in more} == {4, 8}
    with pytest.raises(DataError, match="has 20 prompts of at most 1024 tokens; ask for fewer"):
        prompts_of(corpus, DecisionOptions(kind="soft", prompts=21))
    short = prompts_of(corpus, DecisionOptions(kind="soft", prompts=9, max_prompt=7))
    assert {len(prompt) for prompt in short} == {4}


# --- training ---------------------------------------------------------------------------------------


def made_rounds(num_prompts: int = 40, seed: int = 0, size: int = 8) -> RecordedRows:
    """Rounds whose acceptance, high or low in all of a round, shows in the sign of the first feature."""
    generator = torch.Generator().manual_seed(seed)
    count = num_prompts * 5 * 4
    features = torch.randn(count, size, generator=generator)
    sign = torch.randn(count // 4, generator=generator).sign().repeat_interleave(4)
    features[:, 0] = features[:, 0].abs() * sign
    return RecordedRows(
        features=features,
        labels=torch.where(features[:, 0] > 0, 0.95, 0.05),
        depths=torch.arange(count) % 4,
        rounds=torch.arange(count) // 4,
        prompts=torch.arange(count) // 20,
    )


def train(
    folder: Path,
    rows: RecordedRows | None = None,
    stop: Callable[[], bool] = lambda: False,
    **choices: Any,
) -> DecisionResult:
    options = DecisionOptions(**{"kind": "soft", "tree": "1,1,1,1", "epochs": 4, **choices})
    place = TrainFolder(folder)
    run = {"options": options.as_dict(), "target": {"weights": "x"}, "drafter": {"name": "d"}}
    with place.in_use():
        place.check(run, resume=True)
        place.begin(run)
        return fit_decision(
            made_rounds() if rows is None else rows,
            options,
            place,
            run,
            costs=COSTS,
            device=CPU,
            stop=stop,
        )


@pytest.mark.parametrize("objective", ["bce", "cost"])
def test_what_can_be_told_apart_is(objective: str, tmp_path: Path) -> None:
    result = train(tmp_path, objective=objective, epochs=20)
    assert result.held_out.auc is not None
    assert result.held_out.auc > 0.85  # labels of .95 and .05 allow no more than about .95
    gain = result.gain
    assert gain is not None
    assert gain.model > gain.whole + 0.05
    assert gain.interval is not None
    assert 1 < gain.interval[0] < gain.ratio < gain.interval[1]
    saved = read_decision(tmp_path)
    assert (saved.config.drafter, dict(saved.config.target)) == ("d", {"weights": "x"})
    assert saved.config.threshold == 0.4
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert recipe["held_out"]["auc"] == round(result.held_out.auc, 5)
    is_acceptance = objective == "bce"
    for name in ("ece", "brier"):
        assert (name in recipe["held_out"]) == is_acceptance
    assert (recipe["predicts"] == "acceptance") == is_acceptance
    assert "base_rate" in recipe["held_out"]
    assert recipe["tokens_per_pass_time"] == gain.as_dict()
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (line["kind"], line["ratio"]) == ("reported", gain.as_dict()["ratio"])
    assert (tmp_path / "calibration.png").exists() == is_acceptance
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_predictions_of_acceptance_are_calibrated(tmp_path: Path) -> None:
    assert train(tmp_path, epochs=8).held_out.ece < 0.1


def test_the_threshold_is_tuned_on_held_out_rounds(tmp_path: Path) -> None:
    tuned = train(tmp_path / "tuned", tune_threshold=True)
    fixed = train(tmp_path / "fixed", threshold=0.99)
    assert tuned.gain is not None
    assert fixed.gain is not None
    assert tuned.gain.model > fixed.gain.model
    assert read_decision(tmp_path / "tuned").config.threshold == tuned.threshold != 0.4


def test_a_run_that_was_stopped_ends_where_it_would_have(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    answers = iter([False, False, True])
    assert not train(tmp_path / "cut", stop=lambda: next(answers)).finished
    assert read_decision(tmp_path / "cut").config.kind == "soft"
    assert train(tmp_path / "cut").finished
    whole, cut = (
        {k: v.tolist() for k, v in read_decision(tmp_path / name).state_dict().items()}
        for name in ("whole", "cut")
    )
    assert whole == cut
    lines = [
        (tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut")
    ]
    assert lines[0][-1] == lines[1][-1]  # what was gained
    assert [json.loads(line)["loss"] for line in lines[0][:-1]] == [
        json.loads(line)["loss"] for line in lines[1][:-1]
    ]
    assert train(tmp_path / "cut").finished
    assert (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines() == lines[1]


def test_hard_rows_are_balanced(tmp_path: Path) -> None:
    rows = made_rounds(size=11)
    rare = RecordedRows(
        rows.features, (rows.features[:, 0] > 1).float(), rows.depths, rows.rounds, rows.prompts
    )
    result = train(tmp_path, rare, kind="hard", epochs=40)
    assert result.held_out.auc is not None
    assert result.held_out.auc > 0.95
    assert result.held_out.base_rate < 0.3


def test_whole_prompts_are_held_out() -> None:
    rows = made_rounds()
    parts = [set(rows.prompts[part].tolist()) for part in split(rows, 0.15)]
    assert [len(part) for part in parts] == [34, 3, 3]
    assert set.union(*parts) == set(range(40))
    one = RecordedRows(rows.features, rows.labels, rows.depths, rows.rounds, rows.prompts * 0)
    with pytest.raises(DataError, match="record more prompts"):
        split(one, 0.125)


def test_a_gain_from_luck_alone_does_not_show() -> None:
    """A net that knows the labels of the half that chooses, and nothing of the half that reports."""
    rows = made_rounds(80)
    noise = torch.rand(len(rows.labels), generator=torch.Generator().manual_seed(5)).round()
    _, choosing, reporting = split(rows, 0.5)
    luck = replace(rows, labels=noise)
    seen, unseen = (chains_of(luck, part, 4) for part in (choosing, reporting))
    cheap = RoundCosts.flat(0.05, 4)
    depth = best_depth(seen, cheap)
    clairvoyant = (seen.accept.roll(-1, 1) > 0).to(seen.accept)
    assert gain_of(clairvoyant, seen, cheap, depth, 0).ratio > 1.05
    interval = gain_of(clairvoyant[: len(unseen)], unseen, cheap, depth, 0).interval
    assert interval is not None
    assert interval[0] < 1


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        ({"kind": "softest"}, "kind='softest' is not allowed; give one of soft, hard"),
        ({"objective": "reinforce"}, "objective='reinforce' is not allowed; give one of bce, cost"),
        ({"prompts": 1}, "prompts=1 is not allowed; give a whole number of 2 or more"),
        ({"lr": 0.0}, "lr=0.0 is not allowed"),
        ({"held_out": 1.0}, "held_out=1.0 is not allowed"),
        ({"draft_cost": -1.0}, "draft_cost=-1.0 is not allowed"),
        ({"tree": "4,0"}, "tree '4,0' has a depth without children"),
        ({"rule": "both"}, "rule='both' is not known"),
        ({"threshold": 2.0}, "threshold=2.0 is not allowed"),
        ({"temperature": 0.0}, "temperature=0 is not allowed with kind=soft; give more than 0"),
        ({"objective": "cost", "rule": "path"}, "rule=path has no meaning with objective=cost"),
        ({"objective": "cost", "tree": "10,1"}, "tree=10,1 branches, and objective=cost prices"),
        ({"tune_threshold": True, "tree": "10,1"}, "tree=10,1 branches, and tune_threshold"),
        ({"draft_cost": 0.1, "tree": "1,2"}, "tree=1,2 branches, and draft_cost prices chains"),
        ({"kind": "hard", "temperature": 1.0}, "temperature=1 is not allowed with kind=hard"),
    ],
)
def test_options_out_of_range(choices: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecisionOptions(**{"kind": "soft", **choices})
    assert complaint in str(caught.value)
