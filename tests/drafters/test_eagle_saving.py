"""Nothing is lost by saving a head, in any layout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config

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
from tests.drafters.head_folders import (
    DIALECTS,
    LAYERS,
    LLAMA3,
    eagle1,
    eagle3,
    load,
    same_weights,
    target,
)
from tests.tiny_models import FINISHED_MODELS, SMALL, VOCAB_SIZE, build, tiny_llama, tiny_tied_llama

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
    head = EagleHead.for_target(model, variant, init="last-layer")
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


BORROWED = {"plain": tiny_llama, **FINISHED_MODELS}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", BORROWED)
@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
def test_a_borrowed_head_says_the_same_in_every_layout_or_is_refused(
    tmp_path: Path, layout: Any, family: str, ids: torch.Tensor | None
) -> None:
    """Whatever the target does to its logits, a saved head does too."""
    model = BORROWED[family]()
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
