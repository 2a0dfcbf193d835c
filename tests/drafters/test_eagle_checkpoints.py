"""Head folders: every tensor accounted for, whatever the dialect, and files that are no heads.

The case numbers are those of the list of cases that must come out right, section H.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from foredraft.drafters.eagle.checkpoint import is_head_folder, load_head, save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ModelError
from tests.drafters.head_folders import (
    DIALECTS,
    DRAFT_SIZE,
    LAYERS,
    Files,
    eagle1,
    eagle3,
    load,
    refusal,
    same_weights,
    target,
    write,
)
from tests.tiny_models import VOCAB_SIZE, tiny_gemma3, tiny_llama, tiny_tied_llama

# --- 67: the draft vocabulary -----------------------------------------------------------------------


def test_draft_vocabulary_by_field_or_by_shape(tmp_path: Path) -> None:
    config, tensors = eagle3()
    del_field = {name: value for name, value in config.items() if name != "draft_vocab_size"}
    for named in (config, del_field, config | {"draft_vocab_size": None}):
        head = load(tmp_path, (named, tensors))
        assert head.config.draft_vocab_size == DRAFT_SIZE
        assert head.logits(torch.zeros(1, 32)).shape == (1, DRAFT_SIZE)


@pytest.mark.parametrize("wrong", [31, 33, VOCAB_SIZE])
def test_a_draft_vocabulary_of_another_size_is_refused(tmp_path: Path, wrong: int) -> None:
    config, tensors = eagle3()
    message = refusal(tmp_path, (config | {"draft_vocab_size": wrong}, tensors))
    assert str(wrong) in message
    assert str(DRAFT_SIZE) in message


# --- 68: every tensor -------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_tensor_is_needed(tmp_path: Path, dialect: str) -> None:
    config, tensors = DIALECTS[dialect]()
    for name in tensors:
        files = config, {other: t for other, t in tensors.items() if other != name}
        if name == "t2d":  # follows from d2t
            assert load(tmp_path, files).target_ids is not None
            continue
        message = refusal(tmp_path, files)
        own = name.replace("layers.0.", "midlayer.").replace("transformer.", "midlayer.")
        assert own.replace("fusion_fc.", "fc.") in message
        assert "missing" in message


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unknown_and_misshapen_tensors_are_named_together(tmp_path: Path, dialect: str) -> None:
    config, tensors = DIALECTS[dialect]()
    down = next(name for name in tensors if "down_proj" in name)
    wrong = {**tensors, down: torch.zeros(3, 4), "embed_norm.weight": torch.ones(32)}
    message = refusal(tmp_path, (config, wrong))
    assert "embed_norm.weight is unknown" in message
    assert "midlayer.mlp.down_proj.weight has the shape [3, 4] where [32, 40]" in message


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_set_of_lost_tensors_is_named_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config, tensors = eagle3()
    needed = sorted(tensors.keys() - {"t2d", "d2t", "fc.weight", "lm_head.weight"})
    lost = data.draw(st.sets(st.sampled_from(needed), min_size=1, max_size=6))
    left = {name: tensor for name, tensor in tensors.items() if name not in lost}
    message = refusal(tmp_path_factory.getbasetemp() / "lost", (config, left))
    assert all(f"{name} is missing" in message for name in lost)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    config, tensors = eagle3()
    files = config, {**tensors, "norm.weight": torch.ones(32, dtype=torch.int64)}
    assert "norm.weight holds torch.int64" in refusal(tmp_path, files)


def test_rotary_buffers_are_known(tmp_path: Path) -> None:
    config, tensors = eagle1()
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    load(tmp_path, (config, tensors))


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    config, tensors = eagle1()
    files = config, {**tensors, "fusion_fc.weight": tensors["fc.weight"] + 1}
    assert "fc.weight twice" in refusal(tmp_path, files)


# --- 69, 70: whose ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_own_embeddings_are_used(tmp_path: Path, dialect: str) -> None:
    config, tensors = DIALECTS[dialect]()
    borrowing = load(tmp_path, (config, tensors))
    assert borrowing.embed_tokens is target().get_input_embeddings()
    own = torch.randn(VOCAB_SIZE, 32)
    head = load(tmp_path, (config, {**tensors, "embed_tokens.weight": own}))
    assert torch.equal(head.embed(torch.tensor([5])), own[5:6])


def test_an_own_head_of_eagle1_is_used(tmp_path: Path) -> None:
    config, tensors = eagle1()
    hidden, own = torch.randn(2, 32), torch.randn(VOCAB_SIZE, 32)
    borrowed = load(tmp_path, (config, tensors)).logits(hidden)
    torch.testing.assert_close(borrowed, target().get_output_embeddings()(hidden))
    head = load(tmp_path, (config, {**tensors, "lm_head.weight": own}))
    torch.testing.assert_close(head.logits(hidden), hidden @ own.T)


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
@pytest.mark.parametrize("model", [tiny_tied_llama, tiny_gemma3], ids=["llama", "gemma3"])
def test_a_head_for_a_tied_target_stays_untied(tmp_path: Path, layout: Any, model: Any) -> None:
    tied = model()
    ids = torch.arange(1, 2 * DRAFT_SIZE, 2)
    head = EagleHead.for_target(tied, 3, draft_ids=ids)
    save_head(head, tmp_path, layout)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(document | {"tie_word_embeddings": True}))
    again = load_head(tmp_path, tied)
    assert again.lm_head.weight.shape == (DRAFT_SIZE, 32)
    assert same_weights(head, again)
    one = EagleHead.for_target(tied, 1)
    save_head(one, tmp_path, layout)
    assert same_weights(one, load_head(tmp_path, tied))


# --- the target, the folder, the files --------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_head_of_another_target_is_refused(tmp_path: Path, dialect: str) -> None:
    wide = tiny_llama(hidden_size=64, num_hidden_layers=LAYERS)
    message = refusal(tmp_path, DIALECTS[dialect](), wide)
    assert "32" in message
    assert "64" in message
    more = tiny_llama(vocab_size=VOCAB_SIZE + 1, num_hidden_layers=LAYERS)
    message = refusal(tmp_path, DIALECTS[dialect](), more)
    assert str(VOCAB_SIZE) in message
    assert str(VOCAB_SIZE + 1) in message


def test_a_head_takes_the_targets_dtype(tmp_path: Path) -> None:
    model = tiny_llama(dtype=torch.bfloat16, num_hidden_layers=LAYERS)
    head = load(tmp_path, eagle3(), model)
    assert {p.dtype for p in head.parameters()} == {torch.bfloat16}
    assert not head.training


@pytest.mark.parametrize("files", [eagle1(), eagle3()], ids=["1", "3"])
def test_pickles_and_parts_read_like_safetensors(tmp_path: Path, files: Files) -> None:
    expected = load(tmp_path / "whole", files)
    config, tensors = files
    names = sorted(tensors)
    halves = ({n: tensors[n] for n in names[::2]}, {n: tensors[n] for n in names[1::2]})
    for kind, save in (("model.safetensors", save_file), ("pytorch_model.bin", torch.save)):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save(tensors, folder / kind)
        assert same_weights(expected, load_head(folder, target()))
        assert is_head_folder(folder)
        (folder / kind).unlink()
        weight_map = {n: f"part-{i}{Path(kind).suffix}" for i in range(2) for n in halves[i]}
        for i in range(2):
            save(halves[i], folder / f"part-{i}{Path(kind).suffix}")
        index = folder / f"{kind}.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        assert same_weights(expected, load_head(folder, target()))
        (folder / f"part-1{Path(kind).suffix}").unlink()
        with pytest.raises(ModelError, match="part-1"):
            load_head(folder, target())


@pytest.mark.parametrize("archive", [True, False])
def test_pickles_of_every_age_are_read(tmp_path: Path, archive: bool) -> None:
    """Archives are mapped, so that finding out what a large model is reads little of it."""
    config, tensors = eagle3()
    expected = load(tmp_path / "whole", (config, tensors))
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "pytorch_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=archive)
    assert is_head_folder(folder)
    head = load_head(folder, target())
    assert same_weights(expected, head)
    before = file.read_bytes()
    with torch.no_grad():
        head.fc.weight.fill_(7.0)  # as training does
    assert file.read_bytes() == before


class Trap:
    """A pickle that would leave a mark if it were run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (str(self.mark),)


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    config, tensors = eagle1()
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({**tensors, "more": Trap(tmp_path / "mark")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="more than tensors"):
        load_head(tmp_path, target())
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", "\udcff"),
        ("model.safetensors", "nothing"),
        ("model.safetensors", ""),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: str) -> None:
    write(tmp_path, eagle1())
    (tmp_path / file).write_text(content, errors="surrogateescape")
    with pytest.raises(ModelError, match=file):
        load_head(tmp_path, target())


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "32"},
        {"num_attention_heads": 4.0},
        {"num_attention_heads": 5},
        {"rms_norm_eps": "small"},
        {"norm_output": 1},
        {"hidden_act": "swish-9"},
        {"head_dim": -8},
    ],
    ids=str,
)
def test_impossible_fields_are_errors_of_the_head(tmp_path: Path, change: dict[str, Any]) -> None:
    config, tensors = eagle3()
    assert next(iter(change)) in refusal(tmp_path, (config | change, tensors))


