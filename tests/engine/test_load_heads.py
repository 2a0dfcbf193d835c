"""From the names of heads to an engine, and what it says where that cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.checkpoint import LAYOUTS, save_head
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.student import build_student
from foredraft.drafters.student_files import save_student
from foredraft.engine import drafters
from foredraft.engine.choosing import best_method
from foredraft.engine.load import load_models
from foredraft.errors import ConfigError, ModelError
from foredraft.methods import parse_method
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from tests.tiny_folders import save_folder
from tests.tiny_models import tiny_llama

REQUEST: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
PROMPT = [5, 9, 7, 5, 9, 7, 11]


def model_part(engine: foredraft.Engine) -> Any:
    """What drafts beside the copies, of engines that merge both."""
    drafter = engine.drafter
    return drafter.model if isinstance(drafter, HybridDrafter) else drafter


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model folder."""
    return str(save_folder(tmp_path / "model"))


@pytest.fixture
def head(model: str, tmp_path: Path) -> str:
    """The folder of a head for it."""
    target = foredraft.load(model, drafter="none", dtype="float32").target
    assert isinstance(target, HFTarget)
    made = EagleHead.for_target(target.model, 3, draft_ids=torch.arange(0, 80, 2))
    save_head(made, tmp_path / "head")
    return str(tmp_path / "head")


def test_a_head_folder_implies_its_method(model: str, head: str) -> None:
    engine = foredraft.load(model, drafter=head, dtype="float32")
    assert isinstance(model_part(engine), EagleDrafter)
    assert isinstance(engine.policy, AdaptivePolicy)
    chosen = foredraft.load(model, drafter=Path(head), proposal="coupled")
    assert isinstance(chosen.policy, DynamicTreePolicy)


@pytest.mark.parametrize(
    "method", ["eagle2", "eagle", "eagle-chain-3", "eagle2:nodes=5:depth=2", "eagle:tree=2,2"]
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_head_method_answers_as_plain_decoding(
    model: str, head: str, method: str, temperature: float
) -> None:
    engine = foredraft.load(model, method=method, drafter=head, dtype="float32")
    request = {**REQUEST, "temperature": temperature, "seed": 3}
    plain = engine.without_drafts().generate(PROMPT, **request)
    drafted = engine.generate(PROMPT, **request)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_tokens > 0


@pytest.mark.parametrize("verifier", ["rejection", "block", "traversal"])
def test_sampled_drafts_of_a_head_are_verified(model: str, head: str, verifier: str) -> None:
    engine = foredraft.load(model, drafter=head, verifier=verifier, dtype="float32")
    result = engine.generate(PROMPT, **REQUEST, temperature=1.0, seed=1)
    assert len(result.token_ids) == 12
    assert result.stats.drafted_tokens > 0


def test_a_loaded_head_goes_with_a_loaded_model() -> None:
    model = tiny_llama()
    head = EagleHead.for_target(model, 1)
    engine = foredraft.load(model, drafter=head, tree="2,1")
    assert isinstance(engine.policy, FixedPolicy)
    assert isinstance(model_part(engine), EagleDrafter)
    assert model_part(engine).head is head


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 50}, "vocab_size 97, and this one has 50"),
        ({"hidden_size": 64}, "target_hidden_size 32, and this one has 64"),
        ({"num_hidden_layers": 1}, "hidden state 2, and the target has 1 layers"),
    ],
)
def test_a_loaded_head_of_another_model_is_refused(changes: dict[str, int], said: str) -> None:
    """No token of the text is outside of its embeddings, and no tap outside of the target."""
    head = EagleHead.for_target(tiny_llama(), 1)
    with pytest.raises(ModelError, match=said):
        foredraft.load(tiny_llama(**changes), drafter=head)
    with pytest.raises(ConfigError, match="the target is TableModel"):
        foredraft.load(TableModel.random(6), drafter=head)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_drafts(model: str, tmp_path: Path, layout: Any) -> None:
    target = foredraft.load(model, drafter="none", dtype="bfloat16").target
    assert isinstance(target, HFTarget)
    save_head(EagleHead.for_target(target.model, 1), tmp_path / "head", layout)
    engine = foredraft.load(model, drafter=str(tmp_path / "head"), dtype="bfloat16")
    assert len(engine.generate(PROMPT, **REQUEST).token_ids) == 12


