"""Copy the drafter of a training run to where it ships with the package.

python benchmarks/training/ship.py RUN KIND      KIND: eagle3, eagle1, draft-model,
                                                    decision-soft, decision-hard, length-eagle3
                                                    or length-draft-model
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from foredraft.zoo.shipped import SHIPPED, WEIGHTS

FILES = ("config.json", "foredraft.json", "model.safetensors", "recipe.json")
MOST_MEGABYTES = 22
FOLDERS = re.compile(r"(?<![^\s\"])/(?:[^\s\"/]+/)*")
"""The folders in front of a file's name, which say nothing elsewhere."""


def ship(run: Path, kind: str, model: str = "smollm2") -> Path:
    """Copy a run's drafter and recipe; returns the folder it ships in."""
    if kind not in SHIPPED:
        raise SystemExit(f"{kind!r} does not ship; give one of {', '.join(SHIPPED)}")
    size = (run / "model.safetensors").stat().st_size / 1e6
    if size > MOST_MEGABYTES:
        raise SystemExit(f"{run} holds {size:.1f} MB of weights; {MOST_MEGABYTES} MB is the most")
    folder = WEIGHTS / model / kind
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (run / name).exists():
            shutil.copyfile(run / name, folder / name)
    if kind.startswith(("decision", "length")):
        _halve(folder / "model.safetensors")
    recipe = (folder / "recipe.json").read_text(encoding="utf-8")
    (folder / "recipe.json").write_text(FOLDERS.sub("", recipe), encoding="utf-8")
    json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    return folder


def _halve(file: Path) -> None:
    """Keep the numbers in 16 bits, which a stop rule does not tell from 32."""
    tensors = {name: tensor.half().contiguous() for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


if __name__ == "__main__":
    print(ship(Path(sys.argv[1]), sys.argv[2]))
