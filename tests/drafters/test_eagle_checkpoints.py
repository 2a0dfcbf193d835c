"""Head folders: every tensor accounted for, whatever the dialect, and nothing lost by saving.

The case numbers are those of the list of cases that must come out right, section H.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    Qwen2Config,
)

from foredraft.drafters import int8_rows
from foredraft.drafters.eagle.checkpoint import (
    LAYOUTS,
    is_head_folder,
    load_head,
    read_recipe,
    save_head,
)
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ConfigError, ModelError
from tests.eagle_checkpoints import CONFIG, eagle1_tensors, eagle3_tensors, speculators_config
from tests.tiny_models import SMALL, VOCAB_SIZE, build, tiny_gemma3, tiny_llama, tiny_tied_llama

DRAFT_SIZE = 32
LAYERS = 8
PUBLISHED_TAPS = (2, 4, 5)
Files = tuple[dict[str, Any], dict[str, Tensor]]


@cache
def target() -> Any:
    return tiny_llama(num_hidden_layers=LAYERS)


def eagle1(**changes: Any) -> Files:
    """config.json and tensors of an EAGLE-1 or -2 head, whose config is that of a Llama."""
    config = CONFIG | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | changes
    return config, eagle1_tensors(config, bias=config.get("bias", True))


def eagle3(**changes: Any) -> Files:
    """The same of an EAGLE-3 head with a draft vocabulary of 32."""
    config = CONFIG | {"draft_vocab_size": DRAFT_SIZE} | changes
    return config, eagle3_tensors(config)


def speculators3(**changes: Any) -> Files:
    """The same in the dialect of `speculators`."""
    config, tensors = eagle3(**changes)
    renamed = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    return speculators_config(config), renamed


def speculators1() -> Files:
    """An EAGLE-1 head in that dialect, without the bias of fc."""
    _, tensors = eagle1(bias=False)
    renamed = {
        name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer."): tensor
        for name, tensor in tensors.items()
    }
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "transformer_layer_config": dict(CONFIG),
        "layernorms": False,
        "fusion_bias": False,
    }
    return config, renamed


DIALECTS = {
    "eagle1": eagle1,
    "eagle3": eagle3,
    "speculators1": speculators1,
    "speculators3": speculators3,
}


def write(folder: Path, files: Files) -> Path:
    """A folder as it is published."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files[0]))
    save_file({name: t.contiguous() for name, t in files[1].items()}, folder / "model.safetensors")
    return folder


def load(folder: Path, files: Files, model: Any = None, **options: Any) -> EagleHead:
    return load_head(write(folder, files), model or target(), **options)


def refusal(folder: Path, files: Files, model: Any = None, **options: Any) -> str:
    """The message with which these files are refused."""
    with pytest.raises(ModelError) as caught:
        load(folder, files, model, **options)
    return str(caught.value)


def same_weights(one: EagleHead, other: EagleHead) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) and tensor.dtype == second[name].dtype
        for name, tensor in first.items()
    )


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


# --- 71: which variant ------------------------------------------------------------------------------

DECLARED = {
    1: [
        {"architectures": ["EagleLlamaForCausalLM"]},
        {"model_type": "eagle"},
        {"speculators_model_type": "eagle"},
    ],
    3: [
        {"architectures": ["LlamaForCausalLMEagle3"]},
        {"architectures": ["Eagle3Speculator"]},
        {"speculators_model_type": "eagle3"},
    ],
}


@pytest.mark.parametrize("found", [1, 3])
@pytest.mark.parametrize("declared", [1, 3])
def test_a_declared_variant_must_be_the_tensors_own(
    tmp_path: Path, found: int, declared: int
) -> None:
    config, tensors = eagle1(bias=False) if found == 1 else eagle3()
    for declaration in DECLARED[declared]:
        files = config | declaration, tensors
        if found == declared:
            assert load(tmp_path, files).config.variant == found
        else:
            message = refusal(tmp_path, files)
            assert f"says EAGLE-{declared}" in message
            assert f"look like an EAGLE-{found}" in message


