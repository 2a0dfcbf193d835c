"""The head as a module: what it borrows, how it starts, and laws of its one layer."""

from __future__ import annotations

import math
import zlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.drafters.eagle.config import HeadConfig, default_taps, published_taps
from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ConfigError, ModelError
from tests.drafters.head_attention import CausalAttention
from tests.tiny_models import (
    TREE_MODELS,
    VOCAB_SIZE,
    tiny_gemma3,
    tiny_llama,
    tiny_qwen3,
    tiny_tied_llama,
)

ATOL = 1e-5  # float32 sums of 64 terms of size 1; another token or mask is off by more than 1e-2
DRAFT_IDS = torch.tensor([0, 2, 5, 7, 11, 40, 96])


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a whole sequence."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def outputs_of(head: EagleHead, features: Tensor, next_ids: Tensor) -> Tensor:
    """The head's outputs [1, T, h] over a whole sequence: features [1, T, F], next_ids [1, T]."""
    positions = torch.arange(next_ids.shape[1])
    rotary = head.rotary(positions)
    return head.step(head.embed(next_ids), head.fuse(features), rotary, causal)


def features_of(model: Any, head: EagleHead, token_ids: Tensor) -> Tensor:
    """What the head reads of a text, [1, T, F]."""
    with torch.no_grad():
        states = model(token_ids, output_hidden_states=True).hidden_states
    return torch.cat([states[tap] for tap in head.config.taps], dim=-1)


def some_text(length: int = 9) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (1, length + 1), generator=torch.Generator().manual_seed(1))


HEADS: dict[str, dict[str, Any]] = {
    "1": {"variant": 1},
    "3": {"variant": 3},
    "3 reduced": {"variant": 3, "draft_ids": DRAFT_IDS},
    "3 borrowed rows": {"variant": 3, "draft_ids": DRAFT_IDS, "own_lm_head": False},
    "3 without norms": {"variant": 3, "fc_norm": False, "init": "random"},
    "3 one tap": {"variant": 3, "taps": (2,)},
}


@pytest.fixture(params=HEADS, ids=str)
def head(request: pytest.FixtureRequest) -> EagleHead:
    return EagleHead.for_target(tiny_llama(), **HEADS[request.param])


@pytest.mark.parametrize("target", TREE_MODELS)
@pytest.mark.parametrize("variant", [1, 3])
def test_a_head_can_be_made_for_any_target(target: str, variant: Any) -> None:
    model = TREE_MODELS[target]()
    head = EagleHead.for_target(model, variant)
    text = some_text()
    output = outputs_of(head, features_of(model, head, text[:, :-1]), text[:, 1:])
    logits = head.logits(output)
    assert logits.shape == (1, 9, VOCAB_SIZE)
    assert logits.isfinite().all()


def test_row_by_row_equals_the_whole_sequence(head: EagleHead) -> None:
    text = some_text()
    features = features_of(tiny_llama(), head, text[:, :-1])
    whole = outputs_of(head, features, text[:, 1:])
    attend, rows = CausalAttention(), []
    for position in range(9):
        row = slice(position, position + 1)
        embeds = head.embed(text[:, 1:][:, row])
        rotary = head.rotary(torch.tensor([position]))
        rows.append(head.step(embeds, head.fuse(features[:, row]), rotary, attend))
    torch.testing.assert_close(torch.cat(rows, 1), whole, rtol=0, atol=ATOL)


def test_only_relative_positions_matter_and_they_do(head: EagleHead) -> None:
    text = some_text()
    features = head.fuse(features_of(tiny_llama(), head, text[:, :-1]))
    embeds = head.embed(text[:, 1:])
    outputs = [
        head.step(embeds, features, head.rotary(positions), causal)
        for positions in (torch.arange(9), torch.arange(9) + 100, 3 * torch.arange(9))
    ]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=10 * ATOL)
    assert (outputs[0] - outputs[2]).abs().max() > 100 * ATOL


