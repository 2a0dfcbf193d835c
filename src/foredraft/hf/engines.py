"""Engines over models that `generate` hands over, each built once and gone with its model."""

from __future__ import annotations

import copy
import inspect
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from foredraft.backends.hf import HFTarget
from foredraft.backends.hf_facts import vocab_size
from foredraft.engine.engine import Engine
from foredraft.engine.load import load
from foredraft.errors import ConfigError, suggestion
from foredraft.protocols import Drafter, Policy, Verifier
from foredraft.verifiers import verifier as make_verifier

logger = logging.getLogger(__name__)

OWN = ("model", "method", "drafter", "verifier", "tokenizer", "report")
"""Arguments of `load` that are given in another way."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What makes models faster.

    Attributes:
        drafter, verifier: as in `foredraft.load`, or parts.
        policy: shapes the drafts in place of the method's own.
        tokenizer: the models'; drafters are held against it.
        options: more of `foredraft.load`, by name.
    """

    drafter: Any = None
    policy: Policy | None = None
    verifier: str | Verifier | None = None
    tokenizer: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [n for n in inspect.signature(load).parameters if n not in OWN]
        for name in self.options:
            if name not in known:
                raise ConfigError(f"unknown option {name!r}; {suggestion(name, known)}")

    def engine(self, target: HFTarget, method: str | None) -> Engine:
        """An engine without text: `generate` works on token ids."""
        if isinstance(self.drafter, Drafter):
            self._refuse_names(method)
            made = None if self.verifier is None else _verifier(self.verifier)
            return Engine(target, self.drafter, self.policy, made)
        base = load(
            target,
            method=method,
            drafter=self.drafter,
            verifier=self.verifier if isinstance(self.verifier, str) else None,
            tokenizer=self.tokenizer,
            report=logger.info,
            **self.options,
        )
        own = base.verifier if self.verifier is None else _verifier(self.verifier, base.verifier)
        return Engine(target, base.drafter, self.policy or base.policy, own)

    def _refuse_names(self, method: str | None) -> None:
        named = {"method": method, **self.options}
        for name, value in named.items():
            if value is not None:
                raise ConfigError(
                    f"{name}={value!r} does not go with a drafter that is a part; leave one out, or give "
                    "the drafter as foredraft.load takes it"
                )


def _verifier(given: str | Verifier, named: Verifier | None = None) -> Verifier:
    """The part that is meant; what a method made of a name goes first."""
    if isinstance(given, str):
        return named or make_verifier(given)
    return given


@dataclass(slots=True)
class _Loaded:
    """A model's target, and the engines over it by method."""

    target: HFTarget
    facts: tuple[Any, ...]
    engines: dict[str | None, Engine] = field(default_factory=dict)


class Engines:
    """The engines of one choice. May be asked from several threads.

    A model's engines go when it goes, unless the library has bound it to itself (as `device_map` over several
    devices does); they are built anew when its dtype, device, attention or vocabulary has changed.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._lock = threading.Lock()
        self._loaded: weakref.WeakKeyDictionary[Any, _Loaded] = weakref.WeakKeyDictionary()

    def of(self, model: Any, method: str | None) -> Engine:
        """The engine for a model and a method."""
        attention, size = model.config._attn_implementation, vocab_size(model, None)
        facts = (model.dtype, model.device, attention, size)
        with self._lock:
            loaded = self._loaded.get(model)
            if loaded is None or loaded.facts != facts:
                # the copy shares all modules; a target that held the model itself would keep it alive
                loaded = _Loaded(HFTarget(copy.copy(model)), facts)
                self._loaded[model] = loaded
            if method not in loaded.engines:
                loaded.engines[method] = self._choice.engine(loaded.target, method)
            return loaded.engines[method]


_modes = threading.Lock()
_decoded: weakref.WeakKeyDictionary[Any, _Training] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class _Training:
    """A model's modules that are to return to training mode, and how many calls still decode with it."""

    modules: list[Any]
    calls: int = 0


@contextmanager
def in_eval_mode(model: Any) -> Iterator[None]:
    """Modules that are in training mode leave it, until the last call that is inside has ended."""
    with _modes:
        modes = _decoded.setdefault(model, _Training([]))
        training = [module for module in model.modules() if module.training]
        modes.modules += training
        modes.calls += 1
        for module in training:
            module.training = False
    try:
        yield
    finally:
        with _modes:
            modes.calls -= 1
            if not modes.calls:
                del _decoded[model]
                for module in modes.modules:
                    module.training = True
