"""PyTorch's own int8 kernels, each as a product of unsigned digits with int8 weights.

Instruction sets differ in what they do to large sums: without VNNI, pairs of products are added in 16 bits
and cut off. So a kernel is tried with the largest numbers before it is used, in two bases, and left
alone where it is inexact in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from foredraft.backends.quantized.digits import Digits

FLOAT32_DIGITS = (Digits(254, 3), Digits(126, 4))
"""How float32 rows are written, the best first; a kernel has to be exact with them."""
HALF_DIGITS = (Digits(254, 2), Digits(126, 3))
"""The same for rows of float16 and bfloat16."""
MOST_COLUMNS = 2**16
"""Columns whose sums fit into 32 bits."""


class Kernel(Protocol):
    """Weights packed for a product; never changed."""

    def product(self, digits: Tensor, zero: int) -> Tensor:
        """Whole numbers float32 [R, K], from -`zero` to 255 - `zero`, times the weights: float32 [R, N]."""

    def steps(self) -> Tensor:
        """The weights as they were packed, int8 [N, K]."""


class Fbgemm:
    """The kernel behind dynamic quantisation on x86; here the scale of its input is always one.

    Args:
        steps: int8 [N, K], from -127 to 127.
        scale: float32 [N], what a step of each row is worth.
    """

    def __init__(self, steps: Tensor, scale: Tensor) -> None:
        self._scale = scale
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # that its tensors will go; then the other kernel is there
                zeros = torch.zeros(len(scale), dtype=torch.int64)
                weight = torch._make_per_channel_quantized_tensor(steps, scale, zeros, 0)
                self._packed: Any = torch.ops.quantized.linear_prepack(weight, None)
        finally:
            torch.backends.quantized.engine = before

    def product(self, digits: Tensor, zero: int) -> Tensor:
        """As in `Kernel`."""
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        product: Tensor = multiply(digits, 1.0, zero, self._packed)
        return product

    def steps(self) -> Tensor:
        """As in `Kernel`."""
        weight: Tensor = torch.ops.quantized.linear_unpack(self._packed)[0]
        return weight.int_repr()

    def __reduce__(self) -> tuple[Any, ...]:
        return Fbgemm, (self.steps(), self._scale)


class OneDnn:
    """The kernel behind exported quantised models; arguments as in `Fbgemm`."""

    def __init__(self, steps: Tensor, scale: Tensor) -> None:
        self._packed: Tensor = torch.ops.onednn.qlinear_prepack(steps, None)
        self._scale, self._zeros = scale, torch.zeros(len(scale), dtype=torch.int64)

    def product(self, digits: Tensor, zero: int) -> Tensor:
        """As in `Kernel`."""
        unsigned = (digits + zero).clamp_(0, 255).to(torch.uint8)
        weights = (self._packed, self._scale, self._zeros, None)
        as_float = (1.0, 0, torch.float32, "none", (), "")
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, zero, *weights, *as_float
        )
        return product

    def steps(self) -> Tensor:
        """As in `Kernel`."""
        return self._packed.to_dense().t().contiguous()  # it lies the other way round

    def __reduce__(self) -> tuple[Any, ...]:
        return OneDnn, (self.steps(), self._scale)


KERNELS: tuple[Callable[[Tensor, Tensor], Kernel], ...] = (Fbgemm, OneDnn)
"""Those that are tried, the fastest first."""


@cache
def best_kernel() -> tuple[Callable[[Tensor, Tensor], Kernel], int] | None:
    """The first kernel that is exact on this machine, and which of the bases; None if there is none."""
    for make in KERNELS:
        for place, digits in enumerate(FLOAT32_DIGITS):
            if _is_exact(make, digits.base):
                return make, place
    return None


@torch.inference_mode(False)
@torch.no_grad()
def _is_exact(make: Callable[[Tensor, Tensor], Kernel], base: int) -> bool:
    """Whether sums are right of the largest numbers that digits of this base may be, and of any."""
    top, columns = base // 2, 256
    zero = Digits(base, 1).zero
    draw = torch.Generator().manual_seed(0)
    steps = torch.randint(-127, 128, (64, columns), generator=draw, dtype=torch.int8)
    steps[:2] = torch.tensor([[127], [-127]], dtype=torch.int8)
    digits = torch.randint(-top, top + 1, (8, columns), generator=draw).float()
    digits[:2] = torch.tensor([[top], [-top]])
    try:
        kernel = make(steps, torch.ones(len(steps)))
        found = kernel.product(digits, zero)
        packed = kernel.steps()
    except (RuntimeError, AttributeError, NotImplementedError):  # not in this build of PyTorch
        return False
    expected = (digits.double() @ steps.double().T).float()
    return torch.equal(found, expected) and torch.equal(packed, steps)
