"""`foredraft bench quantized`: what rounding a model's weights does to its laws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli import common
from foredraft.cli.failures import clear_failures
from foredraft.config import QUANTIZATIONS


def quantized(
    out: Annotated[Path, common.out_folder("Folder of the report; files in it are replaced.")],
    model: common.Model = "smollm2",
    quantize: Annotated[
        str, typer.Option(help="What to round the weights to, comma-separated.")
    ] = ",".join(QUANTIZATIONS),
    dtype: common.Dtype = None,
    device: common.Device = None,
) -> None:
    """Measure perplexity and laws of a model with rounded weights, on texts that ship."""
    with clear_failures():
        kinds = [kind.strip() for kind in quantize.split(",")]
        from foredraft.bench.quantized import REPORT, measure, render, write

        with common.starting(common.console(stderr=True)) as report:
            document = measure(model, kinds, dtype=dtype, device=device, report=report)
        write(document, out)
        console = common.console()
        console.print(render(document), highlight=False, soft_wrap=True)
        console.print(f"report: {out / REPORT}", highlight=False, soft_wrap=True)
