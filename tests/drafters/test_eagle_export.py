"""Heads for other programs: what is written is the head, and what cannot be written is named."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from foredraft.drafters.eagle.checkpoint import load_head, save_head
from foredraft.drafters.eagle.config import HeadConfig
from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.eagle.export import export_head
from foredraft.drafters.eagle.format_names import FORMATS, Format
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ConfigError, ModelError
from tests.drafters.head_folders import LAYERS, LLAMA3, PUBLISHED_TAPS, same_weights, target
from tests.tiny_models import FINISHED_MODELS, VOCAB_SIZE, build, tiny_llama

TAPS = "eagle_aux_hidden_state_layer_ids"
IDS = torch.arange(1, VOCAB_SIZE, 4)
PLAIN: dict[int, dict[str, Any]] = {
    1: {
        "hidden_size": 32,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": VOCAB_SIZE,
        "target_hidden_size": 32,
        "taps": (LAYERS,),
        "fc_bias": True,
    },
}
PLAIN[3] = PLAIN[1] | {"taps": PUBLISHED_TAPS, "fc_bias": False}


def make(
    variant: Any,
    *,
    reduced: bool = False,
    own_embeddings: bool = False,
    own_lm_head: bool | None = None,
    model: Any = None,
    **changes: Any,
) -> EagleHead:
    """A head with random weights for the tiny target; `changes` are of its config."""
    chosen = PLAIN[variant] | changes
    if reduced:
        chosen["draft_vocab_size"] = len(IDS)
    head = EagleHead(
        HeadConfig(variant=variant, **chosen),
        TargetEnds.of(model or target()),
        IDS if reduced else None,
        own_embeddings=own_embeddings,
        own_lm_head=variant == 3 if own_lm_head is None else own_lm_head,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(0, 0.2, generator=generator)
    return head.eval()


def write(folder: Path, head: EagleHead, form: Format, **options: Any) -> Path:
    export_head(head, folder, form, num_layers=LAYERS, **options)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def drafted(head: EagleHead) -> list[Tensor]:
    """Logits and recycled states of two steps: everything that the head computes."""
    generator = torch.Generator().manual_seed(2)
    width = head.config.feature_size
    features = torch.randn(1, 5, width, generator=generator, dtype=head.dtype)
    ids, positions = torch.tensor([[3, 1, 4, 15, 92]]), torch.arange(5)
    hidden, results = head.fuse(features), []
    for _ in range(2):
        output = head.step(head.embed(ids), hidden, head.rotary(positions), attend)
        hidden = head.recycle(output)
        results += [head.logits(output), hidden]
    return results


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )


def same_drafts(one: EagleHead, other: EagleHead) -> bool:
    """Bit by bit. Weights that were read lie anywhere in memory, and kernels round by how they lie."""
    for weight in other.parameters():
        weight.data = weight.data.clone()
    with torch.no_grad():
        return all(map(torch.equal, drafted(one), drafted(other)))


# --- there and back ---------------------------------------------------------------------------------

CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "num_key_value_heads": st.sampled_from([1, 4]),
        "head_dim": st.sampled_from([4, 16]),
        "intermediate_size": st.integers(1, 40),
        "fc_bias": st.booleans(),
        "attention_bias": st.booleans(),
        "output_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "hidden_act": st.sampled_from(["silu", "gelu"]),
        "rms_norm_eps": st.sampled_from([1e-6, 1e-2]),
        "max_position_embeddings": st.integers(1, 9999),
        "rope_parameters": st.sampled_from(
            [
                {"rope_type": "default", "rope_theta": 500.0},
                {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
                {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
                LLAMA3 | {"rope_theta": 500.0},
            ]
        ),
    },
)
OF_3 = st.fixed_dictionaries(
    {},
    optional={
        "taps": st.lists(st.integers(0, LAYERS), min_size=1, max_size=4).map(tuple),
        "norm_before_residual": st.booleans(),
        "norm_output": st.booleans(),
        "fusion": st.sampled_from(["norm_before_fc", "fc_norm"]),
        "reduced": st.booleans(),
    },
)


@given(
    form=st.sampled_from(FORMATS),
    variant=st.sampled_from([1, 3]),
    changes=CHANGES,
    of_3=OF_3,
    own_embeddings=st.booleans(),
    own_lm_head=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_head_comes_back_whole_or_is_refused(
    form: Format,
    variant: Any,
    changes: dict[str, Any],
    of_3: dict[str, Any],
    own_embeddings: bool,
    own_lm_head: bool,
) -> None:
    if variant == 3:
        fusion = of_3.pop("fusion", None)
        changes = changes | of_3 | ({fusion: True} if fusion else {})
    head = make(variant, own_embeddings=own_embeddings, own_lm_head=own_lm_head, **changes)
    with tempfile.TemporaryDirectory() as folder:
        try:
            write(Path(folder), head, form)
        except ConfigError:
            assert not list(Path(folder).iterdir())
            return
        again = load_head(folder, target())
        # SGLang always adds a bias to EAGLE-1's fc: zeros change nothing
        assert again.config == dataclasses.replace(head.config, fc_bias=again.config.fc_bias)
        assert again.config.fc_bias in (head.config.fc_bias, form == "sglang")
        assert same_drafts(head, again)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
def test_every_tensor_is_accounted_for(tmp_path: Path, form: Format, reduced: bool) -> None:
    variant = 1 if form == "eagle1" else 3
    reduced = reduced and variant == 3
    head = make(variant, reduced=reduced)
    stored = load_file(write(tmp_path, head, form) / "model.safetensors")
    layer = {"speculators": "layers.0.", "eagle1": "layers.0."}.get(form, "midlayer.")
    expected = {name.replace("midlayer.", layer) for name in head.state_dict()} - {"target_ids"}
    expected |= {"d2t", "t2d"} if reduced else set()
    expected |= {"embed_tokens.weight"} if form == "speculators" else set()
    assert stored.keys() == expected
    if reduced:
        assert torch.equal(stored["d2t"] + torch.arange(len(IDS)), IDS)
        assert torch.equal(stored["t2d"].nonzero()[:, 0], IDS)


@pytest.mark.parametrize("form", ["speculators", "sglang", "eagle3"])
def test_rows_of_the_target_become_the_heads_own(tmp_path: Path, form: Format) -> None:
    head = make(3, reduced=True, own_lm_head=False)
    stored = load_file(write(tmp_path, head, form) / "model.safetensors")
    assert torch.equal(stored["lm_head.weight"], target().get_output_embeddings().weight[IDS])


def test_what_was_stored_in_int8_is_written_as_numbers(tmp_path: Path) -> None:
    save_head(make(3, reduced=True), tmp_path / "ours", "foredraft")
    head = load_head(tmp_path / "ours", target())
    folder = write(tmp_path / "theirs", head, "speculators")
    assert {
        t.dtype for n, t in load_file(folder / "model.safetensors").items() if "2" not in n
    } == {torch.float32}
    assert same_weights(make_own(head), load_head(folder, target()))


def make_own(head: EagleHead) -> EagleHead:
    """The same head, with the target's embeddings as its own."""
    own = EagleHead(head.config, head.ends, IDS, own_embeddings=True, own_lm_head=True)
    embed = {"embed_tokens.weight": target().get_input_embeddings().weight.detach()}
    own.load_state_dict(head.state_dict() | embed)
    return own


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_written_in_the_type_asked_for(tmp_path: Path, dtype: torch.dtype) -> None:
    head = make(3)
    folder = write(tmp_path, head, "sglang", dtype=dtype)
    assert config_of(folder)["torch_dtype"] == str(dtype).removeprefix("torch.")
    assert load_file(folder / "model.safetensors")["fc.weight"].dtype == dtype
    again = load_head(folder, target())
    assert torch.equal(again.fc.weight, head.fc.weight.to(dtype).float())


