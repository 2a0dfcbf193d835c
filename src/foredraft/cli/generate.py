"""`foredraft generate`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from foredraft.cli.failures import FAILURE, clear_failures
from foredraft.config import GenerationOptions, default_of
from foredraft.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.prompts import Prompt

WARM_UP_TOKENS = 8


def _default(name: str) -> Any:
    return default_of(GenerationOptions, name)


def generate(
    model: Annotated[
        str, typer.Option(help="smollm2, a hub id, a folder, or a .gguf file.")
    ] = "smollm2",
    method: Annotated[
        str | None, typer.Option(help="Recipe, with options after colons: ngram:depth=10.")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="none, ngram, or a draft model.")] = None,
    tree: Annotated[
        str | None, typer.Option(help="Children per node and depth, such as 4,2,2.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="exact, rejection, block or traversal.")
    ] = None,
    proposal: Annotated[
        str | None,
        typer.Option(help="Draft model's children: coupled, sampled, resampled, deterministic."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt, or - to read it.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as text, without a chat template.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option()] = _default("max_new_tokens"),
    min_new_tokens: Annotated[int, typer.Option()] = _default("min_new_tokens"),
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = _default("temperature"),
    top_p: Annotated[float, typer.Option()] = _default("top_p"),
    top_k: Annotated[int, typer.Option(help="0 keeps all tokens.")] = _default("top_k"),
    min_p: Annotated[float, typer.Option()] = _default("min_p"),
    repetition_penalty: Annotated[float, typer.Option()] = _default("repetition_penalty"),
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
    force_vocabulary: Annotated[
        bool,
        typer.Option("--force-vocabulary", help="Use a drafter whose tokens differ."),
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or auto.")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0.")] = None,
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
        text = _read_prompt(prompt)
        engine = _load(
            model,
            method=method,
            drafter=drafter,
            tree=tree,
            verifier=verifier,
            proposal=proposal,
            dtype=dtype,
            device=device,
            force_vocabulary=force_vocabulary,
        )
        run = _compare if compare else _answer
        run(engine, _as_prompt(text, engine, raw), options, as_json)


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        raise ConfigError(
            "there is no prompt; give --prompt TEXT, or --prompt - to read it from stdin"
        )
    try:
        return sys.stdin.read().removesuffix("\n")  # the one that echo and editors add
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt on stdin is not text ({error}); give it as UTF-8") from None


def _load(model: str, **choices: Any) -> Engine:
    """The engine, with progress on stderr and the libraries' own chatter off."""
    console = Console(stderr=True)
    with console.status("starting") as status:
        from transformers.utils import logging

        from foredraft.engine.load import load

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        return load(model, **choices, report=status.update)


def _as_prompt(text: str, engine: Engine, raw: bool) -> Prompt:
    if raw or not text or not getattr(engine.tokenizer, "chat_template", None):
        return text
    return [{"role": "user", "content": text}]


def _answer(engine: Engine, prompt: Prompt, options: GenerationOptions, as_json: bool) -> None:
    with engine.stream(prompt, options) as stream:
        for step in stream:
            if not as_json:
                typer.echo(step.text, nl=False)
        result = stream.result()
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        from foredraft.cli.show import show_summary

        typer.echo()
        show_summary(result, Console(stderr=True))


def _compare(engine: Engine, prompt: Prompt, options: GenerationOptions, as_json: bool) -> None:
    from foredraft.engine.agreement import compare
    from foredraft.sampling.randomness import fresh_seed

    if options.temperature > 0 and options.seed is None:
        options = options.replace(seed=fresh_seed())
    plain_engine = engine.without_drafts()
    console = Console(stderr=True)
    with console.status("warming up") as status:
        brief = options.replace(max_new_tokens=WARM_UP_TOKENS, min_new_tokens=0)
        for warming in (plain_engine, engine):
            warming.generate(prompt, brief)
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
        }
        typer.echo(json.dumps(document))
    else:
        from foredraft.cli.show import show_comparison

        show_comparison(engine, plain, drafted, agreement, Console())
    if agreement.kind == "bug":
        raise typer.Exit(FAILURE)
