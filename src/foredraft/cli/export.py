"""`foredraft export`: a head in the form in which another program reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.drafters.eagle.format_names import FORMATS, Format
from foredraft.errors import ConfigError, suggestion
from foredraft.zoo import published_name

DTYPES = ("float32", "bfloat16", "float16")


def export(
    head: Annotated[
        str, typer.Argument(help="Its folder, its hub id, or one that ships: eagle3, eagle1.")
    ],
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}.")],
    out: Annotated[Path, common.out_folder("The folder to write; one that exists must be empty.")],
    model: common.Model = "smollm2",
    dtype: Annotated[
        str, typer.Option(help=f"Of the numbers in it: {', '.join(DTYPES)}.")
    ] = "float32",
    verifier: Annotated[
        str | None,
        typer.Option(
            help="What speculators calls the model: a hub id, or a folder; --model if left out."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document as the last line.")
    ] = False,
) -> None:
    """Write an EAGLE head for speculators and vLLM, SGLang, or EAGLE's own code."""
    with clear_failures():
        _check(format, dtype, verifier, out)
        size = _write(head, cast(Format, format), out, model, dtype, verifier)
        if as_json:
            typer.echo(json.dumps({"format": format, "folder": str(out), "bytes": size}))
        else:
            common.console().print(
                f"wrote {out}: {format}, {dtype}, {size / 1e6:.1f} MB",
                highlight=False,
                soft_wrap=True,
            )


def _check(format: str, dtype: str, verifier: str | None, out: Path) -> None:
    """Refuse what can be refused before anything is loaded."""
    if format not in FORMATS:
        raise ConfigError(f"unknown format={format!r} of a head; {suggestion(format, FORMATS)}")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype!r} cannot be written; give one of {', '.join(DTYPES)}")
    if verifier is not None and format != "speculators":
        raise ConfigError(
            f"verifier={verifier!r} has no place in format={format!r}; leave it out, or export speculators"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={str(out)!r} is there already; give a folder that is new or empty")


def _write(head: str, form: Format, out: Path, model: str, dtype: str, verifier: str | None) -> int:
    """The bytes of the tensors. The model is loaded in float32, so that nothing is rounded twice."""
    from foredraft.engine.drafters import given_source

    source = str(given_source(head, model))
    console = common.console(stderr=True)
    loaded, _ = common.load_bare(model, "float32", "cpu", console)
    import torch

    from foredraft.drafters.eagle.checkpoint import load_head
    from foredraft.drafters.eagle.export import export_head
    from foredraft.engine.drafters import head_folder

    config: Any = loaded.config.get_text_config(decoder=True)
    return export_head(
        load_head(head_folder(source), loaded),
        out,
        form,
        num_layers=config.num_hidden_layers,
        dtype=getattr(torch, dtype),
        verifier=verifier or published_name(model),
    )
