"""What the measuring scripts share: prompts, provenance, results written whole."""

from __future__ import annotations

import copy
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

Messages = list[dict[str, str]]
SUITES = ("mt_bench", "alpaca", "gsm8k", "humaneval", "qa", "sum")


def read_prompts(folder: Path, suites: Sequence[str], per_suite: int) -> list[tuple[str, Messages]]:
    """The first `per_suite` questions (first turns) of each suite's JSONL file, as chat messages."""
    prompts = []
    for suite in suites:
        lines = (folder / f"{suite}.jsonl").read_text(encoding="utf-8").splitlines()
        for line in lines[:per_suite]:
            turn = json.loads(line)["turns"][0]
            prompts.append(
                (f"{suite}/{json.loads(line)['id']}", [{"role": "user", "content": turn}])
            )
    return prompts


def first_layers(model: Any, count: int) -> Any:
    """A model of the target's first layers, with its embeddings, last norm and head."""
    layers = model.model.layers
    model.model.layers = layers[:0]  # leave the weights out of the copy
    small = copy.deepcopy(model)
    model.model.layers = layers
    small.model.layers = layers[:count]
    small.config.num_hidden_layers = count
    return small


def provenance() -> dict[str, Any]:
    """When, where and with what a result was made."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "revision": revision,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
    }


def write_results(path: Path, rows: Sequence[dict[str, Any]], **summary: Any) -> None:
    """Provenance, summary and rows as one JSON file, replaced at once."""
    document = {"provenance": provenance(), **summary, "rows": list(rows)}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def bootstrap_interval(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95 % interval of the median of paired ratios, resampling prompts."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
