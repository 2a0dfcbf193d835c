"""What a block of quantised weights is to the layers that share it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

CHUNK = 2**20
"""Weights that are quantised at a time: what the search needs beside them is a few times that."""


class Block(nn.Module):
    """Weights [N, K] in fewer bits. One block may serve several layers that read the same input.

    Attributes:
        out_features, in_features: N, K.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, whoever holds them."""
        raise NotImplementedError

    def product(self, rows: Tensor) -> Tensor:
        """Rows [R, K] times the weights: [R, N], of the rows' dtype.

        No row's result depends on the others by more than rounding.
        """
        raise NotImplementedError

    def dequantized(self) -> Tensor:
        """The weights that it stands for, float32 [N, K]."""
        raise NotImplementedError


def chunks(weight: Tensor) -> Iterator[Tensor]:
    """A matrix [N, K] some rows at a time, in float32."""
    for part in torch.split(weight.detach(), max(1, CHUNK // weight.shape[1])):
        yield part.float()
