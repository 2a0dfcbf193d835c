"""What an EAGLE head is: its sizes, what it reads from the target, and its optional norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from foredraft.errors import ConfigError, ModelError

Variant = Literal[1, 3]

STATIC_ROPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""Kinds of rotary embeddings whose frequencies do not depend on the length of the text, and the numbers
that each needs."""
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "target_hidden_size",
)
DEFAULT_ROPE: Mapping[str, Any] = MappingProxyType({"rope_type": "default", "rope_theta": 10000.0})


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The architecture of an EAGLE-1/2 or EAGLE-3 head.

    Raises:
        ConfigError: sizes or flags that no head can have.
        ModelError: rotary embeddings of a kind that is not supported.
    """

    variant: Variant
    """1 (EAGLE-1 and -2 share weights) or 3."""
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    """V: rows of the target's vocabulary."""
    draft_vocab_size: int
    """Vd: tokens that the head can propose; V when its vocabulary is not reduced (variant 1: always)."""
    target_hidden_size: int
    """Width of one tapped state of the target."""
    taps: tuple[int, ...]
    """Which hidden states of the target it reads: see `FeatureTarget.start_tapped`."""
    fc_bias: bool
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    rope_parameters: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULT_ROPE))
    """As in `transformers`: `rope_type`, `rope_theta` and what the type needs."""
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    """Whether q, k and v have a bias."""
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    mlp_bias: bool = False
    norm_before_residual: bool = False
    """The layer adds to the normed hidden state instead of the hidden state itself."""
    norm_before_fc: bool = False
    """One norm over all taps together, before they are fused."""
    fc_norm: bool = False
    """One norm for each tap, before they are fused."""
    norm_output: bool = False
    """The next step takes the normed output instead of the output itself."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_flags()
        check_rope(self.rope_parameters)

    @property
    def feature_size(self) -> int:
        """F: numbers that it reads of each token, all taps together."""
        return len(self.taps) * self.target_hidden_size

    @property
    def is_reduced(self) -> bool:
        """Whether the head knows only part of the target's vocabulary."""
        return self.draft_vocab_size != self.vocab_size

    def _check_sizes(self) -> None:
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} of a head must be at least 1")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} of a head must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise ConfigError(
                f"draft_vocab_size={self.draft_vocab_size} of a head is larger than the target's "
                f"vocabulary of {self.vocab_size}"
            )
        if not self.taps:
            raise ConfigError("a head needs at least one tap of the target's hidden states")

    def _check_flags(self) -> None:
        if self.variant not in (1, 3):
            raise ConfigError(f"variant={self.variant} of a head must be 1 or 3")
        if self.fc_norm and self.norm_before_fc:
            raise ConfigError("fc_norm and norm_before_fc exclude each other; keep one of them")
        if self.variant == 3:
            return
        for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name} belongs to EAGLE-3 heads; an EAGLE-1 head has no such norm"
                )
        if len(self.taps) != 1:
            raise ConfigError(f"an EAGLE-1 head reads one hidden state, not taps={self.taps}")
        if self.is_reduced:
            raise ConfigError(
                f"an EAGLE-1 head has the target's vocabulary of {self.vocab_size}, "
                f"not draft_vocab_size={self.draft_vocab_size}"
            )


def check_rope(parameters: Mapping[str, Any]) -> None:
    """Refuse rotary embeddings whose frequencies change with the length, or are not known.

    Raises:
        ModelError: such a kind, a number that is missing, or embeddings of part of each head.
    """
    kind = parameters.get("rope_type", "default")
    if kind not in STATIC_ROPES:
        raise ModelError(
            f"rope scaling {kind!r} of a head is not supported; "
            f"supported are {', '.join(STATIC_ROPES)}"
        )
    for name in ("rope_theta", *STATIC_ROPES[kind]):
        if not isinstance(parameters.get(name), (int, float)):
            raise ModelError(
                f"rope parameters of a head need the number {name}, not {parameters.get(name)!r}"
            )
    if parameters.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ModelError(
            f"rope with partial_rotary_factor={parameters['partial_rotary_factor']} is not supported"
        )


def published_taps(num_layers: int) -> tuple[int, ...]:
    """What an EAGLE-3 head without ids of its own reads: the inputs of layers 2, n // 2 and n - 3."""
    return (2, num_layers // 2, num_layers - 3)


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Taps for a new EAGLE-3 head: the published ones, or thirds of a target too shallow for them."""
    if num_layers >= 7:
        return published_taps(num_layers)
    return (num_layers // 3, 2 * num_layers // 3, num_layers)
