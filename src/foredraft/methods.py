"""Named recipes: which drafter, policy and verifier make up a method.

A recipe may carry options after colons: `ngram:depth=10:min=3`. They are the keyword arguments of
its function below, read by their annotations.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.legality import check_legal
from foredraft.errors import ConfigError, suggestion
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter, Policy, Target, Verifier
from foredraft.tree import Proposal
from foredraft.verifiers import verifier as make_verifier


@dataclass(frozen=True, slots=True)
class Parts:
    """What a method adds to a target."""

    drafter: Drafter | None
    policy: Policy | None
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class Method:
    """A recipe with its options read."""

    name: str
    needs_draft_model: bool
    options: Mapping[str, Any]

    def check(self, has_draft_model: bool, **chosen: Any) -> dict[str, Any]:
        """The recipe's options with the user's own choices (None: no choice) on top.

        Raises:
            ConfigError: a choice that has no meaning for this method or cannot work, or a draft model
                that it needs or does not take.
        """
        options = {**self.options, **{k: v for k, v in chosen.items() if v is not None}}
        known = _option_types(RECIPES[self.name])
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"{name}={options[name]!r} has no meaning for method {self.name!r}; leave it out"
                )
        if self.needs_draft_model and not has_draft_model:
            raise ConfigError(f"method {self.name!r} needs a draft model; pass drafter=MODEL")
        if has_draft_model and not self.needs_draft_model:
            raise ConfigError(f"method {self.name!r} takes no draft model; leave drafter out")
        self._rehearse(options)
        return options

    def _rehearse(self, options: Mapping[str, Any]) -> None:
        """Build the parts without a model: a wrong choice is found before minutes of loading."""
        models = (None,) if self.needs_draft_model else ()
        parts = RECIPES[self.name](*models, **options)
        if parts.drafter is not None:
            policy = parts.policy or parts.drafter.default_policy
            check_legal(parts.drafter, policy, parts.verifier)

    def build(self, draft_model: Target | None = None, **chosen: str | None) -> Parts:
        """The parts of the method; choices and errors as in `check`."""
        options = self.check(draft_model is not None, **chosen)
        models = () if draft_model is None else (draft_model,)
        return RECIPES[self.name](*models, **options)


def _autoregressive(*, verifier: str = "exact") -> Parts:
    """Plain decoding: one token a pass."""
    return Parts(None, None, make_verifier(verifier))


def _ngram(
    *,
    depth: int | None = None,
    tree: str | None = None,
    min: int = 2,
    max: int = 5,
    verifier: str = "exact",
) -> Parts:
    """Prompt lookup: copies of what followed the text's last tokens before."""
    drafter = NgramDrafter(min_match=min, max_match=max)
    return Parts(drafter, _policy(drafter, depth, tree), make_verifier(verifier))


def _speculative(
    draft_model: Target,
    *,
    depth: int | None = None,
    tree: str | None = None,
    proposal: str | None = None,
    verifier: str = "exact",
) -> Parts:
    """A chain (or the given tree) of an independent draft model."""
    default = Proposal.COUPLED if verifier == "exact" else Proposal.SAMPLED
    drafter = DraftModelDrafter(draft_model, _proposal(proposal) if proposal else default)
    return Parts(drafter, _policy(drafter, depth, tree), make_verifier(verifier))


RECIPES: Mapping[str, Callable[..., Parts]] = {
    "autoregressive": _autoregressive,
    "ngram": _ngram,
    "speculative": _speculative,
}
BEST = "ngram"
"""The method when none is named: the best there is without a trained drafter."""


def parse_method(text: str) -> Method:
    """Read `name[:option=value]...`.

    Raises:
        ConfigError: an unknown recipe or option (the known ones are listed), one given twice, or a
            value of the wrong type.
    """
    name = text.partition(":")[0]
    if name not in RECIPES:
        raise ConfigError(f"unknown method {name!r}; {suggestion(name, RECIPES)}")
    needs_draft_model = "draft_model" in inspect.signature(RECIPES[name]).parameters
    return Method(name, needs_draft_model, read_options(text, RECIPES[name]))


def read_options(text: str, recipe: Callable[..., Any]) -> dict[str, Any]:
    """The options of `name[:option=value]...`, read by the recipe's keyword-only parameters.

    Raises:
        ConfigError: an unknown option, one given twice, or a value of the wrong type.
    """
    name, *pairs = text.split(":")
    types = _option_types(recipe)
    options: dict[str, Any] = {}
    for pair in pairs:
        key, value = _read_option(name, pair, types)
        if key in options:
            raise ConfigError(f"method {text!r} gives {key} twice; leave one out")
        options[key] = value
    return options


def _read_option(method: str, pair: str, types: Mapping[str, type]) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals or key not in types:
        raise ConfigError(f"method {method!r} has no option {pair!r}; {suggestion(key, types)}")
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


def _policy(drafter: Drafter, depth: int | None, tree: str | None) -> Policy:
    if depth is not None and tree is not None:
        raise ConfigError(f"depth={depth} and tree={tree!r} both give the shape; leave one out")
    if tree is not None:
        return FixedPolicy(tree)
    return drafter.default_policy if depth is None else FixedPolicy.chain(depth)


def _proposal(name: str) -> Proposal:
    try:
        return Proposal(name)
    except ValueError:
        known = [p.value for p in Proposal]
        raise ConfigError(f"unknown proposal {name!r}; {suggestion(name, known)}") from None
