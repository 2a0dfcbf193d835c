"""Methods by name: a recipe of `engine/recipes.py` with its options.

Options come after colons: `ngram:depth=10:min=3`. They are the keyword arguments of the recipe's
function, read by their annotations. Besides those, methods that draft with a model or a head may name it:
`eagle2:drafter=eagle1`.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from foredraft.engine.legality import check_legal
from foredraft.engine.parts import Parts
from foredraft.engine.recipes import RECIPES
from foredraft.errors import ConfigError, suggestion
from foredraft.protocols import Target

__all__ = [
    "BEST",
    "BEST_SHAPED",
    "BEST_SHAPED_OF",
    "KINDS",
    "RECIPES",
    "Kind",
    "Method",
    "parse_method",
    "read_options",
    "recipe_of",
]

Kind = Literal["draft model", "head"]
"""What of the user's or ours a method may draft with."""
KINDS: Mapping[Kind, tuple[str, str]] = {
    "draft model": ("a draft model", "drafter=MODEL"),
    "head": ("an EAGLE head", "drafter=FOLDER"),
}
"""Each kind in messages, and how it is given."""
TAKES: Mapping[str, tuple[Kind, ...]] = {
    "draft_model": ("draft model",),
    "head": ("head",),
    "drafter": ("draft model", "head"),
    "model": ("head", "draft model"),
}
"""What recipes draft with, by the name of their first parameter; the first is what they need given.

Where that parameter has a default, the recipe drafts without a model too.
"""


