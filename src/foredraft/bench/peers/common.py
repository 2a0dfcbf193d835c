"""What peers share: the loaded models, and the request as every one of them reads it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from foredraft.backends.hf import HFTarget
from foredraft.bench.contenders import Contender
from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError, ModelError
from foredraft.sampling.randomness import fresh_seed

SEEDS = 2**63
"""Seeds of torch's generators are below this."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What a run has loaded once, for every contender."""

    target: HFTarget
    tokenizer: Any
    draft_model: Any | None
    """A `transformers` model, for the peers that draft with one."""
    model_source: str
    """The target as the user named it."""
    report: Callable[[str], None] = lambda message: None
    """Called with a sentence at each long step."""


class Settings(Protocol):
    """A peer's options, checked. They are the keyword-only parameters of the class."""

    module: ClassVar[str]
    """What it imports."""
    package: ClassVar[str]
    """What pip installs for that."""
    tested: ClassVar[str]
    """The version of it that this adapter was tested with."""

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts with the shared draft model."""
        ...

    def build(self, name: str, shared: Shared) -> Contender:
        """The peer, under the name given on the command line; errors as in `PeerSpec.build`."""
        ...


def own_draft_model(name: str, shared: Shared) -> Any:
    """The shared draft model.

    Raises:
        ConfigError: there is none.
        ModelError: it is the target itself, whose passes could then not be told from drafting; or its
            head has fewer tokens than it reads, which only our own drafter knows.
    """
    if shared.draft_model is None:
        raise ConfigError(f"method {name!r} needs a draft model; name one with --drafter MODEL")
    if shared.draft_model is shared.target.model:
        raise ModelError(
            "the draft model is the target itself; load it a second time, or give another"
        )
    ends = shared.draft_model.get_input_embeddings(), shared.draft_model.get_output_embeddings()
    if ends[0].weight.shape[0] != ends[1].weight.shape[0]:
        raise ModelError("the draft model has a reduced vocabulary, which only foredraft reads")
    return shared.draft_model


def at_least(least: float, **options: float | None) -> None:
    """Raise ConfigError for an option below `least`; None is the peer's own default."""
    for name, value in options.items():
        if value is not None and not value >= least:
            raise ConfigError(f"{name}={value} is not allowed; give {least} or more")


def at_most(most: float, **options: float | None) -> None:
    """Raise ConfigError for an option above `most`; None is the peer's own default."""
    for name, value in options.items():
        if value is not None and not value <= most:
            raise ConfigError(f"{name}={value} is not allowed; give {most} or less")


def not_honoured(options: GenerationOptions, honoured: Collection[str]) -> str | None:
    """Names the options that ask for something outside `honoured`; None when there is none."""
    defaults = GenerationOptions()
    asked = [
        f"{f.name}={getattr(options, f.name)!r}"
        for f in dataclasses.fields(options)
        if f.name not in honoured and getattr(options, f.name) != getattr(defaults, f.name)
    ]
    return f"it does not honour {', '.join(asked)}" if asked else None


def seed_of(options: GenerationOptions, seeds: int = SEEDS) -> int:
    """A seed below `seeds`: the request's, or a fresh one."""
    return (fresh_seed() if options.seed is None else options.seed) % seeds


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what libraries remark on one another's arguments: nothing that a user could act on."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators inside, and restore them; None leaves them alone."""
    if seed is None:
        yield
        return
    devices = [] if device.type == "cpu" else [device]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(seed)
        yield
