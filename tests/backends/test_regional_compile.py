"""Compiled regions say what the model says, in few graphs, and in passes of ours alone."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch._dynamo as dynamo

from foredraft import Engine, GenerationOptions
from foredraft.backends import regional_compile
from foredraft.backends.hf import HFTarget
from foredraft.backends.joined_linears import join_linears
from foredraft.backends.own_pass import own_pass
from foredraft.backends.regional_compile import compile_regions, compiled_class, is_compiled
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import ConfigError
from tests.tiny_models import tiny_gpt2, tiny_llama

has_compiler = any(shutil.which(name) for name in regional_compile.COMPILERS)
needs_compiler = pytest.mark.skipif(not has_compiler, reason="there is no C++ compiler here")
PROMPT = [5, 9, 20, 5, 9, 20, 5, 9]
OPTIONS = GenerationOptions(max_new_tokens=24, ignore_eos=True)


@pytest.mark.parametrize(
    ("backend", "regions"),
    [
        ("eager", regional_compile.REGIONS),
        pytest.param("inductor", ("input_layernorm",), marks=needs_compiler),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own imports
def test_answers_with_drafts_are_those_of_plain_decoding_in_few_graphs(
    monkeypatch: pytest.MonkeyPatch, backend: str, regions: tuple[str, ...]
) -> None:
    """The real compiler takes seconds a graph, so it gets one kind of region alone."""
    monkeypatch.setattr(regional_compile, "BACKEND", backend)
    monkeypatch.setattr(regional_compile, "REGIONS", regions)
    compiled_class.cache_clear()
    dynamo.reset()
    dynamo.utils.counters.clear()
    plain = Engine(HFTarget(tiny_llama()))
    model = tiny_llama()
    join_linears(model)
    assert compile_regions(model) == len(regions) * model.config.num_hidden_layers
    assert is_compiled(model)
    compiled = Engine(HFTarget(model), NgramDrafter())
    expected = plain.generate(PROMPT, OPTIONS)
    assert compiled.generate(PROMPT, OPTIONS).token_ids == expected.token_ids
    graphs = dynamo.utils.counters["stats"]["unique_graphs"]
    kinds = 2 if "mlp" in regions else 1
    assert 0 < graphs <= 2 * kinds  # of one row, and of any number of rows
    compiled.generate([*PROMPT, 7, 7], OPTIONS)
    assert dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    compiled_class.cache_clear()


def test_for_others_a_region_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a compiler that marks what it made, in the real one's place."""
    monkeypatch.setattr(regional_compile, "_require_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda self, x: call(self, x) + 100)
    compiled_class.cache_clear()
    model, hidden = tiny_llama(), torch.randn(1, 3, 32)
    region = model.model.layers[0].mlp
    before = region(hidden)
    weights = model.state_dict().keys()
    compile_regions(model)
    assert torch.equal(region(hidden), before)
    with own_pass():
        assert torch.equal(region(hidden), before + 100)
    assert model.state_dict().keys() == weights
    compiled_class.cache_clear()


def test_without_a_compiler_or_a_region_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match="needs a C\\+\\+ compiler on a CPU and finds none"):
        compile_regions(tiny_llama())
    monkeypatch.setattr(regional_compile, "_require_compiler", lambda device: None)
    with pytest.raises(ConfigError, match="finds no part of Sequential"):
        compile_regions(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    gpt2 = tiny_gpt2()
    assert not is_compiled(gpt2)
    assert compile_regions(gpt2) == gpt2.config.n_layer
