"""What the measuring scripts share beside `foredraft.bench`: prompts by name, and an untrained draft model.

    python benchmarks/common.py --model smollm2 --layers 6 --out DRAFT

saves that draft model as a folder, for `foredraft bench run --drafter DRAFT`: the model's own first
layers under its embeddings, last norm and head. It is what a draft model is worth without any training.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import foredraft
from foredraft.bench.provenance import provenance
from foredraft.bench.suites import read_suites
from foredraft.files import write_json

Messages = list[dict[str, str]]
SUITES = ("mt_bench", "alpaca", "gsm8k", "humaneval", "qa", "sum")


def read_prompts(folder: Path, suites: Sequence[str], per_suite: int) -> list[tuple[str, Messages]]:
    """The first turn of `per_suite` questions of each suite's JSONL file, as chat messages."""
    files = ",".join(str(folder / f"{suite}.jsonl") for suite in suites)
    return [
        (f"{suite.name}/{question.id}", [dict(m) for m in question.prompt(())])
        for suite in read_suites(files, per_suite)
        for question in suite.questions
    ]


def first_layers(model: Any, count: int) -> Any:
    """A model of the target's first layers, with its embeddings, last norm and head."""
    layers = model.model.layers
    model.model.layers = layers[:0]  # leave the weights out of the copy
    small = copy.deepcopy(model)
    model.model.layers = layers
    small.model.layers = layers[:count]
    small.config.num_hidden_layers = count
    if getattr(small.config, "layer_types", None):
        small.config.layer_types = small.config.layer_types[:count]
    return small


def write_results(path: Path, rows: Sequence[dict[str, Any]], **summary: Any) -> None:
    """Provenance, summary and rows as one JSON file, replaced at once."""
    write_json(path, {"provenance": provenance(), **summary, "rows": list(rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    engine = foredraft.load(args.model, method="autoregressive", dtype="auto", report=print)
    first_layers(engine.target.model, args.layers).save_pretrained(args.out)  # type: ignore[attr-defined]
    engine.tokenizer.save_pretrained(args.out)  # type: ignore[union-attr]
    print(f"{args.layers} layers of {args.model} are in {args.out}")


if __name__ == "__main__":
    main()
