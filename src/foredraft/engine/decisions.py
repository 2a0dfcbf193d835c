"""From the name of a decision model to a policy that stops by it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from torch import nn

from foredraft import zoo
from foredraft.backends.identity import DIGITS, target_identity, weights_digest
from foredraft.engine.draft_stops import stopped
from foredraft.errors import ConfigError, suggestion
from foredraft.policies.decision_model import DecisionPolicy, check_hidden_size
from foredraft.policies.decision_net import CONFIG, DecisionNet, read_decision
from foredraft.policies.decision_rules import Rule
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.predicted_length import LengthRule
from foredraft.protocols import Drafter, Policy, Target
from foredraft.zoo.shipped import shipped_decisions

READ_AGAIN = 8
"""Decision models kept once they were read: a method is rehearsed before it is built."""


def shaped(
    shape: Policy,
    decision: str | None,
    threshold: float | None = None,
    rule: str | None = None,
    stop: str | None = None,
    length: LengthRule | None = None,
    *,
    drafter: Drafter,
) -> Policy:
    """A shape, cut short by a decision model or by stop rules if some are named.

    Args:
        shape: the policy of the whole k-config.
        decision: one that ships (`decision-soft`), or a folder or `.pt` file; None for the shape as it is.
        threshold: as in `DecisionPolicy`.
        rule: likewise.
        stop: stop rules, as in `draft_stops.read_stop`.
        length: as in `draft_stops.stopped`.
        drafter: what drafts.

    Raises:
        ConfigError: an unknown name, options without a decision model, a shape that is no k-config, or a
            drafter whose hidden states are of another size; both a decision model and stop rules or a length.
        ModelError: the decision model cannot be read.
    """
    if decision is None:
        for name, value in (("threshold", threshold), ("rule", rule)):
            if value is not None:
                raise ConfigError(
                    f"{name}={value} is for a decision model; give decision=... too, or leave it out"
                )
        return stopped(shape, stop, length)
    if stop is not None:
        raise ConfigError(
            f"decision={decision} and stop={stop} both say where a draft ends; leave one out"
        )
    if length is not None:
        raise ConfigError(
            f"decision={decision} and a length predictor both say where a draft ends; leave one out"
        )
    if not isinstance(shape, FixedPolicy):
        raise ConfigError(
            f"a decision model stops trees of a k-config, and this shape is {type(shape).__name__}'s; give "
            "tree=... as a k-config such as 4,2,2"
        )
    model = named_decision(decision)
    size = getattr(drafter, "hidden_size", None)
    if size is not None:
        check_hidden_size(model, size)
    return DecisionPolicy(
        shape.k_config, model, threshold, cast(Rule | None, rule), shape.num_roots
    )


def named_decision(name: str) -> DecisionNet:
    """The decision model of a name; the weights are read once, however often they are named.

    Raises:
        ConfigError: it neither ships nor is there.
        ModelError: it cannot be read.
    """
    ships = shipped_decisions()
    place = ships.get(name, Path(os.path.expanduser(name)))
    if name not in ships and not os.path.exists(place):
        known = f"{suggestion(name, ships)}; or" if ships else "none ships;"
        raise ConfigError(
            f"decision={name} is neither a decision model that ships nor a folder; {known} give the path of "
            "a folder of `foredraft train decision`, or of a .pt file"
        )
    return _read(os.path.realpath(place), _stamp(place))


def with_shipped_decision(options: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """A method's options, with the decision model that they name found among those of the loaded model.

    Args:
        options: as named by the user.
        model: as in `foredraft.load`; of one that is not embedded nothing is known, and the name stays.

    Raises:
        ConfigError: one of that name ships for another model alone.
    """
    name = options.get("decision")
    embedded = isinstance(model, str) and zoo.is_embedded(model)
    if name is None or not embedded or name not in shipped_decisions():
        return dict(options)
    ships = shipped_decisions(model)
    if name not in ships:
        known = f"those that do are {', '.join(ships)}" if ships else "none does"
        raise ConfigError(
            f"no decision model {name!r} ships for {model} ({known}); give the path of a folder of "
            "`foredraft train decision`"
        )
    return {**options, "decision": str(ships[name])}


def drafter_digest(drafter: Any) -> str:
    """What tells a head, or a draft model behind its backend, from others; empty if nothing does."""
    weights = getattr(drafter, "model", None) if isinstance(drafter, Target) else drafter
    return weights_digest(weights)[:DIGITS] if isinstance(weights, nn.Module) else ""


def warn_of_others(policy: Policy | None, target: Target, drafter: Any) -> None:
    """Say so when a decision model was trained for another target or drafter: nothing else shows it.

    Args:
        policy: of the engine.
        target: of the engine.
        drafter: the draft model or head of the engine, None without one.
    """
    model = getattr(target, "model", None)
    if not isinstance(policy, DecisionPolicy) or model is None:
        return
    config = policy.model.config
    own: dict[str, Any] = target_identity(model)
    if config.target.get("dtype") != own["dtype"]:  # rounded otherwise, all weights differ
        return
    if config.target.get("weights") != own["weights"]:
        warnings.warn(
            "the decision model was trained for other weights than this model's: texts stay right, but "
            "drafts will end at the wrong places; train one for this model",
            stacklevel=2,
        )
    digest = drafter_digest(drafter)
    if config.drafter_weights and digest and config.drafter_weights != digest:
        name = f" ({config.drafter})" if config.drafter else ""
        warnings.warn(
            f"the decision model was trained for another drafter{name} than the one that drafts here: texts "
            "stay right, but drafts will end at the wrong places; train one for this drafter",
            stacklevel=2,
        )


@lru_cache(READ_AGAIN)
def _read(place: str, stamp: tuple[int, ...]) -> DecisionNet:
    return read_decision(place)


def _stamp(place: Path) -> tuple[int, ...]:
    """Changes with the files."""
    files = [place / CONFIG, *sorted(place.glob("*.safetensors"))] if place.is_dir() else [place]
    found = [file.stat() for file in files if file.exists()]
    return tuple(n for stat in found for n in (stat.st_mtime_ns, stat.st_size))
