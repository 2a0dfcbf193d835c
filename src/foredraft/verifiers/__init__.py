"""The acceptance algorithms, by name. Each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from foredraft.errors import ConfigError, suggestion
from foredraft.protocols import Verifier

VERIFIERS = MappingProxyType(
    {
        "exact": "foredraft.verifiers.exact:ExactVerifier",
        "rejection": "foredraft.verifiers.rejection:RejectionVerifier",
        "block": "foredraft.verifiers.block:BlockVerifier",
        "traversal": "foredraft.verifiers.traversal:TraversalVerifier",
    }
)
"""Name -> module:class."""


def verifier(name: str) -> Verifier:
    """The verifier of this name.

    Raises:
        ConfigError: there is none; the message lists the names.
    """
    if name not in VERIFIERS:
        raise ConfigError(f"unknown verifier {name!r}; {suggestion(name, VERIFIERS)}")
    module, _, cls = VERIFIERS[name].partition(":")
    made: Verifier = getattr(import_module(module), cls)()
    return made
