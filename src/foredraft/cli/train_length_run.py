"""One run of `foredraft train length-predictor`: load, label positions, train, say what came out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from foredraft import zoo
from foredraft.backends import hf_facts
from foredraft.backends.identity import DIGITS
from foredraft.cli import common
from foredraft.cli.interrupts import INTERRUPTED
from foredraft.cli.train_run import asked_to_stop, disk_errors, notes_of
from foredraft.engine.decisions import drafter_digest
from foredraft.engine.load import Models
from foredraft.errors import ConfigError
from foredraft.train.corpus import Corpus
from foredraft.train.folder import TrainFolder
from foredraft.train.length import Embeddings, LengthMeasure, LengthResult, fit_length
from foredraft.train.length_examples import LabelsFolder, label
from foredraft.train.length_labels import HeadLaws, Labeller, Labels, ModelLaws
from foredraft.train.length_options import LengthOptions
from foredraft.train.setting import Setting
from foredraft.train.stepping import make_accelerator
from foredraft.zoo.shipped import shipped_drafters

LABELS = "labels"


def train_length(
    options: LengthOptions,
    data: Path,
    out: Path,
    model: str,
    drafter: str | None,
    labels: Path | None,
    resume: bool,
    dtype: str | None,
) -> None:
    """Label what is not labelled yet, and train; exits with 130 if it was interrupted.

    Errors as in `foredraft.load`, `LabelsFolder` and `fit_length`.
    """
    accelerator = make_accelerator()
    if accelerator.num_processes > 1:
        raise ConfigError(
            "a length predictor is trained by one process; start it without a launcher"
        )
    console = common.console(stderr=True)
    source, corpus = _source(model, drafter), Corpus(data)
    models = common.load_drafting(model, source, dtype, str(accelerator.device), console)
    setting = Setting(models.target.model, models.tokenizer, corpus)  # type: ignore[attr-defined]
    facts = _facts(options, setting, models, source)
    run = {
        "kind": "length-predictor",
        "options": options.as_dict(),
        **{name: facts[name] for name in ("corpus", "target", "drafter")},
        "notes": notes_of(model, data, None, accelerator),
    }
    folder = TrainFolder(out)
    with folder.in_use(), asked_to_stop(console) as stop, disk_errors(console, out):
        folder.check(run, resume)
        folder.begin(run)
        found = _labelled(
            models, setting, options, LabelsFolder(labels or out / LABELS, facts), console, stop
        )
        result = fit_length(
            found,
            options,
            folder,
            run,
            taps=(0, hf_facts.text_config(setting.model).num_hidden_layers),
            embeddings=_embeddings(models) if options.root else None,
            device=accelerator.device,
            report=lambda measure: _tell_epoch(measure, console),
            stop=stop,
        )
    _tell(result, out, models, console)
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


def _source(model: str, drafter: str | None) -> str | Path:
    """What drafts: what ships by a name, else what the user names."""
    if drafter is not None:
        return shipped_drafters(model).get(drafter, drafter)
    found = zoo.shipped_head(model)
    if found is None:
        raise ConfigError(
            f"no head ships for {model!r}; give --drafter FOLDER of a head, or a draft model"
        )
    return found


def _facts(
    options: LengthOptions, setting: Setting, models: Models, source: str | Path
) -> dict[str, Any]:
    """What labels depend on."""
    manifest = json.dumps(setting.corpus.manifest, sort_keys=True).encode()
    digest = drafter_digest(models.draft_model if models.head is None else models.head)
    return {
        **options.labelled(),
        "corpus": {
            "samples": len(setting.corpus),
            "digest": hashlib.sha256(manifest).hexdigest()[:DIGITS],
        },
        "target": setting.identity(),
        "drafter": {"name": os.path.basename(os.path.abspath(source)), "weights": digest},
    }


def _labeller(models: Models, setting: Setting, options: LengthOptions) -> Labeller:
    ends = hf_facts.eos_token_ids(setting.model, setting.tokenizer)
    rest = (options.k_max, ends, options.temperature)
    if models.head is not None:
        return Labeller(setting.model, models.head.config.taps, HeadLaws(models.head), *rest)
    draft = _draft_weights(models)
    ids = getattr(models.draft_model, "target_ids", None)
    return Labeller(setting.model, (), ModelLaws(draft, ids, models.target.vocab_size), *rest)


def _draft_weights(models: Models) -> Any:
    """The `transformers` model of a draft model."""
    weights = getattr(models.draft_model, "model", None)
    if weights is None:
        raise ConfigError("there is nothing to draft with; give --drafter MODEL or a head's folder")
    return weights


def _embeddings(models: Models) -> Embeddings:
    """The drafter's embeddings of tokens, [N] -> [N, root_size]."""
    head = models.head
    embed: Any = (
        _draft_weights(models).get_input_embeddings() if head is None else head.embed_tokens
    )

    @torch.no_grad()
    def rows(token_ids: Tensor) -> Tensor:
        found: Tensor = embed(token_ids.to(embed.weight.device))
        return found.cpu()

    return rows


def _labelled(
    models: Models,
    setting: Setting,
    options: LengthOptions,
    folder: LabelsFolder,
    console: Console,
    stop: Callable[[], bool],
) -> Labels:
    """All labels, with a bar for those that are not there yet; exits with 130 if it is stopped."""
    columns = (TextColumn("labelling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task("", total=options.positions, completed=folder.num_positions)
        whole = label(
            _labeller(models, setting, options),
            setting.corpus,
            folder,
            positions=options.positions,
            max_length=options.max_length,
            tokens_per_batch=options.tokens_per_batch,
            seed=options.seed,
            report=lambda done: bar.update(task, completed=done),
            stop=stop,
        )
    if not whole:
        console.print("stopped early; the same command with --resume goes on")
        raise typer.Exit(INTERRUPTED)
    return folder.read()


def _tell_epoch(measure: LengthMeasure, console: Console) -> None:
    line = f"epoch {measure.epoch}, held out (the half that chooses): loss {measure.loss:.4f}"
    if measure.mae is not None:
        line += f", MAE {measure.mae:.3f}, {measure.under:.1%} below, {measure.over:.1%} above"
    console.print(line, highlight=False, soft_wrap=True)


def _tell(result: LengthResult, out: Path, models: Models, console: Console) -> None:
    """What came out, and the way on."""
    scored = result.held_out
    lines = [
        f"kept epoch {result.best.epoch}; on held-out texts that chose nothing: MAE {scored.mae:.3f}, "
        f"{scored.under:.1%} below, {scored.over:.1%} above, mean {scored.predicted:.2f} of "
        f"{scored.observed:.2f}"
    ]
    if result.rounds is not None and "tokens_per_pass_time" in result.rounds["predictor"]:
        lines.append(_priced(result.rounds))
    lines.append(f"the length predictor is in {out}")
    method = "adaeagle" if models.head is not None else "speculative:depth=8"
    way_on = f"method {method}:length={out} drafts with it"
    lines.append(
        way_on if result.finished else "stopped early; the same command with --resume goes on"
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _priced(rounds: Any) -> str:
    """Tokens in the time of a pass, of the predictor, the best fixed length and the oracle."""
    name = "tokens_per_pass_time"
    length, best = max(rounds["fixed"].items(), key=lambda item: item[1][name])
    return (
        f"tokens in the time of a pass there: {rounds['predictor'][name]:.3f} at predicted lengths, "
        f"{best[name]:.3f} at the best fixed one ({length}), {rounds['oracle'][name]:.3f} at the right ones"
    )
