"""The folder of one benchmark run: what was asked for, and every finished prompt.

```
plan.json       what was asked for, notes, provenance
costs.json      the cost table measured at its start
records.jsonl   one line per finished prompt, appended as it finishes
results.json  report.md  *.png    made from those by `foredraft bench report`
```
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foredraft.bench.json_lines import JsonLines
from foredraft.bench.records import PromptRecord
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.files import in_use, write_json

PLAN, COSTS, RECORDS = "plan.json", "costs.json", "records.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read back from its folder; complete or not."""

    plan: dict[str, Any]
    """`methods` in order, `suites`, `dtype`, `temperature`, .. as asked for; `notes`; `provenance`."""
    records: tuple[PromptRecord, ...]
    costs: CostTable | None
    name: str = field(default="")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that ran, in the order in which they were named."""
        ran = {answer.method for record in self.records for answer in record.answers}
        return tuple(name for name in self.plan["methods"] if name in ran)

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites with a finished prompt, in the order in which they were named."""
        ran = {record.suite for record in self.records}
        return tuple(name for name in self.plan["suites"] if name in ran)


class RunFolder:
    """Reads and writes one run's folder. Files are replaced whole; records are appended line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path / RECORDS, "a record of a prompt", "the prompt is run again")

    def read(self) -> Run:
        """The run so far.

        Raises:
            ConfigError: the folder holds no run, or a file that cannot be read.
        """
        plan = self.read_plan()
        if plan is None:
            raise ConfigError(
                f"{self.path} holds no benchmark run ({PLAN} is missing); "
                "`foredraft bench run --out DIR` makes one"
            )
        costs = self.path / COSTS
        table = CostTable.from_dict(_read_json(costs)) if costs.exists() else None
        return Run(plan, tuple(self.records()), table, self.path.name)

    def read_plan(self) -> dict[str, Any] | None:
        """What was asked for; None where no run was begun."""
        file = self.path / PLAN
        return _read_json(file) if file.exists() else None

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Replace the plan; makes the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / PLAN, plan)

    @property
    def has_costs(self) -> bool:
        """Whether a cost table was measured."""
        return (self.path / COSTS).exists()

    def write_costs(self, table: CostTable) -> None:
        """Keep the cost table of the run."""
        write_json(self.path / COSTS, table.as_dict())

    def in_use(self) -> AbstractContextManager[None]:
        """Keep other processes from running in this folder; makes it, and finds out if it can be written."""
        return in_use(self.path, by="benchmark")

    def records(self) -> Iterator[PromptRecord]:
        """Every finished prompt. A last line that was cut off in writing is no finished prompt."""
        file = self.path / RECORDS
        if file.exists() and not (self.path / PLAN).exists():
            raise ConfigError(
                f"{file} belongs to a run whose {PLAN} is missing; give another --out, or remove it"
            )
        yield from self._lines.read(PromptRecord.from_dict)

    def append(self, record: PromptRecord) -> None:
        """Keep a finished prompt, on disk before this returns."""
        self._lines.append(record.as_dict())


def _read_json(file: Path) -> Any:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        return document
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); run the benchmark anew") from None
