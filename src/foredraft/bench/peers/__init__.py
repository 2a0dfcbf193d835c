"""Peers: the tools that a user would otherwise pick, each behind an adapter.

A peer's options are the fields of its settings class, named in `PEERS` and imported when it is asked for;
the package behind a peer is imported when it is built.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from foredraft.backends.hf_probe import first_line
from foredraft.bench.contenders import Contender
from foredraft.bench.peers.common import Settings, Shared
from foredraft.errors import ConfigError, ModelError, suggestion
from foredraft.methods import read_options

__all__ = ["PEERS", "PeerSpec", "Shared", "parse_peer"]

PEERS: Mapping[str, str] = MappingProxyType(
    {
        "hf": "foredraft.bench.peers.hf:Plain",
        "hf-assisted": "foredraft.bench.peers.hf:Assisted",
        "hf-lookup": "foredraft.bench.peers.hf:Lookup",
        "llama.cpp": "foredraft.bench.peers.llamacpp:LlamaCpp",
        "economize": "foredraft.bench.peers.economize:Economize",
    }
)
"""Where the settings class of each peer is."""


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """A peer with its options read."""

    text: str
    """As named on the command line, options included."""
    settings: Settings

    @property
    def name(self) -> str:
        """Its name in `PEERS`."""
        return self.text.partition(":")[0]

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts with the shared draft model."""
        return self.settings.needs_draft_model

    def missing(
        self, find_spec: Callable[[str], Any | None] = importlib.util.find_spec
    ) -> str | None:
        """Why it cannot run on this installation, in one sentence; None when its package is there.

        Args:
            find_spec: says where a package would be imported from, without importing it.
        """
        if find_spec(self.settings.module) is not None:
            return None
        package = self.settings.package
        return f"its package {package} is not installed; `pip install {package}` adds it"

    def build(self, shared: Shared) -> Contender:
        """The peer, ready to answer.

        Raises:
            ModelError: it cannot run this model, is not installed, or is a version with another interface.
            ConfigError: it needs a draft model, and there is none.
        """
        reason = self.missing()
        if reason is not None:
            raise ModelError(f"{self.name} cannot run: {reason}")
        try:
            return self.settings.build(self.text, shared)
        except (ImportError, AttributeError, TypeError) as error:
            raise ModelError(self._another_interface(error)) from error

    def _another_interface(self, error: Exception) -> str:
        package, tested = self.settings.package, self.settings.tested
        return (
            f"{package} {importlib.metadata.version(package)} has another interface "
            f"({type(error).__name__}: {first_line(error)}); tested with {tested}"
        )


def parse_peer(text: str) -> PeerSpec:
    """Read `name[:option=value]...`.

    Raises:
        ConfigError: an unknown peer or option (the known ones are listed), one given twice, or a value
            that cannot be.
    """
    name = text.partition(":")[0]
    if name not in PEERS:
        raise ConfigError(f"unknown peer {name!r}; {suggestion(name, PEERS)}")
    module, _, kind = PEERS[name].partition(":")
    settings: type[Settings] = getattr(importlib.import_module(module), kind)
    return PeerSpec(text, settings(**read_options(text, settings)))
