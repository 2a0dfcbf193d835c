"""From names to an engine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft import zoo
from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_loading import load_hf
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.vocabulary import check_same_vocabulary
from foredraft.engine.drafters import (
    is_student,
    kind_of,
    read_head,
    read_student,
    shipped_source,
)
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, ModelError
from foredraft.methods import BEST, BEST_OF, Kind, Method, parse_method
from foredraft.protocols import Target


def load(
    model: str | Path | Any = "smollm2",
    *,
    method: str | None = None,
    drafter: str | Path | Any | None = None,
    tree: str | None = None,
    verifier: str | None = None,
    proposal: str | None = None,
    tokenizer: Any | None = None,
    dtype: str | None = None,
    device: str | None = None,
    device_map: Any | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    force_vocabulary: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> Engine:
    """An engine for a model, with a method to make it faster.

    Args:
        model: an embedded name (`"smollm2"`), a Hugging Face hub id, a local folder, a `.gguf` file,
            or an already loaded `transformers` model.
        method: a recipe, with options after colons (`"ngram:depth=10"`); None takes the one that the
            drafter implies, or the best there is for the model: a shipped head where there is one, else
            n-gram drafting.
        drafter: `"none"`, `"ngram"`, a draft model in any form that `model` takes or as `foredraft train`
            wrote it, or an EAGLE head: its folder, its id on the hub (with a method that needs a head),
            or an `EagleHead`. None takes what ships for the model, where the method needs something.
        tree: a k-config such as `"4,2,2"`; None takes the method's own shape.
        verifier: `"exact"` (default), `"rejection"`, `"block"` or `"traversal"`.
        proposal: how a draft model's children are chosen: `"coupled"`, `"sampled"`, `"resampled"` or
            `"deterministic"`; None takes what the verifier wants.
        tokenizer: for an already loaded model.
        dtype: of models loaded by name: `"float32"`, `"bfloat16"`, `"float16"` or `"auto"`; None takes
            bfloat16 where the hardware has it and float32 elsewhere.
        device: such as `"cpu"` or `"cuda:0"`; None takes a GPU where there is one.
        device_map: as in `transformers`, to spread a model over devices.
        revision: branch, tag or commit on the hub.
        trust_remote_code: allow model code from the hub.
        force_vocabulary: use a drafter whose tokens differ; the text stays right all the same.
        report: called with a sentence at each long step.

    Raises:
        ConfigError: a name, an option or a combination that cannot work.
        ModelError: a model that cannot be found, read or decoded speculatively.
    """
    recipe, source = _choose_method(method, drafter, model, tree=tree, verifier=verifier)
    given = None if source is None else kind_of(source, recipe.needs)
    recipe.check(given, tree=tree, verifier=verifier, proposal=proposal)
    models = load_models(
        model,
        source,
        needed=() if recipe.needs is None else (recipe.needs,),
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        device_map=device_map,
        revision=revision,
        trust_remote_code=trust_remote_code,
        force_vocabulary=force_vocabulary,
        report=report,
    )
    return models.engine(recipe, tree=tree, verifier=verifier, proposal=proposal)


@dataclass(frozen=True, slots=True)
class Models:
    """Loaded models, from which engines for any number of methods can be made; they share the weights."""

    target: Target
    tokenizer: Any | None
    draft_model: Target | None = None
    head: EagleHead | None = None

    def engine(self, method: Method, **chosen: str | None) -> Engine:
        """An engine for a method; choices and errors as in `Method.check`."""
        loaded = {None: None, "draft model": self.draft_model, "head": self.head}
        parts = method.build(loaded[method.needs], **chosen)
        return Engine(self.target, parts.drafter, parts.policy, parts.verifier, self.tokenizer)


def load_models(
    model: str | Path | Any,
    drafter: str | Path | Any | None = None,
    *,
    needed: Collection[Kind] = (),
    tokenizer: Any | None = None,
    revision: str | None = None,
    force_vocabulary: bool = False,
    report: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> Models:
    """A target, and what its methods draft with.

    Args:
        model, drafter: as in `load`; a drafter is a draft model or a head.
        needed: what the methods draft with; what the drafter is not is taken from what ships.

    Other arguments and errors as in `load`.
    """
    sources = _sources(model, drafter, needed)
    draft_model, head = sources.get("draft model"), sources.get("head")
    _refuse_unused(options, revision, model, draft_model, force_vocabulary)
    report(f"loading {_name(model)}")
    target, tokenizer = _load_model(model, tokenizer, report, revision=revision, **options)
    loaded_head = None
    if head is not None:
        report(f"loading head {_name(head)}")
        loaded_head = read_head(head, target)
    if draft_model is None:
        return Models(target, tokenizer, head=loaded_head)
    report(f"loading draft model {_name(draft_model)}")
    if is_student(draft_model):
        return Models(target, tokenizer, read_student(draft_model, target, tokenizer), loaded_head)
    draft, draft_tokenizer = _load_model(draft_model, None, report, **options)
    if tokenizer is not None and draft_tokenizer is not None and not force_vocabulary:
        check_same_vocabulary(tokenizer, draft_tokenizer)
    return Models(target, tokenizer, draft, loaded_head)


def _sources(model: Any, drafter: Any | None, needed: Collection[Kind]) -> dict[Kind, Any]:
    """Where each kind of drafter comes from: the user, or what ships for the model."""
    only = next(iter(needed)) if len(needed) == 1 else None
    sources: dict[Kind, Any] = {} if drafter is None else {kind_of(drafter, only): drafter}
    for kind in needed:
        if kind not in sources and (shipped := shipped_source(model, kind)) is not None:
            sources[kind] = shipped
    return sources


def _choose_method(
    method: str | None, drafter: Any | None, model: Any, *, tree: str | None, verifier: str | None
) -> tuple[Method, Any | None]:
    """The recipe, and the source of what it drafts with if there is one."""
    if isinstance(drafter, str) and drafter not in NAMED and (meant := _meant(drafter, NAMED)):
        raise ConfigError(f"there is no drafter {drafter!r}; did you mean {meant!r}?")
    recipe = parse_method(method or best_method(model, drafter, tree=tree, verifier=verifier))
    if isinstance(drafter, str) and drafter in NAMED:
        if NAMED[drafter] != recipe.name:
            raise ConfigError(
                f"drafter={drafter!r} does not go with method {recipe.name!r}; leave one out"
            )
        return recipe, None
    if drafter is None and recipe.needs is not None:
        drafter = shipped_source(model, recipe.needs)
    return recipe, drafter


NAMED = {"none": "autoregressive", "ngram": "ngram"}
"""Drafters that are no model, and their methods."""


def best_method(
    model: Any, drafter: Any | None = None, *, tree: str | None = None, verifier: str | None = None
) -> str:
    """The method that `load` takes when none is named: the drafter's, or the best for the model.

    Arguments as in `load`; a tree or a verifier may ask for another method of the same drafter.
    """
    if isinstance(drafter, str) and drafter in NAMED:
        return NAMED[drafter]
    kind = None if drafter is None else kind_of(drafter)
    best = BEST if kind is None else BEST_OF[kind]
    if kind is None and shipped_source(model, "head") is not None:
        best = zoo.BEST_METHODS.get(model, BEST_OF["head"])
        kind = parse_method(best).needs
    if kind == "head" and tree is not None:
        return "eagle"  # the one whose tree the user gives
    if kind == "head" and verifier == "block":
        return "eagle-chain-4"  # which verifies chains alone
    return best


def _load_model(
    source: Any, tokenizer: Any | None, report: Callable[[str], None], **options: Any
) -> tuple[Target, Any | None]:
    """A backend and its tokenizer from any form a model may come in."""
    if isinstance(tokenizer, str | Path):
        raise ConfigError(f"tokenizer={str(tokenizer)!r} is a name; give a loaded tokenizer")
    if isinstance(source, Target):
        return source, tokenizer or getattr(source, "tokenizer", None)
    if not _is_name(source):
        return HFTarget(source, tokenizer), tokenizer
    if tokenizer is not None:
        raise ConfigError("tokenizer=... is for an already loaded model; a name brings its own")
    name = str(source)
    path = zoo.path(name, report=report) if zoo.is_embedded(name) else source
    if path is source and (meant := _meant(name, zoo.EMBEDDED)):
        raise ModelError(f"there is no model {name!r}; did you mean {meant!r}?")
    model, tokenizer = load_hf(path, **options)
    return HFTarget(model, tokenizer), tokenizer


def _meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one nearly is, if it is neither a folder nor a hub id of some owner."""
    if "/" in name or os.path.exists(name):  # false, and no error, for what cannot be a path
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), None)


def _refuse_unused(
    options: dict[str, Any],
    revision: str | None,
    model: Any,
    draft_source: Any,
    force_vocabulary: bool,
) -> None:
    """An already loaded model has its dtype and device: nothing given for them may be ignored."""
    if force_vocabulary and draft_source is None:
        raise ConfigError("force_vocabulary=True is for a draft model; leave it out, or give one")
    reads = _is_name(draft_source) and not is_student(draft_source)  # a student is as its target
    unused = {} if _is_name(model) or reads else dict(options)
    if not _is_name(model):
        unused["revision"] = revision
    elif revision is not None and zoo.is_embedded(str(model)):
        raise ConfigError(f"revision={revision!r} is for hub models; {model!r} has one of its own")
    for name, value in unused.items():
        if value:
            raise ConfigError(
                f"{name}={value!r} cannot be applied to an already loaded model; load it that way"
            )


def _is_name(source: Any) -> bool:
    return isinstance(source, str | Path)


def _name(source: Any) -> str:
    return str(source) if _is_name(source) else type(source).__name__
