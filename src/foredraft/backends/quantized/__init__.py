"""Weights in 8 or 4 bits, in models that we load ourselves."""

from foredraft.backends.quantized.int8 import Int8Block
from foredraft.backends.quantized.linear import QuantizedHead, QuantizedLinear, rows_of
from foredraft.backends.quantized.model import quantize_linears, weight_bytes

__all__ = [
    "Int8Block",
    "QuantizedHead",
    "QuantizedLinear",
    "quantize_linears",
    "rows_of",
    "weight_bytes",
]
