"""Siblings that are computed as one product: the same numbers, and for others the same model as before."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from foredraft.backends.hf import HFTarget
from foredraft.backends.joined_linears import join_linears, joint_product
from foredraft.backends.own_pass import own_pass
from tests.tiny_models import tiny_gemma3, tiny_gpt2, tiny_llama, tiny_mistral


def biased_llama() -> Any:
    """Projections with biases that matter."""
    model = tiny_llama(attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
    return model


FAMILIES = (tiny_llama, tiny_mistral, tiny_gemma3, biased_llama)
IDS = torch.tensor([[5, 9, 20, 33, 7]])


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    out: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return out


@torch.inference_mode()
def own_logits(model: Any) -> torch.Tensor:
    with own_pass():
        return logits(model)


@pytest.mark.parametrize("make", FAMILIES)
def test_passes_give_the_same_and_for_others_the_very_same(make: Any) -> None:
    model = make()
    before = logits(model)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert join_linears(model) == 2 * model.config.num_hidden_layers
    assert torch.equal(logits(model), before)
    torch.testing.assert_close(own_logits(model), before, atol=1e-5, rtol=1e-5)
    after = model.state_dict()
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], weights[name]) for name in weights)


def test_no_memory_is_taken_twice() -> None:
    model = tiny_llama()
    join_linears(model)
    attention = model.model.layers[0].self_attn
    places = {
        layer.weight.untyped_storage().data_ptr()
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    }
    assert len(places) == 1


def test_joining_twice_is_joining_once() -> None:
    model = tiny_llama()
    assert join_linears(model) > 0
    assert join_linears(model) == 0
    torch.testing.assert_close(own_logits(model), logits(model))


def test_models_of_other_names_stay_as_they_are() -> None:
    assert join_linears(tiny_gpt2()) == 0


def test_a_model_that_changes_computes_with_what_it_has() -> None:
    """Moved to another type, given other weights in place or anew: never with what was there before."""
    model = tiny_llama()
    join_linears(model)
    own_logits(model)
    model.load_state_dict(tiny_llama(seed=1).state_dict())
    torch.testing.assert_close(own_logits(model), logits(tiny_llama(seed=1)))
    model.to(torch.float64)
    torch.testing.assert_close(own_logits(model), logits(model))
    assert own_logits(model).dtype == torch.float64
    attention = model.model.layers[0].self_attn
    attention.k_proj.weight = torch.nn.Parameter(attention.k_proj.weight * 2)
    torch.testing.assert_close(own_logits(model), logits(model))


def test_a_bias_that_comes_later_is_added() -> None:
    model = tiny_llama()
    join_linears(model)
    model.model.layers[0].self_attn.q_proj.bias = torch.nn.Parameter(torch.full((32,), 5.0))
    torch.testing.assert_close(own_logits(model), logits(model))


def test_a_model_that_moved_gives_the_memory_back() -> None:
    model = tiny_llama()
    join_linears(model)
    block = weakref.ref(model.model.layers[0].self_attn.q_proj.siblings._block[0])
    model.to(torch.float64)
    own_logits(model)
    assert block() is None


def test_layers_go_with_their_model() -> None:
    """No cycle keeps them until the collector comes."""
    model = tiny_llama()
    join_linears(model)
    own_logits(model)
    layer = weakref.ref(model.model.layers[0].self_attn.q_proj)
    gc.disable()
    try:
        model.model.layers[0].self_attn.q_proj = None
        assert layer() is None
    finally:
        gc.enable()


def test_weights_of_other_kinds_are_left_alone() -> None:
    """Quantised weights are tensors of a class of their own, in layers of the usual one."""

    class Packed(torch.Tensor):
        pass

    model = tiny_llama()
    layer = model.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().as_subclass(Packed))
    assert join_linears(model) == 2 * model.config.num_hidden_layers - 1


def test_a_model_that_is_the_users_own_keeps_its_layers() -> None:
    model = tiny_llama()
    HFTarget(model)
    places = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(places) == len(list(model.parameters()))


def test_another_input_is_computed_anew() -> None:
    model = tiny_llama()
    join_linears(model)
    attention = model.model.layers[0].self_attn
    one, other = torch.randn(2, 1, 3, 32, generator=torch.Generator().manual_seed(0))
    expected = [layer(x) for layer, x in ((attention.q_proj, one), (attention.k_proj, other))]
    with own_pass(), torch.no_grad():
        got = [attention.q_proj(one), attention.k_proj(other)]
        alone = attention.v_proj(one)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(alone, attention.v_proj(one))


def test_a_wrapped_layer_is_left_to_its_wrapper() -> None:
    model = tiny_llama()
    seen = []
    first = model.model.layers[0]
    first.self_attn.k_proj.register_forward_hook(lambda *_: seen.append("k"))
    assert join_linears(model) == 2 * model.config.num_hidden_layers - 1
    own_logits(model)
    assert seen == ["k"]


def test_copies_and_saved_models_are_whole(tmp_path: Path) -> None:
    model = tiny_llama()
    before = logits(model)
    join_linears(model)
    copied = copy.deepcopy(model)
    torch.save(model, tmp_path / "whole.pt")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.zero_()
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    pickled = torch.load(tmp_path / "whole.pt", weights_only=False)
    for other in (copied, read, pickled):
        torch.testing.assert_close(logits(other), before)
        torch.testing.assert_close(own_logits(other), before)


def test_a_model_that_was_joined_can_be_compiled_whole() -> None:
    """Nothing of ours stops the tracer, and what it made serves passes of any kind."""
    model = tiny_llama()
    expected = logits(model)
    join_linears(model)
    whole = torch.compile(model.model, backend="eager", fullgraph=True)
    with torch.no_grad():
        hidden = whole(input_ids=IDS, use_cache=False).last_hidden_state
        torch.testing.assert_close(model.lm_head(hidden), expected)


@pytest.mark.parametrize("made_in", [False, True])
@pytest.mark.parametrize("joined_in", [False, True])
def test_inference_mode_of_whoever_made_it_does_not_matter(made_in: bool, joined_in: bool) -> None:
    with torch.inference_mode(made_in):
        model = tiny_llama()
    expected = logits(model)
    with torch.inference_mode(joined_in):
        groups = join_linears(model)
    assert groups == (0 if made_in else 2 * model.config.num_hidden_layers)
    torch.testing.assert_close(own_logits(model), expected)
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=IDS, use_cache=False).logits, expected)


def test_threads_do_not_mix_their_products() -> None:
    model = tiny_llama()
    join_linears(model)
    texts = [
        torch.randint(3, 97, (1, 6), generator=torch.Generator().manual_seed(i)) for i in range(4)
    ]
    with torch.inference_mode():
        expected = [model(input_ids=text, use_cache=False).logits for text in texts]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(30):
            with torch.inference_mode(), own_pass():
                got = model(input_ids=texts[i], use_cache=False).logits
            if not torch.allclose(got, expected[i], atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_whole_product_is_its_parts_behind_one_another() -> None:
    model = biased_llama()
    attention = model.model.layers[0].self_attn
    layers = [attention.q_proj, attention.k_proj, attention.v_proj]
    hidden = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([layer(hidden) for layer in layers], -1)
    with own_pass():
        assert joint_product(layers, hidden) is None
        join_linears(model)
        product = joint_product(layers, hidden)
        assert product is not None
        torch.testing.assert_close(product, expected)
        assert joint_product(layers[:2], hidden) is None
        attention.k_proj.weight = torch.nn.Parameter(attention.k_proj.weight.clone())
        assert joint_product(layers, hidden) is None
    assert joint_product(layers, hidden) is None
