"""What the commands that answer one prompt share: their options, and the way from words to an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from foredraft.config import METHODS, GenerationOptions
from foredraft.errors import ConfigError, PromptError
from foredraft.zoo.shipped import DRAFTERS

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.load import Models
    from foredraft.engine.prompts import Prompt

WARM_UP_TOKENS = 8
DEFAULTS = GenerationOptions()
NO_PROMPT = "there is no prompt; give --prompt TEXT, or --prompt - to read it from stdin"


def folder_path(text: str) -> Path:
    """A folder that the user names; an empty name, which a script's unset variable gives, is none."""
    if not text.strip():
        raise typer.BadParameter("it is empty; name a folder, or . for this one")
    return Path(text)


def out_folder(text: str) -> Any:
    """The option of a folder that a command writes, with this help."""
    return typer.Option(parser=folder_path, metavar="<path>", help=text)


Model = Annotated[str, typer.Option(help="smollm2, a hub id, a folder, or a .gguf file.")]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(METHODS)} (K a number); options after colons: ngram:depth=10, "
        "eagle2:drafter=eagle1."
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="none, ngram, a draft model, an EAGLE head's folder, or one that ships for the model: "
        f"{', '.join(DRAFTERS)}."
    ),
]
Tree = Annotated[str | None, typer.Option(help="Children per node and depth, such as 4,2,2.")]
Verifier = Annotated[str | None, typer.Option(help="exact, rejection, block or traversal.")]
Proposal = Annotated[
    str | None,
    typer.Option(
        help="How a model's drafts are drawn: coupled, sampled, resampled, deterministic."
    ),
]
Roots = Annotated[
    str | None,
    typer.Option(
        help="First candidates of mcsd-improved-lossy, from the target's law: multinomial, topk or nucleus."
    ),
]
PromptText = Annotated[str | None, typer.Option(help="The prompt, or - to read it.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the prompt as text, without a chat template.")
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="0 keeps all tokens.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text.")]
Stop = Annotated[list[str] | None, typer.Option(help="May be given several times.")]
ForceVocabulary = Annotated[
    bool, typer.Option("--force-vocabulary", help="Use a drafter whose tokens differ.")
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or auto.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda:0.")]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile parts of the layers; the first passes take long.")
]

CudaGraphs = Annotated[
    bool, typer.Option("--cuda-graphs", help="On a CUDA device: replay captured passes.")
]

Quantize = Annotated[
    str | None,
    typer.Option(help="int8 or int4: round the weights of models and heads as they are loaded."),
]


def read_prompt(prompt: str | None) -> str:
    """The prompt as typed, or from stdin.

    Raises:
        ConfigError: there is none.
        PromptError: what stdin holds is not text.
    """
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        raise ConfigError(NO_PROMPT)
    try:
        read = sys.stdin.read().removesuffix("\n")  # the one that echo and editors add
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt on stdin is not text ({error}); give it as UTF-8") from None
    if prompt is None and not read:
        raise ConfigError(NO_PROMPT)
    return read


def console(stderr: bool = False) -> Console:
    """A terminal that takes names as they are: brackets in a path or an id are no markup."""
    return Console(stderr=stderr, markup=False)


def load_engine(model: str, **choices: Any) -> Engine:
    """The engine, with progress on stderr and the libraries' own chatter off."""
    with starting(console(stderr=True)) as report:
        from foredraft.engine.load import load

        return load(model, **choices, report=report)


def load_engines(
    model: str, methods: Sequence[str], drafter: str | None, **options: Any
) -> dict[str, Engine]:
    """Engines for several methods, by their names, likewise; they share the weights."""
    with starting(console(stderr=True)) as report:
        from foredraft.engine.several import load_several

        return load_several(model, methods, drafter=drafter, report=report, **options)


def load_bare(
    model: str, dtype: str | None, device: str | None, console: Console
) -> tuple[Any, Any]:
    """The `transformers` model and its tokenizer, likewise."""
    with starting(console) as report:
        from foredraft.engine.load import load_models

        models = load_models(model, dtype=dtype, device=device, report=report)
    return models.target.model, models.tokenizer  # type: ignore[attr-defined]


def load_drafting(
    model: str, drafter: str | Path, dtype: str | None, device: str | None, console: Console
) -> Models:
    """A model and what drafts for it, likewise."""
    with starting(console) as report:
        from foredraft.engine.load import load_models

        return load_models(model, drafter, dtype=dtype, device=device, report=report)


@contextmanager
def starting(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that says what is loaded; the libraries are silent."""
    with console.status("starting") as status:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield lambda line: status.update(Text(line))


def as_prompt(text: str, engine: Engine, raw: bool) -> Prompt:
    """A message of the user where the model has a chat template, unless the prompt is raw."""
    if raw or not text or not getattr(engine.tokenizer, "chat_template", None):
        return text
    return [{"role": "user", "content": text}]


def method_label(
    method: str | None,
    model: str,
    drafter: str | None,
    *,
    tree: str | None = None,
    verifier: str | None = None,
) -> str:
    """The method as the user named it, or else the name of the one that is taken; and the user's tree."""
    from foredraft.engine.choosing import best_method

    name = method or best_method(model, drafter, tree=tree, verifier=verifier).partition(":")[0]
    return name if tree is None else f"{name}, tree {tree}"


def warm_up(engine: Engine, prompt: Prompt, options: GenerationOptions) -> None:
    """Answer briefly, so that what a model does only once is in no time that is shown."""
    engine.generate(prompt, options.replace(max_new_tokens=WARM_UP_TOKENS, min_new_tokens=0))
