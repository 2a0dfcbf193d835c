"""`foredraft generate`: one prompt, one answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import common
from foredraft.cli.failures import FAILURE, clear_failures
from foredraft.cli.interrupts import noticed_interrupts
from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.prompts import Prompt


def generate(
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
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too, and show both.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document as the last line.")
    ] = False,
) -> None:
    """Answer a prompt, and with --compare show what drafting changed: the speed, and nothing else."""
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
        if compare and _drafts_nothing(method, drafter):
            raise ConfigError(
                "--compare sets drafting beside plain decoding, and this method drafts nothing; "
                "name another --method, or leave --compare out"
            )
        text = common.read_prompt(prompt)
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
        words = common.as_prompt(text, engine, raw)
        if compare:
            label = common.method_label(method, model, drafter, tree=tree, verifier=verifier)
            _compare(engine, label, words, options, as_json)
        else:
            _answer(engine, words, options, as_json)


def _drafts_nothing(method: str | None, drafter: str | None) -> bool:
    return drafter == "none" or (method or "").partition(":")[0] == "autoregressive"


def _answer(engine: Engine, prompt: Prompt, options: GenerationOptions, as_json: bool) -> None:
    with noticed_interrupts() as interrupted, engine.stream(prompt, options) as stream:
        for step in stream:
            interrupted.heed()
            if not as_json:
                typer.echo(step.text, nl=False)
        result = stream.result()
    if as_json:
        typer.echo(json.dumps({**result.as_dict(), "dtype": _dtype(engine)}))
    else:
        from foredraft.cli.show import show_summary

        typer.echo()
        show_summary(result, common.console(stderr=True))


def _dtype(engine: Engine) -> str:
    from foredraft.engine.cost_files import dtype_of

    return dtype_of(engine.target)


def _compare(
    engine: Engine, method: str, prompt: Prompt, options: GenerationOptions, as_json: bool
) -> None:
    from foredraft.engine.agreement import compare
    from foredraft.sampling.randomness import fresh_seed

    if options.temperature > 0 and options.seed is None:
        options = options.replace(seed=fresh_seed())
    plain_engine = engine.without_drafts()
    console = common.console(stderr=True)
    with console.status("warming up") as status:
        for warming in (plain_engine, engine):
            common.warm_up(warming, prompt, options)
        status.update("plain decoding")
        plain = plain_engine.generate(prompt, options)
        status.update("speculative decoding")
        drafted = engine.generate(prompt, options)
        agreement = compare(engine, plain, drafted, options)
    if as_json:
        speeds = drafted.stats.tokens_per_s, plain.stats.tokens_per_s
        document = {
            **drafted.as_dict(),
            "baseline": plain.as_dict(),
            "speedup": speeds[0] / speeds[1] if speeds[0] and speeds[1] else None,
            "identical": str(agreement),
            "dtype": _dtype(engine),
        }
        typer.echo(json.dumps(document))
    else:
        from foredraft.cli.show import show_comparison

        show_comparison(engine, method, plain, drafted, agreement, common.console())
    if agreement.kind == "bug":
        raise typer.Exit(FAILURE)