@pytest.mark.parametrize("asked", [1, 2, 3])
@pytest.mark.parametrize("found", [1, 3])
def test_the_callers_variant_must_be_the_heads(tmp_path: Path, asked: Any, found: int) -> None:
    files = eagle1() if found == 1 else eagle3()
    if (asked == 3) == (found == 3):
        assert load(tmp_path, files, variant=asked).config.variant == found
    else:
        assert f"EAGLE-{found}" in refusal(tmp_path, files, variant=asked)


def test_the_bias_of_fc_follows_the_config(tmp_path: Path) -> None:
    with_bias, without = eagle1(), eagle1(bias=False)
    assert load(tmp_path, with_bias).fc.bias is not None
    assert load(tmp_path, without).fc.bias is None
    assert '"bias": false' in refusal(tmp_path, (with_bias[0], without[1]))
    assert "fc.bias is unknown" in refusal(tmp_path, (without[0], with_bias[1]))


def test_biases_of_attention_are_loaded_and_not_skipped(tmp_path: Path) -> None:
    config, tensors = eagle1()
    biases = {
        f"layers.0.self_attn.{n}_proj.bias": torch.randn(s)
        for n, s in zip("qkv", (32, 16, 16), strict=True)
    }
    for named in (config, config | {"qkv_bias": True}):
        head = load(tmp_path, (named, tensors | biases))
        bias = head.midlayer.self_attn.q_proj.bias
        assert torch.equal(bias, biases["layers.0.self_attn.q_proj.bias"])
        assert head.midlayer.self_attn.o_proj.bias is None
    message = refusal(tmp_path, (config | {"attention_bias": True}, tensors | biases))
    assert "midlayer.self_attn.o_proj.bias is missing" in message
    assert "q_proj.bias is unknown" in refusal(
        tmp_path, (config | {"attention_bias": False}, tensors | biases)
    )


@pytest.mark.parametrize("flag", ["norm_before_fc", "fc_norm"])
def test_norms_are_found_or_demanded(tmp_path: Path, flag: str) -> None:
    config, with_norm = speculators3(**{flag: True})
    _, without = speculators3()
    undeclared = {name: value for name, value in config.items() if name != flag}
    assert getattr(load(tmp_path, (config, with_norm)).config, flag)
    assert getattr(load(tmp_path, (undeclared, with_norm)).config, flag)
    assert "is missing" in refusal(tmp_path, (config, without))
    assert "is unknown" in refusal(tmp_path, (config | {flag: False}, with_norm))


# --- 72: rope, taps, maps ---------------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize("dialect", [eagle3, speculators3])
@pytest.mark.parametrize(
    ("rope", "theta"),
    [
        ({"rope_theta": 500.0}, 500.0),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 500.0}}, 500.0),
        ({"rope_theta": 500.0, "rope_scaling": None, "rope_parameters": None}, 500.0),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 9}}, 9),
        ({"rope_theta": None}, 10000.0),
    ],
)
def test_theta_wherever_it_stands(
    tmp_path: Path, dialect: Any, rope: dict[str, Any], theta: float
) -> None:
    head = load(tmp_path, dialect(**rope))
    assert head.config.rope_parameters == {"rope_type": "default", "rope_theta": theta}
    cos, _ = head.rotary(torch.tensor([1]))
    torch.testing.assert_close(cos[0, 1], torch.tensor(theta**-0.25).cos())


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_static_scalings_load_in_both_spellings(tmp_path: Path, key: str) -> None:
    head = load(tmp_path, eagle3(**{key: LLAMA3}))
    assert head.config.rope_parameters == LLAMA3 | {"rope_theta": 500.0}
    older = {"type": "linear", "factor": 2.0}
    assert (
        load(tmp_path, eagle3(rope_scaling=older)).config.rope_parameters["rope_type"] == "linear"
    )


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}},
        {"rope_scaling": {"type": "su"}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": "linear"},
        {"rope_theta": "10000"},
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
    ],
    ids=str,
)
def test_other_rotary_embeddings_are_refused(tmp_path: Path, rope: dict[str, Any]) -> None:
    assert "rope" in refusal(tmp_path, eagle3(**rope))


