"""Training a decision model on recorded rounds (arXiv 2409.10644).

Everything is in memory and an epoch takes seconds, so this is a loop of its own beside `loop.py`, with the
same folder, metrics and checkpoints; one checkpoint an epoch. One half of the held-out prompts chooses: the
epoch by its loss, and the threshold. The other half reports, and is looked at once, at the end.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from foredraft.errors import NumericsError
from foredraft.policies.decision_net import DecisionConfig, DecisionNet, save_decision, sizes_for
from foredraft.train.decision_examples import (
    DecisionExamples,
    DecisionMeasure,
    DecisionResult,
    split,
)
from foredraft.train.decision_figures import figures
from foredraft.train.decision_gain import Gain, GainLine, best_depth, gain_of
from foredraft.train.decision_objective import (
    RoundCosts,
    bce_loss,
    cost_loss,
    stays,
    tokens_per_pass_time,
    tuned_threshold,
)
from foredraft.train.decision_options import DecisionOptions
from foredraft.train.decision_plots import plot_calibration, plot_training
from foredraft.train.decision_rounds import RecordedRows
from foredraft.train.folder import TrainFolder
from foredraft.train.metrics import HELD_OUT, TRAIN

EPOCH_SEEDS = 1_000_003
"""More than any run has epochs: each epoch of each seed has an order of its own."""
REPORTED = "reported"
"""Kind of the line of `metrics.jsonl` with the gain."""


def fit_decision(
    rows: RecordedRows,
    options: DecisionOptions,
    folder: TrainFolder,
    run: Mapping[str, Any],
    *,
    costs: RoundCosts | None,
    device: torch.device,
    report: Callable[[DecisionMeasure], None] = lambda measure: None,
    stop: Callable[[], bool] = lambda: False,
) -> DecisionResult:
    """Train, and write the model to the folder. A run that was stopped goes on from its last epoch.

    Args:
        rows: the recording.
        options: how.
        folder: of the run; the caller has checked and begun it.
        run: what goes into `recipe.json` beside the outcome; its `target` and `drafter` go into the model.
        costs: of rounds; needed for the objective `cost` and to tune a threshold.
        device: where to compute.
        report: called with the measure of each epoch on the half that chooses.
        stop: asked before each epoch.

    Raises:
        DataError: the recording is too small.
        NumericsError: the loss is not finite.
    """
    training = _Training(rows, options, folder, costs, device)
    finished = training.go(report, stop)
    result = training.result(finished)
    training.write(run, result)
    return result


class _Training:
    """The state of one call of `fit_decision`."""

    def __init__(
        self,
        rows: RecordedRows,
        options: DecisionOptions,
        folder: TrainFolder,
        costs: RoundCosts | None,
        device: torch.device,
    ) -> None:
        self._train, self._choosing, self._reporting = (
            DecisionExamples.of(rows, chosen, options).to(device)
            for chosen in split(rows, options.held_out)
        )
        self._options, self._folder, self._costs = options, folder, costs
        torch.manual_seed(options.seed)
        sizes = sizes_for(options.kind, rows.features.shape[1])
        self._net = DecisionNet(DecisionConfig(options.kind, sizes)).to(device)
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=options.lr)
        self._best: DecisionMeasure | None = None
        self._epoch = self._step = 0
        self._elapsed_s = 0.0
        self._restore()

    def go(self, report: Callable[[DecisionMeasure], None], stop: Callable[[], bool]) -> bool:
        """Epochs until the last one; False if it was asked to stop before."""
        if self._best is None:
            self._note(report)
        while self._epoch < self._options.epochs:
            if stop():
                return False
            begun = time.perf_counter()
            for index in self._batches():
                self._learn(index)
            self._epoch += 1
            self._elapsed_s += time.perf_counter() - begun
            self._note(report)
            self._save()
        return True

    def result(self, finished: bool) -> DecisionResult:
        """The outcome, with the best weights."""
        best = self._folder.checkpoints.best()
        assert best is not None
        assert self._best is not None
        self._net.load_state_dict(best["module"])
        threshold, gain = self._gain()
        if finished and gain is not None:
            self._add(GainLine(REPORTED, self._step, self._best.epoch, gain))
        scored = figures(self._predicted(self._reporting), self._reporting.labels)
        return DecisionResult(finished, self._best, scored, threshold, gain)

    def _gain(self) -> tuple[float, Gain | None]:
        """The threshold, and what it is worth on the half that did not choose it."""
        options, costs, choosing, reporting = (
            self._options,
            self._costs,
            self._choosing,
            self._reporting,
        )
        if costs is None:
            return options.threshold, None
        threshold = options.threshold
        if options.tune_threshold:
            seen = self._on_chains(choosing)
            threshold, _ = tuned_threshold(seen, choosing.chains, costs, options.rule)
        depth = best_depth(choosing.chains, costs)
        stay = stays(self._on_chains(reporting), threshold, options.rule)
        return threshold, gain_of(stay, reporting.chains, costs, depth, options.seed)

    def _add(self, line: GainLine) -> None:
        """Append it, once: a finished run may be gone on with."""
        if not any(known["kind"] == line.kind for known in self._folder.metrics.read()):
            self._folder.metrics.append(line)

    def write(self, run: Mapping[str, Any], result: DecisionResult) -> None:
        """The model, its calibration if it has one, and what came out."""
        net = self._net
        net.config = dataclasses.replace(
            net.config,
            threshold=result.threshold,
            rule=self._options.rule,
            drafter=run.get("drafter", {}).get("name", ""),
            drafter_weights=run.get("drafter", {}).get("weights", ""),
            target=run.get("target", {}),
        )
        save_decision(net, self._folder.path)
        plot_training(self._folder)
        reporting = self._reporting
        scored = result.held_out.as_dict()
        if self._calibrated:
            plot_calibration(self._folder.path, self._predicted(reporting), reporting.labels)
        else:
            scored = {k: v for k, v in scored.items() if k not in ("ece", "brier")}
        outcome = {
            "finished": result.finished,
            "epoch": result.best.epoch,
            "threshold": result.threshold,
            "predicts": "acceptance" if self._calibrated else "whether to go on, no acceptance",
            "held_out": scored,
            "tokens_per_pass_time": None if result.gain is None else result.gain.as_dict(),
            "counts": {
                name: {"rows": len(part.labels), "rounds": len(part.chains)}
                for name, part in (
                    ("train", self._train),
                    ("choosing", self._choosing),
                    ("reporting", reporting),
                )
            },
        }
        self._folder.write_recipe(run, outcome)

    @property
    def _calibrated(self) -> bool:
        """Whether predictions are meant to be the labels."""
        return self._options.objective == "bce"

    def _batches(self) -> tuple[Tensor, ...]:
        """Indices of the steps of this epoch."""
        options = self._options
        by_rows = options.objective == "bce"
        count = len(self._train.labels if by_rows else self._train.chains)
        order = torch.Generator().manual_seed(options.seed * EPOCH_SEEDS + self._epoch)
        return torch.split(torch.randperm(count, generator=order), options.batch)

    def _learn(self, index: Tensor) -> None:
        index = index.to(self._train.labels.device)
        loss = self._loss(self._train, index)
        if not bool(loss.isfinite()):
            raise NumericsError(
                f"the loss of step {self._step + 1} is {float(loss)}; lower lr (now {self._options.lr:g})"
            )
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._step += 1

    def _loss(self, examples: DecisionExamples, index: Tensor | slice = slice(None)) -> Tensor:
        if self._options.objective == "bce":
            chosen = examples.features[index], examples.labels[index], examples.weights[index]
            return bce_loss(self._net, *chosen)
        assert self._costs is not None
        chains = examples.chains if isinstance(index, slice) else examples.chains[index]
        return cost_loss(self._net, chains, self._costs)

    @torch.no_grad()
    def _predicted(self, examples: DecisionExamples) -> Tensor:
        found: Tensor = self._net(examples.features)
        return found

    @torch.no_grad()
    def _on_chains(self, examples: DecisionExamples) -> Tensor:
        found: Tensor = self._net(examples.chains.features)
        return found

    @torch.no_grad()
    def _measure(self, kind: str, examples: DecisionExamples) -> DecisionMeasure:
        scored, found = figures(self._predicted(examples), examples.labels), None
        if self._costs is not None and len(examples.chains):
            stay = stays(self._on_chains(examples), self._options.threshold, self._options.rule)
            found = float(tokens_per_pass_time(stay, examples.chains, self._costs))
        return DecisionMeasure(
            kind=kind,
            step=self._step,
            epoch=self._epoch,
            elapsed_s=self._elapsed_s,
            loss=float(self._loss(examples)),
            ece=scored.ece if self._calibrated else None,
            brier=scored.brier if self._calibrated else None,
            auc=scored.auc,
            base_rate=scored.base_rate,
            tokens_per_pass_time=found,
        )

    def _note(self, report: Callable[[DecisionMeasure], None]) -> None:
        """Measure, and keep the weights if none did better on the half that chooses."""
        self._folder.metrics.append(self._measure(TRAIN, self._train))
        measure = self._measure(HELD_OUT, self._choosing)
        self._folder.metrics.append(measure)
        report(measure)
        if self._best is None or measure.loss < self._best.loss:
            self._best = measure
            state = {"module": self._net.state_dict(), "measure": asdict(measure)}
            self._folder.checkpoints.save_best(state)

    def _save(self) -> None:
        state = {
            "module": self._net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "epoch": self._epoch,
            "step": self._step,
            "elapsed_s": self._elapsed_s,
        }
        self._folder.checkpoints.save(self._epoch, state)

    def _restore(self) -> None:
        state = self._folder.checkpoints.latest()
        if state is None:
            self._folder.metrics.keep_until(-1)  # of a run that was killed in its first epoch
            return
        self._net.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._epoch, self._step = state["epoch"], state["step"]
        self._elapsed_s = state["elapsed_s"]
        best = self._folder.checkpoints.best()
        self._best = None if best is None else DecisionMeasure(**best["measure"])
        self._folder.metrics.keep_until(self._step)
