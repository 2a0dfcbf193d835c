"""Weights in memory of their own, once: not in a mapped file as well, nor among freed scraps.

A checkpoint is read by mapping its file. Weights of the file's own dtype then stay pages of it, of which
a copy (of joined layers, say) leaves the original mapped; others are converted, and what was freed on the
way stays with the process until it is asked to give it back.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from pathlib import Path

import torch
from torch import Tensor, nn

MAPS = Path("/proc/self/maps")


@torch.no_grad()
def settle(model: nn.Module) -> int:
    """Copy weights out of mapped files, and give freed memory back; returns how many bytes were copied.

    Tensors that share memory go on sharing it. Where the system does not tell what is mapped, nothing is
    copied.
    """
    mapped = _MappedFiles.now()
    moved: dict[int, torch.UntypedStorage] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        storage = tensor.untyped_storage()
        if tensor.device.type != "cpu" or not mapped.holds(storage.data_ptr()):
            continue
        place = storage.data_ptr()
        if place not in moved:
            moved[place] = storage.clone()  # type: ignore[no-untyped-call]
        _put(tensor, moved[place])
    copied = sum(storage.nbytes() for storage in moved.values())
    give_back()
    return copied


def give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _put(tensor: Tensor, storage: torch.UntypedStorage) -> None:
    """Let a tensor lie in another storage as it does in its own."""
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    with torch.inference_mode(False):
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(storage, *place)


class _MappedFiles:
    """The address ranges of this process that are files."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _ in self._ranges]

    @classmethod
    def now(cls) -> _MappedFiles:
        """As the system tells; none where it does not."""
        try:
            lines = MAPS.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return cls([])
        fields = [line.split(maxsplit=5) for line in lines]
        files = [f[0].split("-") for f in fields if len(f) == 6 and f[5].startswith("/")]
        return cls([(int(start, 16), int(stop, 16)) for start, stop in files])

    def holds(self, address: int) -> bool:
        """Whether the address is in one of them."""
        place = bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._ranges[place][1]
