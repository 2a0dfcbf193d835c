"""`foredraft bench profile`: where the time of a pass and of a round goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from foredraft.bench.libraries import check_libraries
from foredraft.bench.profile.plan import ProfilePlan
from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.config import default_of
from foredraft.errors import ConfigError
from foredraft.files import in_use, write_json, write_text

JSON, REPORT = "profile.json", "profile.md"
REFRESHES_PER_S = 1
"""Of the progress line: drawing it must not cost the passes their time."""


def _default(name: str) -> Any:
    return default_of(ProfilePlan, name)


MODEL = _default("model")


def profile(
    model: common.Model = MODEL,
    method: common.Method = None,
    drafter: common.Drafter = None,
    context: Annotated[
        int, typer.Option(help="Tokens in the cache before what is measured.")
    ] = _default("context"),
    rows: Annotated[
        str, typer.Option(help="Rows of a target pass, comma-separated; 1 is always measured.")
    ] = ",".join(map(str, _default("rows"))),
    repeats: Annotated[
        int, typer.Option(help="Turns of every pass, and rounds of every kind.")
    ] = _default("repeats"),
    memory_context: Annotated[
        int,
        typer.Option(
            help="Tokens to which a fresh process decodes while its memory is watched; 0 leaves that out."
        ),
    ] = _default("memory_context"),
    dtype: common.Dtype = None,
    device: common.Device = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=common.folder_path,
            metavar="<path>",
            help=f"Folder for {JSON}, {REPORT} and a plot.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document as the last line.")
    ] = False,
) -> None:
    """Profile one round per stage: target pass by operators, drafts, verification, host, memory, floor.

    All that is compared takes turns; ratios come with 95 % intervals.
    """
    with clear_failures():
        loading = {"dtype": dtype, "device": device}
        plan = ProfilePlan(
            model=model,
            method=method,
            drafter=drafter,
            loading=loading,
            context=context,
            rows=_numbers(rows),
            repeats=repeats,
            memory_context=memory_context,
        )
        check_libraries()
        if out is not None:
            with in_use(out, by="profile"):
                pass  # found out now, and not after measuring
        document = _measure(plan)
        if out is not None:
            _write(document, out)
        _show(document, as_json)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--rows {text!r} is no list of whole numbers; write it like 1,8,16"
        ) from None


def _measure(plan: ProfilePlan) -> dict[str, Any]:
    """The profile, with progress on stderr."""
    from foredraft.bench.profile.run import run_profile

    choices = {"method": plan.method, "drafter": plan.drafter, **plan.loading}
    engine = common.load_engine(plan.model, **choices)
    label = common.method_label(plan.method, plan.model, plan.drafter)
    console = common.console(stderr=True)
    with console.status("starting", refresh_per_second=REFRESHES_PER_S) as status:
        return run_profile(plan, engine, label, lambda line: status.update(Text(line)))


def _write(document: Mapping[str, Any], out: Path) -> None:
    from foredraft.bench.profile.plot import write_plot
    from foredraft.bench.profile.report import markdown

    write_json(out / JSON, document)
    write_text(out / REPORT, markdown(document, [write_plot(out, document)]))
    common.console(stderr=True).print(
        f"kept in {out}", style="dim", highlight=False, soft_wrap=True
    )


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    from foredraft.bench.profile.report import sections

    if as_json:
        typer.echo(json.dumps(document))
        return
    console = common.console()
    for section in sections(document):
        shown = Table(box=None, pad_edge=False, title=section.title, title_justify="left")
        for place, name in enumerate(section.header):
            shown.add_column(name, justify="right" if place else "left")
        for row in section.rows:
            shown.add_row(*row)
        console.print(shown)
        for remark in section.remarks:
            console.print(remark, highlight=False, soft_wrap=True)
        console.print()
