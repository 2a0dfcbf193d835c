"""`foredraft bench quantized`: figures of a model with rounded weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from foredraft.backends.quantized import weight_bytes
from foredraft.bench.quantized import measure, passages, render
from foredraft.cli.main import app
from foredraft.engine.load import load_models
from foredraft.errors import ConfigError
from tests.tiny_folders import save_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_folder(tmp_path_factory.mktemp("target"), tie_word_embeddings=True))


def test_the_figures_of_a_model_as_it_is_are_what_transformers_says(folder: str) -> None:
    document = measure(folder, (), dtype="float32")
    (row,) = document["rows"]
    models = load_models(folder, dtype="float32")
    losses, count = 0.0, 0
    for text in passages().values():
        ids = models.tokenizer(text, return_tensors="pt").input_ids  # type: ignore[misc]
        with torch.no_grad():
            loss = models.target.model(ids, labels=ids).loss  # type: ignore[attr-defined]
        losses += float(loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert row["tokens"] == count
    assert row["perplexity"] == pytest.approx(torch.tensor(losses / count).exp().item(), rel=1e-4)
    assert row["divergence"] == 0
    assert row["agreement"] == 1


def test_fewer_bits_take_less_memory_and_are_further_off(folder: str) -> None:
    document = measure(folder, ("int8", "int4"), dtype="float32")
    usual, int8, int4 = document["rows"]
    assert [row["weights"] for row in document["rows"]] == ["as loaded", "int8", "int4"]
    assert 0 < int8["divergence"] < int4["divergence"] / 4
    assert usual["megabytes"] > int8["megabytes"] > int4["megabytes"]
    assert 1 > int8["agreement"] > int4["agreement"]
    assert int8["dtype"] == "float32 with int8 weights"
    assert "| int8 |" in render(document)


def test_memory_is_that_of_all_that_is_held(folder: str) -> None:
    """A tied matrix once; of an int8 layer its steps and scales, of a float one its numbers."""
    usual = load_models(folder, dtype="float32").target.model  # type: ignore[attr-defined]
    rounded = load_models(folder, dtype="float32", quantize="int8").target.model  # type: ignore[attr-defined]
    linears = [m for m in usual.modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(m.weight.numel() for m in linears)
    scales = sum(len(m.weight) for m in linears)
    head = usual.lm_head.weight.numel()  # stays, as the embeddings, beside its copy
    saved = 4 * (weights - head) - weights - 4 * scales
    assert weight_bytes(usual) - weight_bytes(rounded) == saved


@pytest.mark.parametrize(
    ("kinds", "said"),
    [(("int3",), "quantize='int3' is not allowed"), (("int8", "int8"), "names one twice")],
)
def test_kinds_are_checked_before_loading(kinds: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measure("no/such-model", kinds)


def test_the_command_writes_what_it_shows(folder: str, tmp_path: Path) -> None:
    words = ["bench", "quantized", "--model", folder, "--quantize", "int8", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--dtype", "float32"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    document = json.loads((tmp_path / "results.json").read_text())
    assert [row["weights"] for row in document["rows"]] == ["as loaded", "int8"]
    report = (tmp_path / "report.md").read_text()
    assert report.strip() in done.stdout
