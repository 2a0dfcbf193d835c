"""`foredraft bench reproduce` and `bench quality`: a paper's comparisons, and what lossy answers are like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foredraft.bench.libraries import check_libraries
from foredraft.bench.plan import BenchPlan
from foredraft.bench.quality.plan import QualityPlan
from foredraft.bench.reproduce.plan import (
    PAPERS,
    ReproducePlan,
    read_budgets,
    read_numbers,
)
from foredraft.cli import common
from foredraft.cli.failures import FAILURE, clear_failures
from foredraft.config import default_of

Suite = Annotated[
    str, typer.Option(help="builtin, builtin/CATEGORY, or JSONL files, comma-separated.")
]
Limit = Annotated[
    int, typer.Option(help="Questions of each suite, spread over its categories; 0 takes all.")
]
MODEL, SUITE, LIMIT = (default_of(BenchPlan, name) for name in ("model", "suites", "limit"))
TEMPERATURE = default_of(QualityPlan, "temperature")
Out = Annotated[Path, common.out_folder("Folder; an interrupted run is gone on with.")]


def _bench(name: str) -> Any:
    return default_of(BenchPlan, name)


def _of(name: str) -> Any:
    return default_of(QualityPlan, name)


def _list(values: tuple[Any, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"What to reproduce: {', '.join(PAPERS)}.")],
    out: Out,
    model: common.Model = MODEL,
    suite: Suite = SUITE,
    temperature: Annotated[
        str,
        typer.Option(
            show_default="the paper's own",
            help="One or more, comma-separated; a table each. 0 is greedy.",
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="improved-mcsd: draft tokens a round, such as 8,16: compares the best shape of each family "
            "in place of the line-up."
        ),
    ] = "",
    decision: Annotated[
        str | None,
        typer.Option(
            help="improved-mcsd: decision model of the dynamic rows, by name or folder, at every "
            "temperature; left out, the one that ships for the model: hard at 0, soft above. none leaves "
            "these rows out."
        ),
    ] = default_of(ReproducePlan, "decision"),
    structures: Annotated[
        bool,
        typer.Option(
            "--structures",
            help="adaeagle: fixed trees and hybrids too, which the adaptive policy is held against.",
        ),
    ] = default_of(ReproducePlan, "structures"),
    predictors: Annotated[
        str,
        typer.Option(help="adaeagle: more length predictors, by name or folder, comma-separated."),
    ] = "",
    drafter: Annotated[
        str | None,
        typer.Option(
            help="A draft model, or for adaeagle a head; none takes what ships for the model."
        ),
    ] = None,
    limit: Limit = LIMIT,
    max_new_tokens: Annotated[int, typer.Option()] = _bench("max_new_tokens"),
    repeats: Annotated[int, typer.Option(help="Answers of each method to each prompt.")] = _bench(
        "repeats"
    ),
    seed: Annotated[int, typer.Option(help="Question i of a suite has seed + i.")] = _bench("seed"),
    dtype: common.Dtype = None,
    device: common.Device = None,
    quantize: common.Quantize = None,
) -> None:
    """Run a paper's line-up here, and report it beside the figures that the paper prints.

    Exits with 1 when an answer that should be plain decoding's differs by more than rounding.
    """
    with clear_failures():
        plan = ReproducePlan(
            paper=paper,
            model=model,
            suites=suite,
            temperatures=read_numbers(temperature, "temperature"),
            budgets=read_budgets(budget),
            decision=decision,
            structures=structures,
            predictors=tuple(name.strip() for name in predictors.split(",") if name.strip()),
            drafter=drafter,
            limit=limit or None,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            seed=seed,
            dtype=dtype,
            device=device,
            quantize=quantize,
        )
        check_libraries()
        _reproduce(plan, out)


def quality(
    out: Out,
    model: common.Model = MODEL,
    suite: Suite = SUITE,
    drafters: Annotated[
        str, typer.Option(help="Drafters that ship for the model, or folders, comma-separated.")
    ] = ",".join(_of("drafters")),
    tree: Annotated[str, typer.Option(help="The k-config under every root.")] = _of("tree"),
    max_roots: Annotated[int, typer.Option(help="1 to this many roots are measured.")] = _of(
        "max_roots"
    ),
    roots: Annotated[
        str, typer.Option(help="How roots are chosen: multinomial, topk or nucleus.")
    ] = _of("roots"),
    limit: Limit = LIMIT,
    contexts: Annotated[
        int, typer.Option(help="Sampled contexts at which the root's law is computed.")
    ] = _of("contexts"),
    candidates: Annotated[int, typer.Option(help="Likeliest tokens that are roots there.")] = _of(
        "candidates"
    ),
    drafts: Annotated[int, typer.Option(help="Drafts of each of these.")] = _of("drafts"),
    tasks: Annotated[int, typer.Option(help="Generated questions with checkable answers.")] = _of(
        "tasks"
    ),
    max_new_tokens: Annotated[int, typer.Option()] = _of("max_new_tokens"),
    temperature: common.Temperature = TEMPERATURE,
    seed: Annotated[int, typer.Option(help="Question i of a suite has seed + i.")] = _of("seed"),
    dtype: common.Dtype = None,
    device: common.Device = None,
) -> None:
    """Measure what several target-initialised roots do to answers, against plain decoding."""
    with clear_failures():
        plan = QualityPlan(
            model=model,
            suites=suite,
            drafters=tuple(name.strip() for name in drafters.split(",")),
            tree=tree,
            max_roots=max_roots,
            roots=roots,
            limit=limit or None,
            contexts=contexts,
            candidates=candidates,
            drafts=drafts,
            tasks=tasks,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            dtype=dtype,
            device=device,
        )
        check_libraries()
        _quality(plan, out)


def _reproduce(plan: ReproducePlan, out: Path) -> None:
    from foredraft.bench.reproduce.report import write_reproduction
    from foredraft.bench.reproduce.run import ReproduceRun
    from foredraft.cli.long_runs import run_to_end

    console = common.console(stderr=True)
    run_to_end(ReproduceRun(plan, out, report=_dim(console)), out, console)
    document = write_reproduction(plan, out)
    common.console().print(f"report: {out / 'report.md'}", highlight=False, soft_wrap=True)
    if any(row["identical"] == "bug" for row in document["rows"]):
        raise typer.Exit(FAILURE)


def _quality(plan: QualityPlan, out: Path) -> None:
    from foredraft.bench.quality.report import write_quality
    from foredraft.bench.quality.run import QualityRun
    from foredraft.cli.long_runs import run_to_end

    console = common.console(stderr=True)
    run_to_end(QualityRun(plan, out, report=_dim(console)), out, console)
    write_quality(out)
    common.console().print(f"report: {out / 'report.md'}", highlight=False, soft_wrap=True)


def _dim(console: Any) -> Any:
    return lambda line: console.print(line, style="dim")
