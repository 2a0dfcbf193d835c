"""From the name of a length predictor to the rule that ends drafts by it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foredraft import zoo
from foredraft.backends.hf_facts import text_config
from foredraft.backends.identity import target_identity
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.decisions import drafter_digest
from foredraft.engine.draft_stops import LENGTH, names_rule
from foredraft.errors import ConfigError, suggestion
from foredraft.policies.length_net import CONFIG, LengthNet, read_length
from foredraft.policies.predicted_length import Embed, LengthRule, LengthShapedPolicy
from foredraft.policies.stopping import ComposedRule, StoppingPolicy
from foredraft.protocols import Policy, Target
from foredraft.zoo.shipped import shipped_lengths

READ_AGAIN = 8
"""Predictors kept once they were read: a method is rehearsed before it is built."""
HEADS, MODELS = "length-eagle3", "length-draft-model"
"""The predictors that are taken for heads and for draft models where none is named."""
ALWAYS = ("adaeagle", "adaeagle-threshold")
"""Recipes that draft by a predictor whether one is named or not."""


def chosen_length(
    length: str | None, stop: str | None, model: Any, *, always: bool = False
) -> LengthRule | None:
    """The rule of the predictor that a method's options ask for; None where they ask for none.

    Args:
        length: the name of one that ships (`length-eagle3`), or a folder; None takes the usual one of the
            drafter, where one is needed.
        stop: stop rules, of which `length` may be one.
        model: a draft model (`Target`) or head; None, or what stands in for a head, in rehearsals.
        always: one is needed in any case.

    Raises:
        ConfigError: an unknown name, or a predictor beside stop rules that do not ask for it.
        ModelError: it cannot be read.
    """
    asked = stop is not None and names_rule(stop, LENGTH)
    if length is not None and stop is not None and not asked:
        raise ConfigError(
            f"length={length} and stop={stop} both say where a draft ends; join them, as in "
            f"stop=length+{stop} (both stop it) or stop=length/{stop} (either does)"
        )
    if length is None and not asked and not always:
        return None
    name = _usual(model) if length is None else length
    return LengthRule(named_length(name), _embedding_of(model))


def _usual(drafter: Any) -> str:
    """The predictor's name where none is given."""
    return MODELS if drafter is None or isinstance(drafter, Target) else HEADS


def _embedding_of(model: Any) -> Embed | None:
    """Token -> embedding of a drafter; None where it has none. In rehearsals nothing is embedded."""
    if isinstance(model, EagleHead):
        return lambda token: model.embed(torch.tensor([token], device=model.ends.device))[0]
    if not isinstance(model, Target):
        return lambda token: torch.zeros(0)
    weights = getattr(model, "model", None)
    if weights is None:
        return None
    embed = weights.get_input_embeddings()

    def row(token: int) -> Tensor:
        found: Tensor = embed(torch.tensor([token], device=embed.weight.device))[0]
        return found

    return row


def named_length(name: str) -> LengthNet:
    """The predictor of a name; the weights are read once, however often they are named.

    Raises:
        ConfigError: it neither ships nor is there.
        ModelError: it cannot be read.
    """
    ships = shipped_lengths()
    place = ships.get(name, Path(os.path.expanduser(name)))
    if name not in ships and not os.path.exists(place):
        known = f"{suggestion(name, ships)}; or" if ships else "none ships;"
        raise ConfigError(
            f"length={name} is neither a length predictor that ships nor a folder; {known} give the path of "
            "a folder of `foredraft train length-predictor`"
        )
    return _read(os.path.realpath(place), _stamp(place))


def with_shipped_length(
    recipe: str, options: Mapping[str, Any], model: Any, drafter: Any
) -> dict[str, Any]:
    """A method's options, with the predictor that they ask for found among those of the loaded model.

    Args:
        recipe: of the method.
        options: as named by the user.
        model: as in `foredraft.load`; of one that is not embedded nothing is known, and the name stays.
        drafter: the draft model or head; None where it is not loaded yet.

    Raises:
        ConfigError: one of that name ships for another model alone.
    """
    stop, name = options.get("stop"), options.get("length")
    asked = recipe in ALWAYS or (stop is not None and names_rule(stop, LENGTH))
    if name is None and asked and drafter is not None:
        name = _usual(drafter)
    embedded = isinstance(model, str) and zoo.is_embedded(model)
    if name is None or not embedded or name not in shipped_lengths():
        return dict(options)
    ships = shipped_lengths(model)
    if name not in ships:
        known = f"those that do are {', '.join(ships)}" if ships else "none does"
        raise ConfigError(
            f"no length predictor {name!r} ships for {model} ({known}); give length=FOLDER, of `foredraft "
            "train length-predictor`"
        )
    return {**options, "length": str(ships[name])}


def check_lengths(policy: Policy | None, target: Target, drafter: Any) -> None:
    """Refuse a predictor of a target of another shape, and warn of one for other weights.

    Args:
        policy: of the engine.
        target: of the engine.
        drafter: the draft model or head of the engine, None without one.

    Raises:
        ConfigError: the target has hidden states of another size, or in other places.
    """
    model = getattr(target, "model", None)
    if policy is None or model is None:
        return
    config = text_config(model)
    for rule in rules_of(policy):
        made_for = rule.net.config
        last, size = max(made_for.taps), made_for.hidden_size
        if (last, size) != (config.num_hidden_layers, config.hidden_size):
            raise ConfigError(
                f"the length predictor was made for a model of {last} layers with hidden states of {size} "
                f"numbers, and this one has {config.num_hidden_layers} of {config.hidden_size}; train one "
                "for this model (`foredraft train length-predictor`), and give length=FOLDER"
            )
        _warn(rule, model, drafter)


def _warn(rule: LengthRule, model: Any, drafter: Any) -> None:
    made_for, own = rule.net.config, target_identity(model)
    if made_for.target.get("dtype") != own["dtype"]:  # rounded otherwise, all weights differ
        return
    digest = drafter_digest(drafter)
    other = None
    if made_for.target.get("weights") != own["weights"]:
        other = "other weights than this model's"
    elif made_for.drafter_weights and digest and made_for.drafter_weights != digest:
        name = f" ({made_for.drafter})" if made_for.drafter else ""
        other = f"another drafter{name} than the one that drafts here"
    if other is not None:
        warnings.warn(
            f"the length predictor was trained for {other}: texts stay right, but drafts will end at the "
            "wrong places; train one for this pair",
            stacklevel=4,
        )


def rules_of(part: Any) -> Iterator[LengthRule]:
    """Every length rule in a policy or rule."""
    if isinstance(part, LengthRule):
        yield part
    elif isinstance(part, ComposedRule):
        for rule in part.rules:
            yield from rules_of(rule)
    elif isinstance(part, StoppingPolicy):
        yield from rules_of(part.shape)
        yield from rules_of(part.rule)
    elif isinstance(part, LengthShapedPolicy):
        yield part.rule


@lru_cache(READ_AGAIN)
def _read(place: str, stamp: tuple[int, ...]) -> LengthNet:
    return read_length(place)


def _stamp(place: Path) -> tuple[int, ...]:
    """Changes with the files."""
    files = [place / CONFIG, *sorted(place.glob("*.safetensors"))]
    found = [file.stat() for file in files if file.exists()]
    return tuple(n for stat in found for n in (stat.st_mtime_ns, stat.st_size))