@pytest.mark.parametrize("name", ["eagle_aux_hidden_state_layer_ids", "eagle_config"])
@pytest.mark.parametrize("dialect", [eagle3, speculators3])
def test_taps_by_default_by_name_or_nested(tmp_path: Path, name: str, dialect: Any) -> None:
    config, tensors = dialect()
    field = "eagle_aux_hidden_state_layer_ids"
    for value, taps in ((None, PUBLISHED_TAPS), ([0, 3, 8], (0, 3, 8))):
        named = {name: {field: value}} if name == "eagle_config" else {name: value}
        assert load(tmp_path, (config | named, tensors)).config.taps == taps
    assert load(tmp_path, (config, tensors)).config.taps == PUBLISHED_TAPS


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2], "3 hidden states"),
        ([1, 2, 9], "before layer 9"),
        ([-1, 2, 3], "before layer -1"),
        (5, "5, not a list"),
        (["1"], "not a list"),
    ],
)
def test_impossible_taps_are_refused(tmp_path: Path, ids: Any, words: str) -> None:
    assert words in refusal(tmp_path, eagle3(eagle_aux_hidden_state_layer_ids=ids))


def test_another_number_of_taps_must_be_named(tmp_path: Path) -> None:
    config, tensors = eagle3()
    tensors["fc.weight"] = torch.randn(32, 2 * 32)
    assert "2 hidden states" in refusal(tmp_path, (config, tensors))
    named = config | {"eagle_aux_hidden_state_layer_ids": [1, 6]}
    head = load(tmp_path, (named, tensors))
    assert head.config.taps == (1, 6)
    assert head.fuse(torch.zeros(1, 64)).shape == (1, 32)


def test_a_target_too_shallow_for_the_published_taps(tmp_path: Path) -> None:
    assert "2 layers" in refusal(tmp_path, eagle3(), tiny_llama())


