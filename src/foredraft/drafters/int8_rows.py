"""Weights in a quarter of float32's size: int8 with one scale a row, for files alone.

`w[i, j]` is stored as `round(w[i, j] / s[i])` with `s[i] = max_j |w[i, j]| / 127`: the error is at most
half a step of the row. A tensor `X` of two dimensions becomes `X` (int8) and `X_scale` (float32, one a row).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from foredraft.errors import ModelError

SCALE = "_scale"
STEPS = 127


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every floating matrix as int8 and its scales; everything else as it is."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.is_floating_point():
            packed[name], packed[name + SCALE] = quantize_rows(tensor)
        else:
            packed[name] = tensor
    return packed


def unpack(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """What `pack` packed, in `dtype`; a mapping without int8 weights comes back as it is.

    Raises:
        ModelError: an int8 weight without its scales, or scales that are not one a row.
    """
    unpacked: dict[str, Tensor] = {}
    scales = {name for name in tensors if name.removesuffix(SCALE) in tensors and SCALE in name}
    for name, tensor in tensors.items():
        if name in scales:
            continue
        if tensor.dtype != torch.int8:
            unpacked[name] = tensor
            continue
        scale = tensors.get(name + SCALE)
        if scale is None or tensor.dim() != 2 or scale.shape != tensor.shape[:1]:
            raise ModelError(
                f"the int8 weight {name} must have {tensor.shape[0]} scales, one a row, in "
                f"{name + SCALE}; fetch the file again"
            )
        unpacked[name] = dequantize_rows(tensor, scale, dtype)
    return unpacked


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [rows, columns] as int8 of that shape, and float32 scales [rows]."""
    wide = weight.detach().float()
    scale = wide.abs().amax(-1) / STEPS
    steps = wide / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    return steps.round().clamp(-STEPS, STEPS).to(torch.int8), scale


def dequantize_rows(steps: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix [rows, columns] in `dtype`."""
    return (steps.float() * scale.float()[:, None]).to(dtype)
