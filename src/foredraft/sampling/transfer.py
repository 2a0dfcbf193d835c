"""Tensors as lists on the host, at the price of one wait for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_host(*tensors: Tensor) -> tuple[Any, ...]:
    """Each tensor's numbers as nested lists; from an accelerator they come together."""
    if len(tensors) == 1 or tensors[0].device.type == "cpu":
        return tuple(tensor.tolist() for tensor in tensors)
    return packed(tensors)


def packed(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """As `to_host`, in one copy: whole numbers up to 2^53 and floats of any width fit float64."""
    flat = torch.cat([tensor.double().flatten() for tensor in tensors]).cpu()
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    pairs = zip(parts, tensors, strict=True)
    return tuple(part.to(tensor.dtype).view(tensor.shape).tolist() for part, tensor in pairs)