# --- what readers look for --------------------------------------------------------------------------


def test_sglang_counts_outputs_of_layers_and_vllm_their_inputs(tmp_path: Path) -> None:
    config = config_of(write(tmp_path, make(3, taps=(1, 4, 6)), "sglang"))
    assert config[TAPS] == [1, 4, 6]
    assert config["eagle_config"] == {"use_aux_hidden_state": True, TAPS: [0, 3, 5]}
    del config[TAPS]  # as SpecForge leaves them
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_head(tmp_path, target()).config.taps == (1, 4, 6)


@pytest.mark.parametrize("form", ["speculators", "sglang", "eagle3"])
def test_taps_are_always_named_and_counted(tmp_path: Path, form: Format) -> None:
    config = config_of(write(tmp_path, make(3), form))
    assert config[TAPS] == list(PUBLISHED_TAPS)
    layer = config["transformer_layer_config"] if form == "speculators" else config
    assert layer["num_aux_hidden_states"] == 3


def test_speculators_names_the_target(tmp_path: Path) -> None:
    config = config_of(write(tmp_path, make(3), "speculators", verifier="org/model"))
    assert config["speculators_model_type"] == "eagle3"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/model"


def test_sglang_gets_the_bias_that_it_would_not_initialise(tmp_path: Path) -> None:
    head = make(1, fc_bias=False)
    folder = write(tmp_path, head, "sglang")
    assert config_of(folder)["architectures"] == ["LlamaForCausalLMEagle"]
    assert "bias" not in config_of(folder)  # it would give the attention biases
    assert not load_file(folder / "model.safetensors")["fc.bias"].any()
    assert same_drafts(head, load_head(folder, target()))


