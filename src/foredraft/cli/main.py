"""`foredraft`: the entry point."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from foredraft import __version__
from foredraft.cli import bench, data, train
from foredraft.cli.calibrate import calibrate
from foredraft.cli.chat import chat
from foredraft.cli.export import export
from foredraft.cli.generate import generate
from foredraft.cli.serve import serve
from foredraft.cli.trace import trace

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Faster answers from open language models, with the same words.",
)
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.command()(trace)
app.command()(calibrate)
app.command()(export)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(train.app, name="train")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foredraft {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Faster answers from open language models, with the same words."""


def main() -> None:
    """Run the command line; exits with 0, 1 (failure) or 2 (usage)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a "?"
    app()
