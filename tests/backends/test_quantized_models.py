"""Models whose linear layers are quantised: what is exchanged, what stays, and what is let go."""

from __future__ import annotations

import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foredraft.backends.hf import HFTarget
from foredraft.backends.identity import costs_digest, quantization_of, target_identity
from foredraft.backends.own_pass import own_pass
from foredraft.backends.quantized import QuantizedHead, QuantizedLinear, quantize_linears, rows_of
from foredraft.errors import ConfigError, ModelError
from tests.tiny_models import (
    VOCAB_SIZE,
    tiny_bf16_llama,
    tiny_gpt2,
    tiny_llama,
    tiny_mistral,
    tiny_phi,
    tiny_qwen3,
    tiny_tied_llama,
)

KINDS = ("int8", "int4")
FAMILIES = (tiny_llama, tiny_tied_llama, tiny_mistral, tiny_qwen3, tiny_phi, tiny_bf16_llama)
IDS = torch.tensor([[5, 9, 20, 33, 7]])
LAYER_LINEARS = 7


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    out: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return out


@torch.inference_mode()
def own_logits(model: Any) -> torch.Tensor:
    with own_pass():
        return logits(model)


def quantized(make: Any = tiny_llama, kind: str = "int8") -> Any:
    model = make()
    quantize_linears(model, kind)
    return model


def dense_again(model: Any, original: Any) -> Any:
    """The original with the weights that a quantised model's blocks stand for."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if not isinstance(module, QuantizedLinear):
                continue
            layer = nn.Linear(module.in_features, module.out_features, module.bias is not None)
            start = sum(module._sizes[: module._place])
            weight = module.block.dequantized()[start : start + module.out_features]
            layer.weight = nn.Parameter(weight.to(module.dtype))
            layer.bias = module.bias
            original.set_submodule(name, layer)
    return original


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", FAMILIES)
def test_it_computes_with_what_its_weights_stand_for(make: Any, kind: str) -> None:
    model = quantized(make, kind)
    expected = logits(dense_again(model, make()))
    allowed = 0.2 if make is tiny_bf16_llama else 2e-4
    for found in (logits(model), own_logits(model)):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, atol=allowed, rtol=0)
    assert not torch.equal(logits(model), logits(make()))


@pytest.mark.parametrize("kind", KINDS)
def test_siblings_are_one_product_and_each_its_own(kind: str) -> None:
    """Called in turn, alone, out of turn, or with other inputs."""
    attention = quantized(kind=kind).model.layers[0].self_attn
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert len({layer.block for layer in layers}) == 1
    one, other = torch.randn(2, 1, 3, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = [torch.nn.functional.linear(one, layer.weight) for layer in layers]
        torch.testing.assert_close([layer(one) for layer in layers], expected)
        torch.testing.assert_close([layer(one) for layer in reversed(layers)], expected[::-1])
        layers[0](other)
        torch.testing.assert_close(layers[1](one), expected[1])


def test_siblings_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized()
    block = model.model.layers[0].self_attn.q_proj.block
    calls = []
    product = block.product
    monkeypatch.setattr(block, "product", lambda rows: (calls.append(1), product(rows))[1])
    own_logits(model)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_originals_are_let_go(kind: str) -> None:
    """All but embeddings, norms and biases: no hook, list or cycle holds them."""
    model = tiny_llama(attention_bias=True)
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    weights = [weakref.ref(linear.weight) for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    kept = {id(model.model.embed_tokens.weight)}
    del linears
    assert quantize_linears(model, kind) == LAYER_LINEARS * 2 + 1
    assert all(weight() is None for weight in weights)
    left = [p for p in model.parameters() if p.dim() == 2]
    assert {id(p) for p in left} == kept
    assert {id(b) for b in biases} <= {id(p) for p in model.parameters()}


def test_a_tied_head_is_a_copy_and_the_embeddings_stay() -> None:
    model = tiny_tied_llama()
    embeddings = model.get_input_embeddings().weight
    before = embeddings.clone()
    quantize_linears(model, "int8")
    head = model.get_output_embeddings()
    assert isinstance(head, QuantizedHead)
    assert model.get_input_embeddings().weight is embeddings
    assert torch.equal(embeddings, before)
    rows = torch.tensor([3, 90])
    assert torch.equal(rows_of(head, rows), before[rows])
    found = own_logits(model)
    model.tie_weights()
    assert not list(head.parameters())
    assert torch.equal(own_logits(model), found)


def test_an_untied_head_gives_the_rows_that_it_computes_with() -> None:
    head = quantized().get_output_embeddings()
    rows = torch.tensor([3, 90])
    assert torch.equal(rows_of(head, rows), head.block.dequantized()[rows])
    assert torch.equal(head.weight, head.block.dequantized())


def test_the_head_is_int8_with_int4_too() -> None:
    model = quantized(kind="int4")
    assert type(model.get_output_embeddings().block).__name__ == "Int8Block"
    assert type(model.model.layers[0].mlp.gate_proj.block).__name__ == "Int4Block"


def test_a_target_knows_its_sizes() -> None:
    usual, target = HFTarget(tiny_llama()), HFTarget(quantized())
    assert (target.vocab_size, target.hidden_size) == (usual.vocab_size, usual.hidden_size)
    assert target.vocab_size == VOCAB_SIZE
    assert target.scores_trees


def test_wrapped_layers_and_those_of_other_classes_stay() -> None:
    model = tiny_llama()
    seen: list[str] = []
    first = model.model.layers[0].self_attn
    first.k_proj.register_forward_hook(lambda *_: seen.append("k"))
    before = first.k_proj
    assert quantize_linears(model, "int8") == LAYER_LINEARS * 2
    assert first.k_proj is before
    assert isinstance(first.q_proj, QuantizedLinear)
    own_logits(model)
    assert seen == ["k"]
    gpt2 = tiny_gpt2()  # its layers are Conv1D, its head alone is linear
    assert quantize_linears(gpt2, "int8") == 1


def test_layers_that_share_their_weights_stay() -> None:
    model = tiny_llama()
    layers = model.model.layers
    layers[1].mlp.down_proj.weight = layers[0].mlp.down_proj.weight
    assert quantize_linears(model, "int8") == LAYER_LINEARS * 2 - 1


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(ConfigError, match=r"quantize='int3' is not allowed.*int8, int4"):
        quantize_linears(tiny_llama(), "int3")
    with pytest.raises(ModelError, match="LlamaForCausalLM is quantised already; load it anew"):
        quantize_linears(quantized(), "int4")
    with pytest.raises(ModelError, match="Sequential has no linear layers of the usual kind"):
        quantize_linears(nn.Sequential(nn.LayerNorm(4)), "int8")


def test_it_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be saved"):
        quantized().save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_copies_compute_the_same(kind: str) -> None:
    model = quantized(kind=kind)
    assert torch.equal(own_logits(copy.deepcopy(model)), own_logits(model))


def test_it_is_known_for_the_weights_it_was_made_from_and_priced_apart() -> None:
    """What was learnt for the original goes with it; what its passes cost does not."""
    original = tiny_llama()
    models = [tiny_llama(), quantized(kind="int8"), quantized(kind="int4")]
    assert [quantization_of(model) for model in models] == [None, "int8", "int4"]
    identities = [target_identity(model) for model in models]
    assert all(identity == target_identity(original) for identity in identities)
    assert len({costs_digest(model) for model in models}) == 3
    assert costs_digest(quantized(lambda: tiny_llama(seed=1))) != costs_digest(models[1])
