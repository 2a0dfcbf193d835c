"""Draft models cut from their target: a few of its layers, its embeddings, and perhaps a head of fewer rows.

Layers and norms are copies to be trained. Everything else (embeddings, the rest of the head) is the
target's own memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_facts import head_rows, text_config
from foredraft.backends.quantized import QuantizedHead, rows_of
from foredraft.errors import ConfigError, ModelError

Take = Literal["first", "even", "last"]
TAKES = ("first", "even", "last")
Head = Literal["target", "own"]
NOT_PER_LAYER = ("architectures", "bos_token_id", "eos_token_id", "pad_token_id")
"""Lists of a config that have nothing to do with layers, however long they are."""


@dataclass(frozen=True, slots=True)
class StudentConfig:
    """What a student is, as `foredraft.json` says it.

    Attributes:
        layers: the target's layers that it was cut from, in order.
        head: `target` where the head's rows are the target's, `own` where they were trained.
        draft_vocab_size: rows of the head; None when there is one for each of the target's tokens.
        target: what the target must look like.
    """

    layers: tuple[int, ...]
    head: Head
    draft_vocab_size: int | None
    target: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StudentModel:
    """A student in memory.

    Attributes:
        model: a model of the target's class with fewer layers; what is not owned is the target's memory.
        config: what it is.
        owned: the parameters that are its own, by their names in the model.
        draft_ids: int64 [Vd], increasing: the token of each row of a reduced head; else None.
    """

    model: Any
    config: StudentConfig
    owned: Mapping[str, nn.Parameter]
    draft_ids: Tensor | None


class Student(HFTarget):
    """A student as a draft model.

    Attributes:
        target_ids: int64 [Vd], the target's token of each column of the logits; None if all are there.
    """

    def __init__(self, student: StudentModel, tokenizer: Any | None = None) -> None:
        reduced = student.draft_ids is not None
        super().__init__(student.model, None if reduced else tokenizer)
        self.tokenizer = tokenizer
        self.target_ids = student.draft_ids


def build_student(
    target_model: Any,
    layers: int | Sequence[int] = 2,
    take: Take = "first",
    draft_ids: Tensor | None = None,
    own_head: bool = False,
) -> StudentModel:
    """A model of the target's class with some of its layers; the target is not changed.

    Layers and norms are copies, embeddings the target's own memory. The head is the target's, or its
    rows `draft_ids`; with `own_head` its weight is a copy that can be trained.

    Args:
        target_model: a `transformers` causal language model.
        layers: how many, or which.
        take: which, if `layers` says how many: the first, evenly spaced ones, or the last.
        draft_ids: int64 [Vd], increasing.
        own_head: whether the head is the student's own.

    Raises:
        ConfigError: more layers than the target has, or an unknown `take`.
        ModelError: the target has no list of layers, or is no plain text model.
    """
    config = text_config(target_model)
    if config is not target_model.config:
        raise ModelError(
            f"{type(target_model).__name__} holds more than a language model; give its text model"
        )
    count = config.num_hidden_layers
    picks = pick_layers(count, layers, take) if isinstance(layers, int) else tuple(layers)
    if not picks or not all(0 <= pick < count for pick in picks):
        raise ConfigError(f"layers={layers} are not among the target's 0 to {count - 1}")
    model = _hollow(target_model, picks)
    owned = _fill(model, target_model, picks)
    if draft_ids is not None or own_head:
        owned |= _replace_head(model, target_model, draft_ids, own_head)
    facts = StudentConfig(
        layers=picks,
        head="own" if own_head else "target",
        draft_vocab_size=None if draft_ids is None else len(draft_ids),
        target=target_facts(target_model),
    )
    ids = None if draft_ids is None else draft_ids.to(_device(target_model))
    return StudentModel(model.eval(), facts, owned, ids)


def pick_layers(count: int, number: int, take: Take = "first") -> tuple[int, ...]:
    """Which of `count` layers a student gets.

    Raises:
        ConfigError: there are not so many, or `take` is unknown.
    """
    if take not in TAKES:
        raise ConfigError(f"take={take!r} is not known; give one of {', '.join(TAKES)}")
    if not 1 <= number <= count:
        raise ConfigError(
            f"layers={number} is not allowed; the target has {count}, give 1 to {count}"
        )
    if take == "first":
        return tuple(range(number))
    if take == "last":
        return tuple(range(count - number, count))
    return tuple(torch.linspace(0, count - 1, number).round().int().tolist())


def target_facts(model: Any) -> dict[str, Any]:
    """What a student's target must look like."""
    config = text_config(model)
    return {
        "architecture": type(model).__name__,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": head_rows(model),
    }


