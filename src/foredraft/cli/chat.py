"""`foredraft chat`: many turns in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foredraft.cli import common
from foredraft.cli.chat_loop import Chat
from foredraft.cli.chat_state import Conversation
from foredraft.cli.chat_terminal import PipedLines, Screen, TypedLines
from foredraft.cli.failures import clear_failures
from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.engine.switching import MethodSwitch

PREFIX_CACHE_MB = 512.0
MAX_NEW_TOKENS = 512


def chat(
    model: common.Model = "smollm2",
    method: common.Method = None,
    drafter: common.Drafter = None,
    system: Annotated[
        str | None, typer.Option(help="What the model is told before anything is said.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Tokens of one answer at most.")
    ] = MAX_NEW_TOKENS,
    temperature: common.Temperature = common.DEFAULTS.temperature,
    top_p: float = common.DEFAULTS.top_p,
    seed: common.Seed = None,
    prefix_cache_mb: Annotated[
        float,
        typer.Option(help="Memory for what was read in earlier turns, in megabytes; 0 for none."),
    ] = PREFIX_CACHE_MB,
    dtype: common.Dtype = None,
    device: common.Device = None,
    quantize: common.Quantize = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document for each turn.")
    ] = False,
) -> None:
    """Talk with a model. Each line is a question, or a command such as /help; Ctrl-C stops an answer.

    Lines may come from a pipe. The exit code is then 1 if one of them could not be answered.
    """
    with clear_failures():
        options = GenerationOptions(
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
        )
        if sys.stdin is None:
            raise ConfigError("there is no stdin to read questions from; use foredraft generate")
        switch = _load(
            model,
            method,
            drafter=drafter,
            prefix_cache_mb=prefix_cache_mb or None,
            dtype=dtype,
            device=device,
            quantize=quantize,
        )
        talk = Chat(
            switch,
            model,
            common.method_label(method, model, drafter),
            options,
            Conversation(system),
            Screen(as_json),
            is_typed=sys.stdin.isatty(),
        )
        code = _talk(talk)
    raise typer.Exit(code)


def _load(model: str, method: str | None, **options: Any) -> MethodSwitch:
    """The model, with progress on stderr."""
    with common.starting(common.console(stderr=True)) as report:
        from foredraft.engine.switching import MethodSwitch

        switch = MethodSwitch(model, method, report=report, **options)
    if not getattr(switch.engine.tokenizer, "chat_template", None):
        raise ConfigError(
            "this model's tokenizer has no chat template, so it cannot tell who says what; use foredraft "
            "generate --raw"
        )
    return switch


def _talk(talk: Chat) -> int:
    if not talk.is_typed:
        return talk.run(PipedLines())
    talk.screen.note(f"{talk.model}, method {talk.method}; /help lists the commands")
    return talk.run(TypedLines(sys.stdout.isatty() and not talk.screen.as_json))
