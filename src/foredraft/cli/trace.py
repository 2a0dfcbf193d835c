"""`foredraft trace`: one prompt, and a page that shows how its answer was made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError, PromptError
from foredraft.files import check_writable, write_json, write_text

if TYPE_CHECKING:
    from foredraft.bench.trace.document import TraceDocument
    from foredraft.engine.engine import Engine


def trace(
    model: common.Model = "smollm2",
    method: common.Method = None,
    drafter: common.Drafter = None,
    tree: common.Tree = None,
    verifier: common.Verifier = None,
    proposal: common.Proposal = None,
    roots: common.Roots = None,
    prompt: common.PromptText = None,
    raw: common.Raw = False,
    max_new_tokens: int = common.DEFAULTS.max_new_tokens,
    min_new_tokens: int = common.DEFAULTS.min_new_tokens,
    temperature: common.Temperature = common.DEFAULTS.temperature,
    top_p: float = common.DEFAULTS.top_p,
    top_k: common.TopK = common.DEFAULTS.top_k,
    min_p: float = common.DEFAULTS.min_p,
    repetition_penalty: float = common.DEFAULTS.repetition_penalty,
    seed: common.Seed = None,
    stop: common.Stop = None,
    force_vocabulary: common.ForceVocabulary = False,
    dtype: common.Dtype = None,
    device: common.Device = None,
    quantize: common.Quantize = None,
    compile: common.Compile = False,
    cuda_graphs: common.CudaGraphs = False,
    out: Annotated[Path, typer.Option(help="The page; replaced if it exists.")] = Path(
        "trace.html"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Write what the page shows as JSON, too.")
    ] = None,
) -> None:
    """Answer a prompt, and write a page that shows each round: its tree, its tokens, its time."""
    with clear_failures():
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=tuple(stop or ()),
        )
        _check_files(out, data)
        text = _read_text(prompt)
        engine = common.load_engine(
            model,
            method=method,
            drafter=drafter,
            tree=tree,
            verifier=verifier,
            proposal=proposal,
            roots=roots,
            dtype=dtype,
            device=device,
            quantize=quantize,
            force_vocabulary=force_vocabulary,
            compile=compile,
            cuda_graphs=cuda_graphs,
        )
        label = common.method_label(method, model, drafter, tree=tree, verifier=verifier)
        document = _trace(engine, text, raw, options, model=model, method=label)
        _write(document, out, data)


def _check_files(*files: Path | None) -> None:
    """Find out before minutes of loading that a file cannot be written."""
    named = [file for file in files if file is not None]
    if len({os.path.realpath(file) for file in named}) < len(named):
        raise ConfigError(f"--out and --data both name {str(named[0])!r}; give two files")
    for file in named:
        check_writable(file)


def _read_text(prompt: str | None) -> str:
    text = common.read_prompt(prompt)
    if not text:
        raise PromptError("the prompt is empty; give at least one word")
    return text


def _trace(
    engine: Engine, text: str, raw: bool, options: GenerationOptions, *, model: str, method: str
) -> TraceDocument:
    from foredraft.bench.trace.document import make_trace

    prompt = common.as_prompt(text, engine, raw)
    with common.console(stderr=True).status("warming up") as status:
        common.warm_up(engine, prompt, options)
        status.update("answering")
        return make_trace(engine, prompt, options, model=model, method=method)


def _write(document: TraceDocument, out: Path, data: Path | None) -> None:
    """The files, each replaced at once, and a line that says where the page is."""
    from foredraft.bench.trace.page import render

    write_text(out, render(document))
    if data is not None:
        write_json(data, document.as_dict())
    stats = document.statistics
    parts = [
        f"{stats['completion_tokens']} tokens in {stats['rounds']} passes",
        f"{stats['tokens_per_s']:.1f} tokens/s",
        f"ended by {document.finish_reason}",
    ]
    typer.echo(f"{out}: {', '.join(parts)}", err=True)
