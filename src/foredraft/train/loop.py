"""The training loop: from an objective and a corpus to a trained drafter in a folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import nn

from foredraft.errors import ConfigError, NumericsError
from foredraft.train.batches import DIGITS, Batches, SampleCounts, Samples
from foredraft.train.checkpoints import random_states, restore_random_states
from foredraft.train.clock import Clock
from foredraft.train.folder import TrainFolder
from foredraft.train.meter import Meter, Totals
from foredraft.train.metrics import HELD_OUT, TRAIN, Measure
from foredraft.train.objective import Batch, Objective
from foredraft.train.options import TrainOptions
from foredraft.train.plots import plot
from foredraft.train.schedule import SECONDS, Position, learning_rate, progress
from foredraft.train.stepping import Stepper, make_accelerator

FORMAT = 2
"""Of a checkpoint."""
HELD_OUT_SEED = 1
BEFORE_ALL = -1
"""A step of which there is no line of metrics, nor of any before it."""
MOST_SKIPPED = 0.5
"""Share of the steps between two lines of metrics that may be skipped; more is an error."""

Report = Callable[[Measure], None]


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a run ended.

    Attributes:
        finished: it reached its limit; else it was stopped, and can be gone on with.
        position: where it stands.
        counts: what became of the samples.
        best: the best measure on the held-out samples; None without any.
        out: the folder that holds the drafter.
    """

    finished: bool
    position: Position
    counts: SampleCounts
    best: Measure | None
    out: Path


def fit(
    objective: Objective,
    corpus: Samples,
    options: TrainOptions,
    out: Path,
    *,
    recipe: Mapping[str, Any] | None = None,
    resume: bool = False,
    begin: Callable[[SampleCounts], None] = lambda counts: None,
    report: Report = lambda measure: None,
    stop: Callable[[], bool] = lambda: False,
) -> FitResult:
    """Train, and write the drafter to `out`.

    Call it in each process of a launcher (`torchrun`, `accelerate launch`) with the same arguments. A
    run that was killed goes on from its last checkpoint, to the very weights it would have had.

    Args:
        objective: what is trained; its target is on this process's device (`make_accelerator`).
        corpus: what it learns from.
        options: how.
        out: see `folder.py`.
        recipe: what the objective is, as JSON: written down, and compared when a run is resumed, except
            what stands in it under `notes`.
        resume: go on with the run in `out`, if there is one.
        begin: called once, with what became of the samples, by the first process alone.
        report: called with each measure, likewise.
        stop: asked before each step; True ends the run early with a checkpoint.

    Raises:
        ConfigError: `out` holds a run, or on `resume` another run than this one.
        DataError: the corpus has nothing to learn from.
        NumericsError: most steps gave no finite gradient.
    """
    accelerator = make_accelerator()
    folder = TrainFolder(out)
    with folder.in_use() if accelerator.is_main_process else nullcontext():
        batches = Batches(corpus, options, accelerator.process_index, accelerator.num_processes)
        run = {
            "processes": accelerator.num_processes,
            "options": options.fixed(),
            "corpus": {"samples": len(corpus), "digest": batches.digest},
            **(recipe or {}),
            "module": _shape_of(objective.module),
        }
        folder.check(run, resume)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            folder.begin(run)
            begin(batches.counts)
        return _Run(objective, batches, options, folder, run, accelerator, report, stop).go()