def test_scaled_embeddings_are_written_as_they_are_read(tmp_path: Path) -> None:
    model = scaled_target()
    head = make(3, model=model)
    for form in ("speculators", "eagle3"):
        folder = write(tmp_path / form, head, form)  # type: ignore[arg-type]
        assert same_drafts(head, load_head(folder, model))
    save_head(head, tmp_path / "saved", with_embeddings=True)
    assert same_drafts(head, load_head(tmp_path / "saved", model))


def scaled_target() -> Any:
    """A Gemma, whose embeddings are multiplied as they are looked up."""
    from transformers import Gemma3TextConfig

    from tests.tiny_models import SMALL

    return build(Gemma3TextConfig(**SMALL | {"num_hidden_layers": LAYERS, "head_dim": 8}))


# --- what they cannot hold --------------------------------------------------------------------------

REFUSED: list[tuple[Format, dict[str, Any], str]] = [
    ("speculators", {"variant": 1}, "an EAGLE-1 or EAGLE-2 head: export it as sglang or eagle1"),
    ("eagle1", {"variant": 3}, "an EAGLE-3 head"),
    ("speculators", {"variant": 3, "fc_bias": True}, "a bias of fc: no other format"),
    ("speculators", {"variant": 3, "attention_bias": True}, "biases of some"),
    ("speculators", {"variant": 3, "taps": (4, 2, 5)}, "in another order"),
    ("speculators", {"variant": 3, "taps": (2, 4, LAYERS)}, "behind the target's final norm"),
    (
        "eagle3",
        {"variant": 3, "taps": (1, 4, 5)},
        "for its code reads (2, 4, 5): export it as spec",
    ),
    ("eagle3", {"variant": 3, "fc_norm": True}, "fc_norm: export it as speculators or sglang"),
    ("eagle3", {"variant": 3, "norm_output": True}, "norm_output"),
    ("eagle3", {"variant": 3, "mlp_bias": True}, "biases of the MLP"),
    (
        "eagle3",
        {"variant": 3, "rope_parameters": LLAMA3 | {"rope_theta": 1e4}},
        "rope scaling 'llama3'",
    ),
    (
        "eagle1",
        {
            "variant": 1,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0},
        },
        "linear rope scaling with rope_theta=5",
    ),
    ("eagle1", {"variant": 1, "own_lm_head": True}, "a language-model head of its own"),
    ("eagle1", {"variant": 1, "head_dim": 4}, "head_dim=4"),
    ("eagle1", {"variant": 1, "output_bias": True}, "a bias of the attention's output"),
    ("sglang", {"variant": 3, "own_embeddings": True}, "embeddings of its own"),
    ("sglang", {"variant": 3, "norm_before_residual": True}, "norm_before_residual"),
    ("sglang", {"variant": 3, "norm_before_fc": True}, "norm_before_fc"),
    ("sglang", {"variant": 3, "hidden_act": "gelu"}, "hidden_act='gelu'"),
    ("sglang", {"variant": 3, "taps": (0, 2, 5)}, "tap 0, the embeddings"),
    ("sglang", {"variant": 3, "taps": (5,)}, "which it skips"),
    (
        "sglang",
        {"variant": 3, "attention_bias": True, "mlp_bias": True},
        "attention; biases of the",
    ),
    ("sglang", {"variant": 1, "own_lm_head": True}, "a language-model head of its own"),
]


@pytest.mark.parametrize(("form", "choices", "words"), REFUSED)
def test_what_a_format_cannot_hold_is_named(
    tmp_path: Path, form: Format, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        write(tmp_path / "out", make(**choices), form)
    assert f"format={form!r} cannot hold" in str(caught.value)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "words"), [("capped", "the cap of"), ("shifted", "the bias of")]
)
def test_what_the_target_does_to_its_logits_is_no_part_of_a_format(
    tmp_path: Path, family: str, words: str
) -> None:
    head = make(3, own_lm_head=False, model=FINISHED_MODELS[family]())
    with pytest.raises(ConfigError, match=words):
        write(tmp_path, head, "speculators")


def test_scaled_embeddings_are_refused_for_sglang(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scaled embeddings"):
        write(tmp_path, make(3, model=scaled_target()), "sglang")


def test_unknown_formats_and_quantised_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown format 'onnx'"):
        write(tmp_path, make(3), "onnx")  # type: ignore[arg-type]
    head = make(3, model=tiny_llama(num_hidden_layers=LAYERS))
    head.quantize("int8")
    with pytest.raises(ModelError, match="quantised"):
        write(tmp_path, head, "speculators")
