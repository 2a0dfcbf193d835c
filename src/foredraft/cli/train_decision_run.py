"""One run of `foredraft train decision`: load, record rounds, train, say what came out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foredraft import zoo
from foredraft.backends.identity import DIGITS
from foredraft.cli import common
from foredraft.cli.interrupts import INTERRUPTED
from foredraft.cli.train_run import asked_to_stop, disk_errors, notes_of
from foredraft.costs import CostTable
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.engine.decisions import drafter_digest
from foredraft.engine.drafters import kind_of, own_source
from foredraft.engine.load import Models
from foredraft.engine.sources import place_of
from foredraft.errors import ConfigError
from foredraft.methods import parse_method
from foredraft.protocols import Drafter
from foredraft.train.corpus import Corpus
from foredraft.train.decision import fit_decision
from foredraft.train.decision_examples import DecisionMeasure, DecisionResult
from foredraft.train.decision_gain import Gain
from foredraft.train.decision_objective import RoundCosts
from foredraft.train.decision_options import DecisionOptions, check_chain
from foredraft.train.decision_recording import PROPOSALS, Recorder, recording_engine
from foredraft.train.decision_rounds import RecordedRows, RoundsFolder, prompts_of, record
from foredraft.train.folder import TrainFolder
from foredraft.train.setting import Setting
from foredraft.train.stepping import make_accelerator
from foredraft.tree import parse_k_config
from foredraft.zoo.shipped import shipped_drafters

ROUNDS = "rounds"


def train_decision(
    options: DecisionOptions,
    data: Path,
    out: Path,
    model: str,
    drafter: str | None,
    rounds: Path | None,
    costs: Path | None,
    resume: bool,
    dtype: str | None,
) -> None:
    """Record what is not recorded yet, and train; exits with 130 if it was interrupted.

    Errors as in `foredraft.load`, `RoundsFolder` and `fit_decision`.
    """
    accelerator = make_accelerator()
    if accelerator.num_processes > 1:
        raise ConfigError("a decision model is trained by one process; start it without a launcher")
    console = common.console(stderr=True)
    source = _source(model, drafter)
    priced = _costs(options, costs, source, model)
    corpus = Corpus(data)
    models = common.load_drafting(model, source, dtype, str(accelerator.device), console)
    setting = Setting(models.target.model, models.tokenizer, corpus)  # type: ignore[attr-defined]
    facts = _facts(options, setting, models, source)
    run = {
        "kind": f"decision-{options.kind}",
        "options": options.as_dict(),
        "costs": None if priced is None else {"base": priced.base, "levels": list(priced.levels)},
        **{name: facts[name] for name in ("corpus", "target", "drafter")},
        "notes": notes_of(model, data, None, accelerator),
    }
    folder = TrainFolder(out)
    with folder.in_use(), asked_to_stop(console) as stop, disk_errors(console, out):
        folder.check(run, resume)
        folder.begin(run)
        recording = RoundsFolder(rounds or out / ROUNDS, facts)
        rows = _recorded(models, corpus, options, recording, console, stop)
        result = fit_decision(
            rows,
            options,
            folder,
            run,
            costs=priced,
            device=accelerator.device,
            report=lambda measure: _tell_epoch(measure, console),
            stop=stop,
        )
    _tell(result, out, console)
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


def _costs(
    options: DecisionOptions, file: Path | None, source: str | Path, model: str
) -> RoundCosts | None:
    """What rounds take with this drafter, as far as anybody said."""
    depth = len(parse_k_config(options.tree))
    if file is not None and options.draft_cost is not None:
        raise ConfigError("--draft-cost and --costs both say what drafts cost; leave one out")
    if file is not None:
        check_chain(options.tree, "--costs")
        try:
            table = CostTable.from_dict(json.loads(file.read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--costs {file} cannot be read ({error}); `foredraft calibrate --out FILE` writes one"
            ) from None
        return RoundCosts.from_table(table, depth, _drafting_with(source, table, model))
    if options.draft_cost is not None:
        return RoundCosts.flat(options.draft_cost, depth)
    if options.objective == "cost" or options.tune_threshold:
        needed = "--tune-threshold" if options.objective != "cost" else "--objective cost"
        raise ConfigError(
            f"{needed} needs to know what drafts cost; give --draft-cost SHARE (a level of the draft in "
            "target passes), or --costs FILE of `foredraft calibrate --out FILE`"
        )
    return None


def _drafting_with(source: str | Path, table: CostTable, model: str) -> list[str]:
    """The methods of a table that draft with this drafter, or with one of its kind that was given to all."""
    kind, found = kind_of(source), []
    for name in table.drafts:
        try:
            method = parse_method(name)
            own = own_source(method, model)
        except ConfigError:  # of another version, or a folder that is gone
            continue
        same = method.needs == kind if own is None else place_of(own) == place_of(source)
        if same:
            found.append(name)
    return found


def _source(model: str, drafter: str | None) -> str | Path:
    """What drafts: what ships by a name, else what the user names."""
    ships = shipped_drafters(model)
    if drafter is not None:
        return ships.get(drafter, drafter)
    found = zoo.shipped(model, "draft-model")
    if found is None:
        raise ConfigError(
            f"no draft model ships for {model!r}; give --drafter MODEL or a head's folder"
        )
    return found


def _drafter(models: Models, options: DecisionOptions) -> Drafter:
    proposal = PROPOSALS[options.kind]
    if models.head is not None:
        return EagleDrafter(models.head, proposal)
    if models.draft_model is None:
        raise ConfigError("there is nothing to draft with; give --drafter MODEL or a head's folder")
    return DraftModelDrafter(models.draft_model, proposal)


def _facts(
    options: DecisionOptions, setting: Setting, models: Models, source: str | Path
) -> dict[str, Any]:
    """What recorded rounds depend on."""
    manifest = json.dumps(setting.corpus.manifest, sort_keys=True).encode()
    digest = drafter_digest(models.draft_model if models.head is None else models.head)
    return {
        **options.collected(),
        "corpus": {
            "samples": len(setting.corpus),
            "digest": hashlib.sha256(manifest).hexdigest()[:DIGITS],
        },
        "target": setting.identity(),
        "drafter": {"name": os.path.basename(os.path.abspath(source)), "weights": digest},
    }


def _recorded(
    models: Models,
    corpus: Corpus,
    options: DecisionOptions,
    folder: RoundsFolder,
    console: Console,
    stop: Callable[[], bool],
) -> RecordedRows:
    """All rows, those recorded first, with a bar, that are not there yet; exits with 130 if it is stopped."""
    recorder = Recorder(options.kind)
    engine = recording_engine(models.target, _drafter(models, options), options.tree, recorder)
    prompts = prompts_of(corpus, options)
    columns = (TextColumn("recording"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task("", total=len(prompts), completed=min(folder.num_prompts, len(prompts)))
        whole = record(
            engine,
            recorder,
            prompts,
            options,
            folder,
            report=lambda done: bar.update(task, completed=done),
            stop=stop,
        )
    if not whole:
        console.print("stopped early; the same command with --resume goes on")
        raise typer.Exit(INTERRUPTED)
    return folder.read(options.prompts)


def _tell_epoch(measure: DecisionMeasure, console: Console) -> None:
    auc = "none" if measure.auc is None else f"{measure.auc:.3f}"
    line = f"epoch {measure.epoch}, held out (the half that chooses): loss {measure.loss:.4f}, AUC {auc}"
    if measure.ece is not None and measure.brier is not None:
        line += f", ECE {measure.ece:.3f}, Brier {measure.brier:.3f}"
    if measure.tokens_per_pass_time is not None:
        line += f", {measure.tokens_per_pass_time:.3f} tokens in the time of a pass"
    console.print(line, highlight=False, soft_wrap=True)


def _gain(gain: Gain) -> str:
    between = ""
    if gain.interval is not None:
        low, high = gain.interval
        between = f", 95 % interval {low:.3f} to {high:.3f}"
    return (
        f"tokens in the time of a pass on {gain.prompts} held-out prompts that chose nothing: "
        f"{gain.model:.3f} with the decision model, {gain.fixed:.3f} at the best fixed depth "
        f"({gain.fixed_depth}), {gain.whole:.3f} with whole drafts; decision model / best fixed depth "
        f"{gain.ratio:.3f}{between}"
    )


def _tell(result: DecisionResult, out: Path, console: Console) -> None:
    """What came out, and the way on."""
    lines = [f"kept epoch {result.best.epoch}; threshold {result.threshold:g}"]
    if result.gain is not None:
        lines.append(_gain(result.gain))
    lines.append(f"the decision model is in {out}")
    way_on = f"method speculative:depth=6:decision={out} drafts with it"
    lines.append(
        way_on if result.finished else "stopped early; the same command with --resume goes on"
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
