"""`foredraft calibrate`: what passes cost on this machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from foredraft.cli import common
from foredraft.cli.calibrate_export import MAX_BATCH, ScheduleFile, export_schedule, schedule_line
from foredraft.cli.failures import clear_failures
from foredraft.config import GenerationOptions
from foredraft.costs import (
    BUDGET_S,
    BUSY_SPREAD,
    CONTEXTS,
    NODES,
    CostTable,
    PassCosts,
    check_budget,
    check_grid,
)
from foredraft.errors import ConfigError
from foredraft.files import check_writable

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

USUAL_CONTEXT = 512
"""Tokens in the cache for which the sentences under the table speak."""
REFRESHES_PER_S = 1
"""Of the progress line: drawing it must not cost the passes their time."""


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def calibrate(
    model: common.Model = "smollm2",
    drafter: common.Drafter = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    quantize: common.Quantize = None,
    compile: common.Compile = False,
    cuda_graphs: common.CudaGraphs = False,
    nodes: Annotated[str, typer.Option(help="Rows of a pass, comma-separated.")] = _listed(NODES),
    contexts: Annotated[
        str, typer.Option(help="Tokens cached before it, comma-separated.")
    ] = _listed(CONTEXTS),
    temperature: Annotated[
        float, typer.Option(help="Of the answers whose host work is timed; 0 is greedy.")
    ] = 0.0,
    budget: Annotated[float, typer.Option(help="Seconds to measure, loading apart.")] = BUDGET_S,
    out: Annotated[Path | None, typer.Option(help="Write the table to this JSON file too.")] = None,
    export: Annotated[
        str | None,
        typer.Option(help="vllm: write how long a head's drafts should be at each batch size too."),
    ] = None,
    export_out: Annotated[
        Path, typer.Option(help="That file: a --speculative-config of vLLM.")
    ] = Path("speculative-config.json"),
    max_batch: Annotated[int, typer.Option(help="The largest batch size in it.")] = MAX_BATCH,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document as the last line.")
    ] = False,
) -> None:
    """Measure what passes of a model, drafts and the rest of a round cost here, and keep the table."""
    with clear_failures():
        grid = check_grid(_numbers("nodes", nodes), _numbers("contexts", contexts))
        check_budget(budget)
        options = GenerationOptions(temperature=temperature)
        if out is not None:
            check_writable(out)
        file = None if export is None else ScheduleFile(export, export_out, max_batch)
        if file is not None:
            file.check()
        engines = _load(
            model,
            file,
            drafter,
            dtype=dtype,
            device=device,
            compile=compile,
            quantize=quantize,
            cuda_graphs=cuda_graphs,
        )
        engine = next(iter(engines.values()))
        table = _measure(engines, grid, budget, options)
        _show(table, model, grid, as_json)
        _keep(table, engine, model, out)
        if file is not None:
            config = export_schedule(file, table, engines, drafter, options)
            common.console(stderr=True).print(schedule_line(file, config), soft_wrap=True)


def _load(
    model: str, file: ScheduleFile | None, drafter: str | None, **options: Any
) -> dict[str, Engine]:
    """The method that is taken by itself, first; and the chain of a schedule."""
    from foredraft.engine.choosing import best_method

    name = best_method(model, drafter)
    if file is None:
        return {name: common.load_engine(model, method=name, drafter=drafter, **options)}
    return common.load_engines(model, [name, file.method], drafter, **options)


def _measure(
    engines: dict[str, Engine],
    grid: tuple[Sequence[int], Sequence[int]],
    budget_s: float,
    options: GenerationOptions,
) -> CostTable:
    """The table, with progress on stderr."""
    from foredraft.bench.provenance import provenance
    from foredraft.engine import calibration
    from foredraft.engine.cost_files import dtype_of

    target = next(iter(engines.values())).target
    console = common.console(stderr=True)
    with console.status("starting", refresh_per_second=REFRESHES_PER_S) as status:
        table = calibration.calibrate(
            target,
            engines,
            options,
            nodes=grid[0],
            contexts=grid[1],
            budget_s=budget_s,
            report=lambda line: status.update(Text(line)),
        )
    facts = {**provenance(target.device), "dtype": dtype_of(target)}
    return dataclasses.replace(table, provenance={**facts, **table.provenance})


def _keep(table: CostTable, engine: Engine, model: str, out: Path | None) -> None:
    """Write the table where it is looked for, by name and by weights, and where the user wants it."""
    from foredraft.engine.adaptive_costs import keep_costs
    from foredraft.engine.cost_files import arithmetic_of, save_costs, write_costs

    console = common.console(stderr=True)
    keep_costs(table, engine)
    if out is not None:
        write_costs(table, out)
    try:
        file = save_costs(table, model, arithmetic_of(engine.target), engine.target.device)
    except ConfigError as error:
        if out is None:
            raise
        console.print(f"kept in {out} alone: {error}", soft_wrap=True)
    else:
        console.print(f"kept in {file}", style="dim", highlight=False, soft_wrap=True)


def _show(
    table: CostTable, model: str, grid: tuple[Sequence[int], Sequence[int]], as_json: bool
) -> None:
    if as_json:
        typer.echo(json.dumps(table.as_dict()))
        return
    console = common.console()
    console.print(_passes_table(table.target, f"ms a pass of {model} (x 1 node)"))
    for sentence in [*_left_out(table.target, grid), *sentences(table)]:
        console.print(sentence, highlight=False, soft_wrap=True)


def _passes_table(costs: PassCosts, title: str) -> Table:
    """Milliseconds, and the ratio to one node, by nodes (down) and cached tokens (across)."""
    shown = Table(box=None, pad_edge=False, title=title, title_justify="left")
    shown.add_column("nodes", justify="right")
    for context in costs.contexts:
        shown.add_column(f"{context} tokens", justify="right")
    for column, count in enumerate(costs.nodes):
        cells = [f"{1000 * row[column]:.1f} ({row[column] / row[0]:.2f})" for row in costs.seconds]
        shown.add_row(str(count), *cells)
    return shown


def sentences(table: CostTable) -> list[str]:
    """What the table means, for drafts in the middle of a text."""
    behind = min(table.target.contexts, key=lambda context: abs(context - USUAL_CONTEXT))
    one_s = table.target(1, behind)
    widths = [count for count in table.target.nodes if count in (8, 32)] or [table.target.nodes[-1]]
    wide = ", of ".join(f"{n} rows {table.target(n, behind) / one_s:.2f}" for n in widths)
    said = [f"Behind {behind} tokens, in passes of plain decoding: a pass of {wide}."]
    for name, draft in table.drafts.items():
        host = f"{1000 * draft.host_s:.2f} ms of host work a round"
        level = f"{draft.passes(1, behind) / one_s:.2f} passes a level and " if draft.passes else ""
        said.append(f"A draft of {name} costs {level}{host}.")
    said.append(f"The rest of a round takes {1000 * table.host_s:.2f} ms.")
    spread = table.provenance.get("spread", 0.0)
    if spread > BUSY_SPREAD:
        said.append(
            f"The machine was busy: repeats of a pass differed by {spread:.0%}; measure again later."
        )
    return said


def _left_out(costs: PassCosts, grid: tuple[Sequence[int], Sequence[int]]) -> list[str]:
    """A note on what the model's context has no room for."""
    kept = (costs.nodes, costs.contexts)
    lost = [
        f"{name} {_listed(missing)}"
        for name, asked, measured in zip(("nodes", "contexts"), grid, kept, strict=True)
        if (missing := [number for number in asked if number not in measured])
    ]
    return [f"Left out, for this model's context is too short: {'; '.join(lost)}."] if lost else []


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--{name} {text!r} is no list of whole numbers; write it like 1,8,64"
        ) from None
