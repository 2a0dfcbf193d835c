"""All randomness of a request, behind one object with three methods.

The generator is counter-based: a value depends on what it is *for* (seed, choice, position, token id,
or the n-th uniform of the request), never on what was drawn before it. So the noise that chooses a
token is the same with plain decoding and with any drafter, and a request reproduces whatever runs
beside it. The global generators of torch, numpy and Python are left alone.
"""

from __future__ import annotations

import functools
import secrets
from typing import Protocol

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_GUMBEL, _UNIFORM = 1, 2  # domains: acceptance noise never meets the noise that chooses tokens
_UNIT = 2.0**-52  # of 52 bits plus a half, which float64 holds exactly: neither 0 nor 1 comes out
_NOISE_ROWS_KEPT = 16  # more than drafts are deep; a row of 256k tokens weighs 2 MB


class Randomness(Protocol):
    """The draws that decoding makes. Tests implement it by enumeration."""

    def bernoulli(self, prob: float) -> bool:
        """True with probability `prob`; never True at 0 and always True at 1."""
        ...

    def categorical(self, probs: Tensor) -> int:
        """Index drawn from non-negative weights [V], which need not sum to 1 but have a positive sum."""
        ...

    def gumbel(self, position: int, vocab_size: int) -> Tensor:
        """Standard Gumbel noise, float64 [V], of the token at `position`. The same at every call."""
        ...


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014) on a Python integer."""
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        value = (value ^ (value >> shift)) * multiplier & _MASK
    return value


def _shifted(values: Tensor, shift: int, out: Tensor) -> Tensor:
    """The logical right shift that torch lacks: the sign bits are masked away. Written to `out`."""
    return torch.bitwise_right_shift(values, shift, out=out).bitwise_and_((1 << (64 - shift)) - 1)


def _mix_in_place(values: Tensor, scratch: Tensor) -> Tensor:
    """`_mix` on int64 [N]."""
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        values.bitwise_xor_(_shifted(values, shift, out=scratch))
        if multiplier != 1:
            values.mul_(_signed(multiplier))
    return values


@functools.lru_cache(maxsize=4)
def _token_multiples(vocab_size: int, device: torch.device) -> Tensor:
    """What tells tokens apart before mixing, int64 [V]. Read only."""
    tokens = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    return tokens * _signed(_GOLDEN)


class SeededRandomness:
    """`Randomness` of one request.

    Args:
        seed: any integer.
        choice: which of several answers to the same seed; each has noise of its own.
        device: where `gumbel` puts its noise.
    """

    def __init__(self, seed: int, choice: int = 0, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self._device = torch.device(device)
        self._key = _mix(_mix(seed & _MASK) + _mix(choice & _MASK ^ _GOLDEN) & _MASK)
        self._num_uniforms = 0
        self._noise: dict[tuple[int, int], Tensor] = {}

    def bernoulli(self, prob: float) -> bool:
        """True with probability `prob`, from the request's stream of uniforms."""
        return self._uniform() < prob

    def categorical(self, probs: Tensor) -> int:
        """Index drawn by inverting the cumulative sum over the support alone.

        So an index of weight 0 is never drawn, however a device rounds its partial sums.
        """
        support = probs.nonzero().squeeze(-1)
        cumulative = probs[support].double().cumsum(-1)
        target = self._uniform() * float(cumulative[-1])
        index = int(torch.searchsorted(cumulative, target, right=True))
        return int(support[min(index, len(support) - 1)])

    def gumbel(self, position: int, vocab_size: int) -> Tensor:
        """Gumbel noise [V] of (seed, choice, position, token id).

        Kept for a while, since drafter and verifier share it.
        """
        key = (position, vocab_size)
        if key not in self._noise:
            if len(self._noise) >= _NOISE_ROWS_KEPT:
                self._noise.pop(next(iter(self._noise)))
            self._noise[key] = self._draw_gumbel(position, vocab_size)
        return self._noise[key]

    def _draw_gumbel(self, position: int, vocab_size: int) -> Tensor:
        base = _mix(self._key + (position * _GOLDEN) + _GUMBEL & _MASK)
        values = _token_multiples(vocab_size, self._device) + _signed(base)
        scratch = torch.empty_like(values)
        bits = _shifted(_mix_in_place(values, scratch), 12, out=scratch)
        unit = bits.double().add_(0.5).mul_(_UNIT)
        return unit.log_().neg_().log_().neg_()

    def _uniform(self) -> float:
        """The next of the request's uniforms, in (0, 1)."""
        self._num_uniforms += 1
        bits = _mix(_mix(self._key + _UNIFORM & _MASK) + self._num_uniforms * _GOLDEN & _MASK)
        return ((bits >> 12) + 0.5) * _UNIT


def fresh_seed() -> int:
    """A seed for requests that name none; reported with the result so that it can be given again."""
    return secrets.randbits(63)
