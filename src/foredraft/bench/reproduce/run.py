"""Runs a reproduction: one benchmark after the other, each of which goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from foredraft.bench.field import enter_field
from foredraft.bench.folder import RunFolder
from foredraft.bench.papers import Progress, measure_many, measure_wide
from foredraft.bench.reproduce.plan import PAPERS, ReproducePlan
from foredraft.bench.runner import BenchRun, Measure
from foredraft.bench.scoring import Scores, enter_scored


class ReproduceRun:
    """One reproduction; iterate to run what is missing.

    Where methods of the paper are lossy, every answer is scored under the target.

    Args:
        plan: what to run.
        path: a folder, with one of each benchmark in it.
        report: receives a sentence at each long step.
        measure: as in `BenchRun`; None measures to the width of the paper's trees.

    Raises:
        ConfigError: as in `BenchRun`, before anything is run.
    """

    def __init__(
        self,
        plan: ReproducePlan,
        path: Path,
        report: Callable[[str], None] = lambda sentence: None,
        measure: Measure | None = None,
    ) -> None:
        self.plan, self.path = plan, path
        lossy = PAPERS[plan.paper].lossy
        self._runs = {
            name: BenchRun(
                run,
                RunFolder(path / name),
                report=report,
                enter=enter_scored(Scores(path / name)) if lossy else enter_field,
                measure=measure or (measure_wide if lossy else measure_many),
            )
            for name, run in plan.runs.items()
        }

    def __iter__(self) -> Iterator[Progress]:
        for name, run in self._runs.items():
            for step in run:
                yield Progress(name, step.done, step.total)