def test_a_head_of_another_model_is_refused(model: str, tmp_path: Path) -> None:
    save_head(
        EagleHead.for_target(tiny_llama(hidden_size=64, vocab_size=268), 1), tmp_path / "other"
    )
    with pytest.raises(ModelError, match="64"):
        foredraft.load(model, drafter=str(tmp_path / "other"))


def test_a_head_that_is_nowhere_is_refused_without_waiting(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafters, "hub_reachable", lambda: False)
    for name in ("./no-such-head", "owner/no-such-head", "x" * 5000):
        with pytest.raises(ModelError, match="there is no head at"):
            foredraft.load(model, method="eagle2", drafter=name)


def test_what_a_head_does_not_take_is_refused(model: str, head: str) -> None:
    with pytest.raises(ConfigError, match=r"dtype='float32' cannot be applied"):
        foredraft.load(tiny_llama(), drafter=head, dtype="float32")
    with pytest.raises(ConfigError, match="needs a draft model, and the drafter given is an EAGLE"):
        foredraft.load(model, method="speculative", drafter=head)
    with pytest.raises(ConfigError, match="and the drafter given is a draft model"):
        foredraft.load(model, method="eagle2", drafter=model)


# --- weights that ship ------------------------------------------------------------------------------


@pytest.fixture
def shipping(model: str, head: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The model's name, as if the head came with the package."""
    known = {model: Path(head)}
    monkeypatch.setattr(drafters.zoo, "shipped_head", known.get)
    return model


def test_a_model_with_a_shipped_head_drafts_with_it(shipping: str) -> None:
    for choices in ({}, {"method": "eagle2"}, {"method": "eagle-chain-2"}, {"tree": "2,1"}):
        engine = foredraft.load(shipping, **choices)
        assert isinstance(model_part(engine), EagleDrafter)
    assert best_method(shipping) == best_method("another") == "adaptive"
    assert best_method(shipping, proposal="sampled") == "eagle2"
    assert best_method(shipping, verifier="block") == "eagle-chain-4"
    assert best_method("another", tree="2,1") == "ngram"


def test_a_drafter_of_the_users_own_goes_before_the_shipped_one(shipping: str) -> None:
    assert foredraft.load(shipping, drafter="none").drafter is None
    assert not isinstance(foredraft.load(shipping, drafter="ngram").drafter, EagleDrafter)
    assert not isinstance(foredraft.load(shipping, method="ngram").drafter, EagleDrafter)
    own = model_part(foredraft.load(shipping, drafter=shipping))
    assert not isinstance(own, EagleDrafter)


def test_models_share_what_their_methods_draft_with(shipping: str) -> None:
    models = load_models(shipping, shipping, needed=("draft model", "head"))
    engines = [models.engine(parse_method(name)) for name in ("eagle2", "eagle", "speculative")]
    assert len({id(engine.target) for engine in engines}) == 1
    heads = [e.drafter.head for e in engines if isinstance(e.drafter, EagleDrafter)]
    assert len(heads) == 2
    assert heads[0] is heads[1]


# --- methods that name a drafter of their own -------------------------------------------------------


@pytest.fixture
def zoo(model: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders by name, as if two heads and a draft model came with the package."""
    target = foredraft.load(model, drafter="none", dtype="float32").target
    assert isinstance(target, HFTarget)
    save_head(EagleHead.for_target(target.model, 1), tmp_path / "one")
    save_student(build_student(target.model, 1), tmp_path / "small")
    known = {"eagle3": Path(head), "eagle1": tmp_path / "one", "draft-model": tmp_path / "small"}
    monkeypatch.setattr(drafters, "shipped_drafters", {model: known}.get)
    monkeypatch.setattr(drafters.zoo, "shipped_head", {model: Path(head)}.get)
    return known


@pytest.mark.parametrize(
    ("method", "variant"),
    [
        ("eagle2:drafter=eagle3", 3),
        ("eagle2:drafter=eagle1", 1),
        ("eagle-chain-3:drafter=eagle1", 1),
        ("eagle:tree=2,1:drafter=eagle1", 1),
        ("eagle2:nodes=5:drafter=FOLDER", 1),
    ],
)
def test_a_method_drafts_with_the_head_that_it_names(
    model: str, zoo: dict[str, Path], method: str, variant: int
) -> None:
    named = method.replace("FOLDER", str(zoo["eagle1"]))
    engine = foredraft.load(model, method=named, dtype="float32")
    assert isinstance(model_part(engine), EagleDrafter)
    assert model_part(engine).head.config.variant == variant
    plain = engine.without_drafts().generate(PROMPT, **REQUEST)
    drafted = engine.generate(PROMPT, **REQUEST)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_tokens > 0


def test_a_method_drafts_with_the_draft_model_that_it_names(
    model: str, zoo: dict[str, Path]
) -> None:
    for named in ("draft-model", zoo["draft-model"], model):
        engine = foredraft.load(model, method=f"speculative:drafter={named}", dtype="float32")
        assert isinstance(model_part(engine), DraftModelDrafter)


def test_every_drafter_is_read_once(model: str, zoo: dict[str, Path]) -> None:
    names = ("eagle2", "eagle:drafter=eagle3", "eagle2:drafter=eagle1", "eagle:drafter=FOLDER")
    methods = [parse_method(name.replace("FOLDER", f"{zoo['eagle1']}/.")) for name in names]
    said: list[str] = []
    models = load_models(model, needed=("head",), methods=methods, report=said.append)
    heads = [models.engine(method).drafter.head for method in methods]  # type: ignore[union-attr]
    assert heads[0] is heads[1]
    assert heads[2] is heads[3]
    assert heads[0] is not heads[2]
    assert len([line for line in said if line.startswith("loading head")]) == 2


def test_a_drafter_of_that_name_that_ships_goes_before_a_folder(
    model: str, zoo: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zoo["eagle3"].rename(tmp_path / "eagle1")
    for name, variant in (("eagle1", 1), ("./eagle1", 3)):
        engine = foredraft.load(model, method=f"eagle2:drafter={name}")
        assert isinstance(model_part(engine), EagleDrafter)
        assert model_part(engine).head.config.variant == variant


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            "eagle2:drafter=eagel1",
            "the drafter of eagle2:drafter=eagel1 is neither shipped nor a folder; did you mean 'eagle1'? "
            "available: eagle3, eagle1, draft-model; or give the path of a folder, without a colon, such "
            "as eagle2:drafter=path/to/folder",
        ),
        ("eagle2:drafter=", "the drafter of eagle2:drafter= is neither"),
        ("eagle2:drafter=..", "the drafter given is a draft model"),
        (
            "eagle2:drafter=draft-model",
            "needs an EAGLE head, and the drafter given is a draft model",
        ),
        (
            "speculative:drafter=eagle1",
            "needs a draft model, and the drafter given is an EAGLE head",
        ),
    ],
)
def test_a_drafter_that_a_method_cannot_have(
    model: str, zoo: dict[str, Path], method: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        foredraft.load(model, method=method)
    assert said in str(caught.value)


def test_a_drafter_named_twice_is_refused(model: str, head: str, zoo: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="names a drafter of its own, and another is given"):
        foredraft.load(model, method="eagle2:drafter=eagle1", drafter=head)
    models = load_models(model)
    with pytest.raises(ConfigError, match=r"drafter=eagle1 of method 'eagle2' was not loaded"):
        models.engine(parse_method("eagle2:drafter=eagle1"))


@pytest.mark.parametrize(
    ("name", "what"), [("eagle1", "an EAGLE head"), ("draft-model", "a draft model cut from")]
)
def test_a_drafter_is_no_model(zoo: dict[str, Path], name: str, what: str) -> None:
    for chosen in (None, "ngram", zoo["eagle3"]):
        with pytest.raises(ModelError, match=f"holds {what}.*--drafter"):
            foredraft.load(zoo[name], drafter=chosen)
    with pytest.raises(ModelError, match=f"holds {what}"):
        load_models(str(zoo[name]))


# --- drafters that are given by the name they ship under ---------------------------------------------


@pytest.mark.parametrize(("name", "variant"), [("eagle3", 3), ("eagle1", 1), ("./eagle1", 3)])
@pytest.mark.parametrize("method", [None, "eagle-chain-2"])
def test_a_drafter_is_given_by_its_shipped_name(
    model: str,
    zoo: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    variant: int,
    method: str | None,
) -> None:
    """As in methods, what ships goes before a folder; a path is a folder's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eagle1").symlink_to(zoo["eagle3"])
    engine = foredraft.load(model, drafter=name, method=method)
    assert isinstance(model_part(engine), EagleDrafter)
    assert model_part(engine).head.config.variant == variant


def test_the_shipped_draft_model_is_given_by_its_name(model: str, zoo: dict[str, Path]) -> None:
    engine = foredraft.load(model, drafter="draft-model")
    assert isinstance(model_part(engine), DraftModelDrafter)


def test_the_best_drafter_by_its_name_is_the_best_method(
    model: str, zoo: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    best = "eagle2:depth=2:nodes=4"
    monkeypatch.setattr(drafters.zoo, "BEST_METHODS", {model: best})
    for own in (None, "eagle3"):
        assert best_method(model, own) == "adaptive"
        assert best_method(model, own, verifier="exact") == best
    assert best_method(model, "eagle1", verifier="exact") == "eagle2"
    assert best_method(model, "draft-model", verifier="exact") == "speculative"


def test_all_methods_of_a_run_draft_with_a_shipped_name(model: str, zoo: dict[str, Path]) -> None:
    models = load_models(model, "eagle1", needed=("head",))
    drafter = models.engine(parse_method("eagle2")).drafter
    assert isinstance(drafter, EagleDrafter)
    assert drafter.head.config.variant == 1


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("eagel1", "there is no drafter 'eagel1'; did you mean 'eagle1'?"),
        ("draft_model", "there is no drafter 'draft_model'; did you mean 'draft-model'?"),
        ("ngramm", "there is no drafter 'ngramm'; did you mean 'ngram'?"),
    ],
)
def test_a_nearly_right_name_of_a_drafter_is_recognised(
    model: str, zoo: dict[str, Path], drafter: str, said: str
) -> None:
    for load in (foredraft.load, best_method):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load(model, drafter=drafter)


def test_a_shipped_name_of_another_model_is_not_looked_up(model: str) -> None:
    with pytest.raises(
        ConfigError, match=r"no drafter 'eagle1' ships for this model \(none does\)"
    ):
        foredraft.load(model, drafter="eagle1")
    with pytest.raises(ConfigError, match=r"no drafter 'eagle1' ships"):
        foredraft.load(tiny_llama(), drafter="eagle1")


# --- draft models that were cut from their target ---------------------------------------------------


@pytest.mark.parametrize("ids", [None, torch.arange(1, 268, 2)], ids=["whole", "reduced"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_model_cut_from_its_target_drafts(
    model: str, tmp_path: Path, ids: torch.Tensor | None, temperature: float
) -> None:
    target = foredraft.load(model, drafter="none", dtype="float32").target
    assert isinstance(target, HFTarget)
    student = build_student(target.model, 1, draft_ids=ids, own_head=ids is not None)
    save_student(student, tmp_path / "student")
    engine = foredraft.load(model, drafter=str(tmp_path / "student"), dtype="float32")
    assert isinstance(model_part(engine), DraftModelDrafter)
    drafted_by, answered_by = model_part(engine).model, engine.target
    assert isinstance(drafted_by, HFTarget)
    assert isinstance(answered_by, HFTarget)
    shared = answered_by.model.get_input_embeddings().weight
    assert drafted_by.model.get_input_embeddings().weight.data_ptr() == shared.data_ptr()
    request = {**REQUEST, "temperature": temperature, "seed": 3}
    plain = engine.without_drafts().generate(PROMPT, **request)
    drafted = engine.generate(PROMPT, **request)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_tokens > 0


def test_a_draft_model_of_another_target_is_refused(model: str, tmp_path: Path) -> None:
    save_student(build_student(tiny_llama(), 1), tmp_path / "student")
    with pytest.raises(ModelError, match="97"):
        foredraft.load(model, drafter=str(tmp_path / "student"))
    with pytest.raises(ConfigError, match="dtype='float32' cannot be applied"):
        foredraft.load(tiny_llama(), drafter=str(tmp_path / "student"), dtype="float32")
    with pytest.raises(ConfigError, match="the target is TableModel"):
        foredraft.load(TableModel.random(6), drafter=str(tmp_path / "student"))
