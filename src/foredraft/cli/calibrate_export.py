"""`foredraft calibrate --export vllm`: the costs of this machine as a schedule of draft lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.cli import common
from foredraft.config import GenerationOptions
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.files import check_writable, write_json
from foredraft.zoo.shipped import DRAFTERS

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

READERS = ("vllm",)
LENGTH, MAX_BATCH = 5, 64
QUESTIONS, TOKENS = 8, 64
"""Of the built-in suite, and of each answer: what acceptance is measured on."""
CONTEXT = 512


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """A schedule that is to be written.

    Attributes:
        reader: one of `READERS`.
        out: the file.
        max_batch: the largest batch size in it.
    """

    reader: str
    out: Path
    max_batch: int

    @property
    def method(self) -> str:
        """The chain whose acceptance is measured, for a head."""
        return f"eagle-chain-{LENGTH}"

    def check(self) -> None:
        """Refuse it before anything is loaded.

        Raises:
            ConfigError: an unknown reader, a file that cannot be written, or no batch size.
        """
        if self.reader not in READERS:
            raise ConfigError(f"export={self.reader!r} is unknown; available: {', '.join(READERS)}")
        if self.max_batch < 1:
            raise ConfigError(f"max_batch={self.max_batch} is not allowed; give 1 or more")
        check_writable(self.out)


def export_schedule(
    file: ScheduleFile,
    table: CostTable,
    engines: Mapping[str, Engine],
    drafter: str | None,
    options: GenerationOptions,
) -> dict[str, Any]:
    """Measure acceptance, write the file, and return what is in it."""
    from foredraft.bench.suites import read_suites
    from foredraft.bench.vllm_schedule import Gains, measure_acceptance, schedule, vllm_config

    engine = engines[file.method]
    suites = read_suites("builtin", QUESTIONS)
    with common.console(stderr=True).status("measuring acceptance"):
        accepted = measure_acceptance(engine, suites, options=options, max_new_tokens=TOKENS)
    context = min(table.target.contexts, key=lambda cached: abs(cached - CONTEXT))
    gains = Gains(table, file.method, accepted, context)
    named = None if drafter in DRAFTERS else drafter  # vLLM knows no name of ours
    config = vllm_config(schedule(gains, file.max_batch), _method_of(engine), named)
    write_json(file.out, config)
    return config


def _method_of(engine: Engine) -> str:
    """vLLM's word for a head."""
    from foredraft.drafters.eagle.drafter import EagleDrafter

    assert isinstance(engine.drafter, EagleDrafter)
    return "eagle3" if engine.drafter.head.config.variant == 3 else "eagle"


def schedule_line(file: ScheduleFile, config: Mapping[str, Any]) -> str:
    """What was written."""
    entries = config["num_speculative_tokens_per_batch_size"]
    lengths = ", ".join(f"{k} for {first} to {last}" for first, last, k in entries)
    missing = "" if "model" in config else '; add "model", the exported head'
    return f"Draft lengths by batch size, in {file.out}: {lengths}{missing}."