def _hollow(target_model: Any, picks: Sequence[int]) -> Any:
    """A model of the target's class with that many layers and no memory."""
    config = copy.deepcopy(target_model.config)
    count = config.num_hidden_layers
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == count and name not in NOT_PER_LAYER:
            setattr(config, name, [value[pick] for pick in picks])  # such as layer_types
    config.num_hidden_layers = len(picks)
    with torch.device("meta"):
        model = type(target_model)(config)
    model.generation_config = copy.deepcopy(target_model.generation_config)
    return model


def _fill(model: Any, target_model: Any, picks: Sequence[int]) -> dict[str, nn.Parameter]:
    """Give a hollow model memory: copies in layers and norms, the target's elsewhere. Gives the copies."""
    place = _layers_name(target_model)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    owned: dict[str, nn.Parameter] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        source = _counterpart(target_model, name, place, picks)
        if isinstance(source, QuantizedHead):
            model.set_output_embeddings(source)
            continue
        for key, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            data = getattr(source, key).detach()
            full = f"{name}.{key}" if name else key
            in_layers = full.startswith(f"{place}.")
            if in_layers or (data.dim() == 1 and not any(module is end for end in ends)):
                owned[full] = module._parameters[key] = nn.Parameter(data.clone())
            else:
                module._parameters[key] = nn.Parameter(data, requires_grad=False)
        for key in module._buffers:
            module._buffers[key] = getattr(source, key)
        for key, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.is_meta:
                setattr(module, key, getattr(source, key))
    return owned


def _counterpart(target_model: Any, name: str, place: str, picks: Sequence[int]) -> nn.Module:
    """The target's module that stands where a module of the student does."""
    if name.startswith(f"{place}."):
        index, *rest = name.removeprefix(f"{place}.").split(".")
        name = ".".join([place, str(picks[int(index)]), *rest])
    try:
        return cast(nn.Module, target_model.get_submodule(name))
    except AttributeError as error:
        raise ModelError(
            f"{type(target_model).__name__} cannot be cut down to fewer layers ({error})"
        ) from error


def _layers_name(model: Any) -> str:
    """The name of the list of layers."""
    count = text_config(model).num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return str(name)
    raise ModelError(f"{type(model).__name__} has no list of {count} layers to take some from")


def _replace_head(
    model: Any, target_model: Any, draft_ids: Tensor | None, own: bool
) -> dict[str, nn.Parameter]:
    """Put a head of its own memory into a student; gives its weight if that is to be trained.

    A bias stays the target's, row by row.
    """
    full = target_model.get_output_embeddings()
    bias = getattr(full, "bias", None)
    rows = slice(None) if draft_ids is None else draft_ids.to(_device(target_model))
    weight = rows_of(full, rows)
    head = nn.Linear(weight.shape[1], 1, bias=bias is not None, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=own)
    if bias is not None:
        head.bias = nn.Parameter(bias.detach()[rows].clone(), requires_grad=False)
    head.out_features = head.weight.shape[0]
    model.set_output_embeddings(head)
    name = next(n for n, module in model.named_modules() if module is head)
    return {f"{name}.weight": head.weight} if own else {}


def _device(model: Any) -> torch.device:
    """Where token ids go in."""
    device: torch.device = model.get_input_embeddings().weight.device
    return device