def test_positions_of_a_batch_are_its_own(head: EagleHead) -> None:
    positions = torch.tensor([[0, 1, 2], [4, 5, 9]])
    cos, sin = head.rotary(positions)
    for row in range(2):
        for part, own in zip((cos, sin), head.rotary(positions[row]), strict=True):
            assert torch.equal(part[row], own)


def test_what_is_borrowed_is_not_registered() -> None:
    model = tiny_tied_llama()
    head = EagleHead.for_target(model, 3, draft_ids=DRAFT_IDS, own_lm_head=False)
    borrowed = model.get_input_embeddings().weight
    assert head.embed_tokens is model.get_input_embeddings()
    assert all(own is not borrowed for own in head.parameters())
    assert not {"embed_tokens.weight", "lm_rows", "lm_head.weight"} & head.state_dict().keys()
    head.to(torch.float64)
    assert borrowed.dtype == torch.float32


def test_training_moves_the_head_and_not_the_target(head: EagleHead) -> None:
    model = tiny_llama()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    text = some_text()
    loss = head.logits(outputs_of(head, features_of(model, head, text[:, :-1]), text[:, 1:])).sum()
    loss.backward()
    for name, weight in head.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_steps_work_under_bfloat16_autocast(head: EagleHead) -> None:
    text = some_text()
    features = features_of(tiny_llama(), head, text[:, :-1])
    with torch.autocast("cpu", torch.bfloat16):
        output = outputs_of(head, features, text[:, 1:])
        again = head.step(
            head.embed(text[:, 1:]), head.recycle(output), head.rotary(torch.arange(9)), causal
        )
        head.logits(again).float().sum().backward()
    assert head.fc.weight.grad is not None
    assert head.fc.weight.grad.isfinite().all()


def test_borrowed_rows_are_the_targets_rows() -> None:
    model = tiny_llama()
    head = EagleHead.for_target(model, 3, draft_ids=DRAFT_IDS, own_lm_head=False)
    output = torch.randn(2, 32)
    expected = model.get_output_embeddings()(head.norm(output))[:, DRAFT_IDS]
    torch.testing.assert_close(head.logits(output), expected, rtol=0, atol=ATOL)


def test_gemma_embeddings_come_scaled() -> None:
    model = tiny_gemma3()
    head = EagleHead.for_target(model, 3)
    weight = model.get_input_embeddings().weight
    torch.testing.assert_close(head.embed(torch.tensor([5])), weight[5:6] * math.sqrt(32))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"logit_scale": 0.5}, lambda x: 0.5 * x),
        ({"logits_scaling": 4.0}, lambda x: x / 4),
        ({"final_logit_softcapping": 2.0}, lambda x: 2 * torch.tanh(x / 2)),
    ],
)
def test_logits_go_through_what_the_target_does_after_its_head(
    changes: dict[str, Any], expected: Any
) -> None:
    model, hidden = tiny_llama(), torch.randn(2, 32)
    for name, value in changes.items():
        setattr(model.config, name, value)
    head = EagleHead.for_target(model, 1)
    raw = model.get_output_embeddings()(hidden)
    torch.testing.assert_close(head.logits(hidden), expected(raw))


@pytest.mark.parametrize("ids", [None, DRAFT_IDS], ids=["whole", "reduced"])
def test_a_head_of_its_own_starts_with_the_targets_logits(ids: torch.Tensor | None) -> None:
    """What the target multiplies its logits by is in the rows."""
    model, hidden = tiny_llama(), torch.randn(2, 32)
    model.config.logits_scaling = 4.0
    own, borrowed = (
        EagleHead.for_target(model, 3, draft_ids=ids, own_lm_head=own) for own in (True, False)
    )
    torch.testing.assert_close(own.logits(hidden), borrowed.logits(hidden))


