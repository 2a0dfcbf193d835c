"""What a training run measures of itself, and the file that keeps it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, Protocol

from foredraft.files import write_text

TRAIN, HELD_OUT = "train", "held_out"


@dataclass(frozen=True, slots=True)
class Measure:
    """Means over some steps of training, or over the held-out samples."""

    kind: str
    """`train` or `held_out`."""
    step: int
    """Optimizer steps done."""
    epoch: float
    """Epochs done, with the part of the current one."""
    progress: float
    """From 0 to 1, where the run ends."""
    elapsed_s: float
    """Seconds of training so far, those of interrupted runs included."""
    tokens: int
    """Tokens trained on so far."""
    loss: float | None
    """Mean loss; None when none was finite."""
    acceptance: tuple[float, ...]
    """[K] for each depth, the share of predictions that were the target's best token."""
    lr: float | None = None
    """Learning rate of the last step; None of held-out samples."""
    tokens_per_s: float | None = None
    """Tokens read a second, padding left out; None of held-out samples."""
    skipped: int = 0
    """Steps so far that were left out because their gradient was not finite."""

    @property
    def expected_length(self) -> float:
        """Draft tokens accepted in a row, were depths independent: sum over k of a_1 ... a_k."""
        return float(sum(accumulate(self.acceptance, mul)))

    def as_dict(self) -> dict[str, Any]:
        """One line of `metrics.jsonl`: numbers rounded to what they mean."""
        return line_of(asdict(self))


class Line(Protocol):
    """What a line of `metrics.jsonl` is made of; it names a `kind` and a `step`."""

    def as_dict(self) -> dict[str, Any]:
        """The line."""
        ...


class MetricsFile:
    """`metrics.jsonl`: a line for each measure, in order of steps."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def append(self, measure: Line) -> None:
        """Add a line."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measure.as_dict()) + "\n")

    def keep_until(self, step: int) -> None:
        """Remove the lines behind a step: of a run that was killed after its last checkpoint."""
        kept = [json.dumps(line) for line in self.read() if line["step"] <= step]
        write_text(self._file, "".join(f"{line}\n" for line in kept))

    def read(self) -> Iterator[dict[str, Any]]:
        """Every line up to the first that is none: a last one may be cut off in writing."""
        if not self._file.exists():
            return
        for line in self._file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                measure = json.loads(line)
            except ValueError:
                return
            if not isinstance(measure, dict) or not isinstance(measure.get("step"), int):
                return
            yield measure


def line_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl`: what is known, with numbers rounded to what they mean."""
    return {k: _rounded(v) for k, v in values.items() if v is not None}


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(v) for v in value]
    if not isinstance(value, float) or not math.isfinite(value) or value == 0:
        return value
    return float(f"{value:.6g}")
