"""Which method, and what it drafts with, from what the user names."""

from __future__ import annotations

from typing import Any

from foredraft import zoo
from foredraft.engine.drafters import NAMED, given_source, kind_of, shipped_source
from foredraft.errors import ConfigError
from foredraft.methods import BEST, BEST_SHAPED, BEST_SHAPED_OF, Kind, Method, parse_method


def choose_method(
    method: str | None, drafter: Any | None, model: Any, **shape: str | None
) -> tuple[Method, Any | None]:
    """The recipe, and the source of what it is given to draft with if there is one."""
    drafter = given_source(drafter, model)
    recipe = parse_method(method or best_method(model, drafter, **shape))
    if recipe.drafter is not None:
        if drafter is not None:
            raise ConfigError(
                f"method {method!r} names a drafter of its own, and another is given; leave one out"
            )
        return recipe, None
    if isinstance(drafter, str) and drafter in NAMED:
        if NAMED[drafter] != recipe.name:
            raise ConfigError(
                f"drafter={drafter!r} does not go with method {recipe.name!r}; leave one out"
            )
        return recipe, None
    if drafter is None and recipe.needs is not None:
        drafter = shipped_source(model, recipe.needs)
    return recipe, drafter


def best_method(
    model: Any,
    drafter: Any | None = None,
    *,
    tree: str | None = None,
    verifier: str | None = None,
    proposal: str | None = None,
) -> str:
    """The method that `load` takes when none is named: drafts whose shape follows the text.

    Arguments as in `load`; who gives a tree, a verifier or a proposal gets a method that takes them.
    """
    if isinstance(drafter, str) and drafter in NAMED:
        return NAMED[drafter]
    drafter = given_source(drafter, model)
    if (tree, verifier, proposal) == (None, None, None):
        return BEST
    head = shipped_source(model, "head")
    kind = None if drafter is None else kind_of(drafter)
    best = BEST_SHAPED if kind is None else BEST_SHAPED_OF[kind]
    if head is not None and drafter in (None, head):
        best = zoo.BEST_METHODS.get(model, BEST_SHAPED_OF["head"])
        kind = parse_method(best).needs
    if kind == "head" and tree is not None:
        return "eagle"  # the one whose tree the user gives
    if kind == "head" and verifier == "block":
        return "eagle-chain-4"  # which verifies chains alone
    return best


def needed_of(recipe: Method, drafter: Any | None) -> tuple[Kind, ...]:
    """What to look for among what ships: nothing where the method drafts with whatever is given."""
    kind = recipe.needs_given
    return () if kind is None or (recipe.optional and drafter is not None) else (kind,)
