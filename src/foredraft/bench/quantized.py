"""What rounding a model's weights does to it, on texts that ship with the package.

Every passage is read by the model as it is and by each rounded form, in one pass each. The laws of the next
token at all places are then compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.quantized import weight_bytes
from foredraft.bench.provenance import provenance
from foredraft.bench.tables import markdown_table
from foredraft.config import QUANTIZATIONS, check_quantization
from foredraft.engine.cost_files import dtype_of
from foredraft.engine.load import Models, load_models
from foredraft.errors import ConfigError
from foredraft.files import write_json, write_text

RESULTS, REPORT = "results.json", "report.md"


@dataclass(frozen=True, slots=True)
class QuantizedQuality:
    """A model's figures over all places of the passages.

    Attributes:
        weights: `as loaded`, or what they were rounded to.
        dtype: of the model.
        megabytes: of everything that it holds, embeddings included, in 10^6 bytes.
        tokens: places where a next token is known.
        perplexity: exp of the mean negative log probability of these tokens.
        divergence: mean KL divergence of its law from that of the model as loaded, in nats.
        agreement: part of the places with the same likeliest token, 0 to 1.
    """

    weights: str
    dtype: str
    megabytes: float
    tokens: int
    perplexity: float
    divergence: float
    agreement: float


def passages() -> Mapping[str, str]:
    """Texts of several kinds by name, written for this package."""
    file = files("foredraft.bench") / "data" / "passages.jsonl"
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {line["id"]: line["text"] for line in lines}


def measure(
    model: str,
    kinds: Sequence[str] = QUANTIZATIONS,
    *,
    dtype: str | None = None,
    device: str | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """The figures of a model as it is and rounded, ready for JSON, with where they were made.

    Args:
        model, dtype, device: as in `foredraft.load`.
        kinds: what to round to.
        report: called with a sentence at each long step.

    Raises:
        ConfigError: an unknown kind, one named twice, or a model without a tokenizer.
        ModelError: as in `foredraft.load`.
    """
    _check_kinds(kinds)
    options: dict[str, Any] = {"dtype": dtype, "device": device, "report": report}
    usual = load_models(model, **options)
    texts = _token_ids(usual)
    places = provenance(usual.target.device)
    rows = [_figures("as loaded", usual, usual, texts)]
    for kind in kinds:
        rounded = load_models(model, quantize=kind, **options)
        rows.append(_figures(kind, rounded, usual, texts))
    return {"model": model, "rows": [asdict(row) for row in rows], "provenance": places}


def write(document: Mapping[str, Any], folder: Path) -> None:
    """Write the figures as JSON, and a report with their table.

    Raises:
        ConfigError: the disk refused it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RESULTS, dict(document))
        write_text(folder / REPORT, render(document))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror or error}); give a folder that can be"
        ) from None


def render(document: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    made, rows = document["provenance"], document["rows"]
    header = ("weights", "MB", "perplexity", "KL (nats)", "same likeliest token")
    cells = [
        (
            row["weights"],
            f"{row['megabytes']:.0f}",
            f"{row['perplexity']:.3f}",
            f"{row['divergence']:.5f}",
            f"{row['agreement']:.1%}",
        )
        for row in rows
    ]
    return (
        f"# {document['model']} with rounded weights\n\n{rows[0]['dtype']}, {made['cpu']}; "
        f"{rows[0]['tokens']} tokens of the passages that ship.\n\n```\n{made['command']}\n```\n\n"
        f"{markdown_table(header, cells)}\n"
    )


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        check_quantization(kind)
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"quantize={','.join(kinds)!r} names one twice; leave one out")


def _token_ids(models: Models) -> list[list[int]]:
    if models.tokenizer is None:
        raise ConfigError("the model has no tokenizer, and texts cannot be read; give one that has")
    return [models.tokenizer(text)["input_ids"] for text in passages().values()]


def _figures(
    name: str, models: Models, usual: Models, texts: Sequence[Sequence[int]]
) -> QuantizedQuality:
    seen = torch.cat(list(_compared(models, usual, texts)))
    losses, divergences, same = seen.mean(0).tolist()
    return QuantizedQuality(
        weights=name,
        dtype=dtype_of(models.target),
        megabytes=weight_bytes(models.target.model) / 1e6,  # type: ignore[attr-defined]
        tokens=len(seen),
        perplexity=math.exp(losses),
        divergence=divergences,
        agreement=same,
    )


def _compared(models: Models, usual: Models, texts: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Of each text, at its places: loss, KL divergence, whether the likeliest token is the same; [T, 3]."""
    for ids in texts:
        own, others = _laws(models, ids), _laws(usual, ids)
        known = torch.tensor(ids[1:], device=own.device)[:, None]
        losses = -own.gather(1, known)[:, 0]
        divergences = (others.exp() * (others - own)).sum(-1)
        same = own.argmax(-1) == others.argmax(-1)
        yield torch.stack([losses, divergences, same.double()], -1)


def _laws(models: Models, ids: Sequence[int]) -> Tensor:
    """Log probabilities of the next token at all places but the last, float64 [T, V]."""
    logits: Tensor = models.target.forward(ids)  # type: ignore[attr-defined]
    return logits[:-1, : models.target.vocab_size].double().log_softmax(-1)
