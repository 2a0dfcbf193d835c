"""A head's config.json: read with the tensors at hand, and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from foredraft.backends.hf_facts import head_rows
from foredraft.drafters.eagle.config import HeadConfig, Variant, check_rope, published_taps
from foredraft.drafters.eagle.layouts import QKV
from foredraft.errors import ConfigError, ModelError

EAGLE_CONFIG = "eagle_config"
"""Where SGLang and SpecForge name the taps, counting a layer's output where others count its input."""
NESTED = (EAGLE_CONFIG, "transformer_layer_config")
"""Objects of config.json in which a field may stand, after the top level."""
TAPS = "eagle_aux_hidden_state_layer_ids"
AUX_COUNT = "num_aux_hidden_states"
"""How many taps a head has, for readers that do not count them."""
LLAMA_DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
}
"""What a `LlamaConfig` has where the field is left out, as configs written as differences do."""
NORM_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """What of a target its heads must fit."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    """Rows of its language-model head."""

    @classmethod
    def of(cls, model: Any) -> TargetSizes:
        """The sizes of a Hugging Face causal language model."""
        config = model.config.get_text_config(decoder=True)
        rows = head_rows(model)
        return cls(int(config.hidden_size), int(config.num_hidden_layers), rows)


def check_fits(config: HeadConfig, target: TargetSizes) -> None:
    """Refuse a head beside a target of another shape than the one that it was made for.

    Raises:
        ModelError: a size differs, or the head reads a hidden state that the target has not.
    """
    sizes = {
        "vocab_size": (config.vocab_size, target.vocab_size),
        "target_hidden_size": (config.target_hidden_size, target.hidden_size),
    }
    for name, (of_head, of_target) in sizes.items():
        if of_head != of_target:
            raise ModelError(
                f"the head was made for a target with {name} {of_head}, and this one has {of_target}; give "
                "the target that it was trained for"
            )
    if max(config.taps) > target.num_layers:
        raise ModelError(
            f"the head reads hidden state {max(config.taps)}, and the target has {target.num_layers} "
            "layers; give the target that it was trained for"
        )


class Fields:
    """The fields of a config.json, wherever in it they stand; null counts as left out."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        nested = (config.get(name) for name in NESTED)
        self._sources = [config, *(part for part in nested if isinstance(part, Mapping))]

    def without(self, nested: str) -> Fields:
        """The fields outside of one of the nested objects."""
        return Fields({name: value for name, value in self._config.items() if name != nested})

    def get(self, name: str) -> Any:
        """The first value that is given; None without one."""
        given = (source.get(name) for source in self._sources)
        return next((value for value in given if value is not None), None)

    def number(self, name: str) -> int | None:
        """A whole number.

        Raises:
            ModelError: it is given and is something else.
        """
        value = self.get(name)
        if value is not None and type(value) is not int:
            raise ModelError(f"{name} in the head's config.json is {value!r}, not a whole number")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false. Errors as in `number`."""
        value = self.get(name)
        if value is not None and type(value) is not bool:
            raise ModelError(f"{name} in the head's config.json is {value!r}, not true or false")
        return value


def read_fields(
    raw: Mapping[str, Any], tensors: Tensors, variant: Variant, target: TargetSizes
) -> HeadConfig:
    """The architecture of a published head. What config.json leaves out is read off the tensors.

    Raises:
        ModelError: a field is no number, contradicts another, the tensors or the target, or asks for
            something that is not supported.
    """
    fields = Fields(raw)
    hidden = fields.number("hidden_size") or _rows(tensors, "fc.weight") or target.hidden_size
    heads = fields.number("num_attention_heads") or LLAMA_DEFAULTS["num_attention_heads"]
    attention, output = _attention_biases(fields, tensors)
    vocab = _vocab_size(fields, target)
    try:
        return HeadConfig(
            variant=variant,
            hidden_size=hidden,
            intermediate_size=fields.number("intermediate_size")
            or _rows(tensors, "midlayer.mlp.gate_proj.weight")
            or hidden,
            num_attention_heads=heads,
            num_key_value_heads=fields.number("num_key_value_heads") or heads,
            head_dim=fields.number("head_dim") or hidden // heads,
            vocab_size=vocab,
            draft_vocab_size=vocab if variant == 1 else _draft_vocab_size(fields, tensors, vocab),
            target_hidden_size=_target_hidden_size(fields, hidden, target),
            taps=_taps(fields, tensors, variant, target),
            fc_bias=_fc_bias(raw, fields, variant),
            rms_norm_eps=_float(fields, "rms_norm_eps"),
            hidden_act=_activation(fields),
            rope_parameters=read_rope(fields),
            max_position_embeddings=fields.number("max_position_embeddings")
            or LLAMA_DEFAULTS["max_position_embeddings"],
            attention_bias=attention,
            output_bias=output,
            mlp_bias=_declared_or_found(fields, "mlp_bias", tensors, "midlayer.mlp.gate_proj.bias"),
            norm_before_residual=bool(fields.flag("norm_before_residual")),
            norm_before_fc=_declared_or_found(
                fields, "norm_before_fc", tensors, "input_norm.weight"
            ),
            fc_norm=_declared_or_found(fields, "fc_norm", tensors, "fc_norm.0.weight"),
            norm_output=bool(fields.flag("norm_output")),
        )
    except ConfigError as error:
        raise ModelError(f"the head's config.json cannot be right: {error}") from error


def _rows(tensors: Tensors, name: str) -> int | None:
    return tensors[name].shape[0] if name in tensors and tensors[name].dim() == 2 else None


def _float(fields: Fields, name: str) -> float:
    value = fields.get(name)
    if value is None:
        value = LLAMA_DEFAULTS[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(f"{name} in the head's config.json is {value!r}, not a number")
    return float(value)


def _declared_or_found(fields: Fields, flag: str, tensors: Tensors, name: str) -> bool:
    """What config.json says; where it says nothing, whether the tensor is there."""
    declared = fields.flag(flag)
    return name in tensors if declared is None else declared


def _attention_biases(fields: Fields, tensors: Tensors) -> tuple[bool, bool]:
    """Whether q, k, v and the output projection have biases: `qkv_bias` speaks of the first three."""
    qkv, every = fields.flag("qkv_bias"), fields.flag("attention_bias")
    if qkv is None:
        qkv = any(f"{name}.bias" in tensors for name in QKV) if every is None else every
    output = "midlayer.self_attn.o_proj.bias" in tensors if every is None else every
    return qkv, output


def _fc_bias(raw: Mapping[str, Any], fields: Fields, variant: Variant) -> bool:
    """EAGLE-1's `fc` has a bias unless `"bias": false`; in other dialects and EAGLE-3 none unless named."""
    if raw.get("speculators_model_type") is not None:
        return bool(fields.flag("fusion_bias"))
    declared = fields.flag("bias")
    return variant == 1 if declared is None else declared


