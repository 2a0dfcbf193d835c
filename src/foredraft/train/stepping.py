"""One optimizer step, on one process or many. Nothing here waits for the device, but Muon does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from foredraft.errors import ConfigError
from foredraft.train.objective import Batch, Objective
from foredraft.train.optimizers import Optimizers
from foredraft.train.options import TrainOptions


def make_accelerator() -> Accelerator:
    """The processes and devices there are, however they were launched.

    Raises:
        ConfigError: a launcher started several processes that do not know of one another.
    """
    handler = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    on_cpu = not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no", kwargs_handlers=[handler])
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched not in (1, accelerator.num_processes):
        raise ConfigError(
            f"{launched} processes were launched, and each sees {accelerator.num_processes}; launch them "
            "with `torchrun --nproc-per-node N` or `accelerate launch`"
        )
    return accelerator


class WholeLoss(nn.Module):
    """The loss as the forward pass of a module, which is what gradient averaging hooks into."""

    def __init__(self, objective: Objective, precision: str, device: torch.device) -> None:
        super().__init__()
        self.trained = objective.module
        self._unregistered = (objective,)  # it may be a module itself, and may hold the target
        self._half = precision == "bfloat16"
        self._device = device

    def forward(
        self, token_ids: Tensor, lengths: Tensor, labelled: Tensor, samples: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, hits [K] and counted [K] of a batch, float32."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            report = self._unregistered[0](Batch(token_ids, lengths, labelled, samples))
        return report.loss.float(), report.hits.float().detach(), report.counted.float().detach()


class Stepper:
    """Weights and optimizer of a run.

    Args:
        objective: what is trained.
        options: optimizer, clipping and precision.
        accelerator: processes and devices.
    """

    def __init__(
        self, objective: Objective, options: TrainOptions, accelerator: Accelerator
    ) -> None:
        self._accelerator, self._options = accelerator, options
        self.module = objective.module
        self._loss = WholeLoss(objective, options.precision, accelerator.device)
        self._loss.to(accelerator.device).train()
        self._optimizers = Optimizers(self.module, options)
        self._parallel = accelerator.prepare_model(self._loss)

    def step(self, batches: Sequence[Batch], lr: float) -> Tensor:
        """Train on the micro-batches of one step; weights stay as they are if a gradient is not finite.

        Returns:
            Sums over the micro-batches, see `Sums`: on the device, so that nothing waits for it.
        """
        parts = []
        for place, batch in enumerate(batches, 1):
            with self._averaging(last=place == len(batches)):
                loss, hits, counted = self._parallel(*_tensors(batch, self._accelerator.device))
                self._accelerator.backward(loss / len(batches))
            parts.append(_sums(loss.detach(), hits, counted))
        bad = self._clip()
        self._optimizers.step(lr, skip=bad)
        total = torch.stack(parts).sum(0)
        total[SKIPPED] = bad
        return total

    @torch.no_grad()
    def measure(self, batches: Iterator[Batch], tokens: float, seed: int) -> Tensor:
        """Sums over batches that are not trained on; nothing if there are none.

        Args:
            batches: what to read, until there is no more, or
            tokens: so many are read.
            seed: of what the objective draws; the random state afterwards is what it was.
        """
        total, seen = torch.zeros(0), 0
        self._loss.eval()
        with _drawing_from(seed, self._accelerator.device):
            for batch in batches:
                sums = _sums(*self._loss(*_tensors(batch, self._accelerator.device))).cpu()
                total = total + sums if seen else sums
                seen += int(batch.lengths.sum())
                if seen >= tokens:
                    break
        self._loss.train()
        return total

    def state(self) -> dict[str, Any]:
        """Weights and optimizer, for a checkpoint."""
        return {"module": self.module.state_dict(), "optimizer": self._optimizers.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        self.module.load_state_dict(state["module"])
        self._optimizers.load(state["optimizer"])

    @contextmanager
    def _averaging(self, last: bool) -> Iterator[None]:
        """Gradients are averaged over processes with the last micro-batch alone."""
        with nullcontext() if last else self._accelerator.no_sync(self._parallel):
            yield

    def _clip(self) -> Tensor:
        """Clip the gradients; float scalar, 1 if they are not all finite, and equal on all processes."""
        parameters = self._optimizers.parameters
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._options.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._options.clip_norm, norm)
        if self._options.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, self._options.clip_value)
        return (~norm.isfinite()).float()


BATCHES, SKIPPED, LOSS, FIRST_DEPTH = 0, 1, 2, 3
"""Places in a vector of sums: micro-batches with a finite loss, steps that were skipped, finite losses;
then hits [K] and counted [K]."""


def _sums(loss: Tensor, hits: Tensor, counted: Tensor) -> Tensor:
    """float32 [3 + 2K]; a loss that is not finite is in none of them."""
    finite = loss.isfinite()
    head = torch.stack([finite.float(), torch.zeros_like(loss), loss])
    sums = torch.cat([head, hits, counted])
    return torch.where(finite, sums, torch.zeros_like(sums))


def _tensors(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = batch.to(device)
    return batch.token_ids, batch.lengths, batch.labelled, batch.samples


@contextmanager
def _drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Global torch generators seeded inside, and restored behind."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
