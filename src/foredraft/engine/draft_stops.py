"""From the text of `stop=` to a policy whose drafts end by stop rules.

```
confidence                     a rule with its published numbers
confidence@0.3                 with a number of one's own
svip@0.3@0.15                  with several, in the order of the rule's arguments
ddd@-0.5@3.5.7                 levels are joined by dots
length                         the learnt length, of the predictor that the method names
constant@2+confidence@0.4      stops a node when all stop it
cumulative@-2/heuristic        stops a node when any stops it; + binds closer
```
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foredraft.errors import ConfigError, suggestion
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.predicted_length import LengthRule, LengthShapedPolicy
from foredraft.policies.schedules import ConstantRule, GammaTuneRule, HeuristicRule
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.policies.stopping import StoppingPolicy, StopRule, all_of, any_of
from foredraft.policies.thresholds import (
    AdaEdlRule,
    BeamRule,
    ConfidenceRule,
    CumulativeRule,
    SvipRule,
)
from foredraft.protocols import Policy

ANY, ALL, VALUE = "/", "+", "@"
LENGTH = "length"
"""The rule that is no set of numbers but a trained net."""
STOP_RULES: Mapping[str, type] = {
    "confidence": ConfidenceRule,
    "cumulative": CumulativeRule,
    "ddd": BeamRule,
    "svip": SvipRule,
    "adaedl": AdaEdlRule,
    "constant": ConstantRule,
    "heuristic": HeuristicRule,
    "gammatune": GammaTuneRule,
}
"""By name. Their arguments in order are what follows the name; `longest` is the depth of the shape."""


def stopped(shape: Policy, stop: str | None, length: LengthRule | None = None) -> Policy:
    """A shape whose drafts end by the rules named, or the shape as it is.

    Args:
        shape: the whole draft.
        stop: rules by name, in the form shown above; None for none.
        length: what the rule `length` stands for; without other rules it stops alone.

    Raises:
        ConfigError: a rule that is not known, or a number that it does not take.
    """
    if stop is None:
        return shape if length is None else StoppingPolicy(shape, length)
    return StoppingPolicy(shape, read_stop(stop, depth_of(shape), length))


def names_rule(text: str, name: str) -> bool:
    """Whether a rule is among those of a text in the form shown above."""
    rules = (rule for part in text.split(ANY) for rule in part.split(ALL))
    return any(rule.partition(VALUE)[0] == name for rule in rules)


def read_stop(text: str, longest: int | None = None, length: LengthRule | None = None) -> StopRule:
    """The rule that a text names.

    Args:
        text: in the form shown above.
        longest: levels of the shape, None if nobody knows.
        length: as in `stopped`.

    Raises:
        ConfigError: as in `stopped`.
    """
    alternatives = [
        all_of(*(_read_rule(rule, longest, length) for rule in together.split(ALL)))
        for together in text.split(ANY)
    ]
    return any_of(*alternatives)


def depth_of(shape: Policy) -> int | None:
    """Levels of a shape of ours at its deepest; None of others."""
    if isinstance(shape, FixedPolicy):
        return len(shape.k_config)
    if isinstance(shape, StaticTreePolicy | DynamicTreePolicy | BudgetPolicy):
        return shape.depth
    return shape.levels if isinstance(shape, LengthShapedPolicy) else None


@dataclass(frozen=True, slots=True)
class _Argument:
    """A number that follows a rule's name."""

    name: str
    kind: Any
    needed: bool

    def read(self, text: str, value: str) -> Any:
        """The value as the rule takes it; `text` is the rule with all its numbers."""
        words, read = READERS[self.kind]
        try:
            return read(value)
        except ValueError:
            raise ConfigError(f"stop={text}: {self.name} {value!r} is not {words}") from None


def _read_rule(text: str, longest: int | None, length: LengthRule | None) -> StopRule:
    name, *values = text.split(VALUE)
    if name == LENGTH:
        return _length_rule(text, values, length)
    if name not in STOP_RULES:
        raise ConfigError(f"unknown stop rule {name!r}; {suggestion(name, [*STOP_RULES, LENGTH])}")
    rule = STOP_RULES[name]
    arguments = _arguments(rule)
    if len(values) > len(arguments):
        known = ", ".join(argument.name for argument in arguments)
        raise ConfigError(
            f"stop={text} gives {len(values)} numbers, and {name} takes {known} alone"
        )
    for argument in arguments[len(values) :]:
        if argument.needed:
            raise ConfigError(
                f"stop={text} gives no {argument.name}, and {name} has no usual one; write it like "
                f"{name}@-0.5"
            )
    given = [argument.read(text, value) for argument, value in zip(arguments, values, strict=False)]
    told = {"longest": longest} if "longest" in inspect.signature(rule).parameters else {}
    try:
        made: StopRule = rule(*given, **told)
    except ConfigError as error:
        raise ConfigError(f"stop={text}: {error}") from None
    return made


def _length_rule(text: str, values: list[str], length: LengthRule | None) -> StopRule:
    if values:
        raise ConfigError(
            f"stop={text} gives numbers, and length takes none; length=NAME says which predictor it is"
        )
    if length is None:
        raise ConfigError(f"stop={text} asks for a length predictor, and this method takes none")
    return length


def _arguments(rule: type) -> list[_Argument]:
    """What a rule takes in order; keyword-only arguments are not the user's to give."""
    hints = typing.get_type_hints(vars(rule)["__init__"])
    return [
        _Argument(p.name, hints[p.name], p.default is inspect.Parameter.empty)
        for p in inspect.signature(rule).parameters.values()
        if p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]


def _levels(text: str) -> tuple[int, ...]:
    return tuple(int(level) for level in text.split("."))


READERS: Mapping[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("a whole number", int),
    float: ("a number", float),
    tuple[int, ...]: ("whole numbers joined by dots", _levels),
}
"""What each type of argument is called, and how it is read."""