@dataclass(frozen=True, slots=True)
class Method:
    """A recipe with its options read.

    Attributes:
        name: as named by the user, without options: `eagle-chain-4`.
        recipe: its key in `RECIPES`: `eagle-chain-K`.
        needs: what it drafts with, if it drafts with a model or head.
        takes: all that it can draft with; a drafter that it names for itself may be any of these.
        options: as named by the user, and those that are part of the name.
        drafter: of its own, as named by the user: one that ships, or a folder; None drafts with what is
            given to all.
    """

    name: str
    recipe: str
    needs: Kind | None
    options: Mapping[str, Any]
    drafter: str | None = None
    takes: frozenset[Kind] = frozenset()
    optional: bool = False
    """Whether it drafts without any model too, where there is none."""

    @property
    def needs_given(self) -> Kind | None:
        """What must be given for it to draft with: nothing where it names a drafter of its own."""
        return self.needs if self.drafter is None else None

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts with an independent model."""
        return self.needs == "draft model"

    def check(self, given: Kind | None, **chosen: Any) -> dict[str, Any]:
        """The recipe's options with the user's own choices (None: no choice) on top.

        Args:
            given: what there is to draft with.
            **chosen: options by name.

        Raises:
            ConfigError: a choice that has no meaning for this method or cannot work, or a draft model
                or head that it needs or does not take.
        """
        options = {**self.options, **{k: v for k, v in chosen.items() if v is not None}}
        known = _option_types(RECIPES[self.recipe])
        for name, value in chosen.items():
            if value is not None and name not in known:
                raise ConfigError(
                    f"{name}={value!r} has no meaning for method {self.name!r}; leave it out"
                )
        self._check_given(given)
        self._rehearse(given, options)
        return options

    def _check_given(self, given: Kind | None) -> None:
        if given == self.needs or (self.optional and given is None):
            return
        if (self.optional or self.drafter is not None) and given in self.takes:
            return
        if self.needs is None and given is not None:
            raise ConfigError(f"method {self.name!r} takes no {given}; leave drafter out")
        if self.needs is not None:
            needed, way = KINDS[self.needs]
            but = "" if given is None else f", and the drafter given is {KINDS[given][0]}"
            if given in self.takes:
                way = f"{way}, or name yours in the method, as in {self.name}:{KINDS[given][1]}"
            raise ConfigError(f"method {self.name!r} needs {needed}{but}; pass {way}")

    def _rehearse(self, given: Kind | None, options: Mapping[str, Any]) -> None:
        """Build the parts without a model: a wrong choice is found before minutes of loading."""
        stand_ins = {None: (), "draft model": (None,), "head": (_STAND_IN,)}
        try:
            parts = RECIPES[self.recipe](*stand_ins[given], **options)
            if parts.drafter is not None:
                policy = parts.policy or parts.drafter.default_policy
                check_legal(parts.drafter, policy, parts.verifier)
        except ConfigError as error:
            raise ConfigError(self._with_its_name(str(error))) from None

    def _with_its_name(self, sentence: str) -> str:
        """`eagle2:top_k=0` for `top_k=0`: requests and `load` have options of the same names."""
        known = _option_types(RECIPES[self.recipe])
        own = [name for name in known if name in self.options or name not in CHOICES]
        return re.sub(rf"\b({'|'.join(own)})=", rf"{self.name}:\1=", sentence) if own else sentence

    def build(self, model: Any = None, **chosen: str | None) -> Parts:
        """The parts of the method with the draft model (a `Target`) or `EagleHead` that it needs.

        Choices and errors as in `check`.
        """
        options = self.check(None if model is None else _kind_of(model), **chosen)
        models = () if model is None else (model,)
        return RECIPES[self.recipe](*models, **options)


def _kind_of(model: Any) -> Kind:
    return "draft model" if isinstance(model, Target) else "head"


class _StandIn:
    """A head to rehearse with, before there is one."""

    config = SimpleNamespace(max_position_embeddings=1, taps=(0,))

    def eval(self) -> _StandIn:
        """Itself."""
        return self


_STAND_IN: Any = _StandIn()


CHOICES = ("tree", "verifier", "proposal", "roots")
"""Options that users may also give beside the method."""
DRAFTER = "drafter"
"""The option by which a method names a drafter of its own."""
NO_COLON = " (a folder with a colon in its path cannot be named in a method)"
"""Said where the end of such a path is read as the next option."""

BEST = "adaptive"
"""The method when none is named: with the drafter that is given or ships, else with copies alone."""
BEST_SHAPED = "ngram"
BEST_SHAPED_OF: Mapping[Kind, str] = {"draft model": "speculative", "head": "eagle2"}
"""The method when none is named, and how drafts look or are verified is asked for."""


def parse_method(text: str) -> Method:
    """Read `name[:option=value]...`.

    Raises:
        ConfigError: an unknown recipe or option (the known ones are listed), one given twice, or a
            value of the wrong type.
    """
    name = text.partition(":")[0]
    recipe = recipe_of(name)
    if recipe is None:
        raise ConfigError(f"unknown method {name!r}; {suggestion(name, RECIPES)}")
    parameters = inspect.signature(RECIPES[recipe]).parameters
    first = next(iter(parameters), "")
    takes = TAKES.get(first, ())
    needs = next(iter(takes), None)
    in_name = {} if recipe == name else {"depth": int(name.rpartition("-")[2])}
    options = read_options(text, RECIPES[recipe], () if needs is None else (DRAFTER,))
    drafter = options.pop(DRAFTER, None)
    optional = bool(takes) and parameters[first].default is not inspect.Parameter.empty
    return Method(name, recipe, needs, in_name | options, drafter, frozenset(takes), optional)


def recipe_of(name: str) -> str | None:
    """The recipe of a method's name without options; None if it is no method's name."""
    chain = re.fullmatch(r"eagle-chain-[0-9]{1,4}", name)
    recipe = "eagle-chain-K" if chain else name
    return recipe if recipe in RECIPES and name != "eagle-chain-K" else None


def read_options(
    text: str, recipe: Callable[..., Any], words: Collection[str] = ()
) -> dict[str, Any]:
    """The options of `name[:option=value]...`, read by the recipe's keyword-only parameters.

    Args:
        text: the method as named by the user.
        recipe: takes the options.
        words: more options, which are text and no parameters of the recipe.

    Raises:
        ConfigError: an unknown option, one given twice, or a value of the wrong type.
    """
    name, *pairs = text.split(":")
    types = _option_types(recipe) | dict.fromkeys(words, str)
    options: dict[str, Any] = {}
    for pair in pairs:
        key, value = _read_option(name, pair, types, NO_COLON if DRAFTER in options else "")
        if key in options:
            raise ConfigError(f"method {text!r} gives {key} twice; leave one out")
        options[key] = value
    return options


def _read_option(method: str, pair: str, types: Mapping[str, type], remark: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals or key not in types:
        raise ConfigError(
            f"method {method!r} has no option {pair!r}; {suggestion(key, types)}{remark}"
        )
    try:
        return key, types[key](value)
    except ValueError:
        raise ConfigError(
            f"option {pair!r} of method {method!r} must be of type {types[key].__name__}"
        ) from None


def _option_types(recipe: Callable[..., Any]) -> dict[str, type]:
    """The recipe's keyword options and how to read each: all are numbers or text."""
    hints = typing.get_type_hints(recipe)
    readers = {int: int, int | None: int, float: float, float | None: float}
    return {
        p.name: readers.get(hints[p.name], str)
        for p in inspect.signature(recipe).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
