"""What a head's config says, and what is read off its tensors where it says nothing.

The case numbers are those of the list of cases that must come out right, section H.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drafters.head_folders import (
    DRAFT_SIZE,
    LLAMA3,
    PUBLISHED_TAPS,
    eagle1,
    eagle3,
    load,
    refusal,
    speculators3,
)
from tests.tiny_models import VOCAB_SIZE, tiny_llama

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
    nested = name == "eagle_config"  # where SGLang counts a layer's output, the next one's input
    for value, taps in ((None, PUBLISHED_TAPS), ([0, 3, 6], (1, 4, 7) if nested else (0, 3, 6))):
        named = {name: {field: value}} if nested else {name: value}
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
