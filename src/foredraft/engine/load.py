"""From names to an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foredraft import zoo
from foredraft.backends import own_memory
from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_loading import load_hf
from foredraft.backends.joined_linears import join_linears
from foredraft.backends.quantized import quantize_linears
from foredraft.backends.regional_compile import compile_regions
from foredraft.config import check_quantization
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.vocabulary import check_same_vocabulary
from foredraft.engine.adaptive_costs import with_prices
from foredraft.engine.choosing import choose_method, needed_of
from foredraft.engine.decisions import warn_of_others, with_shipped_decision
from foredraft.engine.drafters import (
    check_model,
    is_student,
    kind_of,
    nearly,
    own_source,
    read_head,
    read_student,
)
from foredraft.engine.engine import Engine
from foredraft.engine.lengths import check_lengths, with_shipped_length
from foredraft.engine.prefixes import keep_prefixes
from foredraft.engine.sources import Sources, place_of
from foredraft.errors import ConfigError, ModelError
from foredraft.methods import Kind, Method
from foredraft.protocols import Target


def load(
    model: str | Path | Any = "smollm2",
    *,
    method: str | None = None,
    drafter: str | Path | Any | None = None,
    tree: str | None = None,
    verifier: str | None = None,
    proposal: str | None = None,
    roots: str | None = None,
    tokenizer: Any | None = None,
    dtype: str | None = None,
    device: str | None = None,
    device_map: Any | None = None,
    quantize: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    force_vocabulary: bool = False,
    compile: bool = False,
    cuda_graphs: bool = False,
    prefix_cache_mb: float | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Engine:
    """An engine for a model, with a method to make it faster.

    Args:
        model: an embedded name (`"smollm2"`), a Hugging Face hub id, a local folder, a `.gguf` file,
            or an already loaded `transformers` model.
        method: a recipe, with options after colons (`"ngram:depth=10"`), among them a drafter of its own
            that ships for the model, or a folder (`"eagle2:drafter=eagle1"`); None takes the one that the
            drafter implies, else `"adaptive"`: with a shipped head where there is one, else by copies alone.
            It measures once what passes cost on this machine, for some seconds.
        drafter: `"none"`, `"ngram"`, one that ships for the model (`"eagle1"`), a draft model in any form
            that `model` takes or as `foredraft train` wrote it, or an EAGLE head: its folder, its id on the
            hub (with a method that needs a head), or an `EagleHead`. None takes what ships for the model,
            where the method needs something.
        tree: a k-config such as `"4,2,2"`; None takes the method's own shape.
        verifier: `"exact"` (default), `"rejection"`, `"block"` or `"traversal"`.
        proposal: how a draft model's children are chosen: `"coupled"`, `"sampled"`, `"resampled"` or
            `"deterministic"`; None takes what the verifier wants.
        roots: how `"mcsd-improved-lossy"` chooses its first candidates from the target's own law:
            `"multinomial"`, `"topk"` or `"nucleus"`; None takes the method's own way.
        tokenizer: for an already loaded model.
        dtype: of models loaded by name: `"float32"`, `"bfloat16"`, `"float16"` or `"auto"`; None takes
            bfloat16 where the hardware has it and float32 elsewhere.
        device: such as `"cpu"` or `"cuda:0"`; None takes a GPU where there is one.
        device_map: as in `transformers`, to spread a model over devices.
        quantize: `"int8"` or `"int4"`: round the weights of the linear layers of every model and head that is
            loaded by name, and free the originals. The text is that of the rounded target, whatever drafts.
        revision: branch, tag or commit on the hub.
        trust_remote_code: allow model code from the hub.
        force_vocabulary: use a drafter whose tokens differ; the text stays right all the same.
        compile: compile regions of models loaded by name (see `backends/regional_compile.py`). The first
            passes then take long; on a CPU it has not paid (`docs/experiments.md`).
        cuda_graphs: on a CUDA device, replay captured passes of models loaded by name (`docs/gpu.md`).
        prefix_cache_mb: memory, in megabytes, in which the models keep rows of earlier texts, so that what
            a prompt has in common with them at its start is not read again; None keeps nothing.
        report: called with a sentence at each long step.

    Raises:
        ConfigError: a name, an option or a combination that cannot work.
        ModelError: a model that cannot be found, read or decoded speculatively.
    """
    recipe, drafter = choose_method(
        method, drafter, model, tree=tree, verifier=verifier, proposal=proposal
    )
    recipe = with_own_nets(recipe, model)
    source = drafter if recipe.drafter is None else own_source(recipe, model)
    given = None if source is None else kind_of(source, recipe.needs)
    chosen = {"tree": tree, "verifier": verifier, "proposal": proposal, "roots": roots}
    recipe.check(given, **chosen)
    models = load_models(
        model,
        drafter,
        needed=needed_of(recipe, drafter),
        methods=(recipe,),
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        device_map=device_map,
        quantize=quantize,
        revision=revision,
        trust_remote_code=trust_remote_code,
        force_vocabulary=force_vocabulary,
        compile=compile,
        cuda_graphs=cuda_graphs,
        report=report,
    )
    engine = models.engine(recipe, report=report, **chosen)
    if (
        prefix_cache_mb is not None
    ):  # after the passes that are measured, which nobody asks for again
        keep_prefixes(engine, prefix_cache_mb)
    return engine


@dataclass(frozen=True, slots=True)
class Models:
    """Loaded models, from which engines for any number of methods can be made; they share the weights."""

    target: Target
    tokenizer: Any | None
    draft_model: Target | None = None
    head: EagleHead | None = None
    own: Mapping[str, Target | EagleHead] = field(default_factory=dict)
    """Drafters that methods name for themselves, by those names."""
    model: Any = None
    """What the target was loaded from."""

    def engine(
        self,
        method: Method,
        *,
        report: Callable[[str], None] = lambda message: None,
        **chosen: str | None,
    ) -> Engine:
        """An engine for a method; choices and errors as in `Method.check`.

        An adaptive one measures what passes cost on this machine, where that is not known yet; `report` is
        called before that.
        """
        drafter = self._drafter_of(method)
        method = with_own_nets(method, self.model, drafter)
        parts = method.build(drafter, **chosen)
        warn_of_others(parts.policy, self.target, drafter)
        check_lengths(parts.policy, self.target, drafter)
        engine = Engine(self.target, parts.drafter, parts.policy, parts.verifier, self.tokenizer)
        return with_prices(engine, report=report)

    def _drafter_of(self, method: Method) -> Target | EagleHead | None:
        if method.drafter is None:
            loaded = {None: None, "draft model": self.draft_model, "head": self.head}
            if method.optional and loaded[method.needs] is None:
                return self.draft_model or self.head
            return loaded[method.needs]
        if method.drafter not in self.own:
            raise ConfigError(
                f"drafter={method.drafter} of method {method.name!r} was not loaded; give the method to "
                "load_models(methods=...)"
            )
        return self.own[method.drafter]


def load_models(
    model: str | Path | Any,
    drafter: str | Path | Any | None = None,
    *,
    needed: Collection[Kind] = (),
    methods: Collection[Method] = (),
    tokenizer: Any | None = None,
    quantize: str | None = None,
    revision: str | None = None,
    force_vocabulary: bool = False,
    report: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> Models:
    """A target, and what its methods draft with.

    Args:
        model, drafter: as in `load`; a drafter is a draft model or a head.
        needed: what the methods draft with; what the drafter is not is taken from what ships.
        methods: those that may name drafters of their own. Whoever names a folder, it is read once.

    Other arguments and errors as in `load`.
    """
    check_model(model)
    _check_quantize(quantize, model)
    sources = Sources.find(model, drafter, needed, methods)
    drafts = sources.of_kind("draft model").values()
    _refuse_unused(options, revision, model, drafts, force_vocabulary)
    report(f"loading {_name(model)}")
    options["quantize"] = quantize
    target, tokenizer = _load_model(model, tokenizer, report, revision=revision, **options)
    options["force_vocabulary"] = force_vocabulary
    return with_drafters(Models(target, tokenizer, model=model), sources, {}, report, **options)


def with_drafters(
    models: Models,
    sources: Sources,
    known: dict[Hashable, Target | EagleHead],
    report: Callable[[str], None],
    **options: Any,
) -> Models:
    """A target with what its methods draft with.

    Args:
        known: drafters that were read before, by their places (`place_of`); others are added.
        report, **options: as in `load`, but those of the target.
    """
    target, tokenizer = models.target, models.tokenizer
    for place, source in sources.of_kind("head").items():
        if place not in known:
            report(f"loading head {_name(source)}")
            known[place] = read_head(source, target, options.get("quantize"))
    for place, source in sources.of_kind("draft model").items():
        if place not in known:
            report(f"loading draft model {_name(source)}")
            known[place] = _load_draft(source, target, tokenizer, report=report, **options)
    read: dict[Hashable, Any] = known
    return replace(
        models,
        draft_model=read.get(place_of(sources.given.get("draft model"))),
        head=read.get(place_of(sources.given.get("head"))),
        own={name: known[place_of(at)] for name, at in sources.own.items()},
    )


def with_own_nets(method: Method, model: Any, drafter: Target | EagleHead | None = None) -> Method:
    """A method whose decision model or length predictor, if it takes one that ships, is that of the model
    being loaded."""
    options = with_shipped_decision(method.options, model)
    return replace(method, options=with_shipped_length(method.recipe, options, model, drafter))


def _load_draft(
    source: Any,
    target: Target,
    tokenizer: Any | None,
    force_vocabulary: bool = False,
    **options: Any,
) -> Target:
    """A draft model that was cut from the target, or one of its own with the same tokens."""
    if is_student(source):
        return read_student(source, target, tokenizer, options.get("quantize"))
    draft, draft_tokenizer = _load_model(source, None, **options)
    if tokenizer is not None and draft_tokenizer is not None and not force_vocabulary:
        check_same_vocabulary(tokenizer, draft_tokenizer)
    return draft


def _load_model(
    source: Any,
    tokenizer: Any | None,
    report: Callable[[str], None],
    *,
    quantize: str | None = None,
    compile: bool = False,
    cuda_graphs: bool = False,
    **options: Any,
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
    if path is source and (meant := nearly(name, zoo.EMBEDDED)):
        raise ModelError(f"there is no model {name!r}; did you mean {meant!r}?")
    model, tokenizer = load_hf(path, **options)
    if quantize is None:
        join_linears(model)
    else:
        report(f"quantising {name} to {quantize}")
        quantize_linears(model, quantize)
    own_memory.settle(model)
    if compile:
        compile_regions(model)
    target = HFTarget(model, tokenizer)
    if cuda_graphs:
        target.capture_passes()
    return target, tokenizer


def _check_quantize(kind: str | None, model: Any) -> None:
    """Nothing is done to a model that the user holds."""
    check_quantization(kind)
    if kind is not None and not _is_name(model):
        raise ConfigError(
            f"quantize={kind!r} cannot be applied to an already loaded model; give its name or folder "
            "instead, or leave quantize out"
        )


def _refuse_unused(
    options: dict[str, Any],
    revision: str | None,
    model: Any,
    draft_sources: Collection[Any],
    force_vocabulary: bool,
) -> None:
    """An already loaded model has its dtype and device: nothing given for them may be ignored."""
    if force_vocabulary and not draft_sources:
        raise ConfigError("force_vocabulary=True is for a draft model; leave it out, or give one")
    # a student is as its target
    reads = any(_is_name(source) and not is_student(source) for source in draft_sources)
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
