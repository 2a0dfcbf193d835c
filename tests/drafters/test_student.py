"""Draft models cut from their target: what they compute, what they own, and their folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foredraft
from foredraft import GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.student import Student, build_student, pick_layers
from foredraft.drafters.student_files import (
    KIND_FILE,
    is_student_folder,
    load_student,
    save_student,
)
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, ModelError
from tests.tiny_folders import save_folder
from tests.tiny_models import (
    TREE_MODELS,
    VOCAB_SIZE,
    tiny_gemma3,
    tiny_llama,
    tiny_phi,
    tiny_tied_llama,
)

IDS = torch.arange(2, VOCAB_SIZE, 3)
TEXT = torch.tensor([[5, 9, 3, 70, 96, 1, 12, 40]])
OPTIONS = GenerationOptions(max_new_tokens=24, ignore_eos=True)


@pytest.fixture(params=TREE_MODELS)
def target(request: pytest.FixtureRequest) -> Any:
    """Every family that scores trees."""
    return TREE_MODELS[request.param]()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """[T, rows of the head]."""
    found: torch.Tensor = model(TEXT).logits[0]
    return found


def test_with_all_layers_it_is_the_target(target: Any) -> None:
    student = build_student(target, target.config.num_hidden_layers)
    assert logits(student.model).equal(logits(target))


def test_a_reduced_head_has_the_rows_of_its_tokens(target: Any) -> None:
    count = target.config.num_hidden_layers
    for own in (False, True):
        student = build_student(target, count, draft_ids=IDS, own_head=own)
        torch.testing.assert_close(logits(student.model), logits(target)[:, IDS])


def test_only_layers_norms_and_its_own_head_are_owned(target: Any) -> None:
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    student = build_student(target, 1, draft_ids=IDS, own_head=True)
    with torch.no_grad():
        for parameter in student.owned.values():
            parameter.fill_(0.5)
    assert all(before[name].equal(tensor) for name, tensor in target.state_dict().items())
    embedding = student.model.get_input_embeddings().weight
    assert embedding.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    trained = {id(p) for p in student.model.parameters() if p.requires_grad}
    assert trained == {id(p) for p in student.owned.values()}


@pytest.mark.parametrize("ids", [None, IDS])
@pytest.mark.parametrize("own_head", [False, True])
def test_a_bias_of_the_head_stays_the_targets(ids: torch.Tensor | None, own_head: bool) -> None:
    """What is owned is in the model and can be trained, so a bias that nothing trains is not."""
    target = tiny_phi()
    student = build_student(target, 1, draft_ids=ids, own_head=own_head)
    inside = dict(student.model.named_parameters())
    assert all(inside.get(name) is parameter for name, parameter in student.owned.items())
    assert [name for name in student.owned if name.startswith("lm_head.")] == (
        ["lm_head.weight"] if own_head else []
    )
    rows = slice(None) if ids is None else ids
    assert inside["lm_head.bias"].equal(target.lm_head.bias[rows])


def test_layers_are_the_ones_asked_for() -> None:
    target = tiny_gemma3()
    for take, picks in (("first", (0, 1)), ("even", (0, 3)), ("last", (2, 3))):
        student = build_student(target, 2, take)  # type: ignore[arg-type]
        assert student.config.layers == picks
        for place, pick in enumerate(picks):
            ours, theirs = student.model.model.layers[place], target.model.layers[pick]
            assert ours.self_attn.q_proj.weight.equal(theirs.self_attn.q_proj.weight)
            assert ours.self_attn.layer_idx == place
        types = [target.config.layer_types[pick] for pick in picks]
        assert list(student.model.config.layer_types) == types


def test_layers_out_of_range_are_refused() -> None:
    assert pick_layers(30, 3, "even") == (0, 14, 29)
    with pytest.raises(ConfigError, match="the target has 2, give 1 to 2"):
        build_student(tiny_llama(), 3)
    with pytest.raises(ConfigError, match="one of first, even, last"):
        build_student(tiny_llama(), 1, "middle")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "choices",
    [{}, {"draft_ids": IDS}, {"draft_ids": IDS, "own_head": True}, {"own_head": True}],
    ids=["whole", "rows", "own rows", "own"],
)
def test_a_folder_gives_back_what_was_saved(
    target: Any, choices: dict[str, Any], tmp_path: Path
) -> None:
    student = build_student(target, 1, "last", **choices)
    with torch.no_grad():
        for parameter in student.owned.values():
            parameter.copy_(torch.randn_like(parameter).bfloat16())
    save_student(student, tmp_path, int8=False)
    loaded = load_student(tmp_path, target)
    assert loaded.config == student.config
    assert all(loaded.owned[name].equal(p) for name, p in student.owned.items())
    assert logits(loaded.model).equal(logits(student.model))


def test_int8_is_a_quarter_and_near(tmp_path: Path) -> None:
    target = tiny_llama()
    student = build_student(target, 1)
    save_student(student, tmp_path / "a")
    save_student(student, tmp_path / "b", int8=False)
    loaded = load_student(tmp_path / "a", target)
    for name, parameter in student.owned.items():
        step = parameter.abs().amax(-1, keepdim=True) / 127
        assert ((loaded.owned[name] - parameter).abs() <= 0.51 * step + 1e-6).all()
    stored = load_file(tmp_path / "a" / "model.safetensors")
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8
    assert not any("embed" in name for name in stored)


def test_a_folder_does_not_tell_where_its_target_lies(tmp_path: Path) -> None:
    target = tiny_llama()
    target.config._name_or_path = "/somebody/s/models/target"
    save_student(build_student(target, 1), tmp_path)
    assert not any(b"somebody" in file.read_bytes() for file in tmp_path.iterdir())


def test_every_tensor_is_accounted_for(tmp_path: Path) -> None:
    target = tiny_llama()
    save_student(build_student(target, 1, draft_ids=IDS, own_head=True), tmp_path, int8=False)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    for name in whole:
        save_file({k: v for k, v in whole.items() if k != name}, file)
        with pytest.raises(ModelError, match=name if name != "draft_ids" else "and None draft_ids"):
            load_student(tmp_path, target)
    save_file(whole | {"model.extra": torch.zeros(2)}, file)
    with pytest.raises(
        ModelError, match=r"a tensor model\.extra that the draft model has no place"
    ):
        load_student(tmp_path, target)
    save_file(whole | {"model.norm.weight": torch.zeros(3)}, file)
    with pytest.raises(
        ModelError, match=r"model\.norm\.weight has shape \(3,\) instead of \(32,\)"
    ):
        load_student(tmp_path, target)
    save_file(whole | {"draft_ids": whole["draft_ids"].flip(0)}, file)
    with pytest.raises(ModelError, match="not increasing token ids"):
        load_student(tmp_path, target)
    save_file(whole | {"model.norm.weight": whole["model.norm.weight"].long()}, file)
    with pytest.raises(ModelError, match=r"model\.norm\.weight holds torch.int64"):
        load_student(tmp_path, target)
    save_file(whole | {"model.norm.weight": whole["model.norm.weight"] * torch.nan}, file)
    with pytest.raises(ModelError, match=r"numbers in model\.norm\.weight that are not finite"):
        load_student(tmp_path, target)


def test_head_rows_and_config_must_agree(tmp_path: Path) -> None:
    """Case 86: a vocabulary map of another size is found out."""
    target = tiny_llama()
    save_student(build_student(target, 1, draft_ids=IDS), tmp_path)
    facts = json.loads((tmp_path / KIND_FILE).read_text())
    (tmp_path / KIND_FILE).write_text(json.dumps(facts | {"draft_vocab_size": 40}))
    with pytest.raises(ModelError, match=f"draft_vocab_size 40 in .* and {len(IDS)} draft_ids"):
        load_student(tmp_path, target)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda: tiny_llama(num_hidden_layers=3), "num_hidden_layers 2, and this one has 3"),
        (lambda: tiny_llama(hidden_size=16), "hidden_size 32, and this one has 16"),
        (lambda: tiny_llama(vocab_size=98), "vocab_size 97, and this one has 98"),
        (tiny_gemma3, "architecture LlamaForCausalLM, and this one has Gemma3ForCausalLM"),
    ],
)
def test_another_target_is_refused(other: Callable[[], Any], named: str, tmp_path: Path) -> None:
    save_student(build_student(tiny_llama(), 1), tmp_path)
    with pytest.raises(ModelError, match=named):
        load_student(tmp_path, other())


def test_other_folders_are_no_students(tmp_path: Path) -> None:
    save_folder(tmp_path / "model")
    assert not is_student_folder(tmp_path / "model")
    assert not is_student_folder(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="holds no draft model that can be read"):
        load_student(tmp_path / "model", tiny_llama())


@pytest.mark.parametrize("draft_ids", [None, IDS], ids=["whole", "reduced"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_drafts_and_the_text_stays(
    target: Any, draft_ids: torch.Tensor | None, temperature: float
) -> None:
    student = Student(build_student(target, 1, draft_ids=draft_ids))
    assert student.scores_trees
    options = OPTIONS.replace(temperature=temperature, seed=3)
    hf = HFTarget(target)
    drafter = DraftModelDrafter(student)
    assert Engine(hf, drafter).generate(TEXT[0].tolist(), options).token_ids == (
        Engine(hf).generate(TEXT[0].tolist(), options).token_ids
    )


def test_a_student_with_all_layers_is_always_right() -> None:
    """A reduced head drafts what the target would say, wherever its vocabulary has it."""
    target = tiny_tied_llama()
    hf, prompt = HFTarget(target), TEXT[0].tolist()
    text = Engine(hf).generate(prompt, OPTIONS).token_ids
    ids = torch.tensor(sorted({*text, 90, 91}))
    student = Student(build_student(target, 2, draft_ids=ids))
    engine = Engine(hf, DraftModelDrafter(student))
    result = engine.generate(prompt, OPTIONS)
    assert result.token_ids == text
    assert result.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("int8", [False, True])
def test_a_folder_is_a_drafter(int8: bool, tmp_path: Path) -> None:
    save_folder(tmp_path / "model")
    plain = foredraft.load(tmp_path / "model", drafter="none", dtype="float32")
    student = build_student(plain.target.model, 1, draft_ids=torch.arange(3, 200, 2))
    save_student(student, tmp_path / "draft", int8=int8)
    engine = foredraft.load(
        tmp_path / "model", method="speculative", drafter=tmp_path / "draft", dtype="float32"
    )
    assert isinstance(engine.drafter, DraftModelDrafter)
    assert engine.drafter.target_ids is not None
    for prompt in ("the cat sat", "on the mat"):
        ours, theirs = engine.generate(prompt, OPTIONS), plain.generate(prompt, OPTIONS)
        assert ours.token_ids == theirs.token_ids
        assert ours.stats.drafted_tokens > 0
