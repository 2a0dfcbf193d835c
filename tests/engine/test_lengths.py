"""Length predictors by name: which methods take them, and what is wrong with others."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from foredraft import ConfigError, Engine, ModelError
from foredraft.backends.hf import HFTarget
from foredraft.backends.identity import target_identity
from foredraft.backends.table import TableModel
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine import lengths
from foredraft.engine.lengths import check_lengths, named_length, rules_of, with_shipped_length
from foredraft.methods import parse_method
from foredraft.policies.length_net import save_length
from foredraft.policies.predicted_length import LengthRule, LengthShapedPolicy
from foredraft.policies.stopping import ComposedRule, ReadingStoppingPolicy
from foredraft.zoo.shipped import shipped_lengths
from tests.policies.length_nets import length_net
from tests.tiny_models import tiny_llama

DRAFT = TableModel.random(6, seed=2)
FITS = {"hidden_size": 32, "taps": (0, 2), "k_max": 5}


@cache
def head() -> EagleHead:
    return EagleHead.for_target(tiny_llama(), 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_length(length_net(**FITS), tmp_path / "net")
    return tmp_path / "net"


def built(method: str, model: Any = None) -> Any:
    return parse_method(method).build(head() if model is None else model).policy


def test_adaeagle_is_a_chain_of_k_max_that_the_prediction_ends(folder: Path) -> None:
    policy = built(f"adaeagle:length={folder}")
    assert isinstance(policy, ReadingStoppingPolicy)
    assert policy.max_nodes == 5
    assert isinstance(policy.rule, LengthRule)
    assert built(f"adaeagle:depth=3:length={folder}").max_nodes == 3


def test_the_form_with_a_threshold_ends_where_both_rules_do(folder: Path) -> None:
    rule = built(f"adaeagle-threshold:length={folder}").rule
    assert isinstance(rule, ComposedRule)
    assert rule.goes_on is any
    assert rule.rules[1].threshold == -0.6  # type: ignore[attr-defined]
    rule = built(f"adaeagle-threshold:threshold=-1.5:length={folder}").rule
    assert rule.rules[1].threshold == -1.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "method",
    [
        "speculative:depth=6",
        "eagle-chain-6",
        "mcsd",
        "mcsd-improved",
        "speculative:stop=length+cumulative",
        "eagle-chain-6:stop=confidence/length+cumulative@-1",
        "eagle2:stop=length",
    ],
)
def test_methods_take_a_length_alone_or_among_stop_rules(method: str, folder: Path) -> None:
    read = parse_method(f"{method}:length={folder}")
    if method.startswith("eagle2"):
        with pytest.raises(ConfigError, match="asks for its depth alone; leave one out"):
            read.build(head())
        return
    policy = read.build(head() if read.needs == "head" else DRAFT).policy
    assert isinstance(policy, ReadingStoppingPolicy)
    assert len(list(rules_of(policy))) == 1


def test_a_dynamic_tree_follows_it_whole(folder: Path) -> None:
    policy = built(f"eagle2:depth=4:nodes=8:top_k=4:length={folder}")
    assert isinstance(policy, LengthShapedPolicy)
    assert (policy.levels, policy.spare) == (4, 1)
    assert built(f"eagle2:length={folder}:spare=0").spare == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["adaeagle", "adaeagle-threshold", "eagle2:depth=4:nodes=8"])
def test_answers_are_those_of_plain_decoding(method: str, temperature: float, folder: Path) -> None:
    parts = parse_method(f"{method}:length={folder}").build(head())
    engine = Engine(HFTarget(tiny_llama()), parts.drafter, parts.policy, parts.verifier)
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 1}
    plain = engine.without_drafts().generate([5, 9, 3, 7], **options)
    assert engine.generate([5, 9, 3, 7], **options).token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("adaeagle:length=no-such", "length=no-such is neither a length predictor that ships nor"),
        ("eagle-chain-4:length={net}:stop=svip", "stop=length+svip (both stop it) or "),
        ("eagle-chain-4:length={net}:decision=x", "a length predictor both say where a draft ends"),
        ("eagle-chain-4:stop=length@3:length={net}", "gives numbers, and length takes none"),
        ("eagle:stop=length", "asks for a length predictor, and this method takes none"),
        ("eagle2:spare=2", "spare=2 is for a predicted length; give "),
        ("eagle2:length={net}:spare=-1", "spare=-1 is not allowed"),
        ("adaeagle:threshold=1:length={net}", "has no option 'threshold=1'"),
        ("adaeagle-threshold:threshold=1:length={net}", "threshold 1.0 is not allowed"),
    ],
)
def test_what_cannot_be_read_is_refused(method: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        built(method.format(net=folder))
    assert message in str(caught.value)


def test_a_folder_without_a_predictor(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no length predictor"):
        built(f"adaeagle:length={tmp_path}")


def test_weights_are_read_once_until_they_change(folder: Path) -> None:
    first = named_length(str(folder))
    assert named_length(str(folder)) is first
    save_length(length_net(**FITS, seed=1), folder)
    assert named_length(str(folder)) is not first


def test_a_net_that_reads_the_root_takes_the_drafters_embeddings(folder: Path) -> None:
    save_length(length_net(**FITS, root_size=32), folder)
    parts = parse_method(f"adaeagle:length={folder}").build(head())
    engine = Engine(HFTarget(tiny_llama()), parts.drafter, parts.policy, parts.verifier)
    engine.generate([5, 9, 3, 7], max_new_tokens=8)
    with pytest.raises(ConfigError, match="nothing here embeds tokens"):
        built(f"speculative:length={folder}", DRAFT)


# --- of which model ---------------------------------------------------------------------------------


def test_a_predictor_of_another_shape_is_refused(folder: Path) -> None:
    save_length(length_net(**FITS | {"taps": (0, 30)}), folder)
    policy = built(f"adaeagle:length={folder}")
    with pytest.raises(ConfigError, match=r"of 30 layers .*, and this one has 2 of 32"):
        check_lengths(policy, HFTarget(tiny_llama()), head())


def test_one_for_other_weights_or_another_drafter_is_warned_of(folder: Path) -> None:
    target = HFTarget(tiny_llama())
    own = target_identity(target.model)
    save_length(length_net(**FITS, target=own | {"weights": "x"}), folder)
    with pytest.warns(UserWarning, match="trained for other weights"):
        check_lengths(built(f"adaeagle:length={folder}"), target, head())
    save_length(length_net(**FITS, target=own, drafter="a", drafter_weights="x"), folder)
    with pytest.warns(UserWarning, match=r"another drafter \(a\) than the one"):
        check_lengths(built(f"adaeagle-threshold:length={folder}"), target, head())
    save_length(length_net(**FITS, target=own), folder)
    check_lengths(built(f"eagle2:length={folder}"), target, head())


def test_a_name_means_the_predictor_of_the_model_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in ("one", "two"):
        save_length(length_net(), tmp_path / model / "length-eagle3")
    save_length(length_net(), tmp_path / "one" / "length-draft-model")
    monkeypatch.setattr(lengths, "shipped_lengths", partial(shipped_lengths, weights=tmp_path))
    monkeypatch.setattr(lengths.zoo, "is_embedded", {"one", "two"}.__contains__)
    for model in ("one", "two"):
        place = str(tmp_path / model / "length-eagle3")
        named = with_shipped_length("eagle2", {"length": "length-eagle3"}, model, None)
        usual = with_shipped_length("adaeagle", {"depth": 3}, model, head())
        stops = with_shipped_length("eagle-chain-K", {"stop": "length+svip"}, model, head())
        assert (named["length"], usual["length"], stops["length"]) == (place, place, place)
    usual = with_shipped_length("adaeagle", {}, "one", DRAFT)
    assert usual["length"] == str(tmp_path / "one" / "length-draft-model")
    assert with_shipped_length("adaeagle", {}, Path("elsewhere"), head()) == {}
    assert with_shipped_length("eagle2", {}, "one", head()) == {}
    with pytest.raises(ConfigError, match=r"ships for two .*are length-eagle3"):
        with_shipped_length("adaeagle", {}, "two", DRAFT)
