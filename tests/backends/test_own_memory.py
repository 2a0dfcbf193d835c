"""Weights leave the file that they were read from, and stay what they were."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from foredraft.backends import own_memory
from foredraft.backends.hf_loading import load_hf
from foredraft.backends.joined_linears import join_linears
from foredraft.backends.quantized import quantize_linears
from tests.tiny_folders import save_folder
from tests.tiny_models import tiny_llama

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="tells mapped files by /proc")


def in_files(model: torch.nn.Module) -> list[str]:
    mapped = own_memory._MappedFiles.now()
    return [n for n, p in model.named_parameters() if mapped.holds(p.data_ptr())]


CHANGES = {
    "as loaded": lambda model: None,
    "joined": join_linears,
    "quantised": lambda model: quantize_linears(model, "int8"),
}


@LINUX
@pytest.mark.parametrize("change", CHANGES)
def test_no_weight_is_left_in_a_mapped_file(tmp_path: Path, change: str) -> None:
    """One weight that stays there would keep the whole file in memory."""
    model, _ = load_hf(save_folder(tmp_path, tie_word_embeddings=True), dtype="float32")
    assert in_files(model)
    CHANGES[change](model)
    ids = torch.tensor([[3, 4, 5]])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = model(input_ids=ids).logits
    left = {id(p): p.nbytes for n, p in model.named_parameters() if n in in_files(model)}
    assert own_memory.settle(model) >= sum(left.values()) > 0
    assert in_files(model) == []
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.equal(model(input_ids=ids).logits, expected)
    assert own_memory.settle(model) == 0


def test_weights_in_memory_stay_where_they_are() -> None:
    model = tiny_llama()
    places = [p.data_ptr() for p in model.parameters()]
    assert own_memory.settle(model) == 0
    assert [p.data_ptr() for p in model.parameters()] == places


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_memory, "MAPS", tmp_path / "missing")
    monkeypatch.setattr(own_memory.sys, "platform", "darwin")
    assert own_memory.settle(tiny_llama()) == 0


@LINUX
def test_addresses_are_told_apart() -> None:
    ranges = own_memory._MappedFiles([(10, 20), (40, 41)])
    assert [a for a in range(60) if ranges.holds(a)] == [*range(10, 20), 40]
    assert not own_memory._MappedFiles([]).holds(5)
