"""Training a length predictor on labelled positions (AdaEAGLE, arXiv 2412.18910).

Everything is in memory and an epoch takes seconds, so this is a loop of its own beside `loop.py`, with the
same folder, metrics and checkpoints; one checkpoint an epoch. Of the held-out texts one half chooses the
epoch, and the other reports, and is looked at once, at the end.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.errors import NumericsError
from foredraft.policies.length_net import LengthConfig, LengthNet, Past, save_length
from foredraft.train.folder import TrainFolder
from foredraft.train.length_examples import split
from foredraft.train.length_figures import LengthFigures, calibration, length_figures
from foredraft.train.length_labels import Labels
from foredraft.train.length_options import LengthOptions
from foredraft.train.length_plots import plot_lengths
from foredraft.train.length_walk import Requests, comparison, walk
from foredraft.train.metrics import HELD_OUT, TRAIN, line_of

EPOCH_SEEDS = 1_000_003
"""More than any run has epochs: each epoch of each seed has an order of its own."""
MEASURE_SEED = 17
"""Of what a measure draws: the rounds that a GRU is measured on."""
CHUNK_ROWS = 8192
"""Positions that are predicted at a time."""
ROUNDS_A_REQUEST = 16
"""About: a step of a GRU takes batch / this requests."""

Embeddings = Callable[[Tensor], Tensor]
"""Token ids int64 [N] -> embeddings [N, root_size]."""


@dataclass(frozen=True, slots=True)
class LengthMeasure:
    """One line of `metrics.jsonl`: after an epoch, on what was trained on or on the texts that choose."""

    kind: str
    step: int
    """Optimizer steps done."""
    epoch: int
    elapsed_s: float
    loss: float
    mae: float | None
    """These three of the held-out texts alone: see `LengthFigures`."""
    under: float | None
    over: float | None

    def as_dict(self) -> dict[str, Any]:
        """The line."""
        return line_of(asdict(self))


@dataclass(frozen=True, slots=True)
class LengthResult:
    """How a training ended.

    Attributes:
        finished: every epoch was made; else it was stopped, and can be gone on with.
        best: the epoch whose weights were kept.
        held_out: figures of these on the texts that report.
        rounds: what drafts of the predicted lengths, of fixed ones and of the right ones would come to
            there; None above temperature 0, where labels are expectations.
    """

    finished: bool
    best: LengthMeasure
    held_out: LengthFigures
    rounds: Mapping[str, Any] | None


def fit_length(
    labels: Labels,
    options: LengthOptions,
    folder: TrainFolder,
    run: Mapping[str, Any],
    *,
    taps: tuple[int, ...],
    embeddings: Embeddings | None,
    device: torch.device,
    report: Callable[[LengthMeasure], None] = lambda measure: None,
    stop: Callable[[], bool] = lambda: False,
) -> LengthResult:
    """Train, and write the predictor to the folder. A run that was stopped goes on from its last epoch.

    Args:
        labels: what to learn from.
        options: how.
        folder: of the run; the caller has checked and begun it.
        run: what goes into `recipe.json` beside the outcome; its `target` and `drafter` go into the net.
        taps: of the target, as the features were read.
        embeddings: of roots; None where they are not read.
        device: where to compute.
        report: called with the measure of each epoch on the texts that choose.
        stop: asked before each epoch.

    Raises:
        DataError: there are too few labels.
        NumericsError: the loss is not finite.
    """
    training = _Training(labels, options, folder, taps, embeddings, device)
    finished = training.go(report, stop)
    result = training.result(finished)
    training.write(run, result)
    return result


def length_loss(net: LengthNet, output: Tensor, lengths: Tensor, penalty: float) -> Tensor:
    """The loss of each round [B]; an error below the label counts `penalty` times."""
    loss = net.config.loss
    if loss == "ce":
        return F.cross_entropy(output, lengths.long(), reduction="none")
    error = (output - lengths).abs()
    error = error if loss == "l1" else error.square()
    return torch.where(output < lengths, penalty * error, error)


class _Training:
    """The state of one call of `fit_length`."""

    def __init__(
        self,
        labels: Labels,
        options: LengthOptions,
        folder: TrainFolder,
        taps: tuple[int, ...],
        embeddings: Embeddings | None,
        device: torch.device,
    ) -> None:
        parts = split(labels, options.held_out)
        inputs, root_size = _inputs(labels, embeddings)
        self._train, self._choosing, self._reporting = (
            Requests.of(labels, inputs, chosen, options.k_max).to(device)
            for chosen in (parts.train, parts.choosing, parts.reporting)
        )
        self._options, self._folder, self._device = options, folder, device
        torch.manual_seed(options.seed)
        config = LengthConfig(
            hidden_size=labels.features.shape[1] // 2,
            taps=taps,
            root_size=root_size,
            k_max=options.k_max,
            arch=options.arch,
            loss=options.loss,
            width=options.width,
            activation=options.activation,
            dropout=options.dropout,
            temperature=options.temperature,
        )
        self._net = LengthNet(config).to(device)
        self._optimizer = torch.optim.AdamW(self._net.parameters(), lr=options.lr)
        self._best: LengthMeasure | None = None
        self._epoch = self._step = 0
        self._elapsed_s = 0.0
        self._restore()

    def go(self, report: Callable[[LengthMeasure], None], stop: Callable[[], bool]) -> bool:
        """Epochs until the last one; False if it was asked to stop before."""
        if self._best is None:
            self._note(report)
        while self._epoch < self._options.epochs:
            if stop():
                return False
            begun = time.perf_counter()
            batches = list(self._batches())
            for number, index in enumerate(batches):
                self._learn(index, (self._epoch + number / len(batches)) / self._options.epochs)
            self._epoch += 1
            self._elapsed_s += time.perf_counter() - begun
            self._note(report)
            self._save()
        return True

    def result(self, finished: bool) -> LengthResult:
        """The outcome, with the best weights."""
        best = self._folder.checkpoints.best()
        assert best is not None
        assert self._best is not None
        self._net.load_state_dict(best["module"])
        self._net.eval()
        rounds = None
        if not self._options.temperature:
            rounds = comparison(self._reporting, self._net, self._options.draft_cost)
        scored = length_figures(*self._predicted(self._reporting))
        return LengthResult(finished, self._best, scored, rounds)

    def write(self, run: Mapping[str, Any], result: LengthResult) -> None:
        """The predictor, its plot, and what came out."""
        net = self._net
        net.config = dataclasses.replace(
            net.config,
            drafter=run.get("drafter", {}).get("name", ""),
            drafter_weights=run.get("drafter", {}).get("weights", ""),
            target=run.get("target", {}),
        )
        save_length(net, self._folder.path)
        predicted, observed = self._predicted(self._reporting)
        plot_lengths(self._folder.path, predicted, observed, net.config.k_max)
        parts = {
            "train": self._train,
            "choosing": self._choosing,
            "reporting": self._reporting,
        }
        outcome = {
            "finished": result.finished,
            "epoch": result.best.epoch,
            "held_out": result.held_out.as_dict(),
            "calibration": [asdict(part) for part in calibration(predicted, observed)],
            "rounds": result.rounds,
            "counts": {
                name: {"positions": len(part.lengths), "answers": len(part.firsts)}
                for name, part in parts.items()
            },
        }
        self._folder.write_recipe(run, outcome)

    # --- steps ------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Tensor]:
        """Positions, or the requests of a GRU, of the steps of this epoch."""
        options = self._options
        order = torch.Generator().manual_seed(options.seed * EPOCH_SEEDS + self._epoch)
        if self._net.remembers:
            shuffled = torch.randperm(len(self._train.firsts), generator=order)
            size = max(1, options.batch // ROUNDS_A_REQUEST)
        else:
            shuffled = torch.randperm(len(self._train.lengths), generator=order)
            size = options.batch
        return iter(torch.split(shuffled.to(self._device), size))

    def _learn(self, index: Tensor, progress: float) -> None:
        options = self._options
        for group in self._optimizer.param_groups:
            group["lr"] = options.lr * (1 + math.cos(math.pi * progress)) / 2
        self._net.train()
        if self._net.remembers:
            draws = torch.Generator().manual_seed(options.seed * EPOCH_SEEDS + self._step)
            loss = self._of_requests(self._train, index, draws)
        else:
            loss = self._of_positions(self._train, index)
        if not bool(loss.isfinite()):
            raise NumericsError(
                f"the loss of step {self._step + 1} is {float(loss.detach())}; lower lr (now {options.lr:g})"
            )
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._step += 1

    def _of_positions(self, requests: Requests, index: Tensor) -> Tensor:
        """The mean loss of these positions."""
        output, _ = self._net(requests.inputs[index])
        return length_loss(self._net, output, requests.lengths[index], self._options.penalty).mean()

    def _of_requests(self, requests: Requests, index: Tensor, draws: torch.Generator) -> Tensor:
        """The mean loss over the rounds of these requests, drafted about as long as is right.

        A request begins anywhere near its first position, and drafts are one token shorter to two longer than
        their label: so outcomes are of all kinds, as in decoding.
        """
        net, options = self._net, self._options
        firsts, stops = requests.firsts[index], requests.stops[index]
        shift = torch.randint(0, options.k_max + 1, (len(index),), generator=draws)
        at = torch.minimum(firsts + shift.to(firsts), stops - 1)
        past: Past | None = None
        losses = []
        while len(at):
            lengths = requests.lengths[at]
            output, state = net(requests.inputs[at], past)
            losses.append(length_loss(net, output, lengths, options.penalty))
            noise = torch.randint(-1, 3, (len(at),), generator=draws).to(lengths)
            drafted = (lengths + noise).clamp(0, options.k_max)
            accepted = torch.minimum(drafted, lengths)
            after = requests.next(at, accepted.long())
            alive = after < stops
            assert state is not None
            past = Past(state[alive], net.outcome(accepted, drafted)[alive])
            at, stops = after[alive], stops[alive]
        return torch.cat(losses).mean()

    # --- measures ---------------------------------------------------------------------------------

    @torch.no_grad()
    def _predicted(self, requests: Requests) -> tuple[Tensor, Tensor]:
        """Predictions and labels: of the rounds that drafts so long make, or of all positions where labels
        are expectations."""
        if not self._options.temperature:
            walked = walk(requests, self._net)
            return walked.drafted, requests.lengths[walked.at]
        found = [self._net.lengths(self._net(part)[0]) for part in _chunks(requests.inputs)]
        return torch.cat(found), requests.lengths

    @torch.no_grad()
    def _loss(self, requests: Requests) -> Tensor:
        """Mean loss of a part, in eval mode."""
        if self._net.remembers:
            draws = torch.Generator().manual_seed(MEASURE_SEED)
            every = torch.arange(len(requests.firsts), device=self._device)
            return self._of_requests(requests, every, draws)
        every = torch.arange(len(requests.lengths), device=self._device)
        parts = torch.split(every, CHUNK_ROWS)
        return torch.stack([self._of_positions(requests, i) * len(i) for i in parts]).sum() / len(
            every
        )

    def _measure(self, kind: str, requests: Requests) -> LengthMeasure:
        self._net.eval()
        scored = length_figures(*self._predicted(requests)) if kind == HELD_OUT else None
        return LengthMeasure(
            kind=kind,
            step=self._step,
            epoch=self._epoch,
            elapsed_s=self._elapsed_s,
            loss=float(self._loss(requests)),
            mae=None if scored is None else scored.mae,
            under=None if scored is None else scored.under,
            over=None if scored is None else scored.over,
        )

    def _note(self, report: Callable[[LengthMeasure], None]) -> None:
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
            "random": torch.get_rng_state(),
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
        torch.set_rng_state(state["random"])  # dropout draws from it
        self._epoch, self._step = state["epoch"], state["step"]
        self._elapsed_s = state["elapsed_s"]
        best = self._folder.checkpoints.best()
        self._best = None if best is None else LengthMeasure(**best["measure"])
        self._folder.metrics.keep_until(self._step)


def _inputs(labels: Labels, embeddings: Embeddings | None) -> tuple[Tensor, int]:
    """What the net reads [N, inputs], in the dtype of the features, and the size of the root's part."""
    if embeddings is None:
        return labels.features, 0
    roots = embeddings(labels.roots).to(labels.features)
    return torch.cat([labels.features, roots], -1), roots.shape[1]


def _chunks(inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.split(inputs, CHUNK_ROWS)
