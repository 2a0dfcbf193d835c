"""Weights in 8 or 4 bits, in models that we load ourselves."""

from foredraft.backends.quantized.linear import QuantizedHead, QuantizedLinear
from foredraft.backends.quantized.model import quantize_linears

__all__ = ["QuantizedHead", "QuantizedLinear", "quantize_linears"]