def test_a_new_head_starts_from_the_last_layer() -> None:
    model = tiny_llama()
    last, head = model.model.layers[-1], EagleHead.for_target(model, 3)
    own = head.midlayer
    assert torch.equal(own.mlp.gate_proj.weight, last.mlp.gate_proj.weight)
    assert torch.equal(own.self_attn.o_proj.weight, last.self_attn.o_proj.weight)
    assert torch.equal(own.self_attn.q_proj.weight[:, 32:], last.self_attn.q_proj.weight)
    assert own.self_attn.q_proj.weight[:, :32].abs().max() < 0.1
    assert torch.equal(head.lm_head.weight, model.lm_head.weight)
    random = EagleHead.for_target(model, 3, init="random").midlayer
    assert not torch.equal(random.mlp.gate_proj.weight, last.mlp.gate_proj.weight)


def test_features_do_not_start_at_the_size_of_a_layer() -> None:
    """EAGLE-1 gives what comes after the final norm; a layer of the target may be a hundred times larger."""
    model = tiny_llama()
    last = model.model.layers[-1]
    with torch.no_grad():
        last.mlp.down_proj.weight.mul_(1000)
    embeds, features = torch.randn(2, 1, 4, 32)

    def output(**choices: Any) -> torch.Tensor:
        head = EagleHead.for_target(model, 1, **choices)
        rotary = head.rotary(torch.arange(4))
        return head.step(embeds, features, rotary, lambda q, k, v: torch.zeros_like(q))

    assert output().norm() < features.norm() * 4
    assert output(init="last-layer").norm() > features.norm() * 4


def test_norms_are_copied_by_what_they_do() -> None:
    model = tiny_gemma3()  # stores its norms less one
    with torch.no_grad():
        model.model.norm.weight.fill_(0.5)
    head = EagleHead.for_target(model, 3)
    hidden = torch.randn(3, 32)
    torch.testing.assert_close(head.norm(hidden), model.model.norm(hidden), rtol=1e-4, atol=1e-4)


def test_a_new_head_passes_its_last_feature_through() -> None:
    head = EagleHead.for_target(tiny_llama(), 3, fc_norm=False)
    features = torch.randn(4, 3 * 32)
    fused = head.fuse(features)
    similar = F.cosine_similarity(fused, features[:, -32:], dim=-1)
    assert similar.min() > 0.9


def test_queries_that_the_target_norms_are_not_copied() -> None:
    model = tiny_qwen3()
    last, own = model.model.layers[-1].self_attn, EagleHead.for_target(model, 3).midlayer.self_attn
    assert torch.equal(own.v_proj.weight[:, 32:], last.v_proj.weight)
    assert not torch.equal(own.q_proj.weight[:, 32:], last.q_proj.weight)


def test_a_float32_head_of_a_bfloat16_target_borrows_all_the_same() -> None:
    model = tiny_llama(dtype=torch.bfloat16)
    head = EagleHead.for_target(model, 1).float()
    output = head.step(
        head.embed(torch.tensor([[3, 4]])),
        torch.randn(1, 2, 32),
        head.rotary(torch.arange(2)),
        causal,
    )
    assert output.dtype == torch.float32
    logits = head.logits(output)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model.lm_head(output.bfloat16()).float())


def test_head_and_target_share_device_and_dtype() -> None:
    head = EagleHead.for_target(tiny_llama(dtype=torch.bfloat16), 3, draft_ids=DRAFT_IDS)
    assert head.dtype == torch.bfloat16
    assert head.target_ids is not None
    assert head.target_ids.dtype == torch.int64
    assert head.rotary(torch.arange(2))[0].dtype == torch.bfloat16