class _Run:
    """The state of one call of `fit`."""

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        options: TrainOptions,
        folder: TrainFolder,
        run: Mapping[str, Any],
        accelerator: Accelerator,
        report: Report,
        stop: Callable[[], bool],
    ) -> None:
        self._objective, self._batches, self._options = objective, batches, options
        self._folder, self._run, self._accelerator = folder, run, accelerator
        self._report = report
        set_seed(options.seed, device_specific=True)
        self._stepper = Stepper(objective, options, accelerator)
        self._at = Position()
        self._best: Measure | None = None
        self._measured_step = -1
        self._skipped = 0
        self._meter = Meter(accelerator)
        self._resumed = self._restore()
        self._clock = Clock(accelerator, self._at.elapsed_s, stop)
        self._saved_s = self._at.elapsed_s
        self._lr = 0.0

    def go(self) -> FitResult:
        """Train until a limit is reached or the user stops it."""
        if not self._resumed:
            self._measure_held_out()
        while self._going_on():
            for step in self._batches.epoch(self._at.epoch, self._at.index):
                self._step(step)
                if not self._going_on():
                    break
            if self._at.index >= self._batches.steps_in_epoch(self._at.epoch):
                self._at.epoch, self._at.index = self._at.epoch + 1, 0
        return self._end()

    @property
    def _progress(self) -> float:
        in_epoch = self._batches.steps_in_epoch(self._at.epoch)
        return progress(self._at, self._options, in_epoch)

    def _going_on(self) -> bool:
        self._clock.read(self._at.step)
        self._at.elapsed_s = self._clock.elapsed_s
        return not self._clock.stopped and self._progress < 1

    def _step(self, batches: list[Batch]) -> None:
        """One optimizer step, and what is due behind it."""
        at, options = self._at, self._options
        self._lr = learning_rate(at.step, self._progress, options)
        tokens = sum(int(batch.lengths.sum()) for batch in batches)
        self._meter.add(self._stepper.step(batches, self._lr), tokens)
        at.step, at.index = at.step + 1, at.index + 1
        if at.step % options.log_steps == 0:
            self._log()
        if at.step % options.eval_steps == 0:
            self._measure_held_out()
        if self._save_is_due():
            self._save()

    def _save_is_due(self) -> bool:
        steps, minutes = self._options.checkpoint_steps, self._options.checkpoint_minutes
        by_steps = steps is not None and self._at.step % steps == 0
        waited = self._at.elapsed_s - self._saved_s
        return by_steps or (minutes is not None and waited >= SECONDS * minutes)

    def _log(self) -> None:
        """A line on the steps since the last one. With AdamW, training waits for the device here alone."""
        if not len(self._meter):
            return
        totals, skipped = self._meter.read()
        self._at.tokens += totals.tokens
        self._skipped += skipped
        self._publish(self._measure(TRAIN, totals, lr=self._lr))
        if skipped > MOST_SKIPPED * totals.steps:
            raise NumericsError(
                f"{skipped} of the last {totals.steps} steps gave no finite gradient (until step "
                f"{self._at.step}); lower lr (now {self._options.lr:g}), or use precision float32"
            )

    def _measure_held_out(self) -> None:
        """Measure on the held-out samples, and keep the weights if none did better."""
        self._log()
        self._measured_step = self._at.step
        if not self._batches.counts.held_out:
            return
        with self._meter.paused():
            share = self._options.eval_tokens / self._accelerator.num_processes
            sums = self._stepper.measure(self._batches.held_out(), share, HELD_OUT_SEED)
            parts = [part for part in gather_object([sums.tolist()]) if part]
            totals = Totals([sum(column) for column in zip(*parts, strict=True)])
            measure = self._measure(HELD_OUT, totals)
            self._publish(measure)
            if self._best is None or _rank(measure) > _rank(self._best):
                self._best = measure
                self._save_best(measure)

    def _save_best(self, measure: Measure) -> None:
        if self._accelerator.is_main_process:
            state = {"module": self._stepper.module.state_dict(), "measure": asdict(measure)}
            self._folder.checkpoints.save_best(state)

    def _measure(self, kind: str, totals: Totals, lr: float | None = None) -> Measure:
        at = self._at
        return Measure(
            kind=kind,
            step=at.step,
            epoch=at.epoch + at.index / self._batches.steps_in_epoch(at.epoch),
            progress=self._progress,
            elapsed_s=at.elapsed_s,
            tokens=at.tokens,
            loss=totals.loss,
            acceptance=totals.acceptance,
            lr=lr,
            tokens_per_s=totals.tokens_per_s,
            skipped=self._skipped,
        )

    def _publish(self, measure: Measure) -> None:
        if self._accelerator.is_main_process:
            self._folder.metrics.append(measure)
            self._report(measure)

    def _save(self) -> None:
        """Write a checkpoint. All processes take part, for each has random states of its own."""
        self._log()
        with self._meter.paused():
            states = gather_object([random_states()])
            if self._accelerator.is_main_process:
                state = {
                    "format": FORMAT,
                    "position": self._at.as_dict(),
                    "random": states,
                    "skipped": self._skipped,
                    "measured_step": self._measured_step,
                    **self._stepper.state(),
                }
                self._folder.checkpoints.save(self._at.step, state)
                plot(self._folder)
        self._saved_s = self._at.elapsed_s

    def _restore(self) -> bool:
        """Go back to the last checkpoint, if there is one; else to the beginning."""
        state = self._folder.checkpoints.latest()
        if state is None:
            if self._accelerator.is_main_process:
                self._folder.metrics.keep_until(BEFORE_ALL)  # an earlier process was killed
            return False
        if state.get("format") != FORMAT:
            raise ConfigError(
                f"the checkpoint in {self._folder.path} was written by another version of Foredraft; go on "
                "with that version, or begin anew in another --out with --start-from"
            )
        self._stepper.load(state)
        self._at = Position(**state["position"])
        self._skipped = state["skipped"]
        self._measured_step = state["measured_step"]
        restore_random_states(state["random"][self._accelerator.process_index])
        best = self._folder.checkpoints.best()
        if best is not None:
            self._best = Measure(**best["measure"])
        if self._accelerator.is_main_process:
            self._folder.metrics.keep_until(self._at.step)
        return True

    def _end(self) -> FitResult:
        """The last measure, checkpoint and the drafter itself."""
        finished = self._progress >= 1
        untrained = self._best is not None and self._best.step == 0
        if (finished or untrained) and self._measured_step != self._at.step:
            self._measure_held_out()  # or else what is saved were the weights of the beginning
        self._save()
        result = FitResult(finished, self._at, self._batches.counts, self._best, self._folder.path)
        if self._accelerator.is_main_process:
            self._export(result)
        self._accelerator.wait_for_everyone()
        return result

    def _export(self, result: FitResult) -> None:
        """Write the drafter with the best weights; the module keeps the last ones."""
        module, best = self._stepper.module, self._folder.checkpoints.best()
        last = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        if best is not None:
            module.load_state_dict(best["module"])
        self._objective.save(self._folder.path)
        module.load_state_dict(last)
        self._folder.write_recipe(self._run, outcome(result))


def outcome(result: FitResult) -> dict[str, Any]:
    """What `recipe.json` says of a run beside what it was."""
    return {
        "finished": result.finished,
        "position": result.position.as_dict(),
        "counts": asdict(result.counts),
        "held_out": result.best.as_dict() if result.best else None,
    }


def _shape_of(module: nn.Module) -> dict[str, Any]:
    """Trainable parameters, and a digest of all names and shapes."""
    shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    digest = hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return {"parameters": trainable, "digest": digest[:DIGITS]}


def _rank(measure: Measure) -> tuple[float, float]:
    """Better measures rank higher."""
    return measure.expected_length, -(measure.loss if measure.loss is not None else math.inf)
