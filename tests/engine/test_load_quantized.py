"""Engines with quantised weights: whatever drafts, the text is that of the rounded target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import foredraft
from foredraft.backends.identity import quantization_of
from foredraft.backends.quantized import QuantizedHead, QuantizedLinear
from foredraft.config import GenerationOptions
from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.student import build_student
from foredraft.drafters.student_files import save_student
from foredraft.engine.cost_files import dtype_of
from foredraft.engine.load import load_models
from foredraft.errors import ConfigError, ModelError
from tests.tiny_folders import save_folder
from tests.tiny_models import tiny_llama

PROMPT = "the cat sat on the mat the cat"
KINDS = ("int8", "int4")
REQUESTS = {
    "greedy": GenerationOptions(max_new_tokens=20, ignore_eos=True),
    "sampled": GenerationOptions(max_new_tokens=20, ignore_eos=True, temperature=0.8, seed=3),
}
RECIPES: dict[str, dict[str, str]] = {
    "copies": {"method": "ngram"},
    "chain": {"method": "speculative", "drafter": "draft"},
    "tree": {"method": "speculative", "drafter": "draft", "tree": "4,2,2"},
    "selected tree": {"method": "eagle2:nodes=12", "drafter": "head"},
    "borrowed rows": {"method": "eagle", "drafter": "head-1"},
    "student": {"method": "speculative", "drafter": "student"},
}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft model, two heads and a student, each in its folder."""
    place = tmp_path_factory.mktemp("tied" if request.param else "untied")
    save_folder(place / "target", tie_word_embeddings=request.param)
    save_folder(place / "draft", seed=1)
    model = load_models(place / "target", dtype="float32").target.model  # type: ignore[attr-defined]
    few = torch.arange(0, model.config.vocab_size, 2)
    save_head(EagleHead.for_target(model, 3, draft_ids=few), place / "head")
    save_head(EagleHead.for_target(model, 1), place / "head-1")
    student = build_student(model, 1, draft_ids=few, own_head=True)
    save_student(student, place / "student")
    return place


def load(place: Path, kind: str | None, recipe: dict[str, str]) -> Any:
    named = dict(recipe)
    if named.get("drafter", "none") != "none":
        named["drafter"] = str(place / named["drafter"])
    return foredraft.load(place / "target", dtype="float32", quantize=kind, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_drafts_change_nothing(place: Path, recipe: dict[str, str]) -> None:
    """With either kind, and with either head: that is int8 with both kinds."""
    kind = KINDS["untied" in place.name]
    engine = load(place, kind, recipe)
    assert quantization_of(engine.target.model) == kind
    for options in REQUESTS.values():
        drafted = engine.generate(PROMPT, options)
        plain = engine.without_drafts().generate(PROMPT, options)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_drafter_is_rounded_likewise(place: Path, kind: str) -> None:
    models = load_models(
        place / "target", place / "draft", dtype="float32", needed=["draft model"], quantize=kind
    )
    assert quantization_of(models.draft_model.model) == kind  # type: ignore[union-attr]
    student = load(place, kind, RECIPES["student"]).drafter.model.model
    assert isinstance(student.get_output_embeddings(), QuantizedHead)
    head = load(place, kind, RECIPES["selected tree"]).drafter.head
    assert isinstance(head.fc, QuantizedLinear)


def test_a_quantised_text_is_not_the_originals(place: Path) -> None:
    """Else nothing above would say anything."""
    options = REQUESTS["greedy"]
    texts = [
        load(place, kind, {"drafter": "none"}).generate(PROMPT, options).token_ids
        for kind in (None, "int4")
    ]
    assert texts[0] != texts[1]


def test_the_dtype_that_is_shown_and_kept_says_so(place: Path) -> None:
    names = [dtype_of(load(place, kind, {"drafter": "none"}).target) for kind in (None, *KINDS)]
    assert names == ["float32", "float32 with int8 weights", "float32 with int4 weights"]


def test_a_model_that_the_user_holds_is_left_alone() -> None:
    model = tiny_llama()
    with pytest.raises(ConfigError, match="quantize='int8' cannot be applied to an already loaded"):
        foredraft.load(model, quantize="int8")
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())


def test_an_unknown_kind_is_refused_before_loading() -> None:
    with pytest.raises(ConfigError, match="quantize='int2' is not allowed"):
        foredraft.load("no/such-model", quantize="int2")


def test_a_rounded_head_is_not_saved(place: Path, tmp_path: Path) -> None:
    head = load(place, "int8", RECIPES["selected tree"]).drafter.head
    with pytest.raises(ModelError, match="cannot be saved"):
        save_head(head, tmp_path / "out")