def test_folders_that_are_no_heads(tmp_path: Path) -> None:
    model = tmp_path / "model"
    target().save_pretrained(model)
    empty = tmp_path / "empty"
    empty.mkdir()
    no_weights = tmp_path / "no weights"
    no_weights.mkdir()
    (no_weights / "config.json").write_text("{}")
    for folder in (
        model,
        empty,
        no_weights,
        tmp_path / "nowhere",
        tmp_path / "model" / "config.json",
    ):
        assert not is_head_folder(folder)
        with pytest.raises(ModelError):
            load_head(folder, target())
    with pytest.raises(ModelError, match="no EAGLE head"):
        load_head(model, target())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_head_folders_are_known(tmp_path: Path, dialect: str) -> None:
    assert is_head_folder(write(tmp_path, DIALECTS[dialect]()))


def test_fields_left_out_are_read_off_the_tensors(tmp_path: Path) -> None:
    config, tensors = eagle3()
    expected = load(tmp_path, (config, tensors)).config
    for name in ("hidden_size", "intermediate_size", "hidden_act", "vocab_size"):
        left = {key: value for key, value in config.items() if key != name}
        assert load(tmp_path, (left, tensors)).config == expected


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(
    dialect: str, value: float, tmp_path: Path
) -> None:
    """Such a head would draft nothing, or nothing that is accepted, without a word."""
    config, tensors = DIALECTS[dialect]()
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    broken = tensors[name].clone()
    broken.flatten()[-1] = value
    message = refusal(tmp_path, (config, tensors | {name: broken}))
    assert f"numbers in {name} that are not finite" in message