def _vocab_size(fields: Fields, target: TargetSizes) -> int:
    declared = fields.number("vocab_size")
    if declared is not None and declared != target.vocab_size:
        raise ModelError(
            f"the head was made for a vocabulary of {declared}, and the target has "
            f"{target.vocab_size}; give the target that it was trained for"
        )
    return target.vocab_size


def _draft_vocab_size(fields: Fields, tensors: Tensors, vocab_size: int) -> int:
    """Vd by the config, the language-model head and the map, which must agree."""
    declared = fields.number("draft_vocab_size")
    found = {
        "draft_vocab_size": declared,
        "lm_head.weight": _rows(tensors, "lm_head.weight"),
        "d2t": len(tensors["d2t"]) if "d2t" in tensors and tensors["d2t"].dim() == 1 else None,
    }
    known = {name: size for name, size in found.items() if size is not None}
    if len(set(known.values())) > 1:
        sizes = ", ".join(f"{size} by {name}" for name, size in known.items())
        raise ModelError(f"the head's files disagree about its draft vocabulary: {sizes}")
    return next(iter(known.values()), vocab_size)


def _target_hidden_size(fields: Fields, hidden_size: int, target: TargetSizes) -> int:
    declared = fields.number("target_hidden_size") or hidden_size
    if declared != target.hidden_size:
        raise ModelError(
            f"the head reads hidden states of size {declared}, and the target's have "
            f"{target.hidden_size}; give the target that it was trained for"
        )
    return declared


def _taps(
    fields: Fields, tensors: Tensors, variant: Variant, target: TargetSizes
) -> tuple[int, ...]:
    if variant == 1:
        return (target.num_layers,)
    ids: Sequence[int] | None = _named_taps(fields)
    fused = tensors["fc.weight"].shape[-1] if "fc.weight" in tensors else None
    count = None if fused is None else fused // target.hidden_size
    if not ids:
        ids = published_taps(target.num_layers)
        way_out = f"name them in {TAPS}"
    else:
        way_out = f"correct {TAPS}"
    if count is not None and fused is not None and fused != len(ids) * target.hidden_size:
        raise ModelError(
            f"fc.weight fuses {fused} numbers, which are {fused / target.hidden_size:g} hidden states "
            f"of size {target.hidden_size}, and the head reads layers {list(ids)}; {way_out}"
        )
    for tap in ids:
        if not 0 <= tap <= target.num_layers:
            raise ModelError(
                f"the head reads the hidden state before layer {tap}, and the target has "
                f"{target.num_layers} layers; {way_out}, or give the target it was trained for"
            )
    return tuple(ids)


def _named_taps(fields: Fields) -> list[int] | None:
    """The taps by config.json, as we number them; None where it names none.

    The id of a layer means its input, but in `eagle_config` its output, which is the next one's input.
    """
    ids = fields.without(EAGLE_CONFIG).get(TAPS)
    is_input = ids is not None
    ids = ids if is_input else fields.get(TAPS)
    if ids is None:
        return None
    if not (isinstance(ids, list) and all(type(i) is int for i in ids)):
        raise ModelError(f"{TAPS} in the head's config.json is {ids!r}, not a list of layers")
    return ids if is_input else [i + 1 for i in ids]


def _activation(fields: Fields) -> str:
    from transformers.activations import ACT2FN

    name = fields.get("hidden_act") or LLAMA_DEFAULTS["hidden_act"]
    if name not in ACT2FN:
        raise ModelError(f"hidden_act={name!r} of a head is not supported; silu is the usual one")
    return str(name)


def read_rope(fields: Fields) -> dict[str, Any]:
    """Rotary parameters in today's form, from today's fields or the older `rope_theta`, `rope_scaling`.

    Raises:
        ModelError: a kind that is not supported, or one that lacks what it needs.
    """
    given: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        part = fields.get(name)
        if part is not None and not isinstance(part, Mapping):
            raise ModelError(f"{name} in the head's config.json is {part!r}, not an object")
        given |= part or {}
    older = given.pop("type", None)
    kind = given.pop("rope_type", None) or older or "default"
    theta = given.pop("rope_theta", None) or fields.get("rope_theta") or 10000.0
    rope = {"rope_type": kind, "rope_theta": theta, **given}
    check_rope(rope)
    return rope
