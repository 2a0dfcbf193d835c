"""`foredraft bench`: methods and peers on the same prompts, in one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foredraft.bench.folder import RunFolder
from foredraft.bench.libraries import check_libraries
from foredraft.bench.plan import BenchPlan, split_methods
from foredraft.cli import common
from foredraft.cli.bench_papers import quality, reproduce
from foredraft.cli.bench_profile import profile
from foredraft.cli.bench_quantized import quantized
from foredraft.cli.failures import FAILURE, clear_failures
from foredraft.cli.interrupts import INTERRUPTED, noticed_interrupts
from foredraft.config import METHODS, default_of
from foredraft.errors import ConfigError
from foredraft.zoo.shipped import DRAFTERS

if TYPE_CHECKING:
    from foredraft.bench.runner import BenchRun

app = typer.Typer(no_args_is_help=True, help="Measure methods and peers on the same prompts.")


app.command()(reproduce)
app.command()(quality)
app.command()(profile)
app.command()(quantized)


def _default(name: str) -> Any:
    return default_of(BenchPlan, name)


@app.command()
def run(
    out: Annotated[
        Path,
        common.out_folder("Folder of the run; an interrupted one is gone on with."),
    ],
    model: Annotated[
        str, typer.Option(help="smollm2, a hub id, a folder, or a .gguf file.")
    ] = _default("model"),
    suite: Annotated[
        str, typer.Option(help="builtin, builtin/CATEGORY, or JSONL files, comma-separated.")
    ] = _default("suites"),
    methods: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(METHODS)} (K a number), and the peers hf, hf-assisted, hf-lookup, "
            "llama.cpp, economize; comma-separated, each with options after colons."
        ),
    ] = ",".join(_default("methods")),
    drafter: Annotated[
        str | None,
        typer.Option(
            help="The draft model of speculative and hf-assisted, a head, or one that ships for the model "
            f"({', '.join(DRAFTERS)}); methods may name their own instead, as in eagle2:drafter=eagle1."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Questions of each suite, spread over its categories; 0 takes all.")
    ] = _default("limit"),
    max_new_tokens: Annotated[int, typer.Option()] = _default("max_new_tokens"),
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = _default("temperature"),
    top_p: Annotated[float, typer.Option()] = _default("top_p"),
    top_k: Annotated[int, typer.Option(help="0 keeps all tokens.")] = _default("top_k"),
    seed: Annotated[
        int, typer.Option(help="When sampling; question i of a suite has seed + i.")
    ] = _default("seed"),
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or auto.")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0.")] = None,
    quantize: common.Quantize = None,
    compile: common.Compile = False,
    cuda_graphs: common.CudaGraphs = False,
    repeats: Annotated[int, typer.Option(help="Answers of each method to each prompt.")] = _default(
        "repeats"
    ),
) -> None:
    """Answer every prompt with every method in turn, and report speeds with their intervals.

    Exits with 1 when an answer that should be plain decoding's differs by more than rounding, and with 2
    when none of the methods could be measured.
    """
    with clear_failures():
        plan = BenchPlan(
            model=model,
            suites=suite,
            methods=split_methods(methods),
            drafter=drafter,
            limit=limit or None,
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            dtype=dtype,
            device=device,
            quantize=quantize,
            compile=compile,
            cuda_graphs=cuda_graphs,
        )
        _run_and_report(plan, RunFolder(out))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    costs: Annotated[
        str | None,
        typer.Option(
            help="Price the rounds by another cost table: a file of `foredraft calibrate`, or "
            "flat:level=0.1, a machine on which every pass costs the same."
        ),
    ] = None,
) -> None:
    """Make tables and plots anew from what runs have kept."""
    with clear_failures():
        for path in folders:
            _write_report(RunFolder(path), costs)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a run.")],
    second: Annotated[Path, typer.Argument(help="Folder of another run on the same prompts.")],
    pair: Annotated[
        list[str] | None,
        typer.Option(help="A=B sets method A of the first run beside B of the second."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document as the last line.")
    ] = False,
) -> None:
    """Show what changed between two runs, and whether it is more than noise."""
    with clear_failures():
        from foredraft.bench.compare import compare_runs, read_pairs
        from foredraft.cli.show_comparison import render_comparison

        a, b = RunFolder(first).read(), RunFolder(second).read()
        comparison = compare_runs(a, b, read_pairs(pair or [], a, b))
        if as_json:
            typer.echo(json.dumps(comparison.as_dict()))
        else:
            common.console().print(render_comparison(comparison))


def _run_and_report(plan: BenchPlan, folder: RunFolder) -> None:
    check_libraries()
    with folder.in_use():
        pass  # found out now, and not after loading
    _run(plan, folder, common.console(stderr=True))
    document = _write_report(folder, None)
    _check_measured(plan, document)
    if any(row["identical"] == "bug" for row in document["rows"]):
        raise typer.Exit(FAILURE)


def _run(plan: BenchPlan, folder: RunFolder, console: Console) -> None:
    """Run what is not finished, with a bar; whatever ends it early, what is finished is kept."""
    from transformers.utils import logging

    from foredraft.bench.runner import BenchRun

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    bench = BenchRun(plan, folder, report=lambda line: console.print(line, style="dim"))
    try:
        with noticed_interrupts() as interrupted:
            for _ in _with_bar(bench, console):
                interrupted.heed()
    except KeyboardInterrupt:
        _say_what_is_kept("interrupted", bench, console)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        reason = f"{error.filename or folder.path}: {error.strerror or error}"
        _say_what_is_kept(f"error: {reason}", bench, console)
        raise typer.Exit(FAILURE) from None


def _check_measured(plan: BenchPlan, document: Mapping[str, Any]) -> None:
    """Refuse a run whose methods all dropped out on the way."""
    if not {row["method"] for row in document["rows"]} & set(plan.methods):
        raise ConfigError(
            f"none of {', '.join(plan.methods)} has an answer (the notes say why); name others with "
            "--methods, and another --out"
        )


def _with_bar(bench: BenchRun, console: Console) -> Iterator[None]:
    """The run's steps. The bar is drawn between prompts: a thread would take its share of what is timed."""
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("prompts", total=bench.total, completed=bench.done)
        for step in bench:
            bar.update(task, completed=step.done, description=step.record.suite, refresh=True)
            yield


def _say_what_is_kept(reason: str, bench: BenchRun, console: Console) -> None:
    """Counted where it is kept: an interrupt may strike between the writing of a prompt and its counting."""
    kept = sum(1 for _ in bench.folder.records())
    console.print(
        f"{reason}: {kept} of {bench.total} prompts are kept in {bench.folder.path}; "
        "the same command goes on from there"
    )


def _write_report(folder: RunFolder, costs: str | None) -> dict[str, Any]:
    from foredraft.bench.report import write_report
    from foredraft.cli.show_bench import show_results

    document = write_report(folder, costs)
    show_results(document, folder.path, common.console())
    return document
