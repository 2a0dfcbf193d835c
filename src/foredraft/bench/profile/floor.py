"""The least that a pass can take: what it must read, over what the memory can give.

A pass of few rows is bound by reading the weights once. So its floor is the bytes of every weight that is
multiplied, and of the keys and values of the context, divided by the measured bandwidth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foredraft.backends.hf import HFTarget
from foredraft.backends.kv_layout import KVLayout
from foredraft.drafters.eagle.passes import HeadPasses
from foredraft.engine.pass_costs import Clock
from foredraft.protocols import Target

BUFFER_BYTES = {"cpu": 512 << 20, "cuda": 4 << 30}
"""What is read to measure bandwidth; where the last-level cache is large, `CACHE_FACTOR` times that."""
CACHE_FACTOR = 8
ROW_BYTES = 1 << 16
FUSING = ("fc", "fc_norm", "input_norm")
"""Parts of an EAGLE-3 head that its first pass of a round uses alone."""
REPEATS = 9


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second that reading kernels reach, each the median of its repeats."""

    bytes_per_s: float
    """Of the fastest kernel: the most that this machine was seen to give."""
    kernels: dict[str, float]
    """Of every kernel."""
    buffer_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """GB/s (10^9 bytes), ready for JSON."""
        return {
            "gb_per_s": self.bytes_per_s / 1e9,
            "kernels_gb_per_s": {name: rate / 1e9 for name, rate in self.kernels.items()},
            "buffer_mb": self.buffer_bytes / 1e6,
        }


def measure_bandwidth(
    device: torch.device,
    dtype: torch.dtype,
    synchronize: Callable[[], None],
    *,
    buffer_bytes: int | None = None,
    repeats: int = REPEATS,
    clock: Clock = time.perf_counter,
) -> Bandwidth:
    """What reading memory gives on a device: sums, and matrix-vector products in float32 and in `dtype`.

    Args:
        device: where the weights are.
        dtype: of the weights; its product may be bound by arithmetic, which is why there are others.
        synchronize: waits for the device.
        buffer_bytes: what each kernel reads; None takes many times the last-level cache.
        repeats: of each kernel, in turn.
        clock: seconds that only go up.
    """
    size = (buffer_bytes or _buffer_bytes(device)) // ROW_BYTES * ROW_BYTES
    seconds: dict[str, list[float]] = {}
    with torch.inference_mode():
        kernels = dict(_kernels(device, dtype, size))
        for turn in range(repeats + 1):
            for name, kernel in kernels.items():
                synchronize()
                began = clock()
                kernel()
                synchronize()
                took = clock() - began
                if turn:  # the first one warms up
                    seconds.setdefault(name, []).append(took)
    rates = {name: size / float(np.median(own)) for name, own in seconds.items()}
    return Bandwidth(max(rates.values()), rates, size)


def _kernels(
    device: torch.device, dtype: torch.dtype, size: int
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """All of them read the same buffer, which holds zeros in every dtype."""
    block = torch.zeros(size // ROW_BYTES, ROW_BYTES, dtype=torch.uint8, device=device)
    numbers = block.view(torch.float32)
    yield "sum float32", lambda: numbers.sum()
    for kind in dict.fromkeys((torch.float32, dtype)):
        matrix = block.view(kind)
        vector = torch.ones(matrix.shape[1], dtype=kind, device=device)
        yield f"product {str(kind).removeprefix('torch.')}", _product(matrix, vector)


def _product(matrix: Tensor, vector: Tensor) -> Callable[[], Tensor]:
    return lambda: matrix @ vector


def _buffer_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return BUFFER_BYTES["cuda"]
    return max(BUFFER_BYTES["cpu"], CACHE_FACTOR * _last_level_cache())


def _last_level_cache() -> int:
    """Bytes, as Linux tells; 0 where it does not."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes)


def weight_bytes(model: nn.Module, *borrowed: Tensor) -> int:
    """Bytes of the weights that a decode pass of a model reads.

    Every parameter and every buffer counts in the bytes it really has, and memory that several of them share
    counts once, so tied embeddings do. Tables that a pass only looks rows up in (`nn.Embedding`, unless tied
    to what is multiplied) and masks (buffers of bool) do not count.

    Args:
        model: the model.
        borrowed: what it reads beside its own, such as the target's language-model head.
    """
    read = [
        tensor
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if tensor.dtype != torch.bool
    ]
    return distinct_bytes([*read, *borrowed])


def held_bytes(*models: nn.Module) -> int:
    """Bytes of all parameters and buffers of models together, shared memory once."""
    return distinct_bytes(t for m in models for t in (*m.parameters(), *m.buffers()))


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of memory that tensors cover, each byte once; of quantised ones, of the tensors inside."""
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for tensor in _plain(tensors):
        storage = tensor.untyped_storage()
        start = int(tensor.storage_offset()) * tensor.element_size()
        place = str(tensor.device), storage.data_ptr()
        spans.setdefault(place, []).append((start, start + int(tensor.nbytes)))
    return sum(map(_covered, spans.values()))


def _plain(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Tensors with memory of their own: a wrapper of quantised weights gives its parts."""
    for tensor in tensors:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is None:
            yield tensor
        else:
            yield from _plain(getattr(tensor, name) for name in flatten()[0])


def _covered(spans: list[tuple[int, int]]) -> int:
    total = reached = 0
    for start, stop in sorted(spans):
        total += max(stop - max(start, reached), 0)
        reached = max(reached, stop)
    return total


def kv_bytes(layout: KVLayout, context: int) -> int:
    """Bytes of the keys and values that a pass behind `context` tokens reads."""
    return sum(
        layer.heads * (layer.key_dim + layer.value_dim) * layer.dtype.itemsize * layer.held(context)
        for layer in layout.layers
        if layer is not None
    )


def draft_bytes(drafts: Target, context: int) -> tuple[int, int] | None:
    """Bytes of weights, and of keys and values, that a draft pass of a level reads.

    Args:
        drafts: a draft model, or the passes of a head.
        context: tokens, or rows of the head, before it.

    Returns:
        None for a model that does not tell.
    """
    if isinstance(drafts, HeadPasses):
        return _head_bytes(drafts, context)
    if isinstance(drafts, HFTarget):
        return weight_bytes(drafts.model), kv_bytes(drafts.layout, context)
    return None


def _head_bytes(passes: HeadPasses, context: int) -> tuple[int, int]:
    """Of a head."""
    head, config = passes.head, passes.head.config
    borrowed: list[Tensor] = []
    if not head.own_lm_head and head.lm_rows is None:
        borrowed = [*head.ends.lm_head.parameters(), *head.ends.lm_head.buffers()]
    fusing = [getattr(head, name, None) for name in FUSING] if config.variant == 3 else []
    unread = held_bytes(*(module for module in fusing if module is not None))
    row = 2 * config.num_key_value_heads * config.head_dim * head.dtype.itemsize
    return weight_bytes(head, *borrowed) - unread, row * min(context, passes.window)