def test_angles_stay_exact_in_bfloat16() -> None:
    plain = EagleHead.for_target(tiny_llama(), 3)
    short = EagleHead.for_target(tiny_llama(dtype=torch.bfloat16), 3)
    for ours, theirs in zip(
        short.rotary(torch.tensor([1999])), plain.rotary(torch.tensor([1999])), strict=True
    ):
        torch.testing.assert_close(ours, theirs.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("layers", range(1, 13))
def test_default_taps_exist_in_every_target(layers: int) -> None:
    taps = default_taps(layers)
    assert len(taps) == 3
    assert all(0 <= tap <= layers for tap in taps)
    if layers >= 7:
        assert taps == published_taps(layers) == (2, layers // 2, layers - 3)


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        ({"variant": 1, "draft_ids": DRAFT_IDS}, "draft_ids"),
        ({"variant": 1, "taps": (0,)}, "taps"),
        ({"variant": 1, "fc_norm": True}, "fc_norm"),
        ({"variant": 3, "taps": (0, 3)}, "tap 3"),
        ({"variant": 3, "init": "first-layer"}, "first-layer"),
        ({"variant": 2}, "variant=2"),
        ({"variant": 3, "draft_ids": torch.tensor([3, 3])}, "draft_ids"),
        ({"variant": 3, "draft_ids": torch.tensor([], dtype=torch.int64)}, "draft_ids"),
        ({"variant": 3, "draft_ids": torch.arange(97).flip(0)}, "draft_ids"),
        ({"variant": 3, "draft_ids": torch.arange(1, 98)}, "97"),
        ({"variant": 3, "draft_ids": torch.tensor([3, 97])}, "97"),
        ({"variant": 3, "draft_ids": torch.tensor([-1, 9])}, "-1"),
    ],
)
def test_impossible_heads_are_refused(choices: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        EagleHead.for_target(tiny_llama(), **choices)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su"])
def test_rope_that_changes_with_length_is_refused(kind: str) -> None:
    with pytest.raises(ModelError, match=kind):
        config(rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 2.0})


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ],
)
def test_static_rope_scalings_turn_as_the_library_does(rope: dict[str, Any]) -> None:
    parameters = {"rope_theta": 10000.0, **rope}
    model = tiny_llama(rope_parameters=parameters)
    head = EagleHead.for_target(model, 3)
    positions = torch.arange(0, 2048, 97)
    ours = head.rotary(positions)
    theirs = model.model.rotary_emb(torch.zeros(1), positions[None])
    own_sin = torch.cat((-ours[1][:, :4], ours[1][:, 4:]), -1)  # whose sign is turned
    for own, reference in zip((ours[0], own_sin), theirs, strict=True):
        torch.testing.assert_close(own, reference[0], rtol=0, atol=1e-6)
    plain = EagleHead(config(), TargetEnds.of(model)).rotary(positions)
    assert (plain[0] - ours[0]).abs().max() > 0.1


def config(**changes: Any) -> HeadConfig:
    """A small EAGLE-3 head."""
    sizes: dict[str, Any] = {
        "variant": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": VOCAB_SIZE,
        "target_hidden_size": 32,
        "taps": (0, 1, 2),
        "fc_bias": False,
    }
    return HeadConfig(**sizes | changes)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"draft_vocab_size": 98}, "98"),
        ({"taps": ()}, "tap"),
        ({"fc_norm": True, "norm_before_fc": True}, "exclude"),
        ({"variant": 1, "taps": (2,), "norm_output": True}, "norm_output"),
        ({"variant": 1, "taps": (2,), "draft_vocab_size": 7}, "draft_vocab_size=7"),
    ],
)
def test_impossible_architectures_are_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        config(**changes)


def test_each_optional_norm_changes_the_head_in_its_own_place() -> None:
    text, ends = some_text(), TargetEnds.of(tiny_llama())
    features = torch.randn(1, 9, 96)

    def run(**flags: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        head = EagleHead(config(**flags), ends).eval()
        with torch.no_grad():
            for name, weight in head.named_parameters():
                torch.manual_seed(zlib.crc32(name.split(".")[-2].encode()))
                weight.copy_(
                    torch.randn_like(weight) * 0.2 + weight.new_ones(()) * (weight.dim() < 2)
                )
        output = outputs_of(head, features, text[:, 1:])
        return output, head.recycle(output)

    plain, recycled = run()
    assert torch.equal(plain, recycled)
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm"):
        assert (run(**{flag: True})[0] - plain).abs().max() > 100 * ATOL, flag
    output, recycled = run(norm_output=True)
    torch.testing.assert_close(output, plain)
    assert (recycled - plain).abs().max() > 100 * ATOL
