"""From names to an engine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft import zoo
from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_loading import load_hf
from foredraft.drafters.vocabulary import check_same_vocabulary
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, ModelError
from foredraft.methods import BEST, Method, parse_method
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
            drafter implies, and n-gram drafting when there is no drafter either.
        drafter: `"none"`, `"ngram"`, or a draft model in any form that `model` takes.
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
    recipe, draft_source = _choose_method(method, drafter)
    recipe.check(draft_source is not None, tree=tree, verifier=verifier, proposal=proposal)
    models = load_models(
        model,
        draft_source,
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

    def engine(self, method: Method, **chosen: str | None) -> Engine:
        """An engine for a method; choices and errors as in `Method.check`."""
        draft_model = self.draft_model if method.needs_draft_model else None
        parts = method.build(draft_model, **chosen)
        return Engine(self.target, parts.drafter, parts.policy, parts.verifier, self.tokenizer)


def load_models(
    model: str | Path | Any,
    draft_model: str | Path | Any | None = None,
    *,
    tokenizer: Any | None = None,
    revision: str | None = None,
    force_vocabulary: bool = False,
    report: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> Models:
    """A target and perhaps a draft model. Arguments and errors as in `load`."""
    _refuse_unused(options, revision, model, draft_model, force_vocabulary)
    report(f"loading {_name(model)}")
    target, tokenizer = _load_model(model, tokenizer, report, revision=revision, **options)
    if draft_model is None:
        return Models(target, tokenizer)
    report(f"loading draft model {_name(draft_model)}")
    draft, draft_tokenizer = _load_model(draft_model, None, report, **options)
    if tokenizer is not None and draft_tokenizer is not None and not force_vocabulary:
        check_same_vocabulary(tokenizer, draft_tokenizer)
    return Models(target, tokenizer, draft)


def _choose_method(method: str | None, drafter: Any | None) -> tuple[Method, Any | None]:
    """The recipe, and the draft model's source if there is one."""
    implied = {None: BEST, "none": "autoregressive", "ngram": "ngram"}
    by_name = drafter is None or isinstance(drafter, str)
    is_model = not (by_name and drafter in implied)
    if is_model and by_name and (meant := _meant(str(drafter), ("ngram", "none"))):
        raise ConfigError(f"there is no drafter {drafter!r}; did you mean {meant!r}?")
    if method is None:
        method = "speculative" if is_model else implied[drafter]
    recipe = parse_method(method)
    if drafter is not None and not is_model and implied[drafter] != recipe.name:
        raise ConfigError(
            f"drafter={drafter!r} does not go with method {recipe.name!r}; leave one out"
        )
    return recipe, drafter if is_model else None


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
    unused = {} if _is_name(model) or _is_name(draft_source) else dict(options)
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
