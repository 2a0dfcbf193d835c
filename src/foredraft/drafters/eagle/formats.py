"""What other programs read of a head's folder, and what each of them cannot hold.

A format is a reader: the same tensors and fields mean one thing to SGLang and another to vLLM. What a reader
would drop or misread is a refusal here, since nothing on its side would say so: a draft that is computed
otherwise is still a draft, and is only accepted less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from foredraft.drafters.eagle.config import HeadConfig, Variant, published_taps
from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.drafters.eagle.format_names import FORMATS, Format
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.layouts import name_of
from foredraft.errors import ConfigError

VARIANTS: Mapping[Format, tuple[Variant, ...]] = {
    "speculators": (3,),
    "eagle3": (3,),
    "sglang": (1, 3),
    "eagle1": (1,),
}
"""`speculators` knows EAGLE-1 no more: its version 0.9 has no such model."""
EAGLE_LINEAR_THETA = 10000.0
"""EAGLE's own code builds linearly scaled embeddings with this base, whatever `rope_theta` says."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A head that is to be written, with what decides whether a format can hold it.

    Attributes:
        head: the head.
        num_layers: of its target.
    """

    head: EagleHead
    num_layers: int

    @property
    def config(self) -> HeadConfig:
        """The head's architecture."""
        return self.head.config

    @property
    def borrows_lm_head(self) -> bool:
        """Whether it drafts with the target's language-model head, or rows of it."""
        return not self.head.own_lm_head


def check_format(exported: Exported, form: Format) -> None:
    """Refuse a head that a format cannot hold whole.

    Raises:
        ConfigError: the format is unknown, is for another variant, or its reader would lose something; the
            message names all of it, and the formats that would hold the head.
    """
    if form not in FORMATS:
        raise ConfigError(f"unknown format {form!r} of a head; available: {', '.join(FORMATS)}")
    lost = list(losses(exported, form))
    if not lost:
        return
    others = [other for other in FORMATS if not any(True for _ in losses(exported, other))]
    way_out = f"export it as {' or '.join(others)}" if others else "no other format holds it either"
    raise ConfigError(f"format={form!r} cannot hold {'; '.join(lost)}: {way_out}")


def losses(exported: Exported, form: Format) -> Iterator[str]:
    """What of a head a format's reader would drop or misread, one phrase each; empty if nothing."""
    variant = exported.config.variant
    if variant not in VARIANTS[form]:
        yield name_of(variant)
        return
    yield from _logits(exported)
    if variant == 3:
        yield from _taps(exported)
    yield from READERS[form](exported)


def scales_embeddings(ends: TargetEnds) -> bool:
    """Whether the target's module does more to its embeddings than look them up (Gemma scales them)."""
    weight = ends.embed.weight
    assert isinstance(weight, torch.Tensor)
    with torch.no_grad():
        found: torch.Tensor = ends.embed(torch.arange(len(weight), device=weight.device)[:2])
    return not torch.equal(found, weight[:2])


# --- what every reader lacks ------------------------------------------------------------------------


def _logits(exported: Exported) -> Iterator[str]:
    """A borrowed head is a product, and no reader adds what this target does to it."""
    ends = exported.head.ends
    if not exported.borrows_lm_head:
        return
    if ends.softcap is not None:
        yield f"the cap of {ends.softcap:g} on the target's logits"
    if ends.lm_bias is not None:
        yield "the bias of the target's language-model head"
    if exported.config.variant == 1 and ends.logit_scale != 1.0:
        yield f"the factor {ends.logit_scale:g} of the target's logits"


def _taps(exported: Exported) -> Iterator[str]:
    """Readers collect hidden states on the way up, and take none behind the final norm."""
    taps = exported.config.taps
    if list(taps) != sorted(set(taps)):
        yield f"taps={taps} in another order than that of the layers"
    if exported.num_layers in taps:
        yield f"tap {exported.num_layers}, the state behind the target's final norm"


# --- what each lacks --------------------------------------------------------------------------------


def _speculators(exported: Exported) -> Iterator[str]:
    config = exported.config
    if config.fc_bias:
        yield "a bias of fc"
    if config.attention_bias != config.output_bias:
        yield "biases of some of the attention's projections only"


def _eagle3(exported: Exported) -> Iterator[str]:
    config = exported.config
    if config.taps != published_taps(exported.num_layers):
        yield f"taps={config.taps}, for its code reads {published_taps(exported.num_layers)}"
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if getattr(config, flag):
            yield flag
    if config.fc_bias:
        yield "a bias of fc"
    if config.attention_bias or config.output_bias:
        yield "biases of the attention"
    yield from _eagle_code(config)


def _eagle1(exported: Exported) -> Iterator[str]:
    config = exported.config
    if exported.head.own_lm_head:
        yield "a language-model head of its own"
    if config.output_bias:
        yield "a bias of the attention's output"
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        yield f"head_dim={config.head_dim}"
    yield from _eagle_code(config)


def _eagle_code(config: HeadConfig) -> Iterator[str]:
    """What EAGLE's own code has for neither variant."""
    if config.mlp_bias:
        yield "biases of the MLP"
    kind, theta = config.rope_parameters["rope_type"], config.rope_parameters["rope_theta"]
    if kind not in ("default", "linear"):
        yield f"rope scaling {kind!r}"
    elif kind == "linear" and theta != EAGLE_LINEAR_THETA:
        yield f"linear rope scaling with rope_theta={theta:g}"


def _sglang(exported: Exported) -> Iterator[str]:
    config, head = exported.config, exported.head
    if config.attention_bias or config.output_bias:
        yield "biases of the attention"
    if config.mlp_bias:
        yield "biases of the MLP"
    if config.hidden_act != "silu":
        yield f"hidden_act={config.hidden_act!r}"
    if config.hidden_size == config.target_hidden_size:
        if head.own_embeddings:
            yield "embeddings of its own, which it replaces by the target's"
        elif scales_embeddings(head.ends):
            yield "the target's scaled embeddings, which it reads unscaled"
    yield from _sglang1(exported) if config.variant == 1 else _sglang3(config)


def _sglang1(exported: Exported) -> Iterator[str]:
    if exported.head.own_lm_head:
        yield "a language-model head of its own"


def _sglang3(config: HeadConfig) -> Iterator[str]:
    for flag in ("norm_before_residual", "norm_before_fc"):
        if getattr(config, flag):
            yield flag
    if config.fc_bias:
        yield "a bias of fc"
    if 0 in config.taps:
        yield "tap 0, the embeddings"
    if config.feature_size == config.hidden_size:
        yield "an fc whose input is as wide as its output, which it skips"


READERS: Mapping[Format, Callable[[Exported], Iterator[str]]] = {
    "speculators": _speculators,
    "eagle3": _eagle3,
    "sglang": _sglang,
    "eagle1": _eagle1,
}
