"""An engine is built once for a model, goes with it, and leaves it as it was."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.hf import CustomGenerate
from foredraft.hf import engines as engines_module
from foredraft.hf.engines import Choice, Engines, in_eval_mode
from tests.hf.calls import DEFAULTS, PROMPTS, batch, ours, plain
from tests.tiny_models import tiny_llama


def test_an_engine_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    class Counted(engines_module.HFTarget):
        def __init__(self, model: Any) -> None:
            built.append(type(model))
            super().__init__(model)

    monkeypatch.setattr(engines_module, "HFTarget", Counted)
    kept, model, other = Engines(Choice()), tiny_llama(), tiny_llama(seed=1)
    engine = kept.of(model, "ngram")
    assert kept.of(model, "ngram") is engine
    assert kept.of(model, "autoregressive") is not engine
    assert kept.of(model, "autoregressive").target is engine.target
    assert len(built) == 1
    assert kept.of(other, "ngram").target is not engine.target
    assert len(built) == 2


def test_an_engine_goes_with_its_model() -> None:
    made, model = CustomGenerate(method="ngram"), tiny_llama()
    model.generate(**batch(), **DEFAULTS, custom_generate=made)
    gone = [weakref.ref(model), weakref.ref(model.model.layers[0])]
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert torch.equal(plain(custom_generate=made), plain())


def test_the_model_stays_as_it_was() -> None:
    model = tiny_llama()
    before, names = copy.deepcopy(model.state_dict()), set(vars(model))
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    expected = model.generate(**batch(), **DEFAULTS)
    model.generate(
        **batch(), **DEFAULTS, custom_generate=CustomGenerate("ngram"), repetition_penalty=1.2
    )
    assert set(vars(model)) == names
    assert model.config.to_dict() == config
    assert model.generation_config.to_dict() == generation
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(model.generate(**batch(), **DEFAULTS), expected)
    copy.deepcopy(model)


def test_weights_that_are_trained_on_are_those_that_decode() -> None:
    """No dropout while it decodes, and training goes on as before."""
    model, made = tiny_llama(attention_dropout=0.5), CustomGenerate("ngram")
    model.generate(**batch(), **DEFAULTS, custom_generate=made)
    model.train()
    model.model.norm.eval()  # frozen, say
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight))
    got = model.generate(**batch(), **DEFAULTS, custom_generate=made)
    assert model.training
    assert model.model.layers[0].training
    assert not model.model.norm.training
    assert torch.equal(got, model.eval().generate(**batch(), **DEFAULTS))


@pytest.mark.parametrize("change", ["in place", "put in its place"])
def test_rows_of_other_weights_are_forgotten(change: str) -> None:
    """Between calls a model may be trained on; what earlier weights made of a text is of no use then."""
    model, made = tiny_llama(), CustomGenerate("ngram", prefix_cache_mb=1)
    call = {**batch([list(range(5, 60))]), **DEFAULTS}
    model.generate(**call, custom_generate=made)
    again = model.generate(**call, custom_generate=made)
    cache = made._engines.of(model, None).target.prefix_cache
    assert cache.counts().hits == 1
    weight = model.model.layers[0].self_attn.v_proj.weight
    if change == "in place":
        with torch.no_grad():
            weight.mul_(-1)
    else:
        weight.data = -weight.data
    got = model.generate(**call, custom_generate=made)
    assert torch.equal(got, model.generate(**call))
    assert not torch.equal(got, again)
    assert cache.counts().hits == 1


def test_modes_come_back_after_an_error() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())

    def fail() -> None:
        with in_eval_mode(model):
            assert not any(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [module.training for module in model.modules()] == [True, True, False]


@pytest.mark.parametrize("first_out", [0, 1])
def test_no_call_ends_the_eval_mode_of_another(first_out: int) -> None:
    """Whichever thread leaves first: dropout comes back when the last has left."""
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    calls = [in_eval_mode(model), in_eval_mode(model)]
    for call in calls:
        call.__enter__()
    calls.pop(first_out).__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    calls.pop().__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, False]


def test_modes_are_counted_as_long_as_somebody_decodes() -> None:
    """A call behind another sees the modes that were set in between."""
    model = torch.nn.Sequential(torch.nn.Dropout())
    with in_eval_mode(model):
        pass
    model.eval()
    with in_eval_mode(model):
        pass
    assert not model.training


def test_a_model_whose_dtype_has_changed() -> None:
    model, made = tiny_llama(), CustomGenerate("ngram")
    model.generate(**batch(), **DEFAULTS, custom_generate=made)
    model.to(torch.float64)
    got = model.generate(**batch(), **DEFAULTS, custom_generate=made)
    assert torch.equal(got, model.generate(**batch(), **DEFAULTS))


def test_threads() -> None:
    """Calls of several threads share the object, its engine and the model."""
    calls = [
        {"repetition_penalty": 1.3},
        {"max_new_tokens": 9},
        {"no_repeat_ngram_size": 2},
        {"eos_token_id": None},
    ]
    expected = [plain(batch(PROMPTS[: 1 + i % 3]), **asked) for i, asked in enumerate(calls)]
    got: dict[int, Tensor] = {}

    def call(i: int) -> None:
        got[i] = ours(batch(PROMPTS[: 1 + i % 3]), **calls[i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got[i], expected[i]) for i in range(len(calls)))


def test_a_vocabulary_that_has_grown_is_seen() -> None:
    model, custom = tiny_llama(), CustomGenerate("ngram")
    model.generate(**batch(), custom_generate=custom, **DEFAULTS)
    model.resize_token_embeddings(130, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[97:] = 1.5 * model.lm_head.weight[:33]
    expected = model.generate(**batch(), **DEFAULTS)
    assert expected.max() >= 97
    assert torch.equal(model.generate(**batch(), custom_generate=custom, **DEFAULTS), expected)


def test_a_model_in_training_is_answered_by_its_weights_of_now() -> None:
    model, custom = tiny_llama(), CustomGenerate("ngram", prefix_cache_mb=8)
    inputs = batch([list(range(5, 45))])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        found = model.generate(**inputs, custom_generate=custom, **DEFAULTS)
        assert torch.equal(found, model.generate(**inputs, **DEFAULTS))
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
