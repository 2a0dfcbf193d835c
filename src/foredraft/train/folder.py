"""The folder of a training run.

```
run.json         what is trained, on what and how: a run is only gone on with if all of it is the same
metrics.jsonl    see `metrics.py`
plot.png         made from it
checkpoints/     see `checkpoints.py`
*                the trained drafter, written when the run ends or is interrupted
recipe.json      run.json, and what came out
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError
from foredraft.files import in_use, write_json
from foredraft.train.checkpoints import Checkpoints
from foredraft.train.corpus import MANIFEST
from foredraft.train.metrics import MetricsFile

RUN, RECIPE, METRICS, PLOT, CHECKPOINTS = (
    "run.json",
    "recipe.json",
    "metrics.jsonl",
    "plot.png",
    "checkpoints",
)
DRAFTER = ("config.json", "model.safetensors")
"""What is written over when a run ends."""
UNCOMPARED = "notes"
"""What `run.json` says beside what a resumed run must share: dates, versions, the command."""


class TrainFolder:
    """Finds, checks and writes what a run keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = MetricsFile(path / METRICS)
        self.checkpoints = Checkpoints(path / CHECKPOINTS)

    def in_use(self) -> AbstractContextManager[None]:
        """Keep other runs out of the folder; makes it, and finds out if it can be written."""
        return in_use(self.path, by="training")

    def check(self, run: Mapping[str, Any], resume: bool) -> None:
        """Find out whether this run may be made here.

        Raises:
            ConfigError: there is a run and `resume` is not asked for, or it is another one; the message
                names the first difference. Or a model is there that no run made.
        """
        file = self.path / RUN
        if not file.exists():
            self._check_free()
            return
        if not resume:
            raise ConfigError(
                f"{self.path} holds a training run; go on with it by --resume, or give another --out"
            )
        before, now = _flat(_read(file)), _flat(_plain(run))
        for name in before | now:
            if before.get(name) != now.get(name):
                raise ConfigError(
                    f"{self.path} holds a run with {name}={before.get(name)!r}, and this is "
                    f"{name}={now.get(name)!r}; resume it as it was begun, or give another --out"
                )

    def _check_free(self) -> None:
        """Refuse to replace a model (the target's folder, a drafter that was fetched) or to mix with data."""
        if (self.path / MANIFEST).exists():
            raise ConfigError(
                f"{self.path} holds a corpus, and a drafter needs a folder of its own; give another --out"
            )
        for name in DRAFTER:
            if (self.path / name).exists():
                raise ConfigError(
                    f"{self.path} holds a model or a drafter of no training run, and training would replace "
                    f"its {name}; give another --out"
                )

    def begin(self, run: Mapping[str, Any]) -> None:
        """Write down what is run, unless that was done before."""
        if not (self.path / RUN).exists():
            write_json(self.path / RUN, run)

    def write_recipe(self, run: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """Write down what came out."""
        write_json(self.path / RECIPE, {**run, **outcome})


def _read(file: Path) -> dict[str, Any]:
    try:
        run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(run, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); give another --out") from None
    return run


def _plain(run: Mapping[str, Any]) -> dict[str, Any]:
    """The run as it reads once it was written."""
    plain: dict[str, Any] = json.loads(json.dumps(run))
    return plain


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted names, without the notes."""
    flat: dict[str, Any] = {}
    for name, value in run.items():
        if name == UNCOMPARED:
            continue
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": v for inner, v in _flat(value).items()}
        else:
            flat[name] = value
    return flat