def test_the_map_may_be_left_out_with_the_full_vocabulary(tmp_path: Path) -> None:
    config, tensors = eagle3(draft_vocab_size=VOCAB_SIZE)
    zeros = {"d2t": torch.zeros(VOCAB_SIZE, dtype=torch.int64)}
    zeros["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    for maps in ({}, zeros):
        head = load(tmp_path, (config, tensors | maps))
        assert head.target_ids is None
        assert not head.config.is_reduced


def test_the_map_is_what_d2t_says(tmp_path: Path) -> None:
    config, tensors = eagle3()
    head = load(tmp_path, (config, tensors))
    assert head.target_ids is not None
    assert torch.equal(head.target_ids, tensors["t2d"].nonzero()[:, 0])


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_damaged_map_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config, tensors = eagle3()
    place = data.draw(st.integers(0, DRAFT_SIZE - 1))
    change = data.draw(st.integers(-2 * VOCAB_SIZE, 2 * VOCAB_SIZE).filter(bool))
    tensors["d2t"][place] += change
    message = refusal(tmp_path_factory.getbasetemp() / "maps", (config, tensors))
    assert "d2t" in message


def test_a_map_that_repeats_is_refused_even_without_t2d(tmp_path: Path) -> None:
    config, tensors = eagle3()
    del tensors["t2d"]
    tensors["d2t"][1] = tensors["d2t"][0] - 1
    assert "draft ids 0 and 1" in refusal(tmp_path, (config, tensors))


@pytest.mark.parametrize("name", ["d2t", "t2d"])
def test_a_map_of_another_size_is_refused(tmp_path: Path, name: str) -> None:
    config, tensors = eagle3()
    tensors[name] = tensors[name][:-1]
    assert name in refusal(tmp_path, (config, tensors))


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


# --- saving -----------------------------------------------------------------------------------------

IDS = torch.arange(0, VOCAB_SIZE, 3)
MADE: dict[str, dict[str, Any]] = {
    "1": {"variant": 1},
    "1 own head": {"variant": 1, "own_lm_head": True},
    "3": {"variant": 3, "draft_ids": IDS},
    "3 full": {"variant": 3},
    "3 borrowed": {"variant": 3, "draft_ids": IDS, "own_lm_head": False},
    "3 two taps": {"variant": 3, "taps": (0, LAYERS), "fc_norm": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", MADE)
def test_a_saved_head_comes_back(tmp_path: Path, layout: Any, made: str) -> None:
    head = EagleHead.for_target(target(), **MADE[made])
    save_head(head, tmp_path, layout)
    assert is_head_folder(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    again = load_head(tmp_path, target())
    assert again.config == head.config
    hidden = torch.randn(3, 32)
    if layout != "foredraft":
        weights = again.state_dict()
        assert all(torch.equal(weights[name], own) for name, own in head.state_dict().items())
        assert torch.equal(again.logits(hidden), head.logits(hidden))
    else:
        assert again.own_lm_head == head.own_lm_head
        for name, weight in head.state_dict().items():
            error = (again.state_dict()[name] - weight).abs().amax(-1)
            assert (error <= weight.abs().amax(-1) / 254 * 1.01).all(), name


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("layout", ["eagle", "speculators"])
@pytest.mark.parametrize("embeddings", [False, True])
def test_published_heads_go_through_every_layout(
    tmp_path: Path, dialect: str, layout: Any, embeddings: bool
) -> None:
    config, tensors = DIALECTS[dialect]()
    if embeddings:
        tensors["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, 32)
    head = load(tmp_path / "published", (config, tensors))
    save_head(head, tmp_path / "saved", layout)
    again = load_head(tmp_path / "saved", target())
    assert again.config == head.config
    assert same_weights(head, again)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", [1, 3])
def test_a_head_has_the_biases_of_its_target(tmp_path: Path, layout: Any, variant: Any) -> None:
    model = build(Qwen2Config(**SMALL))  # q, k and v have a bias, the output projection has none
    with torch.no_grad():
        model.model.layers[-1].self_attn.q_proj.bias.normal_()
    head = EagleHead.for_target(model, variant)
    own = head.midlayer.self_attn
    assert torch.equal(own.q_proj.bias, model.model.layers[-1].self_attn.q_proj.bias)
    assert own.o_proj.bias is None
    save_head(head, tmp_path, layout)
    again = load_head(tmp_path, model)
    assert again.config == head.config
    assert torch.equal(again.midlayer.self_attn.q_proj.bias, own.q_proj.bias)


def test_a_head_trained_in_bfloat16_is_saved_as_it_is(tmp_path: Path) -> None:
    model = tiny_llama(dtype=torch.bfloat16, num_hidden_layers=LAYERS)
    head = EagleHead.for_target(model, 3)
    save_head(head, tmp_path)
    assert same_weights(head, load_head(tmp_path, model))


@pytest.mark.parametrize(
    "flags", [{"rope_scaling": LLAMA3}, {"attention_bias": True}, {"mlp_bias": True}]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_fact_of_a_config_survives(
    tmp_path: Path, flags: dict[str, Any], layout: Any
) -> None:
    config, tensors = eagle3(
        norm_before_residual=True, norm_output=True, hidden_act="gelu", **flags
    )
    sizes = {"q": 32, "k": 16, "v": 16, "o": 32}
    if "attention_bias" in flags:
        tensors |= {f"midlayer.self_attn.{n}_proj.bias": torch.ones(s) for n, s in sizes.items()}
    if "mlp_bias" in flags:
        sizes = {"gate": 40, "up": 40, "down": 32}
        tensors |= {f"midlayer.mlp.{n}_proj.bias": torch.ones(s) for n, s in sizes.items()}
    head = load(tmp_path, (config, tensors))
    save_head(head, tmp_path / "saved", layout)
    assert load_head(tmp_path / "saved", target()).config == head.config


def test_the_targets_embeddings_are_written_when_asked_alone(tmp_path: Path) -> None:
    head = EagleHead.for_target(tiny_tied_llama(), 3)
    save_head(head, tmp_path)
    assert "embed_tokens.weight" not in load_file(tmp_path / "model.safetensors")
    save_head(head, tmp_path, with_embeddings=True)
    written = load_file(tmp_path / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, head.embed_tokens.weight)


def test_the_compact_layout_is_small_and_keeps_its_recipe(tmp_path: Path) -> None:
    head = EagleHead.for_target(target(), 3, draft_ids=IDS, own_lm_head=False)
    recipe = {"steps": 3, "data": {"tokens": 100}}
    save_head(head, tmp_path, "foredraft", recipe=recipe)
    assert read_recipe(tmp_path) == recipe
    stored = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert stored["fc.weight"].dtype == torch.int8
    again = load_head(tmp_path, target())
    hidden = torch.randn(2, 32)
    expected = target().get_output_embeddings()(again.norm(hidden))[:, IDS]
    torch.testing.assert_close(again.logits(hidden), expected)


def test_saving_again_replaces_the_files_whole(tmp_path: Path) -> None:
    save_head(EagleHead.for_target(target(), 1), tmp_path)
    (tmp_path / "notes.md").write_text("mine")
    head = EagleHead.for_target(target(), 3, draft_ids=IDS)
    save_head(head, tmp_path)
    assert same_weights(head, load_head(tmp_path, target()))
    assert (tmp_path / "notes.md").read_text() == "mine"


BORROWED = {
    "plain": lambda: build(LlamaConfig(**SMALL)),
    "scaled": lambda: build(GraniteConfig(**SMALL, logits_scaling=4.0)),
    "multiplied": lambda: build(CohereConfig(**SMALL, logit_scale=0.3)),
    "capped": lambda: build(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0)),
    "shifted": lambda: build(PhiConfig(**SMALL | {"num_key_value_heads": 4})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", BORROWED)
@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
def test_a_borrowed_head_says_the_same_in_every_layout_or_is_refused(
    tmp_path: Path, layout: Any, family: str, ids: torch.Tensor | None
) -> None:
    """Whatever the target does to its logits, a saved head does too."""
    model = BORROWED[family]()
    if family == "shifted":
        torch.nn.init.normal_(model.lm_head.bias)
    head = EagleHead.for_target(model, 3, draft_ids=ids, own_lm_head=False)
    if layout != "foredraft" and family in ("capped", "shifted"):
        with pytest.raises(ConfigError, match="cannot say so, save it as 'foredraft'"):
            save_head(head, tmp_path, layout)
        return
    save_head(head, tmp_path, layout)
    hidden = torch.randn(3, 32)
    torch.testing.assert_close(load_head(tmp_path, model).logits(hidden), head.logits(hidden))


def test_choices_of_saving_that_cannot_be(tmp_path: Path) -> None:
    head = EagleHead.for_target(target(), 1)
    with pytest.raises(ConfigError, match="'eagle4'"):
        save_head(head, tmp_path, "eagle4")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save_head(head, tmp_path / "file" / "head")
    config, tensors = eagle1()
    own = load(tmp_path / "own", (config, {**tensors, "embed_tokens.weight": torch.ones(97, 32)}))
    with pytest.raises(ConfigError, match="of its own"):
        save_head(own, tmp_path, with_embeddings=False)


# --- int8 rows --------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 9), st.floats(1e-30, 1e30))
@settings(max_examples=50, deadline=None)
def test_int8_rows_are_half_a_step_off_at_most(
    seed: int, rows: int, columns: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * size
    weight[0, 0] = 0.0
    steps, scale = int8_rows.quantize_rows(weight)
    again = int8_rows.dequantize_rows(steps, scale, torch.float32)
    step = weight.abs().amax(-1, keepdim=True) / 127
    assert ((again - weight).abs() <= step * 0.501).all()


def test_rows_of_zeros_stay_zeros() -> None:
    steps, scale = int8_rows.quantize_rows(torch.zeros(2, 3))
    assert torch.equal(int8_rows.dequantize_rows(steps, scale, torch.float32), torch.zeros(2, 3))


def test_packing_touches_matrices_alone() -> None:
    tensors = {"w": torch.randn(3, 4), "norm": torch.randn(4), "map": torch.arange(3)}
    packed = int8_rows.pack(tensors)
    assert packed.keys() == {"w", "w_scale", "norm", "map"}
    unpacked = int8_rows.unpack(packed, torch.float32)
    assert unpacked.keys() == tensors.keys()
    assert torch.equal(unpacked["norm"], tensors["norm"])


def test_int8_without_its_scales_is_refused(tmp_path: Path) -> None:
    save_head(EagleHead.for_target(target(), 1), tmp_path, "foredraft")
    stored = load_file(tmp_path / "model.safetensors")
    for change in ({"fc.weight_scale": stored["fc.weight_scale"][:-1]}, None):
        damaged = {n: t for n, t in stored.items() if n != "fc.weight_scale"} | (change or {})
        save_file(damaged, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=r"fc\.weight must have 32 scales"):
            load_head(tmp_path, target())


def test_a_folder_can_be_moved(tmp_path: Path) -> None:
    save_head(EagleHead.for_target(target(), 3), tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert load_head(tmp_path / "there", target()).config.variant == 3
